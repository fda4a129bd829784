//! The session of a client, usually scrun, and its jobs. In multi-user mode the client logs in
//! first. If the client runs on another host, a link between daemons carries the messages.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_job::cluster::SessionId;
use score_job::host::rate_limit::TokenBucket;
use score_job::host::usage::{self, Usage};
use score_proto::PROTOCOL_VERSION;
use score_proto::client_session::{JobMessage, MAX_JOBS, SESSION_JOB};
use score_proto::exit_code::EXIT_FAILED;
use score_proto::frame::{self, FrameError};
use score_proto::ids::{JobId, SessionJobId};
use score_proto::job_control::Owner;
use score_proto::message::{
    Greeting, HostSpec, JobRequest, JobSpec, Level, OUTPUT_WINDOW, SingleUserRequest, UserRequest,
};
use score_proto::server_message::{JobAnswer, ScoutHosts, ServerMessage, SessionAnswer};

use super::client_request::{ClientRequest, Readiness};
use super::session_state::{self, ClientMessage, LoggedInUser, LoginClaim, SessionState};
use super::session_transport::{RemoteClient, Transport};
use crate::sys::credentials::UserIds;

/// Limit of the bytes that wait for a client that does not read, in addition to the windows of its
/// jobs.
const MAX_SEND_QUEUE_BYTES: usize = 4 << 20;

/// The longest message of a client that has not logged in, in bytes. A login contains a user's
/// name, a host expression and some numbers.
const MAX_UNAUTHENTICATED_MESSAGE_LEN: usize = 8 << 10;

/// If this many bytes wait for a client that has not logged in, the daemon stops reading its
/// messages.
const MAX_UNAUTHENTICATED_QUEUE_BYTES: usize = 4 << 10;

/// How long a user may take to complete a message. The limit exists because an incomplete message
/// occupies memory. A scrun sends a whole message at once while the session reads.
const UNFINISHED_FRAME_TIMEOUT: Duration = Duration::from_secs(60);

/// If more bytes than this wait for a scrun, it reads too slowly and receives no metrics.
const SLOW_READER_BYTES: usize = 256 << 10;

/// A job of a session.
#[derive(Debug, Default)]
struct SessionJob {
    /// The job's number in the daemon, once the job has begun.
    job_id: Option<JobId>,
    /// The job's specification, until the job begins.
    pending_spec: Option<Box<JobSpec>>,
}

/// The session of one client.
#[derive(Debug)]
pub struct ClientSession {
    transport: Transport,
    has_greeted: bool,
    is_closing: bool,
    jobs: BTreeMap<SessionJobId, SessionJob>,
    /// The hosts of a scout session. The session sends them after its `Hello`.
    pub hosts: Option<Vec<HostSpec>>,
    state: SessionState,
    /// The time at which the session began.
    pub connected_at: Instant,
    /// Limits the rate of messages that go to all hosts of a job, in single-user mode. In
    /// multi-user mode, all sessions of a user share a limit.
    control_limit: TokenBucket,
    /// The bytes of this session's messages that are charged to its user.
    charged_bytes: u64,
    /// The cost of the forwarded messages that the server has not handled yet.
    forwarded_cost: u64,
    /// The client has closed the connection. Messages that it sent earlier may be in the socket.
    has_hung_up: bool,
    /// The time at which the voucher has to be renewed, if the client is on this host.
    renewal_at: Option<Instant>,
}

