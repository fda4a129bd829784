//! Tools for running jobs (docs/dev/tools.md): the messages of tool control, the authority of
//! several tools over processes, and the merging of events. This crate does no I/O.

pub mod authority;
pub mod merge;
pub mod wire;
