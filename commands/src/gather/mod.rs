//! `gather` (manual, gather(6)): what the nodes read goes to node 0's output, node by node.

pub mod collector;
pub mod contributor;
pub mod spool;
