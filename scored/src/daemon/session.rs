//! A scrun that has called, and its jobs. In multi-user mode it logs in first, and may be on
//! another host: then what it says and hears goes over a link between daemons.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::allocation_request::AllocationRequest;
use score_proto::client_session::{JobMessage, MAX_JOBS, SESSION_JOB};
use score_proto::frame::FrameError;
use score_proto::job_control::Owner;
use score_proto::message::{
    ClientMessage, ConsoleRequest, HostSpec, JobSpec, Level, Login, OUTPUT_WINDOW, ServerMessage,
};

use crate::cluster::SessionId;
use crate::framed_socket::FramedSocket;

/// Bytes that may wait for a scrun that does not read, beside the windows of its jobs.
const MAX_SEND_QUEUE_BYTES: usize = 4 << 20;

/// Bytes that wait for a scrun that reads too slowly for figures.
const SLOW_READER_BYTES: usize = 256 << 10;

/// scrun's exit code for a session that cannot go on.
const EXIT_FAILED: u8 = 1;

/// A job as its scrun names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientJob {
    /// The session.
    pub session_key: usize,
    /// The number that scrun has given the job; [`SESSION_JOB`] for the session itself.
    pub job: u32,
}

impl ClientJob {
    /// The session itself.
    pub fn session_itself(session_key: usize) -> Self {
        Self { session_key, job: SESSION_JOB }
    }
}

/// What a scrun has said.
#[derive(Debug)]
pub enum ClientRequest {
    /// It wants a job.
    Submit(JobSpec),
    /// It wants these hosts.
    Open(Vec<HostSpec>),
    /// It says who it is.
    Login(Login),
    /// It wants a job, on hosts that we choose.
    Request(AllocationRequest, Box<JobSpec>),
    /// It asks about jobs.
    Console(ConsoleRequest),
    /// Something for a job that it has.
    ToJob(ClientMessage),
    /// Something for the server, on another host.
    Forward(ClientMessage),
    /// It does not speak our protocol; it has been told.
    ProtocolError,
}

#[derive(Debug)]
enum Transport {
    /// scrun is at the other end of a socket.
    Local(FramedSocket),
    /// scrun is on another host.
    Remote {
        inbox: VecDeque<JobMessage<ClientMessage>>,
        outbox: Vec<JobMessage<ServerMessage>>,
        is_closed: bool,
    },
}

/// A job of a session.
#[derive(Debug, Default)]
struct SessionJob {
    /// The number of the job, once it has begun.
    job_id: Option<u32>,
    /// What it is to run, until the cluster has found room.
    pending_spec: Option<Box<JobSpec>>,
}

/// One scrun.
#[derive(Debug)]
pub struct ClientSession {
    transport: Transport,
    has_greeted: bool,
    is_closing: bool,
    jobs: BTreeMap<u32, SessionJob>,
    /// What it is told behind the greeting: the hosts of a scout session.
    pub hosts: Option<Vec<HostSpec>>,
    /// Who is at the other end of the socket, where that matters.
    pub peer_credentials: Option<(u32, u32)>,
    /// Who has logged in.
    pub owner: Option<Owner>,
    /// The login, as the cluster knows it.
    pub id: Option<SessionId>,
    /// Since when it is here.
    pub connected_at: Instant,
    /// What it says goes to the server on another host.
    pub is_forwarded: bool,
}

impl ClientSession {
    /// Takes over its socket.
    ///
    /// # Errors
    /// As fcntl(2), epoll_ctl(2).
    pub fn new(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut link = FramedSocket::new(socket)?;
        link.register(registry, token)?;
        Ok(Self::with_transport(Transport::Local(link)))
    }

    /// That of a scrun on another host, where it has been greeted.
    pub fn remote() -> Self {
        let transport =
            Transport::Remote { inbox: VecDeque::new(), outbox: Vec::new(), is_closed: false };
        Self { has_greeted: true, ..Self::with_transport(transport) }
    }

    fn with_transport(transport: Transport) -> Self {
        Self {
            transport,
            has_greeted: false,
            is_closing: false,
            jobs: BTreeMap::new(),
            hosts: None,
            peer_credentials: None,
            owner: None,
            id: None,
            connected_at: Instant::now(),
            is_forwarded: false,
        }
    }

    /// mio has reported that there is something to read.
    pub fn mark_readable(&mut self) {
        if let Transport::Local(link) = &mut self.transport {
            link.mark_readable();
        }
    }

    /// Whether [`ClientSession::next_request`] may find something without a further report.
    pub fn may_have_more(&self) -> bool {
        let more = match &self.transport {
            Transport::Local(link) => link.may_have_more() && link.backlog() < self.max_backlog(),
            Transport::Remote { inbox, .. } => !inbox.is_empty(),
        };
        !self.is_closing && more
    }

