//! The messages of a job's tree. Orders go from the master down the job's range tree to every
//! shepherd, and reports go up in the same way. See docs/dev/cluster.md, "A job on many hosts",
//! and docs/dev/protocol.md.
//!
//! Each kind of connection has its own pair of types. A receiver cannot decode a message that its
//! connection must not carry:
//!
//! | connection | down | up |
//! |---|---|---|
//! | from daemon to daemon | [`HopOrder`] | [`HopReport`] |
//! | from a daemon to its shepherd | [`ShepherdOrder`] | [`ShepherdReport`] |
//! | from a daemon to its shepherd's switch thread | [`SwitchOrder`] | [`SwitchReport`] |
//!
//! Most of them carry an [`Order`] or a [`Report`], which the master and the nodes of the tree
//! exchange.
//!
//! Countable events are reported as a set of nodes ([`crate::nodeset::NodeSet`]), so that one
//! report can cover many nodes. Node numbers here are always global. The ids of calls stay inside
//! the shepherd.

mod debugger;
mod hop;
mod order;
mod placement;
mod program;
mod report;
mod shepherd;
mod start;
mod status;
mod subset_fence;
mod switch;
mod switch_seq;

pub use debugger::{DebuggerOrder, MAX_BLOCK_PIDS, ProcessBlock};
pub use hop::{HopOrder, HopReport};
pub use order::{ElementOrder, JobOrder, Order};
pub use placement::{HostPlacement, Placement};
pub use program::{FileRequest, ProgramAnswer};
pub use report::{DebuggedProcess, ElementReport, JobReport, OutputReport, Remains, Report};
pub use shepherd::{ShepherdOrder, ShepherdReport};
pub use start::{HostNetworkAddress, JobStart, Limit, Owner};
pub use status::Status;
pub use subset_fence::SubsetFence;
pub use switch::{LocalRotation, StopCondition, SwitchOrder, SwitchReport};
pub use switch_seq::SwitchSeq;

/// Number of bytes of output that may be in transit on one hop of the job's tree without
/// permission.
pub const HOP_WINDOW: u64 = 1024 * 1024;

/// Number of bytes of entries that each process of a host may put between two fences of PMI, on
/// average.
pub const MAX_FENCE_BYTES_PER_NODE: usize = 16 * 1024;
/// The same limit for all processes of a job on a host together, including those of different
/// programs.
pub const MAX_FENCE_BYTES_PER_HOST: usize = 512 * 1024;
/// The same limit for all processes of an element. It is less than the limit of orders that may
/// wait for a shepherd.
pub const MAX_FENCE_BYTES: usize = 4 * 1024 * 1024;
/// Largest number of subset fences ([`SubsetFence`]) that the processes of an element on a host may
/// be in at once. It permits a blocking fence of each process, and a few more.
pub fn max_subset_fences(nodes_of_host: usize) -> usize {
    nodes_of_host.saturating_add(16)
}
/// Largest number of ranges of nodes in all subset fences ([`SubsetFence`]) that processes of a job
/// on a host are in. The limit exists because the master keeps the ranges of all hosts.
pub const MAX_SUBSET_RANGES: usize = 16 * 1024;

/// Largest number of bytes of entries of one process that are sent to a host on its request
/// ([`ElementReport::ModexAnswer`]).
pub const MAX_MODEX_BYTES: usize = MAX_FENCE_BYTES_PER_NODE;

/// Largest number of unanswered requests of one host of a job for entries of processes on other
/// hosts ([`ElementReport::ModexRequest`]). `hosts`: number of hosts of the job. The answers to the
/// requests of all hosts together have at most [`MAX_FENCE_BYTES`], unless there are more than 256
/// hosts.
pub fn max_modex_requests(hosts: usize) -> usize {
    (MAX_FENCE_BYTES / MAX_MODEX_BYTES / hosts.max(1)).clamp(1, 64)
}

#[cfg(test)]
#[path = "job_control/tests.rs"]
mod tests;
