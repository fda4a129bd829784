//! Stacks of processes: copied while a process stands still, unwound and named afterwards, and
//! merged into a prefix tree.
//!
//! 1. [`capture`](capture::capture) copies registers and stacks of all threads of a process.
//! 2. [`unwind`](unwind::unwind) follows the copies by the unwind tables of the mapped files.
//! 3. [`NameCache`](names::NameCache) finds functions and source lines.
//! 4. [`StackTree`](tree::StackTree) merges them; [`render`] shows it.
//!    [`CollectedStacks`](collected::CollectedStacks) does so with the answers of a job's ranks.
//!
//! [`LocationFinder`](location::LocationFinder) goes the other way, from a name or a line to an
//! address.
//!
//! [`StackReader`] does the first three, and keeps what processes of a job have in common.

pub mod address;
pub mod capture;
mod cfi;
pub mod collected;
mod debug_file;
pub mod demangle;
mod dwarf;
pub mod elf;
pub mod frame;
mod fuzz;
pub mod location;
pub mod maps;
pub mod memory;
pub mod module;
pub mod names;
mod reader;
pub mod registers;
pub mod render;
pub mod symbols;
pub mod tree;
pub mod unwind;

pub use fuzz::fuzz;
pub use reader::{ProcessStacks, StackReader, ThreadStack};
