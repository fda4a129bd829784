//! A client for queries to the scored of this host, and for commands of tools.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use score_client::{Connection, Received, Service};
use score_proto::client_session::SESSION_JOB;
use score_proto::message::{ConsoleRequest, UserRequest};
use score_proto::server_message::{ConsoleAnswer, ConsoleReply};
use score_proto::tool_start::ScrunJob;

/// The time in which a reply must arrive.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The remedy if there is no service, for commands that name a job.
const JOB_REMEDY: &str = "name a job without a service by its scrun, as PID@HOST (ps -C scrun)";

/// A request, and the stream of its replies.
#[derive(Debug)]
pub struct QueryStream {
    connection: Connection,
    /// Whether the daemon is that of multi-user mode, in which the user has logged in.
    is_multi_user: bool,
    /// The time at which a message was last received.
    last_received_at: Instant,
}

/// The result of waiting for a reply whose parts are `A`.
#[derive(Debug)]
pub enum Reply<A> {
    /// A part of the reply.
    Answer(A),
    /// A line for the user, without newline.
    Notice(String),
    /// No message yet.
    Pending,
    /// The reply is complete.
    End,
}

/// The descriptor is readable when a part of the reply has arrived, or when the connection is
/// closed.
impl AsFd for QueryStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl QueryStream {
    /// Logs in to the scored at `socket`, or at the socket from the environment, and sends the
    /// request. `remedy` says what the user can do if there is no scored.
    ///
    /// # Errors
    /// One line: there is no scored.
    pub fn open(
        request: ConsoleRequest,
        socket: Option<PathBuf>,
        remedy: &'static str,
    ) -> Result<Self, String> {
        let login = score_client::login_of_this_process(String::new());
        let connection = score_client::login(&Service::new(socket, remedy), &login)?;
        Self::begin(connection, true, request)
    }

    /// Sends a request about a job to the daemon that runs the job. `socket` is the socket of the
    /// scored of this host. It is not used in single-user mode.
    ///
    /// # Errors
    /// One line: there is no such scored of this user.
    pub fn open_at(
        job: ScrunJob,
        request: ConsoleRequest,
        socket: Option<PathBuf>,
    ) -> Result<Self, String> {
        let Some(scored_pid) = job.daemon else { return Self::open(request, socket, JOB_REMEDY) };
        Self::begin(score_client::connect_to_single_user(scored_pid)?, false, request)
    }

    fn begin(
        connection: Connection,
        is_multi_user: bool,
        request: ConsoleRequest,
    ) -> Result<Self, String> {
        let mut stream = Self { connection, is_multi_user, last_received_at: Instant::now() };
        stream.send(request)?;
        Ok(stream)
    }

    /// Sends a further request, and waits until the socket has accepted it.
    ///
    /// # Errors
    /// One line: the daemon does not read.
    pub fn send(&mut self, request: ConsoleRequest) -> Result<(), String> {
        let sent = match self.is_multi_user {
            true => self.connection.send(SESSION_JOB, &UserRequest::Console(request)),
            false => self.connection.send(SESSION_JOB, &request),
        };
        Ok(sent?)
    }

    /// The next part of the reply. `None` if the reply is complete.
    ///
    /// # Errors
    /// One line: scored has refused the request, or the connection is lost.
    pub fn next_reply<A: TryFrom<ConsoleAnswer>>(&mut self) -> Result<Option<A>, String> {
        loop {
            match self.next_reply_within(REPLY_TIMEOUT)? {
                Reply::Answer(answer) => return Ok(Some(answer)),
                Reply::Notice(_) | Reply::Pending => {}
                Reply::End => return Ok(None),
            }
        }
    }

    /// Restarts the time limit for a reply, if none is expected for a while.
    pub fn expect_silence(&mut self) {
        self.last_received_at = Instant::now();
    }

    /// The next part of the reply, if it arrives within `timeout`.
    ///
    /// # Errors
    /// The errors of [`QueryStream::next_reply`].
    pub fn next_reply_within<A: TryFrom<ConsoleAnswer>>(
        &mut self,
        timeout: Duration,
    ) -> Result<Reply<A>, String> {
        let Some(received) = self.connection.wait(timeout)? else {
            return match self.last_received_at.elapsed() >= REPLY_TIMEOUT {
                true => Err(self.connection.silent(REPLY_TIMEOUT).into()),
                false => Ok(Reply::Pending),
            };
        };
        self.last_received_at = Instant::now();
        match received {
            Received::Answer(ConsoleReply::Answer(answer)) => Ok(Reply::Answer(answer)),
            Received::Answer(ConsoleReply::Finished { .. }) => Ok(Reply::End),
            Received::Notice { text, .. } => Ok(Reply::Notice(text)),
            Received::Refused { reason, .. } => Err(reason),
        }
    }
}
