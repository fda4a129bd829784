//! The logic of a job, without processes, sockets or clocks: what the hosts do is decided here,
//! from events to actions.

pub mod deadlock_response;
pub mod element;
pub mod exit_code;
pub mod limits;
pub mod line_splitter;
pub mod master;
pub mod metrics_subscribers;
pub mod program_paths;
pub mod validate;
