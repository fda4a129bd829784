//! Tests of the tracer on real processes, and of the service of tools.

mod attach;
mod breakpoints;
mod injection;
mod messages;
mod new_threads;
mod random;
mod service_start;
mod shared_memory;
mod slices;
mod support;
mod undo;
