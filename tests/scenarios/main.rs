//! Whole-system scenarios, one file each: real programs, started as a user starts them. The first
//! paragraph of a file is what the user sees. Run one by its name:
//! `cargo test -p score-tests killed::`.
#![forbid(unsafe_code)]

mod early_reader;
mod environment;
mod exit_codes;
mod harness;
mod held_screen;
mod job_control;
mod killed;
mod limits;
mod local_execution;
mod main_job;
mod many_lines;
mod options;
mod probe;
mod program_errors;
mod redirects;
mod sequences;
mod signals;
mod standard_input;
mod unprivileged;
mod usage_errors;
