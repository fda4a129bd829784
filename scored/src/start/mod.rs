//! How scored's daemons come up on the hosts of a cluster: virtual hosts of this machine, hosts
//! reached by a remote shell, hosts of an allocation of a batch system. docs/launch.md, "Many
//! hosts: how the daemons start".
//!
//! [`Site`] makes virtual hosts, or finds the way to others; [`Starter`] starts the same command on
//! every host and tells what becomes of it. Which of them have arrived is the caller's knowledge:
//! it says so.
//!
//! The secret goes through standard input, never through arguments or environment. Standard input
//! stays open as long as this process lives: a daemon that reads its end has lost its server.

mod address;
mod ground;
mod key_file;
mod launch;
mod queue;
mod site;
mod starter;
pub mod trial;
mod way;

pub use address::{own_addresses, own_name, position_of};
pub use site::{Site, Wishes};
pub use starter::{Failure, Starter};

use std::ffi::OsString;

/// In a word of the command: the name of the host that it is started on. Launchers that start one
/// command on all hosts put [`UNKNOWN_HOST`] there.
pub const HOST: &str = "%h";
/// In a word of the command: where the secret is to be read, [`SECRET_ON_STDIN`] or a file.
pub const SECRET: &str = "%k";
/// The daemon has to find out which host it is: [`own_name`].
pub const UNKNOWN_HOST: &str = "?";
/// The secret is the first bytes of standard input.
pub const SECRET_ON_STDIN: &str = "-";

/// A host on which a daemon is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its position among the job's hosts: what the caller calls it.
    pub position: usize,
    /// Its name in messages, and towards its daemon.
    pub name: String,
    /// What a remote shell or a batch system calls it.
    pub reach: String,
}

/// What is to be started.
#[derive(Debug)]
pub struct Order {
    /// On these hosts.
    pub hosts: Vec<Host>,
    /// The program's absolute path and its arguments, with [`HOST`] and [`SECRET`].
    pub command: Vec<OsString>,
    /// The cluster key.
    pub secret: Vec<u8>,
}
