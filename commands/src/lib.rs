//! The parts of SCore's commands that more than one of them uses, and those worth testing alone.
//! Each command is one small file in `bin/`.

// PM itself: the runtime only declares its functions.
extern crate pm as _;

pub mod cluster;
pub mod compilers;
pub mod gather;
pub mod hop;
pub mod options;
pub mod pmtest;
pub mod post;
pub mod scatter;
pub mod scmon;
pub mod scorehosts;
pub mod scps;
pub mod station;
pub mod tee;
mod words;

#[cfg(test)]
mod simulation;
