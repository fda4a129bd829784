//! The protocol and contents of a cluster's status page and of its metrics for Prometheus. The
//! module implements the necessary part of HTTP/1.1 and the rules that decide which data each user
//! sees. It does no I/O and reads no clock; the sockets are in
//! `daemon/service/http_connections.rs`.
//!
//! A client has no rights until a token identifies its user. All input is untrusted
//! (docs/admin/security.md, "The page").
//!
//! | file | contents |
//! |---|---|
//! | `request.rs` | the head of a request, and all reasons to refuse it |
//! | `connection.rs` | one connection: input, responses, time-outs |
//! | `tokens.rs` | tokens, which identify users |
//! | `response.rs` | responses with their headers |
//! | `row_history.rs` | the history of scheduled rows, and shares of the last minute |
//! | `stack_trees.rs` | stacks of jobs, for their owners |
//! | `status_json.rs` | the data that a user may see, as JSON |
//! | `metrics.rs` | the same data as OpenMetrics |
//! | `files/` | the files of the page |

pub mod connection;
pub mod metrics;
pub mod request;
pub mod response;
pub mod row_history;
pub mod stack_trees;
pub mod status_json;
pub mod tokens;

pub use connection::Connection;
pub use request::{AllowedHosts, HttpRequest, Method};
pub use row_history::History;
pub use stack_trees::StackTrees;
pub use tokens::Tokens;
