//! Stacks of processes. They are copied while a process is stopped. Afterwards they are unwound,
//! named, and merged into a prefix tree.
//!
//! 1. [`capture`](capture::capture) copies registers and stacks of all threads of a process.
//! 2. [`unwind`](unwind::unwind) unwinds the copies by the unwind tables of the mapped files.
//! 3. [`NameCache`](names::NameCache) finds functions and source lines.
//! 4. [`StackTree`](tree::StackTree) merges stacks, and [`render`] formats the tree.
//!    [`CollectedStacks`](collected::CollectedStacks) does this for the answers of a job's ranks.
//!
//! [`LocationFinder`](location::LocationFinder) finds the address of a name or a line.
//!
//! [`StackReader`] does the first three steps, and keeps the data that processes of a job share.

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
mod own_frames;
mod reader;
pub mod registers;
pub mod render;
pub mod symbols;
pub mod tree;
pub mod unwind;

pub use fuzz::fuzz;
pub use reader::{ProcessStacks, StackReader, ThreadStack};
