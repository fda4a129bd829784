//! The status page of a cluster, and its metrics for Prometheus. This is the part of HTTP/1.1 that
//! they need, and the rules of what each user may see. Sockets are in
//! `daemon/service/http_connections.rs`; this module does no I/O and has no clock.
//!
//! A client has no rights until a token identifies its user. Its input is untrusted until it has
//! been checked (docs/security.md, "The page").
//!
//! | file | contents |
//! |---|---|
//! | `request.rs` | the head of a request, and every reason to refuse it |
//! | `connection.rs` | one connection: bytes in, one answer after another out, deadlines |
//! | `tokens.rs` | the users of tokens |
//! | `response.rs` | answers with their headers |
//! | `row_history.rs` | the rows of the gang scheduler, and shares of the last minute |
//! | `stack_trees.rs` | stacks of jobs, for their owners |
//! | `status_json.rs` | the data that a user may see, as JSON |
//! | `metrics.rs` | the same as OpenMetrics |
//! | `files/` | the page itself |

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
