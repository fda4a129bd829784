//! The parts of SCore's commands that several of them use or that are tested separately. Each
//! command is one small file in `bin/`.

// Links PM, because the runtime only declares the functions of PM.
extern crate pm as _;

mod args;
pub mod compilers;
pub mod end_tool;
pub mod gather;
pub mod job_address;
pub mod node_protocol;
pub mod options;
pub mod pmtest;
pub mod process_table;
pub mod runner;
pub mod scatter;
pub mod scdb;
pub mod scmon;
pub mod scored_client;
pub mod scorehosts;
pub mod scps;
pub mod sdm_tree;
pub mod start_tool;
pub mod tee;
pub mod tool_client;
pub mod tool_files;
pub mod transport;

#[cfg(test)]
mod simulation;