impl ClientSession {
    /// Creates the session of a scrun of this host, in single-user mode.
    ///
    /// # Errors
    /// See fcntl(2) and epoll_ctl(2).
    pub fn new(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Self> {
        Ok(Self::with_transport(Transport::local(socket, registry, token)?))
    }

    /// Creates the session of a tool in single-user mode. The tool runs as this daemon's user.
    ///
    /// # Errors
    /// See fcntl(2) and epoll_ctl(2).
    pub fn of_tool(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut session = Self::new(socket, registry, token)?;
        session.state = SessionState::Tool;
        Ok(session)
    }

    /// Whether the client is a tool in single-user mode.
    pub fn is_tool(&self) -> bool {
        matches!(self.state, SessionState::Tool)
    }

    /// Creates the session of a client that has to log in. Its process has this uid and gid.
    ///
    /// # Errors
    /// See fcntl(2) and epoll_ctl(2).
    pub fn unauthenticated(
        socket: OwnedFd,
        ids: UserIds,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut session = Self::new(socket, registry, token)?;
        session.state = SessionState::Unauthenticated(ids);
        session.transport.set_max_message_len(MAX_UNAUTHENTICATED_MESSAGE_LEN);
        Ok(session)
    }

    /// Creates the session of a user's scrun on another host. The daemon of that host has exchanged
    /// the greetings.
    pub fn remote(user: LoggedInUser) -> Self {
        let state = SessionState::User(user);
        Self { has_greeted: true, state, ..Self::with_transport(Transport::remote()) }
    }

    fn with_transport(transport: Transport) -> Self {
        Self {
            transport,
            has_greeted: false,
            is_closing: false,
            jobs: BTreeMap::new(),
            hosts: None,
            state: SessionState::SingleUser,
            connected_at: Instant::now(),
            control_limit: usage::control_limit(Instant::now()),
            charged_bytes: 0,
            forwarded_cost: 0,
            has_hung_up: false,
            renewal_at: None,
        }
    }

    /// The socket of the client, if it is on this host.
    pub fn local_socket(&self) -> Option<BorrowedFd<'_>> {
        self.transport.socket()
    }

    /// The time at which this daemon has to renew the voucher of the login, if it has to.
    pub fn renewal_at(&self) -> Option<Instant> {
        self.renewal_at
    }

    /// Sets the time at which the voucher is renewed.
    pub fn set_renewal_at(&mut self, renewal_at: Instant) {
        self.renewal_at = Some(renewal_at);
    }

    /// Replaces the voucher of the login, and the time at which it has to be renewed.
    pub fn set_voucher(&mut self, voucher: Vec<u8>, renewal_at: Option<Instant>) {
        self.renewal_at = renewal_at;
        if let SessionState::User(user) | SessionState::Forwarded(user) = &mut self.state {
            user.owner.voucher = voucher;
        }
    }

    /// The uid of the client's user. `None` in single-user mode.
    pub fn uid(&self) -> Option<u32> {
        self.state.uid()
    }

    /// The number of the login in the cluster.
    pub fn id(&self) -> Option<SessionId> {
        Some(self.state.user()?.id)
    }

    /// Whether this daemon forwards all requests of the session to the server on another host.
    pub fn is_forwarded(&self) -> bool {
        matches!(self.state, SessionState::Forwarded(_))
    }

    /// The time at which the session may be read again, if the client, or its user, has exceeded
    /// the limit on messages to all hosts of a job.
    pub fn next_control_at(&self, usage: &Usage, now: Instant) -> Option<Instant> {
        match self.uid() {
            // A client that has not logged in sends no such message.
            Some(uid) => self.owner().and_then(|_| usage.next_control_at(uid, now)),
            None => self.control_limit.next_at(now),
        }
    }

    /// Records a message to all hosts of a job.
    pub fn take_control(&mut self, usage: &mut Usage, now: Instant) {
        match self.uid() {
            Some(uid) => usage.take_control(uid, now),
            None => self.control_limit.take(now),
        }
    }

    /// Records that mio has reported the end of the client's connection.
    pub fn mark_hung_up(&mut self) {
        self.has_hung_up = true;
    }

    /// Whether the client has closed the connection and the session can end without being read.
    /// Messages of a client that has not logged in are discarded. Messages of other clients are
    /// read first if `is_read_soon` returns true.
    pub fn is_lost(&self, is_read_soon: impl FnOnce() -> bool) -> bool {
        self.has_hung_up && (self.unauthenticated_ids().is_some() || !is_read_soon())
    }

    /// The user who has logged in.
    pub fn owner(&self) -> Option<&Owner> {
        Some(&self.state.user()?.owner)
    }

    /// Completes the login. This daemon or the server on another host serves the user.
    pub fn log_in(&mut self, state: SessionState) {
        self.state = state;
        self.transport.set_max_message_len(frame::MAX_BODY);
    }

    /// The ids of a client that has to log in and has not done so.
    pub fn unauthenticated_ids(&self) -> Option<UserIds> {
        match self.state {
            SessionState::Unauthenticated(ids) => Some(ids),
            _ => None,
        }
    }

