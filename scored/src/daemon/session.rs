//! A scrun that has called, and its jobs. In multi-user mode it logs in first, and may be on
//! another host: then what it says and hears goes over a link between daemons.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::frame::FrameError;
use score_proto::login::{JOBS, LOGIN, OfJob};
use score_proto::message::{Console, Down, HostSpec, JobSpec, Level, Login, OUTPUT_WINDOW, Up};
use score_proto::order::Owner;
use score_proto::shape::Shape;

use crate::cluster::SessionId;
use crate::link::Link;

/// Bytes that may wait for a scrun that does not read, beside the windows of its jobs.
const BACKLOG: usize = 4 << 20;

/// Bytes that wait for a scrun that reads too slowly for figures.
const SLOW: usize = 256 << 10;

/// scrun's exit code for a session that cannot go on.
const FAILED: u8 = 1;

/// A job as its scrun names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// The session.
    pub session: usize,
    /// The number that scrun has given the job; [`LOGIN`] for the session itself.
    pub job: u32,
}

impl Lane {
    /// The session itself.
    pub fn of(session: usize) -> Self {
        Self { session, job: LOGIN }
    }
}

/// What a scrun has said.
#[derive(Debug)]
pub enum Said {
    /// It wants a job.
    Submit(JobSpec),
    /// It wants these hosts.
    Open(Vec<HostSpec>),
    /// It says who it is.
    Login(Login),
    /// It wants a job, on hosts that we choose.
    Request(Shape, Box<JobSpec>),
    /// It asks about jobs.
    Console(Console),
    /// Something for a job that it has.
    ToJob(Down),
    /// Something for the server, on another host.
    Forward(Down),
    /// It does not speak our protocol; it has been told.
    Nonsense,
}

#[derive(Debug)]
enum Wire {
    /// scrun is at the other end of a socket.
    Near(Link),
    /// scrun is on another host.
    Far { inbox: VecDeque<OfJob<Down>>, outbox: Vec<OfJob<Up>>, gone: bool },
}

/// A job of a session.
#[derive(Debug, Default)]
struct Place {
    /// The number of the job, once it has begun.
    number: Option<u32>,
    /// What it is to run, until the cluster has found room.
    wanted: Option<Box<JobSpec>>,
}

/// One scrun.
#[derive(Debug)]
pub struct Session {
    wire: Wire,
    greeted: bool,
    leaving: bool,
    jobs: BTreeMap<u32, Place>,
    /// What it is told behind the greeting: the hosts of a scout session.
    pub hosts: Option<Vec<HostSpec>>,
    /// Who is at the other end of the socket, where that matters.
    pub peer: Option<(u32, u32)>,
    /// Who has logged in.
    pub owner: Option<Owner>,
    /// The login, as the cluster knows it.
    pub id: Option<SessionId>,
    /// Since when it is here.
    pub since: Instant,
    /// What it says goes to the server on another host.
    pub forwarded: bool,
}

impl Session {
    /// Takes over its socket.
    ///
    /// # Errors
    /// As fcntl(2), epoll_ctl(2).
    pub fn new(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut link = Link::new(socket)?;
        link.register(registry, token)?;
        Ok(Self::on(Wire::Near(link)))
    }

    /// That of a scrun on another host, where it has been greeted.
    pub fn far() -> Self {
        let wire = Wire::Far { inbox: VecDeque::new(), outbox: Vec::new(), gone: false };
        Self { greeted: true, ..Self::on(wire) }
    }

    fn on(wire: Wire) -> Self {
        Self {
            wire,
            greeted: false,
            leaving: false,
            jobs: BTreeMap::new(),
            hosts: None,
            peer: None,
            owner: None,
            id: None,
            since: Instant::now(),
            forwarded: false,
        }
    }

    /// mio has reported that there is something to read.
    pub fn mark_readable(&mut self) {
        if let Wire::Near(link) = &mut self.wire {
            link.mark_readable();
        }
    }

    /// Whether [`Session::hear`] may find something without a further report.
    pub fn may_have_more(&self) -> bool {
        let more = match &self.wire {
            Wire::Near(link) => link.may_have_more() && link.backlog() < self.room(),
            Wire::Far { inbox, .. } => !inbox.is_empty(),
        };
        !self.leaving && more
    }

