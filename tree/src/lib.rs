//! What the daemons of many hosts share: see docs/ARCHITECTURE.md, "Many hosts". No sockets here.
#![forbid(unsafe_code)]

pub mod key;
pub mod link;
pub mod merge;
pub mod range;
pub mod report;