    /// It has said this on another host.
    pub fn deliver(&mut self, message: JobMessage<ClientMessage>) {
        if let Transport::Remote { inbox, .. } = &mut self.transport {
            inbox.push_back(message);
        }
    }

    /// It is gone, on another host.
    pub fn mark_closed(&mut self) {
        if let Transport::Remote { is_closed, .. } = &mut self.transport {
            *is_closed = true;
        }
    }

    /// What is to be sent to the host of a far scrun.
    pub fn take_outbox(&mut self) -> Vec<JobMessage<ServerMessage>> {
        match &mut self.transport {
            Transport::Local(_) => Vec::new(),
            Transport::Remote { outbox, .. } => std::mem::take(outbox),
        }
    }

    /// Bytes that may wait for it before it is heard again.
    fn max_backlog(&self) -> usize {
        MAX_SEND_QUEUE_BYTES + self.jobs.len() * OUTPUT_WINDOW as usize
    }

    fn receive(&mut self) -> Option<Result<JobMessage<ClientMessage>, FrameError>> {
        let max_backlog = self.max_backlog();
        match &mut self.transport {
            Transport::Local(link) if link.backlog() >= max_backlog => None,
            Transport::Local(link) if self.has_greeted => link.receive().transpose(),
            Transport::Local(link) => {
                let without_job = |message| JobMessage { job: SESSION_JOB, message };
                link.receive::<ClientMessage>()
                    .map(|received| received.map(without_job))
                    .transpose()
            }
            Transport::Remote { inbox, .. } => inbox.pop_front().map(Ok),
        }
    }

    /// The next thing that it has said, and of which job.
    pub fn next_request(&mut self) -> Option<(u32, ClientRequest)> {
        while !self.is_closing {
            let JobMessage { job, message } = match self.receive()? {
                Ok(received) => received,
                Err(error) => {
                    self.refuse(format!("from scrun: {error}"));
                    return Some((SESSION_JOB, ClientRequest::ProtocolError));
                }
            };
            if let Some(request) = self.to_client_request(job, message) {
                return Some((job, request));
            }
        }
        None
    }

    /// Answers what needs nobody else.
    fn to_client_request(&mut self, job: u32, message: ClientMessage) -> Option<ClientRequest> {
        Some(match message {
            ClientMessage::Hello { version } => {
                self.on_hello(version);
                return None;
            }
            _ if !self.has_greeted => {
                self.refuse("scrun did not say hello".to_owned());
                return None;
            }
            message if self.is_forwarded => ClientRequest::Forward(message),
            ClientMessage::OpenScoutSession(hosts) => ClientRequest::Open(hosts),
            ClientMessage::Login(login) => ClientRequest::Login(login),
            ClientMessage::Console(console) => ClientRequest::Console(console),
            ClientMessage::Submit(_) | ClientMessage::Request { .. } if !self.accepts_job(job) => {
                return None;
            }
            ClientMessage::Submit(spec) => ClientRequest::Submit(spec),
            ClientMessage::Request { allocation: shape, spec } => {
                ClientRequest::Request(shape, Box::new(spec))
            }
            message if self.jobs.contains_key(&job) => ClientRequest::ToJob(message),
            // They may have been on their way when the job ended.
            ClientMessage::OutputAck(_) | ClientMessage::Flushed(_) => return None,
            _ => {
                self.send(job, &ServerMessage::UnknownJob);
                return None;
            }
        })
    }

    fn on_hello(&mut self, version: u32) {
        if self.has_greeted {
            return self.refuse("scrun said hello twice".to_owned());
        }
        self.send(SESSION_JOB, &ServerMessage::Hello { version: PROTOCOL_VERSION });
        if version != PROTOCOL_VERSION {
            return self.refuse(format!(
                "scrun speaks version {version} of the protocol and scored version \
                 {PROTOCOL_VERSION}: they come from different installations"
            ));
        }
        self.has_greeted = true;
        if let Some(hosts) = self.hosts.take() {
            self.send(SESSION_JOB, &ServerMessage::Hosts(hosts));
        }
    }

    /// Whether it may have a job of this number; else it is told why not.
    fn accepts_job(&mut self, job: u32) -> bool {
        if job == SESSION_JOB {
            self.refuse(format!("{SESSION_JOB} is the number of no job"));
        } else if self.jobs.contains_key(&job) {
            let text = format!("this login has a job of number {job} already");
            self.send(job, &ServerMessage::Notice { level: Level::Error, text });
        } else if self.jobs.len() >= MAX_JOBS {
            let reason = format!("this login has {MAX_JOBS} jobs already: one has to end first");
            self.send(job, &ServerMessage::Refused { reason, code: EXIT_FAILED });
        } else {
            return true;
        }
        false
    }