    /// It has said this on another host.
    pub fn deliver(&mut self, down: OfJob<Down>) {
        if let Wire::Far { inbox, .. } = &mut self.wire {
            inbox.push_back(down);
        }
    }

    /// It is gone, on another host.
    pub fn hang_up(&mut self) {
        if let Wire::Far { gone, .. } = &mut self.wire {
            *gone = true;
        }
    }

    /// What is to be sent to the host of a far scrun.
    pub fn take_outbox(&mut self) -> Vec<OfJob<Up>> {
        match &mut self.wire {
            Wire::Near(_) => Vec::new(),
            Wire::Far { outbox, .. } => std::mem::take(outbox),
        }
    }

    /// Bytes that may wait for it before it is heard again.
    fn room(&self) -> usize {
        BACKLOG + self.jobs.len() * OUTPUT_WINDOW as usize
    }

    fn receive(&mut self) -> Option<Result<OfJob<Down>, FrameError>> {
        let room = self.room();
        match &mut self.wire {
            Wire::Near(link) if link.backlog() >= room => None,
            Wire::Near(link) if self.greeted => link.receive().transpose(),
            Wire::Near(link) => {
                let plain = |message| OfJob { job: LOGIN, message };
                link.receive::<Down>().map(|heard| heard.map(plain)).transpose()
            }
            Wire::Far { inbox, .. } => inbox.pop_front().map(Ok),
        }
    }

    /// The next thing that it has said, and of which job.
    pub fn hear(&mut self) -> Option<(u32, Said)> {
        while !self.leaving {
            let OfJob { job, message } = match self.receive()? {
                Ok(heard) => heard,
                Err(error) => {
                    self.refuse(format!("from scrun: {error}"));
                    return Some((LOGIN, Said::Nonsense));
                }
            };
            if let Some(said) = self.understand(job, message) {
                return Some((job, said));
            }
        }
        None
    }

    /// Answers what needs nobody else.
    fn understand(&mut self, job: u32, message: Down) -> Option<Said> {
        Some(match message {
            Down::Hello { version } => {
                self.greet(version);
                return None;
            }
            _ if !self.greeted => {
                self.refuse("scrun did not say hello".to_owned());
                return None;
            }
            message if self.forwarded => Said::Forward(message),
            Down::Open(hosts) => Said::Open(hosts),
            Down::Login(login) => Said::Login(login),
            Down::Console(console) => Said::Console(console),
            Down::Submit(_) | Down::Request { .. } if !self.has_room(job) => return None,
            Down::Submit(spec) => Said::Submit(spec),
            Down::Request { shape, spec } => Said::Request(shape, Box::new(spec)),
            message if self.jobs.contains_key(&job) => Said::ToJob(message),
            // They may have been on their way when the job ended.
            Down::OutputTaken(_) | Down::Flushed(_) => return None,
            _ => {
                self.tell(job, &Up::NoJob);
                return None;
            }
        })
    }

    fn greet(&mut self, version: u32) {
        if self.greeted {
            return self.refuse("scrun said hello twice".to_owned());
        }
        self.tell(LOGIN, &Up::Hello { version: PROTOCOL_VERSION });
        if version != PROTOCOL_VERSION {
            return self.refuse(format!(
                "scrun speaks version {version} of the protocol and scored version \
                 {PROTOCOL_VERSION}: they come from different installations"
            ));
        }
        self.greeted = true;
        if let Some(hosts) = self.hosts.take() {
            self.tell(LOGIN, &Up::Hosts(hosts));
        }
    }

    /// Whether it may have a job of this number; else it is told why not.
    fn has_room(&mut self, job: u32) -> bool {
        if job == LOGIN {
            self.refuse(format!("{LOGIN} is the number of no job"));
        } else if self.jobs.contains_key(&job) {
            let text = format!("this login has a job of number {job} already");
            self.tell(job, &Up::Notice { level: Level::Error, text });
        } else if self.jobs.len() >= JOBS {
            let reason = format!("this login has {JOBS} jobs already: one has to end first");
            self.tell(job, &Up::Refused { reason, code: FAILED });
        } else {
            return true;
        }
        false
    }

