//! Shared parts of the commands.

pub mod compilers;
