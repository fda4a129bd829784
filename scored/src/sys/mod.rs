//! All code of scored that needs `unsafe` or a bare system call: starting processes, namespaces,
//! mappings, and the few calls that have no safe wrapper. These modules implement no policy. The
//! package score-sys has the calls that other packages also need.

pub mod cgroup;
pub mod clone_exec;
pub mod cpu_latency;
pub mod credentials;
pub mod descriptor;
pub mod memfd;
pub mod mounts;
pub mod name_lookup;
pub mod namespace;
pub mod new_file;
pub mod pdeathsig;
pub mod pidfd;
pub mod probe;
pub mod process;
pub mod process_stop;
pub mod realtime;
pub mod remove;
pub mod remove_as_user;
pub mod remove_on_close;
pub mod spawn;
pub mod spawn_args;
pub mod tcp;
pub mod timer;
pub mod wall_clock;
