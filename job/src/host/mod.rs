//! The decisions of one host's daemon: its node in the range tree of each job, its rotation of
//! jobs, and the limits of its users.

mod exchange_limits;
mod gather;
pub mod host_rotation;
pub mod rate_limit;
mod tool_mergers;
pub mod tree_node;
pub mod turn_times;
pub mod usage;
