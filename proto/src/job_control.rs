//! The messages of a job's tree: orders go from the master down the job's range tree to every
//! shepherd, reports go up the same way. See docs/dev/cluster.md, "A job on many hosts".
//!
//! Each connection has a pair of types of its own. A receiver cannot decode what the connection may
//! not carry:
//!
//! | connection | down | up |
//! |---|---|---|
//! | from daemon to daemon | [`HopOrder`] | [`HopReport`] |
//! | from a daemon to its shepherd | [`ShepherdOrder`] | [`ShepherdReport`] |
//! | from a daemon to its shepherd's switch thread | [`SwitchOrder`] | [`SwitchReport`] |
//!
//! Most of them carry what the master and the nodes of the tree exchange: [`Order`] and [`Report`].
//!
//! Countable events are reported as a set of nodes ([`crate::nodeset::NodeSet`]), so that one
//! report can cover many nodes. Node numbers here are always global. Numbers of calls stay inside
//! the shepherd.

mod debugger;
mod hop;
mod order;
mod placement;
mod program;
mod report;
mod shepherd;
mod start;
mod subset_fence;
mod switch;

pub use debugger::{DebuggerOrder, MAX_BLOCK_PIDS, ProcessBlock};
pub use hop::{HopOrder, HopReport};
pub use order::{ElementOrder, JobOrder, Order};
pub use placement::{HostPlacement, Placement};
pub use program::{FileRequest, ProgramAnswer};
pub use report::{DebuggedProcess, ElementReport, JobReport, OutputReport, Report};
pub use shepherd::{ShepherdOrder, ShepherdReport};
pub use start::{HostNetworkAddress, JobStart, Limit, Owner, Status};
pub use subset_fence::SubsetFence;
pub use switch::{LocalRotation, StopCondition, SwitchOrder, SwitchReport, SwitchSeq};

/// Output that may be on its way on one hop of the job's tree without permission, in bytes.
pub const HOP_WINDOW: u64 = 1024 * 1024;

/// Bytes of entries that the processes of a host may put between two fences of PMI, for each of
/// them.
pub const MAX_FENCE_BYTES_PER_NODE: usize = 16 * 1024;
/// The same for all processes of a job on a host together, whichever programs they run.
pub const MAX_FENCE_BYTES_PER_HOST: usize = 512 * 1024;
/// The same for all processes of a parallel process: less than the orders that may wait for a
/// shepherd.
pub const MAX_FENCE_BYTES: usize = 4 * 1024 * 1024;
/// Fences of some nodes ([`SubsetFence`]) in which the processes of a parallel process on a host
/// may be at once: a blocking one of each process, and some more.
pub fn max_subset_fences(nodes_of_host: usize) -> usize {
    nodes_of_host.saturating_add(16)
}
/// Ranges of nodes in all fences of some nodes ([`SubsetFence`]) in which processes of a job on a
/// host are: the master keeps those of all hosts.
pub const MAX_SUBSET_RANGES: usize = 16 * 1024;

/// Bytes that one process has put and that go to a host that has asked for them
/// ([`ElementReport::ModexAnswer`]).
pub const MAX_MODEX_BYTES: usize = MAX_FENCE_BYTES_PER_NODE;

/// Questions of one host of a job for what processes of other hosts have put
/// ([`ElementReport::ModexRequest`]) that may be without an answer, if the job has so many hosts.
/// The answers to those of all hosts are [`MAX_FENCE_BYTES`] together, unless there are very many.
pub fn max_modex_requests(hosts: usize) -> usize {
    (MAX_FENCE_BYTES / MAX_MODEX_BYTES / hosts.max(1)).clamp(1, 64)
}

#[cfg(test)]
#[path = "job_control/tests.rs"]
mod tests;
