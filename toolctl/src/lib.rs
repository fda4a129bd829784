//! The tool control service of a job on one host, which is the only tracer of the job's processes.
//! Also the client end of its socket, for tools.

pub mod client;
pub mod shared_memory;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod tracer;
