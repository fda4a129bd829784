//! The protocol between the parts of SCore: layouts of shared memory, messages on control sockets,
//! and version numbers. This crate does no I/O and reads no clock. All decoded data is treated as
//! hostile until it has been checked.
#![forbid(unsafe_code)]

pub mod all_messages;
pub mod allocation_request;
pub mod carea;
pub mod client_session;
pub mod daemon_statistics;
pub mod debugger;
pub mod elf_note;
pub mod env;
pub mod exit_code;
pub mod file_tree;
pub mod frame;
pub mod idle_notify;
pub mod ids;
pub mod job_control;
pub mod job_list;
pub mod message;
pub mod mpi_call;
pub mod network;
pub mod network_choice;
pub mod nodeset;
pub mod observation;
pub mod peer_message;
pub mod pmix;
pub mod server_message;
pub mod tool_command;
pub mod tool_files;
pub mod tool_start;
pub mod toolctl;

/// Version of all messages and layouts in this crate. Peers with different versions reject each
/// other with a message that names both versions.
pub const PROTOCOL_VERSION: u32 = 20;

/// The largest number of nodes of a parallel process (manual 2.2.4, `PM_MAX_NODE`).
pub const MAX_NODES: u32 = 1 << 20;
