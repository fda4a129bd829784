//! The requests that a client may send to the daemon, and whether the daemon can handle one now.

use score_proto::allocation_request::AllocationRequest;
use score_proto::message::{ConsoleRequest, HostSpec, JobRequest, JobSpec, Login, UserRequest};

/// A request of a client.
#[derive(Debug)]
pub enum ClientRequest {
    /// Start a job (single-user mode).
    Submit(JobSpec),
    /// Open a scout session on these hosts.
    Open(Vec<HostSpec>),
    /// Log in a user.
    Login(Login),
    /// Start a job on hosts that the server chooses.
    Request(AllocationRequest, Box<JobSpec>),
    /// A command that addresses jobs by their numbers in the cluster.
    Console(ConsoleRequest),
    /// A message to a job of this session.
    ToJob(JobRequest),
    /// A message for the server on another host.
    Forward(UserRequest),
    /// A message that the session has handled itself.
    Handled,
    /// The client violates the protocol. The session has sent the error already.
    ProtocolError,
}

impl ClientRequest {
    /// Whether the request causes an order to all hosts of a job. Such requests are rate limited.
    pub fn goes_to_all_hosts(&self) -> bool {
        let request = match self {
            ClientRequest::ToJob(request) | ClientRequest::Forward(UserRequest::Job(request)) => {
                request
            }
            ClientRequest::Console(request)
            | ClientRequest::Forward(UserRequest::Console(request)) => {
                // The server itself answers requests for lists and the page. A file goes to the
                // hosts only after the hosts have requested its bytes.
                return !matches!(
                    request,
                    ConsoleRequest::List | ConsoleRequest::Page | ConsoleRequest::ToolFile(_)
                );
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

/// Whether the daemon has the capacity to handle the next message of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// The next message can be handled.
    Ready,
    /// The messages of all sessions of the user occupy all memory that a user may have.
    NoRoom,
    /// A link or a shepherd accepts no more orders, or the client has exceeded its rate limit.
    Blocked,
    /// The user has consumed all processing time that the daemon grants for now.
    NoTime,
}

impl Readiness {
    /// Whether the daemon will read the session within a bounded time that no other process can
    /// extend.
    pub fn is_read_soon(self) -> bool {
        matches!(self, Readiness::Ready | Readiness::NoTime)
    }
}
