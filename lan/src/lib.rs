//! A virtual LAN on one machine. Each host is a network namespace with a UTS namespace, so that
//! `hostname` reports the name of the host. Veth pairs connect two hosts directly. More hosts, and
//! hosts with a limited rate, are connected through a switch.
//!
//! The namespaces have no names. They are kept by descriptors of the process that created the LAN,
//! and by the processes that run in them. Therefore nothing is left after these processes have
//! ended, however they ended.
//!
//! [`Lan::build`] moves the calling thread onto host 0. Root can call it from any thread. Other
//! users need a process with one thread, because it uses a user namespace.
#![forbid(unsafe_code)]

mod lan_plan;
mod link_requests;
mod namespace;
mod netlink;
mod topology;

pub use lan_plan::{LanPlan, rate};
pub use topology::{BuildError, Lan};
