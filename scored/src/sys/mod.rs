//! All code that needs `unsafe` or a bare system call: starting processes, namespaces, memfds, and
//! the few calls that have no safe wrapper. These modules implement no policy.

pub mod cgroup;
pub mod clone_exec;
pub mod cpu_latency;
pub mod credentials;
pub mod descriptor;
pub mod fd_passing;
pub mod host_name;
pub mod memfd;
pub mod name_lookup;
pub mod namespace;
pub mod new_file;
pub mod pdeathsig;
pub mod pidfd;
pub mod probe;
pub mod process;
pub mod process_stop;
pub mod random;
pub mod realtime;
pub mod remove;
pub mod remove_as_user;
pub mod remove_on_close;
pub mod spawn;
pub mod timer;
pub mod wall_clock;
