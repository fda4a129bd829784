//! Tools in a running job (docs/tools.md): the messages of tool control, the authority between
//! several tools, and the merging of events. No I/O.

pub mod authority;
pub mod merge;
pub mod wire;
