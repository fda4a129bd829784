//! Starts scored's daemons on the hosts of a cluster: virtual hosts of this machine, hosts that a
//! remote shell reaches, and hosts of an allocation of a batch system. See docs/launch.md, "Many
//! hosts: how the daemons start".
//!
//! [`LaunchTargets`] creates virtual hosts, or selects the method for real ones. [`Launcher`]
//! starts the same command on every host and reports failures. The caller knows which daemons have
//! arrived, and notifies the launcher.
//!
//! The secret is passed through standard input, never through arguments or environment. Standard
//! input stays open as long as this process lives: a daemon that reads end-of-file has lost its
//! server.

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
/// command on all hosts insert [`UNKNOWN_HOST`].
pub const HOST_PLACEHOLDER: &str = "%h";
/// In a word of the command: the source of the secret, [`SECRET_ON_STDIN`] or a file.
pub const SECRET_PLACEHOLDER: &str = "%k";
/// The daemon has to find its own host name: [`local_name`].
pub const UNKNOWN_HOST: &str = "?";
/// The secret is the first bytes of standard input.
pub const SECRET_ON_STDIN: &str = "-";

/// A host on which a daemon is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchHost {
    /// Its position among the job's hosts, which identifies it for the caller.
    pub position: usize,
    /// Its name in messages, and for its daemon.
    pub name: String,
    /// Its name for a remote shell or a batch system.
    pub launch_name: String,
}

/// A request to start daemons.
#[derive(Debug)]
pub struct LaunchRequest {
    /// The hosts.
    pub hosts: Vec<LaunchHost>,
    /// The program's absolute path and its arguments, with [`HOST_PLACEHOLDER`] and
    /// [`SECRET_PLACEHOLDER`].
    pub command: Vec<OsString>,
    /// The cluster key.
    pub secret: Vec<u8>,
}
