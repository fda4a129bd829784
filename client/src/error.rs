//! Why a client cannot use a scored, in words for users.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use score_proto::PROTOCOL_VERSION;
use score_proto::frame::FrameError;
use thiserror::Error;

/// Why a connection to a scored cannot be opened or used. Each text is one line that names the
/// scored. `peer` is that name.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// No scored listens on the socket of the service.
    #[error("no scored serves this host ({}: {error}); {remedy}", .socket.display())]
    NoService {
        /// The path of the socket.
        socket: PathBuf,
        /// The error of connect(2).
        error: io::Error,
        /// The action that the user can take instead.
        remedy: &'static str,
    },
    /// No scout session has this socket.
    #[error("the scout session at {} no longer exists", .0.display())]
    NoScoutSession(PathBuf),
    /// The abstract name of a scored in single-user mode belongs to another process.
    #[error("{peer}: its socket belongs to process {pid} of uid {uid}")]
    WrongProcess {
        /// The scored that should be at the other end.
        peer: String,
        /// The process at the other end.
        pid: i32,
        /// The user of the process at the other end.
        uid: u32,
    },
    /// The scored belongs to another release.
    #[error(
        "scored uses protocol {0}, this program {PROTOCOL_VERSION}: install both from one release"
    )]
    OtherVersion(u32),
    /// The scored has closed the connection.
    #[error("{0} has closed the connection")]
    Closed(String),
    /// No message has arrived in time, or a message could not be sent in time.
    #[error("{peer} has not answered for {waited:?}")]
    Silent {
        /// The scored.
        peer: String,
        /// The time limit.
        waited: Duration,
    },
    /// A message cannot be decoded, belongs to another conversation, or is too long to be sent.
    #[error("{peer}: {error}")]
    Frame {
        /// The scored.
        peer: String,
        /// The error.
        error: FrameError,
    },
    /// A system call has failed.
    #[error("{peer}: {error}")]
    System {
        /// The scored.
        peer: String,
        /// The error.
        error: io::Error,
    },
}

impl From<ConnectionError> for String {
    fn from(error: ConnectionError) -> Self {
        error.to_string()
    }
}
