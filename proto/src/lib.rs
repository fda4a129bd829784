//! The contract between the parts of SCore: what stands where in shared memory, what travels on
//! a control socket, and under which version numbers. Nothing here does I/O or touches a clock;
//! everything that is decoded here is treated as hostile until it has been checked.
#![forbid(unsafe_code)]

pub mod bell;
pub mod carea;
pub mod env;
pub mod frame;
pub mod listing;
pub mod login;
pub mod message;
pub mod network;
pub mod nodeset;
pub mod note;
pub mod order;
pub mod peer;
pub mod remote;
pub mod shape;
pub mod sight;
pub mod wire;

/// Version of everything in this crate. Peers of different versions refuse each other by name.
pub const PROTOCOL_VERSION: u32 = 9;

/// The largest number of nodes of a parallel process (manual 2.2.4, `PM_MAX_NODE`).
pub const MAX_NODES: u32 = 1 << 20;
