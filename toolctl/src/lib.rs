//! The tool control service of a job on one host, which alone traces the processes of the job, and
//! a tool's end of its socket.

pub mod client;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod tracer;
