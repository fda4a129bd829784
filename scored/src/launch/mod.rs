//! Starts daemons on the hosts of a job: virtual hosts of this machine, hosts with a remote shell,
//! and hosts of a batch system's allocation. See docs/dev/launch.md, "Many hosts: how the daemons
//! start".
//!
//! [`LaunchTargets`] creates virtual hosts, or selects the method for real ones. [`Launcher`]
//! starts the same command on each host and reports failures. The caller notifies the launcher of
//! the daemons that have connected.
//!
//! The secret is passed through standard input, never through arguments or the environment.
//! Standard input stays open as long as this process exists. A daemon that reads end-of-file has
//! lost its server.

mod address;
mod command_line;
mod connect_list;
mod key_file;
mod launcher;
mod method;
pub mod preflight;
mod queue;
mod targets;
mod virtual_hosts;

pub use address::{local_addresses, local_name, position_of};
pub use connect_list::ConnectList;
pub use launcher::{Failure, Launcher};
pub use targets::{LaunchOptions, LaunchTargets};

use std::ffi::OsString;

use score_lan::LanPlan;

/// A word of the command that is replaced by the name of the host. A launcher that starts one
/// command on all hosts inserts [`UNKNOWN_HOST`].
pub const HOST_PLACEHOLDER: &str = "%h";
/// A word of the command that is replaced by the source of the secret: [`SECRET_ON_STDIN`] or a
/// file.
pub const SECRET_PLACEHOLDER: &str = "%k";
/// Instead of a host name: the daemon determines its own name by [`local_name`].
pub const UNKNOWN_HOST: &str = "?";
/// Instead of a file name: the secret is the first data on standard input.
pub const SECRET_ON_STDIN: &str = "-";

/// A host on which a daemon is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchHost {
    /// The position of the host in the job. It identifies the host for the caller.
    pub position: usize,
    /// The name of the host in messages and for its daemon.
    pub name: String,
    /// The name of the host for a remote shell or batch system.
    pub launch_name: String,
}

/// A request to start daemons.
#[derive(Debug)]
pub struct LaunchRequest {
    /// The hosts.
    pub hosts: Vec<LaunchHost>,
    /// The absolute path of the program and its arguments, which contain [`HOST_PLACEHOLDER`] and
    /// [`SECRET_PLACEHOLDER`].
    pub command: Vec<OsString>,
    /// The cluster key.
    pub secret: Vec<u8>,
}

/// The number of a virtual host, given its name.
fn virtual_number(name: &str) -> Option<u32> {
    name.strip_prefix(LanPlan::new(1).prefix.as_str())?.parse().ok()
}
