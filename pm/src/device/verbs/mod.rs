//! PM over RDMA hardware: InfiniBand, RoCE and iWARP, through libibverbs.
//!
//! What is built: the device is found and opened, with port, address, partition and service level
//! as its options say, and where there is none the reason is told. Its contexts answer NoSys.
//!
//! | file | what is in it |
//! |---|---|
//! | `config.rs` | options of `open`, and what `config` answers |
//! | `open.rs` | how the device is opened |
//! | `choice.rs` | which port of which adapter, and how it is addressed; pure |
//! | `library.rs` | libibverbs, opened at run time |

pub(crate) mod choice;
pub(crate) mod config;
mod library;
pub(crate) mod open;

pub use open::probe;
