//! Messages between a shepherd and the tool control service of its host, `scored-toolctl`, in
//! frames on a stream socket. The service has three descriptors from its shepherd: this socket, the
//! listening socket for tools, and /proc of the PID namespace around the job. The service runs as
//! the job's user, as the shepherd does, and the user can make it send any report. The daemons
//! check what goes to other hosts, as they check each report of a shepherd.

use serde::{Deserialize, Serialize};

use crate::message::OsBytes;
use crate::tool_command::CommandId;

/// The descriptor at which the service finds its socket.
pub const TOOLCTL_SOCKET_FD: i32 = 0;
/// The descriptor at which it finds the listening socket for tools; /dev/null if there is none.
pub const TOOLCTL_LISTENER_FD: i32 = 1;
/// The descriptor at which it finds /proc of the host's PID namespace; /dev/null if the job has no
/// namespace of its own.
pub const TOOLCTL_PROC_FD: i32 = 2;

/// What the service learns first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolctlJob {
    /// The number of the job.
    pub job: u64,
    /// The number of this host in the job.
    pub host: u32,
    /// The job's directory.
    pub directory: OsBytes,
}

/// A process of the job on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolProcess {
    /// Its node.
    pub node: u32,
    /// Its process id, in the PID namespace of the service.
    pub pid: i32,
    /// The thread that waits after a fault or in sc_inspectme.
    pub faulting_thread: Option<i32>,
}

/// To the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolctlOrder {
    /// The first order.
    Job(ToolctlJob),
    /// A process runs.
    Started {
        /// Its rank: the row of the process in the table.
        rank: u32,
        /// Its number among those of its parallel process on this host.
        number: u32,
        /// Its process id, in the PID namespace of the service.
        pid: i32,
    },
    /// A process has ended.
    Exited {
        /// Its rank.
        rank: u32,
        /// In the form of wait(2).
        status: i32,
    },
    /// A service before this one has been killed: these breakpoints, by address and byte of the
    /// program, may still be in the process.
    RemoveBreakpoints {
        /// Its rank.
        rank: u32,
        /// The breakpoints.
        breakpoints: Vec<(u64, u8)>,
    },
    /// The service knows the job and its processes: it serves tools from now on.
    ServeTools,
    /// The answer to [`ToolctlReport::TimeQuestion`].
    JobTime {
        /// Nanoseconds that the job has had, without the slices of others.
        ns: u64,
    },
    /// Nothing is to be done: the service ends, unless a tool has connected meanwhile.
    Leave,
    /// The job ends: the service ends when it has told tools of the exits of their processes.
    End,
    /// A command to these processes. The service answers for each of them within `wait_ms`.
    Command {
        /// The parallel process in the running stage.
        element: u32,
        /// The number of the command.
        id: CommandId,
        /// The processes.
        processes: Vec<ToolProcess>,
        /// Milliseconds.
        wait_ms: u32,
        /// An encoded [`crate::tool_command::ToolRequest`].
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
}

/// From the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolctlReport {
    /// Whether tools are connected: as long as they are, the service stays.
    HasTools(bool),
    /// For how long has the job been running?
    TimeQuestion,
    /// A breakpoint is about to be set, or the program has another byte there.
    BreakpointSet {
        /// The rank of the process.
        rank: u32,
        /// The address.
        address: u64,
        /// The byte of the program.
        original: u8,
    },
    /// A breakpoint has been removed.
    BreakpointReset {
        /// The rank of the process.
        rank: u32,
        /// The address.
        address: u64,
    },
    /// A process has no breakpoints any more.
    NoBreakpoints {
        /// Its rank.
        rank: u32,
    },
    /// The answer of a process to a command.
    Answer {
        /// The parallel process.
        element: u32,
        /// The number of the command.
        id: CommandId,
        /// The node of the process.
        node: u32,
        /// An encoded [`crate::tool_command::ToolResult`].
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
}
