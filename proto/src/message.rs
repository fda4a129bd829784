//! The control messages between scrun and scored, and between a process and its shepherd.
//!
//! [`SingleUserRequest`], [`Login`], [`UserRequest`] and [`JobRequest`] go from the user's program
//! to scored, each in a different state of the session. [`crate::server_message`] contains the
//! answers, and [`crate::client_session`] adds the number of the job. [`Call`] goes from a process
//! to its shepherd, and [`Reply`] goes back. [`crate::job_control`] contains the messages between
//! scored and the shepherds.
//!
//! This module only defines data. docs/dev/protocol.md defines which message a sender may send in
//! which state. The receivers check it.

mod call;
mod file_digest;
mod job_spec;
mod job_terms;
mod os_bytes;

use serde::{Deserialize, Serialize};

use crate::allocation_request::AllocationRequest;
use crate::ids::{ElementIndex, JobId};
use crate::nodeset::NodeSet;
use crate::tool_files::ToolFileChunk;
use crate::tool_start::ToolAction;
pub use call::{
    Call, NetworkDevice, NetworkMember, NetworkSet, NodeMapping, Reply, Welcome, encode_exit,
    encode_fault, encode_inspect,
};
pub use file_digest::{ContentHash, FileDigest};
pub use job_spec::{
    ElementSpec, EnvVar, FileName, HostKind, HostSpec, Input, JobSpec, MPICH_LIBRARY_NAMES,
    MpiStart, NodeLocation, OMP_THREADS_ENV, Output, ProgramKind, StageSpec,
};
pub use job_terms::{JobLimits, JobTerms};
pub use os_bytes::OsBytes;

/// Largest number of bytes of output or input in one message. It leaves space for the frame's own
/// fields.
pub const MAX_IO_CHUNK: usize = 64 * 1024;

/// Number of bytes of standard input that may be in transit to a shepherd without its permission.
pub const STDIN_WINDOW: u64 = 256 * 1024;

/// Number of bytes of output that may be in transit to scrun without its acknowledgement.
pub const OUTPUT_WINDOW: u64 = 1024 * 1024;

/// The first message on every stream, in both directions: the sender's protocol version. Its form
/// never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// [`crate::PROTOCOL_VERSION`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
}

/// From scrun to its own scored, in single-user mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SingleUserRequest {
    /// A job, with a number that no other job of the session has.
    Submit(JobSpec),
    /// Starts daemons on these hosts, and opens a socket at which scrun can submit jobs for them.
    /// The request carries [`crate::client_session::SESSION_JOB`] instead of the number of a job.
    /// Daemons and socket last as long as this connection. [`HostSpec::procs`] of the hosts is
    /// ignored. Answered by [`crate::server_message::ScoutAnswer`] or
    /// [`crate::server_message::SessionAnswer::Refused`].
    OpenScoutSession(Vec<HostSpec>),
    /// A request to a job of the session.
    Job(JobRequest),
}

/// From a client that has logged in to a multi-user scored. Before the login it may only send
/// [`Login`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserRequest {
    /// A job, with a number that no other job of the session has. scored chooses the hosts.
    SubmitJob {
        /// The number of nodes that the job requests, and their distribution.
        allocation: AllocationRequest,
        /// The job. scored replaces its list of hosts.
        spec: JobSpec,
    },
    /// A request about jobs of the cluster, with [`crate::client_session::SESSION_JOB`] instead of
    /// the number of a job of the session. Answered by [`crate::server_message::ConsoleAnswer`].
    Console(ConsoleRequest),
    /// A request to a job of the session.
    Job(JobRequest),
}

/// From scrun to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobRequest {
    /// The next bytes of scrun's standard input, at most [`MAX_IO_CHUNK`]. They must fit into the
    /// window that [`crate::server_message::JobAnswer::StdinWindow`] has opened.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// scrun's standard input has ended.
    StdinEof,
    /// scrun has written this number of bytes of [`crate::server_message::JobAnswer::Output`], or
    /// dropped them after EPIPE.
    OutputAck(u64),
    /// scrun has written all output that it received before
    /// [`crate::server_message::JobAnswer::Flush`] with this token.
    Flushed(u64),
    /// The reader of scrun's stdout or stderr has closed it. The shepherds have to close that
    /// stream, so that the processes receive SIGPIPE as in a pipeline.
    OutputClosed(Stream),
    /// Send this signal to every process of the job (manual, table 3.1).
    Signal(i32),
    /// Stop every process of the job (^Z).
    Suspend,
    /// Continue every process of the job (fg).
    Resume,
    /// Send [`crate::server_message::JobAnswer::Metrics`] of the job periodically from now on, with
    /// this period in milliseconds. 0 ends it.
    SubscribeMetrics(u32),
    /// Start a tool next to the job, or send a signal to a tool. Answered by
    /// [`crate::server_message::JobAnswer::ToolAction`].
    ToolAction(ToolAction),
    /// A request of a debugger that uses MPIR.
    Debugger(DebuggerRequest),
    /// The debugger of [`crate::server_message::JobAnswer::OpenDebugger`] has exited.
    DebuggerEnded {
        /// The parallel process.
        element: ElementIndex,
        /// The node.
        node: u32,
        /// Whether the debugger could not be started here.
        is_refused: bool,
    },
    /// End the job at once by killing every process.
    Kill,
    /// A part of a program that [`crate::server_message::JobAnswer::FileRequest`] has requested, in
    /// order. It has at most [`MAX_IO_CHUNK`] bytes. It has none if the file can no longer be read.
    FileChunk {
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the part in the file.
        offset: u64,
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
}

