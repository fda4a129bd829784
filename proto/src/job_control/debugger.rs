//! Orders to the hosts of a job for debuggers: to hold processes and to list them.

use serde::{Deserialize, Serialize};

use crate::ids::{ElementIndex, JobHostId};

/// An order to all hosts of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DebuggerOrder {
    /// Hold the processes of the stage that is started next. Each of them waits before its first
    /// own instruction until [`DebuggerOrder::ReleaseStage`]. When all of them wait, every host
    /// sends [`super::JobReport::Processes`].
    HoldStage,
    /// Let the processes of a held stage run.
    ReleaseStage,
    /// Send [`super::JobReport::Processes`] when every process of the stage has been started.
    ListProcesses,
}

/// Largest number of process ids in one [`ProcessBlock`], and in one merged report. A report then
/// has at most about 100 KiB, which is far below the limit of a frame.
pub const MAX_BLOCK_PIDS: usize = 16 * 1024;

/// The processes of consecutive nodes of a parallel process on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessBlock {
    /// The host.
    pub host: JobHostId,
    /// Element of the running stage.
    pub element: ElementIndex,
    /// The first node.
    pub first_node: u32,
    /// The process ids of the nodes in the PID namespace of the host. 0: the node has no process,
    /// because it has exited or is not needed.
    pub pids: Vec<u32>,
}
