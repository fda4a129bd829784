//! The tool control service of a job on one host. It alone traces the processes of the job.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub mod tracer;