/// A request of a debugger that uses MPIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DebuggerRequest {
    /// Whether the processes of stages that start from now on are held ([`JobSpec::hold`]).
    HoldStages(bool),
    /// Let the processes of a held stage run.
    ReleaseStage,
    /// Send [`crate::server_message::JobAnswer::Processes`] of the running stage, or of the next
    /// stage if none runs.
    ListProcesses,
}

/// The user, as the client claims it. scored compares the uid with the one that the kernel reports
/// for the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// The user's uid.
    pub uid: u32,
    /// The user's name on this host, or empty. scored looks up the name and refuses a different
    /// name.
    pub name: OsBytes,
    /// A host expression that names the cluster; empty for the cluster of this host.
    pub cluster: String,
}

/// A request of a user or an operator about jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsoleRequest {
    /// List the jobs: [`crate::server_message::ListAnswer`]s until
    /// [`crate::server_message::ConsoleAnswer::Finished`].
    List,
    /// Get the address of the cluster's page for this user:
    /// [`crate::server_message::ConsoleAnswer::Page`].
    Page,
    /// End this job.
    Kill(JobId),
    /// Send [`crate::server_message::ConsoleAnswer::Metrics`] of this job periodically until it
    /// ends.
    SubscribeMetrics {
        /// The job's number.
        job: JobId,
        /// The period in milliseconds.
        period_ms: u32,
    },
    /// Send a command of a tool to processes of this job: [`crate::server_message::ToolAnswer`]s
    /// until [`crate::server_message::ConsoleAnswer::Finished`].
    Tool(ToolCall),
    /// Start a tool next to this job, or send a signal to a tool:
    /// [`crate::server_message::ConsoleAnswer::ToolAction`], then
    /// [`crate::server_message::ConsoleAnswer::Finished`].
    ToolAction {
        /// The job's number.
        job: JobId,
        /// The action.
        action: ToolAction,
    },
    /// A part of the files that the session sends for the tool that it starts. Only
    /// [`crate::server_message::ConsoleAnswer::ToolFileRequest`] permits it.
    ToolFile(ToolFileChunk),
    /// Begin the session of a tool that leaves changes in processes of a job:
    /// [`crate::server_message::ToolAnswer::Programs`], and
    /// [`crate::server_message::ConsoleAnswer::Finished`] at the end of the job.
    ToolSession(ToolSession),
    /// List the processes of the running stage of this job, or of the next stage if none runs:
    /// [`crate::server_message::ListedProcesses`] until
    /// [`crate::server_message::ConsoleAnswer::Finished`].
    Processes(JobId),
}

/// A command of a tool to processes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The job's number.
    pub job: JobId,
    /// The ranks, which are rows of the job's process table. The table contains the elements of the
    /// running stage from left to right, each with all of its nodes. `None` means all ranks.
    pub ranks: Option<NodeSet>,
    /// How long each hop of the job's tree waits for answers, in milliseconds. At most
    /// [`crate::tool_command::MAX_ANSWER_TIMEOUT`].
    pub wait_ms: u32,
    /// An encoded [`crate::tool_command::ToolRequest`].
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// The session to which the command belongs ([`ToolSession`]). The command is refused after the
    /// session has ended.
    pub session: Option<u64>,
}

/// A tool that changes processes of a job by commands. Each command has its own connection. The
/// connection of this request lasts as long as the tool, and shows when the tool has exited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSession {
    /// The job's number.
    pub job: JobId,
    /// A random number. The commands of the tool refer to the session by this number.
    pub session: u64,
    /// The ranks that the tool may change. `None` means all ranks.
    pub ranks: Option<NodeSet>,
    /// The body of the command that is sent to these ranks when the connection has ended.
    #[serde(with = "serde_bytes")]
    pub at_end: Vec<u8>,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The importance of a line (manual, scrun(1), `message`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// Suppressed by `concise` and `quiet`.
    Info,
    /// Suppressed by `quiet`.
    Warning,
    /// Always shown.
    Error,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// scrun's exit code.
    pub code: u8,
    /// Resource usage per parallel process and node, if statistics were requested.
    pub usage: Vec<NodeUsage>,
    /// Time from the start of the first process to the end of the last, in nanoseconds.
    pub elapsed_ns: u64,
}

/// The resource usage of one process (getrusage(2)), and its message counters.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUsage {
    /// Stage, from 0.
    pub stage: u32,
    /// Element in the stage, from 0.
    pub element: ElementIndex,
    /// Node.
    pub node: u32,
    /// User time in nanoseconds.
    pub user_ns: u64,
    /// System time in nanoseconds.
    pub system_ns: u64,
    /// Peak resident set size in KiB.
    pub max_rss_kib: u64,
    /// Exit code, or 128 + signal number.
    pub code: u8,
    /// Number of messages sent.
    pub sent: u64,
    /// Number of messages received.
    pub received: u64,
    /// Number of bytes in the sent messages.
    pub sent_bytes: u64,
    /// Number of bytes in the received messages.
    pub received_bytes: u64,
    /// The fraction of time in which the process was busy, by its idle flag, in thousandths. `None`
    /// if the process never set the flag, or exited before it was sampled.
    pub busy_permille: Option<u16>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_room_for_several_chunks() {
        let chunk = MAX_IO_CHUNK as u64;
        assert_eq!(chunk, 1 << 16);
        assert_eq!((STDIN_WINDOW, OUTPUT_WINDOW), (4 * chunk, 16 * chunk));
    }
}
