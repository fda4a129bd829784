//! The logic of a job, without processes, sockets or clocks: what the hosts do is decided here,
//! from events to actions.

pub mod check;
pub mod code;
pub mod element;
pub mod hang;
pub mod life;
pub mod limits;
pub mod lines;
pub mod staging;
pub mod watchers;
