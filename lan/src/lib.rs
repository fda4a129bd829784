//! A virtual LAN on one machine. Each host is a network namespace (and a UTS namespace, so that
//! `hostname` reports its name). Veth pairs connect two hosts directly, more hosts through a
//! switch.
//!
//! The namespaces have no names. Descriptors of the process that made the LAN, and the processes
//! that run in them, keep them. Therefore nothing is left when these processes have ended, in
//! whatever way.
//!
//! [`Lan::build`] moves the calling thread onto host 0. Root can do that from any thread. Other
//! users need a process with one thread, because it uses a user namespace.
#![forbid(unsafe_code)]

mod lan_plan;
mod link_requests;
mod namespace;
mod netlink;
mod topology;

pub use lan_plan::{LanPlan, rate};
pub use topology::{BuildError, Lan};
