//! What a scrun may ask of the daemon, and when the daemon can take it.

use score_proto::allocation_request::AllocationRequest;
use score_proto::message::{ConsoleRequest, HostSpec, JobRequest, JobSpec, Login, UserRequest};

/// A request of a scrun.
#[derive(Debug)]
pub enum ClientRequest {
    /// Starts a job.
    Submit(JobSpec),
    /// Opens a scout session on these hosts.
    Open(Vec<HostSpec>),
    /// Logs a user in.
    Login(Login),
    /// Requests a job on hosts that the server chooses.
    Request(AllocationRequest, Box<JobSpec>),
    /// A command about jobs.
    Console(ConsoleRequest),
    /// A message to a job of the session.
    ToJob(JobRequest),
    /// A message to the server on another host.
    Forward(UserRequest),
    /// A message that the session has handled itself.
    Handled,
    /// The scrun violates the protocol. The session has sent the refusal already.
    ProtocolError,
}

impl ClientRequest {
    /// Whether the request causes an order to all hosts of a job.
    pub fn goes_to_all_hosts(&self) -> bool {
        let request = match self {
            ClientRequest::ToJob(request) | ClientRequest::Forward(UserRequest::Job(request)) => {
                request
            }
            ClientRequest::Console(_) | ClientRequest::Forward(UserRequest::Console(_)) => {
                return true;
            }
            _ => return false,
        };
        matches!(
            request,
            JobRequest::Signal(_)
                | JobRequest::Suspend
                | JobRequest::Resume
                | JobRequest::OutputClosed(_)
                | JobRequest::SubscribeMetrics(_)
                | JobRequest::ToolAction(_)
                | JobRequest::Debugger(_)
                | JobRequest::Kill
        )
    }
}

/// Whether there is room for what the messages of a session cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// The next message can be handled.
    Ready,
    /// The messages of all sessions of the user take as much memory as a user may have.
    NoRoom,
    /// A link or a shepherd takes no more, or the session has sent too much.
    Blocked,
    /// The daemon has worked for the user as long as it may, and will go on soon.
    NoTime,
}

impl Readiness {
    /// Whether the session is read within a bounded time, whatever others do.
    pub fn is_read_soon(self) -> bool {
        matches!(self, Readiness::Ready | Readiness::NoTime)
    }
}
