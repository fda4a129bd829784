//! From what a session says to a job that begins, or to the reason why there is none: scruns that
//! want jobs, and daemons that come up on the hosts of one.

use std::net::SocketAddr;
use std::time::Instant;

use score_proto::login::OfJob;
use score_proto::message::{Down, HostKind, JobSpec, Level, Up};
use score_proto::peer::Join;

use super::muster::{Muster, News};
use super::session::{Lane, Said};
use super::{Daemon, FAILED, LISTENER, REFUSED, WORDS};
use crate::job::life::Event;
use crate::job::{check, code};

impl Daemon {
    /// Hears all sessions.
    pub(super) fn hear_sessions(&mut self) {
        let mut numbers: Vec<usize> = self.sessions.keys().copied().collect();
        // Who called first is heard first.
        numbers.sort_unstable();
        for number in numbers {
            while let Some(session) = self.sessions.get_mut(&number)
                && let Some((job, said)) = session.hear()
            {
                let (of_job, strange) = (session.number_of(job), session.peer.is_some());
                let lane = Lane { session: number, job };
                match said {
                    Said::Submit(_) if strange => {
                        self.refuse(Lane::of(number), "log in first".to_owned(), REFUSED);
                    }
                    Said::Submit(spec) => {
                        session.take_in(job, None);
                        self.submit(lane, spec);
                    }
                    Said::Open(hosts) => self.open(number, hosts),
                    Said::ToJob(Down::Content { hash, offset, bytes }) => {
                        self.content_came(of_job.unwrap_or(0), &hash, offset, &bytes);
                    }
                    Said::Login(login) => self.log_in(number, login),
                    Said::Request(shape, spec) => self.request(lane, shape, *spec),
                    Said::Console(console) => self.console(number, console),
                    Said::Forward(message) => self.forward(number, &OfJob { job, message }),
                    Said::ToJob(message) if of_job.is_none() => self.give_up(lane, &message),
                    Said::ToJob(message) => self.lead(of_job, Event::Down(message)),
                    Said::Nonsense => {
                        let jobs = session.numbers();
                        jobs.into_iter().for_each(|job| self.drop_job(job));
                    }
                }
            }
        }
    }

    /// A scrun wants a job.
    pub(super) fn submit(&mut self, lane: Lane, spec: JobSpec) {
        if let Err(reason) = check::check(&spec) {
            return self.refuse(lane, reason, REFUSED);
        }
        if self.scout.is_some() {
            return self.submit_inside(lane, spec);
        }
        if spec.hosts.iter().all(|host| host.kind == HostKind::This) && spec.hosts.len() == 1 {
            return self.begin(lane, spec, None);
        }
        match self.muster.as_ref().map(|muster| muster.among(&spec.hosts)) {
            Some(Ok(daemons)) => self.begin(lane, spec, Some(daemons)),
            Some(Err(reason)) => self.refuse(lane, reason, REFUSED),
            None => self.bring_up(lane, spec),
        }
    }

    /// Starts daemons on the hosts of a job, or of a scout session.
    pub(super) fn bring_up(&mut self, lane: Lane, spec: JobSpec) {
        let registry = self.poll.registry();
        let tokens = [LISTENER, WORDS];
        let made = Muster::new(lane, spec, &self.setting, registry, tokens);
        match made {
            Err(reason) => self.refuse(lane, reason, FAILED),
            Ok((muster, peers, notice)) => {
                self.muster = Some(muster);
                self.peers = Some(peers);
                notice.into_iter().for_each(|text| self.notice(lane, Level::Info, text));
            }
        }
    }

    pub(super) fn refuse(&mut self, lane: Lane, reason: String, code: u8) {
        if let Some(session) = self.sessions.get_mut(&lane.session) {
            session.tell(lane.job, &Up::Refused { reason, code });
        }
    }

    /// The user does not want to wait for the hosts any longer.
    pub(super) fn give_up(&mut self, lane: Lane, message: &Down) {
        let signal = match message {
            Down::Kill => libc::SIGKILL,
            Down::Signal(signal @ (libc::SIGINT | libc::SIGHUP | libc::SIGABRT)) => *signal,
            _ => return,
        };
        let session = self.sessions.get_mut(&lane.session);
        let (waits, id) = session.map_or((false, None), |one| (one.waits(lane.job), one.id));
        let reason = match waits {
            true => "given up while the job waited for room",
            false => "given up before all hosts were up",
        };
        self.refuse(lane, reason.to_owned(), code::of_signal(signal));
        if let Some(session) = id {
            self.cancel(session, lane.job);
        }
    }

    /// Hosts on their way up.
    pub(super) fn advance(&mut self) {
        let Some(muster) = &mut self.muster else { return };
        let news = muster.advance(Instant::now());
        self.family.borrow_mut().extend(muster.processes());
        // While daemons come up there is time for that.
        let ahead = muster.spec.as_ref().filter(|_| !muster.has_looked_ahead).cloned();
        muster.has_looked_ahead = true;
        self.take_news(news);
        ahead.iter().for_each(|spec| self.take_own(spec));
    }

    pub(super) fn take_news(&mut self, news: News) {
        let Some(muster) = &self.muster else { return };
        let (lane, begun) = (muster.lane, muster.spec.is_none());
        for line in news.lines {
            self.notice(lane, Level::Warning, line);
        }
        if !begun && !news.failures.is_empty() {
            self.refuse(lane, news.failures.join("\n"), FAILED);
        }
    }

    /// A daemon has come up.
    pub(super) fn joined(&mut self, link: usize, join: &Join) {
        let from = self.peers.as_ref().and_then(|peers| peers.address(link));
        let Some(muster) = &mut self.muster else { return };
        // What others dial is where we see it, at the port that it says.
        let address = from.map_or(join.address, |ip| SocketAddr::new(ip, join.address.port()));
        muster.joined(&join.name, (address, join.incarnation));
        let Some(daemons) = muster.daemons() else { return };
        let lane = muster.lane;
        match muster.spec.take() {
            Some(_) if self.scout.is_some() => self.opened(Some(daemons)),
            Some(spec) => self.begin(lane, spec, Some(daemons)),
            None => {}
        }
    }
}