    /// Records the user that the client claims to be. The daemon does not read the session during
    /// the look-up of the name, which has its own deadline.
    pub fn set_claim(&mut self, claim: LoginClaim) {
        self.state = SessionState::NameLookup(claim);
    }

    /// Takes the claim. The session waits for a login again.
    pub fn take_claim(&mut self) -> Option<LoginClaim> {
        let SessionState::NameLookup(claim) = &self.state else { return None };
        let unauthenticated = SessionState::Unauthenticated(claim.ids);
        match std::mem::replace(&mut self.state, unauthenticated) {
            SessionState::NameLookup(claim) => Some(claim),
            _ => None,
        }
    }

    /// Whether the session reads requests.
    pub fn is_reading(&self) -> bool {
        !self.is_closing && !matches!(self.state, SessionState::NameLookup(_))
    }

    /// Records that mio has reported the socket as readable.
    pub fn mark_readable(&mut self) {
        self.transport.mark_readable();
    }

    /// Stops reading until mio reports that the socket is readable.
    pub fn wait_until_readable(&mut self) {
        self.transport.wait_until_readable();
    }

    /// Whether [`ClientSession::next_request`] may find a request without a further report of mio.
    pub fn may_have_more(&self) -> bool {
        self.is_reading()
            && self.transport.may_have_more()
            && self.transport.backlog() < self.max_backlog()
    }

    /// Whether the daemon has to serve the session again even if no event arrives for it.
    pub fn goes_on_without_event(&self) -> bool {
        let goes_on = self.transport.has_outbox() || self.has_hung_up || self.may_have_more();
        goes_on || self.frame_deadline().is_some()
    }

    /// Whether reading is the only pending work of the session.
    pub fn only_reads(&self) -> bool {
        self.may_have_more() && !self.has_hung_up && !self.transport.has_outbox()
    }

    /// The messages of the client, if the client is a scrun on another host.
    pub fn remote_mut(&mut self) -> Option<&mut RemoteClient> {
        self.transport.remote_mut()
    }

    /// Records that a message of this cost was forwarded to the server.
    pub fn on_forwarded(&mut self, cost: u64) {
        self.forwarded_cost += cost;
    }

    /// Records that the server has handled forwarded messages of this cost. Returns how much of the
    /// cost was outstanding.
    pub fn take_forwarded_cost(&mut self, cost: u64) -> u64 {
        let taken = self.forwarded_cost.min(cost);
        self.forwarded_cost -= taken;
        taken
    }

    /// The user, and the bytes before and now, if the memory for the session's messages has changed
    /// since the last call.
    pub fn take_usage_change(&mut self) -> Option<(u32, u64, u64)> {
        self.set_charged_bytes(self.transport.waiting_bytes() as u64)
    }

    /// Like [`ClientSession::take_usage_change`], for a session that ends.
    pub fn take_last_usage_change(&mut self) -> Option<(u32, u64, u64)> {
        self.set_charged_bytes(0)
    }

    fn set_charged_bytes(&mut self, now: u64) -> Option<(u32, u64, u64)> {
        let before = self.charged_bytes;
        let uid = self.uid().filter(|_| before != now)?;
        self.charged_bytes = now;
        Some((uid, before, now))
    }

    /// If this many bytes wait for the scrun, the session reads no requests.
    fn max_backlog(&self) -> usize {
        if self.unauthenticated_ids().is_some() {
            return MAX_UNAUTHENTICATED_QUEUE_BYTES;
        }
        MAX_SEND_QUEUE_BYTES + self.jobs.len() * OUTPUT_WINDOW as usize
    }

    fn receive(&mut self) -> Option<Result<(SessionJobId, ClientMessage), FrameError>> {
        let max_backlog = self.max_backlog();
        match &mut self.transport {
            Transport::Local(link) if link.backlog() >= max_backlog => {
                link.pause_reading();
                None
            }
            Transport::Local(link) if self.has_greeted => self.state.receive(link).transpose(),
            Transport::Local(link) => session_state::receive_greeting(link).transpose(),
            Transport::Remote(remote) => {
                let JobMessage { job, message } = remote.receive()?;
                Some(Ok((job, ClientMessage::User(message))))
            }
        }
    }

