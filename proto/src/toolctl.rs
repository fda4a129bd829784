//! Messages between a shepherd and the tool control service of its host, `scored-toolctl`, in
//! frames on a stream socket. The service inherits three descriptors from its shepherd: this
//! socket, the listening socket for tools, and /proc of the PID namespace around the job.
//!
//! Service and shepherd run as the job's user, who can make the service send any report. The
//! daemons check everything that goes to other hosts, as for each report of a shepherd.

use serde::{Deserialize, Serialize};

use crate::ids::{ElementIndex, JobHostId, JobId, ProcessIndex};
use crate::message::OsBytes;
use crate::tool_command::CommandId;

/// The descriptor of the service's socket.
pub const TOOLCTL_SOCKET_FD: i32 = 0;
/// The descriptor of the listening socket for tools, or of /dev/null if there is none.
pub const TOOLCTL_LISTENER_FD: i32 = 1;
/// The descriptor of /proc of the host's PID namespace, or of /dev/null if the job has no PID
/// namespace of its own.
pub const TOOLCTL_PROC_FD: i32 = 2;

/// The description of the job, in the first order to the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolctlJob {
    /// The number of the job.
    pub job: JobId,
    /// The index of this host in the job.
    pub host: JobHostId,
    /// The job's directory.
    pub directory: OsBytes,
}

/// A process of the job on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolProcess {
    /// The node of the process.
    pub node: u32,
    /// The process id, in the PID namespace of the service.
    pub pid: i32,
    /// The thread that waits after a fault or in sc_inspectme, if any.
    pub faulting_thread: Option<i32>,
}

/// From the shepherd to the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolctlOrder {
    /// The first order.
    Job(ToolctlJob),
    /// A process has been started.
    Started {
        /// The rank of the process, which is its row in the job's process table.
        rank: u32,
        /// The index of the process among the processes of its element on this host.
        number: ProcessIndex,
        /// The process id, in the PID namespace of the service.
        pid: i32,
    },
    /// A process has exited.
    Exited {
        /// The rank of the process.
        rank: u32,
        /// The status of the process, as wait(2) returns it.
        status: i32,
    },
    /// An earlier service has been killed. These breakpoints may still be in the process: address,
    /// and original byte of the program.
    RemoveBreakpoints {
        /// The rank of the process.
        rank: u32,
        /// The breakpoints.
        breakpoints: Vec<(u64, u8)>,
    },
    /// The service has received the job and its processes, and has to serve tools from now on.
    ServeTools,
    /// The answer to [`ToolctlReport::TimeQuestion`].
    JobTime {
        /// Running time of the job in nanoseconds, without the slices of other jobs.
        ns: u64,
    },
    /// The service is idle. It has to exit, unless a tool has connected in the meantime.
    Leave,
    /// The job ends. The service has to notify tools of the exits of their processes, and then
    /// exit.
    End,
    /// A command to these processes. The service has to answer for each of them within `wait_ms`.
    Command {
        /// The element in the running stage.
        element: ElementIndex,
        /// The number of the command.
        id: CommandId,
        /// The processes.
        processes: Vec<ToolProcess>,
        /// The time in milliseconds.
        wait_ms: u32,
        /// An encoded [`crate::tool_command::ToolRequest`].
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
}

/// From the service to the shepherd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolctlReport {
    /// Whether tools are connected. The shepherd keeps the service running while they are.
    HasTools(bool),
    /// Requests the running time of the job: [`ToolctlOrder::JobTime`].
    TimeQuestion,
    /// A breakpoint is about to be set, or the original byte at its address has changed.
    BreakpointSet {
        /// The rank of the process.
        rank: u32,
        /// The address.
        address: u64,
        /// The original byte of the program.
        original: u8,
    },
    /// A breakpoint has been removed.
    BreakpointReset {
        /// The rank of the process.
        rank: u32,
        /// The address.
        address: u64,
    },
    /// A process has no more breakpoints.
    NoBreakpoints {
        /// The rank of the process.
        rank: u32,
    },
    /// The answer of a process to a command.
    Answer {
        /// The parallel process.
        element: ElementIndex,
        /// The number of the command.
        id: CommandId,
        /// The node of the process.
        node: u32,
        /// An encoded [`crate::tool_command::ToolResult`].
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
}
