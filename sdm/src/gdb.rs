//! gdb as the back end of one server: one gdb for one process (SDM "GDB Backend").
//!
//! [`mi`] parses its output. [`session`] decides, without I/O, which commands and answers to send.
//! [`process`] owns the pipes. If gdb ends, hangs, or prints text that is not GDB/MI, [`process`]
//! kills it, and the answer of this rank is an error.

pub mod mi;
mod process;
pub mod session;

pub use process::Gdb;
