//! The scalable debug manager: commands go to sets of processes, and equal events merge (SDM,
//! docs/tools.md N1 to N47).
//!
//! N processes have N servers, with the ids 0 to N-1, and one master, with the id N. They form a
//! tree ([`routing`]), through which commands go down and events come up. What one of them does
//! with a message is decided in [`hop`], without I/O. A [`transport`] carries the messages, and a
//! [`backend`] carries the commands out, for example [`gdb`]. A [`server::Server`] joins the three.
//! At the tree of a job's daemons the hops are the daemons (`commands/src/sdm_tree/`).
//!
//! | SDM | here |
//! |---|---|
//! | `sdm_master_init` | [`server::sdm_master_init`] |
//! | `sdm_server_init` | [`server::sdm_server_init`] |
//! | `sdm_master_progress`, `sdm_server_progress` | [`server::Server::progress`] |
//! | `sdm_connect_children` | [`transport::Transport::connect_children`] |
//! | `sdm_send_to_children` | [`transport::Transport::send_to_child`], once for each child |
//! | `sdm_send_to_parent` | [`transport::Transport::send_to_parent`] |
//! | front end | [`front_end::FrontEnd`] |
#![forbid(unsafe_code)]

pub mod backend;
pub mod front_end;
pub mod gdb;
pub mod hop;
pub mod message;
pub mod routing;
pub mod server;
pub mod transport;
