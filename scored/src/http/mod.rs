//! The page of a cluster, and its figures for Prometheus: HTTP/1.1 as far as that needs it, and
//! what is shown to whom. Sockets are in `daemon/service/http_connections.rs`; here nothing does I/O and
//! time is given.
//!
//! Whoever connects is nobody until a token says which user it is; what it sends is hostile until
//! it has been checked (docs/security.md, "The page").
//!
//! | file | what |
//! |---|---|
//! | `request.rs` | the head of a request: what is asked, and every reason to refuse it |
//! | `connection.rs` | one connection: bytes in, one answer after the other out, deadlines |
//! | `tokens.rs` | which user a token stands for |
//! | `response.rs` | answers with their headers |
//! | `row_history.rs` | the rows of the gang scheduler, and shares of the last minute |
//! | `status_json.rs` | what a user may see, as JSON |
//! | `metrics.rs` | the same as OpenMetrics |
//! | `files/` | the page itself |

pub mod connection;
pub mod metrics;
pub mod request;
pub mod response;
pub mod row_history;
pub mod status_json;
pub mod tokens;

pub use connection::Connection;
pub use request::{AllowedHosts, HttpRequest};
pub use row_history::History;
pub use tokens::Tokens;