    /// Returns the next request and the number of its job. Reads at most one message.
    pub fn next_request(
        &mut self,
        readiness: Readiness,
        now: Instant,
    ) -> Option<(SessionJobId, ClientRequest)> {
        match readiness {
            _ if !self.is_reading() => return None,
            Readiness::Blocked | Readiness::NoTime => {
                self.transport.pause_reading();
                return None;
            }
            // Incomplete messages occupy the user's memory, so their time-out continues.
            Readiness::NoRoom => return self.refuse_overdue_frame(now),
            Readiness::Ready => {}
        }
        let (job, message) = match self.receive() {
            None => return self.refuse_overdue_frame(now),
            Some(Ok(received)) => received,
            Some(Err(error)) => {
                let remedy = match self.state {
                    SessionState::Unauthenticated(_) => ": log in first",
                    _ => "",
                };
                self.refuse(format!("from scrun: {error}{remedy}"));
                return Some((SESSION_JOB, ClientRequest::ProtocolError));
            }
        };
        Some((job, self.classify_request(job, message)))
    }

    /// The time by which a user must complete a message whose first part has arrived.
    pub fn frame_deadline(&self) -> Option<Instant> {
        // A client that has not logged in has a shorter time-out. Single-user mode has no other
        // users.
        let has_timeout = self.owner().is_some() && !self.is_closing;
        let begun_at = self.transport.frame_begun_at().filter(|_| has_timeout)?;
        Some(begun_at + UNFINISHED_FRAME_TIMEOUT)
    }

    /// Refuses an incomplete message whose time-out has passed. Call it after all arrived data was
    /// read.
    fn refuse_overdue_frame(&mut self, now: Instant) -> Option<(SessionJobId, ClientRequest)> {
        self.frame_deadline().filter(|deadline| *deadline <= now)?;
        let seconds = UNFINISHED_FRAME_TIMEOUT.as_secs();
        self.refuse(format!("from scrun: a message was not finished within {seconds} s"));
        Some((SESSION_JOB, ClientRequest::ProtocolError))
    }

    /// Handles messages that need only the state of the session, and returns the others as
    /// requests.
    fn classify_request(&mut self, job: SessionJobId, message: ClientMessage) -> ClientRequest {
        match message {
            ClientMessage::Greeting(Greeting::Hello { version }) => {
                self.on_hello(version);
                ClientRequest::Handled
            }
            ClientMessage::Login(login) => ClientRequest::Login(login),
            ClientMessage::User(request) if self.is_forwarded() => ClientRequest::Forward(request),
            ClientMessage::SingleUser(SingleUserRequest::OpenScoutSession(hosts)) => {
                ClientRequest::Open(hosts)
            }
            ClientMessage::SingleUser(SingleUserRequest::Submit(_))
            | ClientMessage::User(UserRequest::SubmitJob { .. })
                if !self.accepts_job(job) =>
            {
                ClientRequest::Handled
            }
            ClientMessage::SingleUser(SingleUserRequest::Submit(spec)) => {
                ClientRequest::Submit(spec)
            }
            ClientMessage::User(UserRequest::SubmitJob { allocation, spec }) => {
                ClientRequest::Request(allocation, Box::new(spec))
            }
            ClientMessage::User(UserRequest::Console(request)) | ClientMessage::Tool(request) => {
                ClientRequest::Console(request)
            }
            ClientMessage::SingleUser(SingleUserRequest::Job(request))
            | ClientMessage::User(UserRequest::Job(request)) => {
                self.classify_job_request(job, request)
            }
        }
    }

    fn classify_job_request(&mut self, job: SessionJobId, request: JobRequest) -> ClientRequest {
        if self.jobs.contains_key(&job) {
            return ClientRequest::ToJob(request);
        }
        // The client may have sent these messages before it learned that the job had ended.
        if !matches!(request, JobRequest::OutputAck(_) | JobRequest::Flushed(_)) {
            self.send(&ServerMessage::job_answer(job, JobAnswer::UnknownJob));
        }
        ClientRequest::Handled
    }

