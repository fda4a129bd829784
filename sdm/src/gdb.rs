//! gdb as the back end of one server: one gdb for one process (SDM "GDB Backend").
//!
//! [`mi`] reads its output, [`session`] decides without I/O what to write and what to answer, and
//! [`process`] has the pipes. A gdb that ends, hangs or prints what is no GDB/MI gives an error as
//! the answer of this rank, and is killed.

pub mod mi;
mod process;
pub mod session;

pub use process::Gdb;
