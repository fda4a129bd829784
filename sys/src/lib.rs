//! System calls that several packages need, each in one place and with a safe interface. This crate
//! does not depend on the programs of SCore.

pub mod fd_passing;
pub mod host_name;
pub mod memfd;
pub mod random;
pub mod unix_socket;