    fn on_hello(&mut self, version: u32) {
        let hello = SessionAnswer::Hello { version: PROTOCOL_VERSION };
        self.send(&ServerMessage::Session(hello));
        if version != PROTOCOL_VERSION {
            return self.refuse(format!(
                "scrun has version {version} of the protocol, and scored has version \
                 {PROTOCOL_VERSION}: they come from different installations; use the scrun of \
                 the installation of scored"
            ));
        }
        self.has_greeted = true;
        if let Some(hosts) = self.hosts.take() {
            self.send(&ServerMessage::ScoutHosts(ScoutHosts(hosts)));
        }
    }

    /// Whether the session accepts a job with this number. If not, it sends the reason to the
    /// scrun.
    fn accepts_job(&mut self, job: SessionJobId) -> bool {
        if job == SESSION_JOB {
            self.refuse(format!("{SESSION_JOB} is not a job number"));
        } else if self.jobs.contains_key(&job) {
            let text = format!("this login has a job of number {job} already");
            self.send(&ServerMessage::notice(job, Level::Error, text));
        } else if self.jobs.len() >= MAX_JOBS {
            let reason = format!("this login has {MAX_JOBS} jobs already: one has to end first");
            self.send(&ServerMessage::refusal(job, reason, EXIT_FAILED));
        } else {
            return true;
        }
        false
    }

    /// Adds a job to the session.
    pub fn add_job(&mut self, job: SessionJobId, pending_spec: Option<Box<JobSpec>>) {
        self.jobs.insert(job, SessionJob { job_id: None, pending_spec });
    }

    /// Sets the daemon's number of a job. Returns false if the session no longer has the job.
    pub fn set_job_id(&mut self, job: SessionJobId, job_id: JobId) -> bool {
        let session_job = self.jobs.get_mut(&job);
        session_job.map(|session_job| session_job.job_id = Some(job_id)).is_some()
    }

    /// The daemon's number of a job that has begun.
    pub fn job_id(&self, job: SessionJobId) -> Option<JobId> {
        self.jobs.get(&job)?.job_id
    }

    /// The daemon's numbers of all jobs that have begun.
    pub fn job_ids(&self) -> Vec<JobId> {
        self.jobs.values().filter_map(|session_job| session_job.job_id).collect()
    }

    /// Whether a job waits for hosts.
    pub fn is_pending(&self, job: SessionJobId) -> bool {
        self.jobs.get(&job).is_some_and(|session_job| session_job.pending_spec.is_some())
    }

    /// Takes the specification of a job that waits for hosts.
    pub fn take_pending_spec(&mut self, job: SessionJobId) -> Option<Box<JobSpec>> {
        self.jobs.get_mut(&job)?.pending_spec.take()
    }

    fn refuse(&mut self, reason: String) {
        self.send(&ServerMessage::refusal(SESSION_JOB, reason, EXIT_FAILED));
    }

    /// Sends a message to the client. The last message about a job removes the job from the
    /// session. The last message about the session ends the session.
    pub fn send(&mut self, message: &ServerMessage) {
        // A client that reads slowly receives no metrics, because they would be outdated.
        let is_slow = self.transport.backlog() > SLOW_READER_BYTES;
        if self.is_closing || (message.has_metrics() && is_slow) {
            return;
        }
        self.transport.queue(message, self.has_greeted);
        if let Some(job) = message.ended_job() {
            self.jobs.remove(&job);
            self.is_closing = job == SESSION_JOB;
        }
    }

    /// Writes as much as the socket accepts.
    pub fn flush(&mut self) {
        self.transport.flush();
    }

    /// If bytes wait to be sent, makes `registry` report when the socket is writable.
    pub fn update_interest(&mut self, registry: &Registry) {
        self.transport.update_interest(registry);
    }

    /// Whether the session's last message has been queued.
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Whether the session is over: the scrun has closed the connection or does not read, or the
    /// session has sent its last message.
    pub fn is_closed(&self) -> bool {
        let backlog = self.transport.backlog();
        let overflows = backlog > 2 * self.max_backlog() + 2 * MAX_SEND_QUEUE_BYTES;
        // The daemon does not wait until a client without a login has read the last message.
        let is_last_sent = backlog == 0 || self.unauthenticated_ids().is_some();
        self.transport.is_closed() || overflows || (self.is_closing && is_last_sent)
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
