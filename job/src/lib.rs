//! The logic of the cluster OS: state machines that turn events into actions. The code for sockets,
//! processes and clocks is in the crate scored.
//!
//! | module | decides |
//! |---|---|
//! | [`cluster`] | which hosts belong to the cluster, and which jobs get which of them |
//! | [`gang`] | when a job runs |
//! | [`master`] | the stages of a job, its parallel processes, and their ends |
//! | [`deadlock`] | whether a parallel process is deadlocked |
//! | [`host`] | what one host does for its jobs and users |
//! | [`jobs`] | all jobs of one daemon; it combines the modules above |

pub mod cluster;
pub mod deadlock;
pub mod deadlock_response;
mod debuggers;
pub mod element;
pub mod exit_code;
mod fault_response;
pub mod gang;
pub mod host;
pub mod job_tools;
pub mod jobs;
pub mod limits;
pub mod line_splitter;
pub mod master;
pub mod metrics_subscribers;
pub mod program_paths;
mod scheduling;
#[cfg(test)]
mod seeded_random;
pub mod signal;
mod stage_hold;
mod subset_fences;
pub mod tool_commands;
pub mod validate;
