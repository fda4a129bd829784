//! The reasons why a server or the master cannot start.

use std::io;
use std::net::SocketAddr;

use score_proto::env::SELF_NODE_ENV;
use thiserror::Error;

/// The reason why a server or the master cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The connection string of the master is invalid.
    #[error("{0:?}: not an address of a front end; use ADDRESS:PORT")]
    FrontEndAddress(String),
    /// The connection string of a server is invalid.
    #[error("{0:?}: not a port of a server; use a number from 1024 to 65535")]
    ServerPort(String),
    /// There is no id, or it is invalid.
    #[error("{SELF_NODE_ENV}: not the id of a server; set this variable to the id")]
    ServerId,
    /// The front end has not accepted a connection in any attempt.
    #[error("cannot connect to the front end at {0} in {1} attempts: {2}")]
    FrontEnd(SocketAddr, u32, io::Error),
    /// All tried ports are in use.
    #[error("no free port from {0} on, after {1} attempts: {2}")]
    NoPort(u16, u32, io::Error),
    /// The handshake cannot be started.
    #[error("cannot begin a link: {0}")]
    Link(#[from] score_tree::link::LinkError),
    /// A system call failed.
    #[error("cannot prepare the connections: {0}")]
    Io(#[from] io::Error),
}
