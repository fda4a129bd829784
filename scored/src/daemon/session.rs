//! A scrun that has called: one job at most. In multi-user mode it logs in first, and may be on
//! another host: then what it says and hears goes over a link between daemons.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::message::{Console, Down, HostSpec, JobSpec, Login, Shape, Up};
use score_proto::order::Owner;

use crate::cluster::SessionId;
use crate::link::Link;

/// Bytes that may wait for a scrun that does not read. The windows keep the streams far below.
const BACKLOG: usize = 4 << 20;

/// scrun's exit code for a session that cannot go on.
const FAILED: u8 = 1;

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
    /// Something for its job.
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
    Far { inbox: VecDeque<Down>, outbox: Vec<Up>, gone: bool },
}

/// One scrun.
#[derive(Debug)]
pub struct Session {
    wire: Wire,
    greeted: bool,
    leaving: bool,
    /// Its job.
    pub job: Option<u32>,
    /// What it is told behind the greeting: the hosts of a scout session.
    pub hosts: Option<Vec<HostSpec>>,
    /// What it wants to run, until the cluster has found room.
    pub wanted: Option<Box<JobSpec>>,
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
            job: None,
            hosts: None,
            wanted: None,
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
            Wire::Near(link) => link.may_have_more(),
            Wire::Far { inbox, .. } => !inbox.is_empty(),
        };
        !self.leaving && more
    }

    /// It has said this on another host.
    pub fn deliver(&mut self, down: Down) {
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
    pub fn take_outbox(&mut self) -> Vec<Up> {
        match &mut self.wire {
            Wire::Near(_) => Vec::new(),
            Wire::Far { outbox, .. } => std::mem::take(outbox),
        }
    }

    fn receive(&mut self) -> Option<Result<Down, score_proto::frame::FrameError>> {
        match &mut self.wire {
            Wire::Near(link) if link.backlog() < BACKLOG => link.receive::<Down>().transpose(),
            Wire::Near(_) => None,
            Wire::Far { inbox, .. } => inbox.pop_front().map(Ok),
        }
    }

    /// The next thing that it has said.
    pub fn hear(&mut self) -> Option<Said> {
        while !self.leaving {
            match self.receive()? {
                Ok(Down::Hello { version }) => {
                    self.tell(&Up::Hello { version: PROTOCOL_VERSION });
                    self.greeted = version == PROTOCOL_VERSION;
                    if let Some(hosts) = self.hosts.take() {
                        self.tell(&Up::Hosts(hosts));
                    }
                    if !self.greeted {
                        self.refuse(format!(
                            "scrun speaks version {version} of the protocol and scored version \
                             {PROTOCOL_VERSION}: they come from different installations"
                        ));
                    }
                }
                Ok(_) if !self.greeted => self.refuse("scrun did not say hello".to_owned()),
                Ok(message) if self.forwarded => return Some(Said::Forward(message)),
                Ok(Down::Submit(spec)) => return Some(Said::Submit(spec)),
                Ok(Down::Open(hosts)) => return Some(Said::Open(hosts)),
                Ok(Down::Login(login)) => return Some(Said::Login(login)),
                Ok(Down::Request { shape, spec }) => {
                    return Some(Said::Request(shape, Box::new(spec)));
                }
                Ok(Down::Console(console)) => return Some(Said::Console(console)),
                Ok(message) => return Some(Said::ToJob(message)),
                Err(error) => {
                    self.refuse(format!("from scrun: {error}"));
                    return Some(Said::Nonsense);
                }
            }
        }
        None
    }

    fn refuse(&mut self, reason: String) {
        self.tell(&Up::Refused { reason, code: FAILED });
    }

    /// Tells it something; a refusal and the end of its job are the last.
    pub fn tell(&mut self, up: &Up) {
        if !self.leaving {
            match &mut self.wire {
                Wire::Near(link) => link.queue(up),
                Wire::Far { outbox, .. } => outbox.push(up.clone()),
            }
            self.leaving = matches!(up, Up::Refused { .. } | Up::Finished(_));
        }
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) {
        if let Wire::Near(link) = &mut self.wire {
            link.flush();
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
                let floods = link.backlog() > 4 * BACKLOG;
                link.is_closed() || floods || (self.leaving && link.backlog() == 0)
            }
            Wire::Far { outbox, gone, .. } => *gone || (self.leaving && outbox.is_empty()),
        }
    }
}