    /// A job takes its place.
    pub fn add_job(&mut self, job: u32, pending_spec: Option<Box<JobSpec>>) {
        self.jobs.insert(job, SessionJob { job_id: None, pending_spec });
    }

    /// Gives a job its number, if it is there still.
    pub fn set_job_id(&mut self, job: u32, job_id: u32) -> bool {
        let session_job = self.jobs.get_mut(&job);
        session_job.map(|session_job| session_job.job_id = Some(job_id)).is_some()
    }

    /// The number of a job that has begun.
    pub fn job_id(&self, job: u32) -> Option<u32> {
        self.jobs.get(&job)?.job_id
    }

    /// The numbers of all jobs that have begun.
    pub fn job_ids(&self) -> Vec<u32> {
        self.jobs.values().filter_map(|session_job| session_job.job_id).collect()
    }

    /// Whether a job waits for room.
    pub fn is_pending(&self, job: u32) -> bool {
        self.jobs.get(&job).is_some_and(|session_job| session_job.pending_spec.is_some())
    }

    /// What a job that waits is to run.
    pub fn take_pending_spec(&mut self, job: u32) -> Option<Box<JobSpec>> {
        self.jobs.get_mut(&job)?.pending_spec.take()
    }

    fn refuse(&mut self, reason: String) {
        self.send(SESSION_JOB, &ServerMessage::Refused { reason, code: EXIT_FAILED });
    }

    /// Tells it something of a job; a refusal and the end are the last. Those of the session
    /// itself are the last of all.
    pub fn send(&mut self, job: u32, message: &ServerMessage) {
        // Who reads slowly gets newer figures, not more.
        let is_droppable = matches!(message, ServerMessage::Metrics(_)) && self.is_slow();
        if self.is_closing || is_droppable {
            return;
        }
        match &mut self.transport {
            Transport::Local(link) if self.has_greeted => link.queue(&JobMessage { job, message }),
            Transport::Local(link) => link.queue(message),
            Transport::Remote { outbox, .. } => {
                outbox.push(JobMessage { job, message: message.clone() })
            }
        }
        if matches!(message, ServerMessage::Refused { .. } | ServerMessage::Finished(_)) {
            self.jobs.remove(&job);
            self.is_closing = job == SESSION_JOB;
        }
    }

    fn is_slow(&self) -> bool {
        match &self.transport {
            Transport::Local(link) => link.backlog() > SLOW_READER_BYTES,
            // What is far is slow where the link to its daemon is (`send_outboxes`).
            Transport::Remote { .. } => false,
        }
    }

    /// Writes what the socket takes.
    pub fn flush(&mut self) {
        if let Transport::Local(link) = &mut self.transport {
            link.flush();
        }
    }

    /// Has `registry` report when it takes what waits for it.
    pub fn update_interest(&mut self, registry: &Registry) {
        if let Transport::Local(link) = &mut self.transport {
            link.update_interest(registry);
        }
    }

    /// Whether it has heard its last word.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Whether there is nobody left to speak to, or nothing to say.
    pub fn is_closed(&self) -> bool {
        match &self.transport {
            Transport::Local(link) => {
                let overflows = link.backlog() > 2 * self.max_backlog() + 2 * MAX_SEND_QUEUE_BYTES;
                link.is_closed() || overflows || (self.is_closing && link.backlog() == 0)
            }
            Transport::Remote { outbox, is_closed, .. } => {
                *is_closed || (self.is_closing && outbox.is_empty())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::Poll;
    use score_proto::observation::{Metrics, NodeMetrics};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_slow_reader_gets_no_more_metrics_but_everything_else() {
        let (local, remote) = UnixStream::pair().unwrap();
        local.set_nonblocking(true).unwrap();
        let poll = Poll::new().unwrap();
        let mut session = ClientSession::new(local.into(), poll.registry(), Token(9)).unwrap();
        let figures = Metrics { hosts: Vec::new(), nodes: vec![NodeMetrics::default(); 100] };
        let backlog = |session: &ClientSession| match &session.transport {
            Transport::Local(link) => link.backlog(),
            Transport::Remote { .. } => 0,
        };
        for _ in 0..10_000 {
            session.send(1, &ServerMessage::Metrics(figures.clone()));
            session.flush();
        }
        assert!(backlog(&session) < SLOW_READER_BYTES + 4096, "{}", backlog(&session));
        let before = backlog(&session);
        session.send(1, &ServerMessage::StdinClosed);
        assert!(backlog(&session) > before);
        drop(remote);
    }
}
