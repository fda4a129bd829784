//! The runtime that a program under SCore links (manual 1.5): `score_initialize`, the globals of
//! table 2.1, the idle flag, scrun's options and the SCore-D system calls.
//!
//! C programs use the functions in [`abi`] (headers `score.h`, `sc.h`, `score_resource.h`,
//! `score_options.h`). Rust programs use [`initialize`], [`Net`] and [`sc`], which have the same
//! functions without pointers. This crate calls PM only through the functions of `pm.h` ([`pm_h`]).
//! A binary that links this crate must therefore also link `pm-c` (`extern crate pm as _`).

pub mod abi;
mod area;
mod attach;
mod control;
mod detach;
mod elf_note;
mod environment;
mod exit;
mod fork_guard;
pub mod globals;
mod idle;
mod initialize;
mod message;
mod net;
mod networks;
mod options;
mod pm;
pub mod pm_h;
mod resource_request;
pub mod sc;
mod session;
mod stdio;
mod sync;
mod temporary;

pub use globals::{num_host, num_node, num_proc, self_host, self_node, self_proc};
pub use idle::{become_busy, become_idle, become_idle_in_mpi_call};
pub use initialize::initialize;
pub use message::Message;
pub use net::Net;
pub use resource_request::request_nodes;
pub use session::option;

// PM for the unit tests: the crate itself only declares PM's functions.
#[cfg(test)]
extern crate pm as _;
