//! The logic of a job, without processes, sockets or clocks: state machines that turn events into
//! actions for the hosts.

pub mod deadlock_response;
pub mod element;
pub mod exit_code;
pub mod limits;
pub mod line_splitter;
pub mod master;
pub mod metrics_subscribers;
pub mod program_paths;
pub mod validate;
