//! A scrun that has called: one job at most.

use std::io;
use std::os::fd::OwnedFd;

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::message::{Down, HostSpec, JobSpec, Up};

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
    /// Something for its job.
    ToJob(Down),
    /// It does not speak our protocol; it has been told.
    Nonsense,
}

/// One scrun.
#[derive(Debug)]
pub struct Session {
    link: Link,
    greeted: bool,
    leaving: bool,
    /// Its job.
    pub job: Option<u32>,
    /// What it is told behind the greeting: the hosts of a scout session.
    pub hosts: Option<Vec<HostSpec>>,
}

impl Session {
    /// Takes over its socket.
    ///
    /// # Errors
    /// As fcntl(2), epoll_ctl(2).
    pub fn new(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut link = Link::new(socket)?;
        link.register(registry, token)?;
        Ok(Self { link, greeted: false, leaving: false, job: None, hosts: None })
    }

    /// mio has reported that there is something to read.
    pub fn mark_readable(&mut self) {
        self.link.mark_readable();
    }

    /// Whether [`Session::hear`] may find something without a further report.
    pub fn may_have_more(&self) -> bool {
        !self.leaving && self.link.may_have_more()
    }

    /// The next thing that it has said.
    pub fn hear(&mut self) -> Option<Said> {
        while !self.leaving && self.link.backlog() < BACKLOG {
            match self.link.receive::<Down>() {
                Ok(Some(Down::Hello { version })) => {
                    self.link.queue(&Up::Hello { version: PROTOCOL_VERSION });
                    self.greeted = version == PROTOCOL_VERSION;
                    if let Some(hosts) = self.hosts.take() {
                        self.link.queue(&Up::Hosts(hosts));
                    }
                    if !self.greeted {
                        self.refuse(format!(
                            "scrun speaks version {version} of the protocol and scored version \
                             {PROTOCOL_VERSION}: they come from different installations"
                        ));
                    }
                }
                Ok(Some(_)) if !self.greeted => self.refuse("scrun did not say hello".to_owned()),
                Ok(Some(Down::Submit(spec))) => return Some(Said::Submit(spec)),
                Ok(Some(Down::Open(hosts))) => return Some(Said::Open(hosts)),
                Ok(Some(message)) => return Some(Said::ToJob(message)),
                Ok(None) => return None,
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
            self.link.queue(up);
            self.leaving = matches!(up, Up::Refused { .. } | Up::Finished(_));
        }
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) {
        self.link.flush();
    }

    /// Whether there is nobody left to speak to, or nothing to say.
    pub fn is_over(&self) -> bool {
        let floods = self.link.backlog() > 4 * BACKLOG;
        self.link.is_closed() || floods || (self.leaving && self.link.backlog() == 0)
    }
}
