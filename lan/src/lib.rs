//! A virtual LAN on one machine: each host is a network namespace (and a UTS namespace, so that
//! `hostname` tells it), joined by veth pairs: two hosts directly, more through a switch.
//!
//! Namespaces have no names here. They are held by descriptors of the process that made the LAN
//! and by the processes that run in them, so nothing is left when those are gone, however they
//! went.
//!
//! [`Lan::build`] moves the calling thread onto host 0. Root does that from any thread; who is not
//! root needs a process with one thread, because it goes by a user namespace.
#![forbid(unsafe_code)]

mod lan_plan;
mod link_requests;
mod namespace;
mod netlink;
mod topology;

pub use lan_plan::{LanPlan, rate};
pub use topology::{BuildError, Lan};
