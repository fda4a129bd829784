//! The tree of daemons on several hosts; see docs/dev/cluster.md. This crate opens no sockets.
#![forbid(unsafe_code)]

pub mod key;
pub mod link;
pub mod range_tree;
pub mod report_merge;
pub mod report_queue;
