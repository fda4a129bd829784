//! Jobs of one user: each test starts a scored for its job. `service` and `attacks` are separate
//! test programs, because the daemons that they start could inherit the socket of a job.

mod concurrent_jobs;
#[path = "../driver/mod.rs"]
mod driver;
mod held_stages;
mod plain_programs;
mod score_programs;
mod slices;
