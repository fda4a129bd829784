//! How scored's daemons come up on the hosts of a cluster: virtual hosts of this machine, hosts
//! reached by a remote shell, hosts of an allocation of a batch system. docs/launch.md, "Many
//! hosts: how the daemons start".
//!
//! [`LaunchTargets`] makes virtual hosts, or finds the way to others; [`Launcher`] starts the same command on
//! every host and tells what becomes of it. Which of them have arrived is the caller's knowledge:
//! it says so.
//!
//! The secret goes through standard input, never through arguments or environment. Standard input
//! stays open as long as this process lives: a daemon that reads its end has lost its server.

mod address;
mod command_line;
mod key_file;
mod launcher;
mod method;
pub mod preflight;
mod queue;
mod targets;
mod virtual_hosts;

pub use address::{local_addresses, local_name, position_of};
pub use launcher::{Failure, Launcher};
pub use targets::{LaunchOptions, LaunchTargets};

use std::ffi::OsString;

/// In a word of the command: the name of the host that it is started on. Launchers that start one
/// command on all hosts put [`UNKNOWN_HOST`] there.
pub const HOST_PLACEHOLDER: &str = "%h";
/// In a word of the command: where the secret is to be read, [`SECRET_ON_STDIN`] or a file.
pub const SECRET_PLACEHOLDER: &str = "%k";
/// The daemon has to find out which host it is: [`own_name`].
pub const UNKNOWN_HOST: &str = "?";
/// The secret is the first bytes of standard input.
pub const SECRET_ON_STDIN: &str = "-";

/// A host on which a daemon is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchHost {
    /// Its position among the job's hosts: what the caller calls it.
    pub position: usize,
    /// Its name in messages, and towards its daemon.
    pub name: String,
    /// What a remote shell or a batch system calls it.
    pub launch_name: String,
}

/// What is to be started.
#[derive(Debug)]
pub struct LaunchRequest {
    /// On these hosts.
    pub hosts: Vec<LaunchHost>,
    /// The program's absolute path and its arguments, with [`HOST_PLACEHOLDER`] and [`SECRET_PLACEHOLDER`].
    pub command: Vec<OsString>,
    /// The cluster key.
    pub secret: Vec<u8>,
}
