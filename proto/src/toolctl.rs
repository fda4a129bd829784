//! Messages between a shepherd and the tool control service of its host, `scored-toolctl`, in
//! frames on a stream socket. The service runs as the job's user, as the shepherd does, and the
//! user can make it send any report. The daemons check what goes to other hosts, as they check each
//! report of a shepherd.

use serde::{Deserialize, Serialize};

use crate::tool_command::CommandId;

/// The descriptor at which the service finds its socket.
pub const TOOLCTL_SOCKET_FD: i32 = 0;

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
