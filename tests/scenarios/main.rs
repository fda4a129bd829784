//! Whole-system scenarios, one file each: real programs, started as a user starts them. The first
//! paragraph of a file is what the user sees. Run one by its name:
//! `cargo test -p score-tests killed::`.
#![forbid(unsafe_code)]

mod batch_systems;
mod between_hosts;
mod browser;
mod cables;
mod clock_jumps;
mod compilers;
mod deadlock;
mod early_reader;
mod environment;
mod exit_codes;
mod forged_packets;
mod full_disk;
mod harness;
mod held_screen;
mod hostile;
mod job_control;
mod killed;
mod last_words;
mod limits;
mod local_execution;
mod lost_hosts;
mod main_job;
mod many_hosts;
mod many_lines;
mod many_processes;
mod monitors;
mod multi_user;
mod networks;
mod odd_hosts;
mod options;
mod page;
mod pm_misuse;
mod pmtest;
mod probe;
mod program_errors;
mod programs_travel;
mod redirects;
mod remote_hosts;
mod remote_jobs;
mod rows;
mod scout;
mod scps;
mod sequences;
mod service_unit;
mod signals;
mod standard_input;
mod strangers;
mod system_calls;
mod time_sharing;
mod traffic;
mod unprivileged;
mod usage_errors;
mod virtual_hosts;
