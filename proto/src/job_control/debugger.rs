//! What the hosts of a job do for debuggers: they hold processes and list them.

use serde::{Deserialize, Serialize};

use crate::ids::JobHostId;

/// To all hosts of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DebuggerOrder {
    /// The processes of the stage that is started next are held: each waits before its first own
    /// instruction, until [`DebuggerOrder::ReleaseStage`]. When all of them wait, every host sends
    /// [`super::JobReport::Processes`].
    HoldStage,
    /// Let the processes of a held stage run.
    ReleaseStage,
    /// Send [`super::JobReport::Processes`] when every process of the stage has been started.
    ListProcesses,
}

/// Most process identifiers in one [`ProcessBlock`], and in one report that has been merged. A
/// report then has some 100 KiB at most, far below the limit of a frame.
pub const MAX_BLOCK_PIDS: usize = 16 * 1024;

/// The processes of consecutive nodes of a parallel process on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessBlock {
    /// The host.
    pub host: JobHostId,
    /// Element of the running stage.
    pub element: u32,
    /// The first node.
    pub first_node: u32,
    /// The identifiers of the nodes' processes in the PID namespace of the host. 0: the node has no
    /// process, because it has ended or needs none.
    pub pids: Vec<u32>,
}
