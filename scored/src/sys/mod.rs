//! Everything that needs `unsafe` or a bare system call: starting processes, namespaces, memfds,
//! and the few calls for which there is no safe wrapper. Nothing here decides anything.

pub mod awake;
pub mod cgroup;
pub mod descriptor;
pub mod memfd;
pub mod namespace;
pub mod newborn;
pub mod probe;
pub mod process;
pub mod prompt;
pub mod remove;
pub mod rights;
pub mod spawn;
pub mod stop;
pub mod tie;
pub mod timer;
pub mod user;
