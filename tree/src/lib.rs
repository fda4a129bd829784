//! The tree of daemons on several hosts: see docs/dev/cluster.md. No sockets here.
#![forbid(unsafe_code)]

pub mod key;
pub mod link;
pub mod range_tree;
pub mod report_merge;
pub mod report_queue;
