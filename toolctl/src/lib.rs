//! The library of the tool control service of a job on one host: the tracer of the job's processes,
//! the memory that the service shares with tools, and the client end of the service's socket.

pub mod client;
pub mod shared_memory;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod tracer;