    /// A job takes its place.
    pub fn take_in(&mut self, job: u32, wanted: Option<Box<JobSpec>>) {
        self.jobs.insert(job, Place { number: None, wanted });
    }

    /// Gives a job its number, if it is there still.
    pub fn number(&mut self, job: u32, number: u32) -> bool {
        let place = self.jobs.get_mut(&job);
        place.map(|place| place.number = Some(number)).is_some()
    }

    /// The number of a job that has begun.
    pub fn number_of(&self, job: u32) -> Option<u32> {
        self.jobs.get(&job)?.number
    }

    /// The numbers of all jobs that have begun.
    pub fn numbers(&self) -> Vec<u32> {
        self.jobs.values().filter_map(|place| place.number).collect()
    }

    /// Whether a job waits for room.
    pub fn waits(&self, job: u32) -> bool {
        self.jobs.get(&job).is_some_and(|place| place.wanted.is_some())
    }

    /// What a job that waits is to run.
    pub fn take_wanted(&mut self, job: u32) -> Option<Box<JobSpec>> {
        self.jobs.get_mut(&job)?.wanted.take()
    }

    fn refuse(&mut self, reason: String) {
        self.tell(LOGIN, &Up::Refused { reason, code: FAILED });
    }

    /// Tells it something of a job; a refusal and the end are the last. Those of the session
    /// itself are the last of all.
    pub fn tell(&mut self, job: u32, up: &Up) {
        // Who reads slowly gets newer figures, not more.
        let is_late = matches!(up, Up::Figures(_)) && self.is_slow();
        if self.leaving || is_late {
            return;
        }
        match &mut self.wire {
            Wire::Near(link) if self.greeted => link.queue(&OfJob { job, message: up }),
            Wire::Near(link) => link.queue(up),
            Wire::Far { outbox, .. } => outbox.push(OfJob { job, message: up.clone() }),
        }
        if matches!(up, Up::Refused { .. } | Up::Finished(_)) {
            self.jobs.remove(&job);
            self.leaving = job == LOGIN;
        }
    }

    fn is_slow(&self) -> bool {
        match &self.wire {
            Wire::Near(link) => link.backlog() > SLOW,
            // What is far is slow where the link to its daemon is (`send_outboxes`).
            Wire::Far { .. } => false,
        }
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) {
        if let Wire::Near(link) = &mut self.wire {
            link.flush();
        }
    }

    /// Has `registry` report when it takes what waits for it.
    pub fn watch(&mut self, registry: &Registry) {
        if let Wire::Near(link) = &mut self.wire {
            link.watch(registry);
        }
    }

    /// Whether it has heard its last word.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Whether there is nobody left to speak to, or nothing to say.
    pub fn is_over(&self) -> bool {
        match &self.wire {
            Wire::Near(link) => {
                let floods = link.backlog() > 2 * self.room() + 2 * BACKLOG;
                link.is_closed() || floods || (self.leaving && link.backlog() == 0)
            }
            Wire::Far { outbox, gone, .. } => *gone || (self.leaving && outbox.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::Poll;
    use score_proto::sight::{Figures, NodeFigures};
    use std::os::unix::net::UnixStream;

    #[test]
    fn who_reads_slowly_is_given_no_more_figures_and_everything_else() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let poll = Poll::new().unwrap();
        let mut session = Session::new(ours.into(), poll.registry(), Token(9)).unwrap();
        let figures = Figures { hosts: Vec::new(), nodes: vec![NodeFigures::default(); 100] };
        let backlog = |session: &Session| match &session.wire {
            Wire::Near(link) => link.backlog(),
            Wire::Far { .. } => 0,
        };
        for _ in 0..10_000 {
            session.tell(1, &Up::Figures(figures.clone()));
            session.flush();
        }
        assert!(backlog(&session) < SLOW + 4096, "{}", backlog(&session));
        let before = backlog(&session);
        session.tell(1, &Up::StdinClosed);
        assert!(backlog(&session) > before);
        drop(theirs);
    }
}
