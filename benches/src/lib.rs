//! Shared parts of the measurements.

pub mod client;
