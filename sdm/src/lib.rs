//! The scalable debug manager. Commands go to sets of processes, and equal events merge (SDM,
//! docs/dev/tools.md N1 to N47).
//!
//! N processes have N servers, with the ids 0 to N-1, and one master, with the id N. They form a
//! tree ([`routing`]). Commands go down the tree and events come up. [`hop`] decides, without I/O,
//! how a server or the master handles a message. A [`transport`] carries the messages, and a
//! [`backend`] such as [`gdb`] executes the commands. A [`server::Server`] joins the three. If the
//! tree of a job's daemons is used, the daemons are the hops (`commands/src/sdm_tree/`).
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
pub mod start_error;
pub mod transport;
