//! The connection of a session to its daemon. It carries requests and messages about the one job of
//! the session.

use super::daemon::DaemonHandle;
use mio::{Registry, Token};
use score_client::{Connection, ConnectionError, Received};
use score_proto::client_session::{JobMessage, SessionKind};
use score_proto::ids::{JobId, SessionJobId};
use score_proto::message::{JobRequest, SingleUserRequest, UserRequest};
use score_proto::server_message::JobAnswer;
use score_proto::tool_start::ScrunJob;
use std::io;
use std::net::Shutdown;
use std::time::Duration;

/// The number that scrun gives its job on the session.
pub const JOB: SessionJobId = SessionJobId(1);

/// See the [module](self).
pub struct DaemonLink {
    connection: Connection,
    /// The kind of requests that the daemon accepts.
    kind: SessionKind,
    daemon: DaemonHandle,
    is_connected: bool,
}

impl DaemonLink {
    /// The link over a connection on which the job has been submitted.
    pub fn new(connection: Connection, kind: SessionKind, daemon: DaemonHandle) -> Self {
        Self { connection, kind, daemon, is_connected: true }
    }

    /// Registers the socket.
    ///
    /// # Errors
    /// See epoll_ctl(2).
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.connection.register(registry, token)
    }

    /// Lets mio report the socket as writable while there are unsent requests.
    pub fn update_interest(&mut self, registry: &Registry) {
        self.connection.update_interest(registry);
    }

    /// Records that mio has reported that the socket is readable.
    pub fn mark_readable(&mut self) {
        self.connection.mark_readable();
    }

    /// The kind of requests that the daemon accepts.
    pub fn kind(&self) -> SessionKind {
        self.kind
    }

    /// The name by which tools find the job.
    pub fn job_name(&self, job: JobId) -> ScrunJob {
        let daemon = match self.kind {
            SessionKind::MultiUser => None,
            SessionKind::SingleUser => self.daemon.pid(),
        };
        ScrunJob { daemon, job }
    }

    /// Queues a request about the job.
    pub fn queue(&mut self, request: JobRequest) {
        // Every request is far below the limit of a frame.
        let _ = match self.kind {
            SessionKind::SingleUser => self.connection.queue(JOB, &SingleUserRequest::Job(request)),
            SessionKind::MultiUser => self.connection.queue(JOB, &UserRequest::Job(request)),
        };
    }

    /// Sends as much as the socket accepts. A receive detects a lost daemon.
    pub fn flush(&mut self) {
        if self.is_connected {
            self.connection.flush();
        }
    }

    /// The next message of the daemon, if it has arrived.
    ///
    /// # Errors
    /// See [`Connection::receive`].
    pub fn receive(&mut self) -> Result<Option<Received<JobMessage<JobAnswer>>>, ConnectionError> {
        match self.is_connected {
            true => self.connection.receive(),
            false => Ok(None),
        }
    }

    /// Gives up the connection after a failure of [`DaemonLink::receive`]. Waits up to `timeout`
    /// for the exit of the daemon and describes it.
    pub fn on_lost(&mut self, timeout: Duration) -> String {
        self.is_connected = false;
        self.daemon.wait_for_exit(timeout)
    }

    /// Keeps the socket open until this process exits. The daemon then ends the job, if it still
    /// runs.
    pub fn abandon(&mut self) {
        self.is_connected = false;
    }

    /// Closes the connection, unless it was lost or abandoned, and waits up to `timeout` for the
    /// exit of the daemon.
    pub fn close(&mut self, timeout: Duration) {
        if self.is_connected {
            // The daemon has sent its last message.
            let _ = self.connection.shutdown(Shutdown::Both);
            self.daemon.wait_for_exit(timeout);
        }
    }
}
