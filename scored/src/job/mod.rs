//! The logic of a job, without processes, sockets or clocks: what the shepherd does is decided
//! here, from events to actions.

pub mod check;
pub mod code;
pub mod element;
pub mod life;
pub mod lines;
