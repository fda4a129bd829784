//! The reasons why a link has ended or has not queued a message. Each is one line for the log.

use std::time::Duration;

use score_proto::frame::MAX_BODY;
use thiserror::Error;

use super::MAX_QUEUED;

/// The reason why a link has ended. The caller should try once to write the rest of
/// [`super::Link::outgoing`] and then close the connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LinkError {
    /// The other end is not a scored.
    #[error("the received data is not the beginning of a scored link")]
    BadPreface,
    /// The peer uses another protocol version.
    #[error("the peer uses protocol version {theirs}, this scored version {ours}")]
    Version {
        /// The peer's version.
        theirs: u32,
        /// This side's version.
        ours: u32,
    },
    /// The handshake cannot be decrypted.
    #[error("authentication failed: wrong cluster key or replayed handshake")]
    WrongKey,
    /// The peer did not finish the handshake in time.
    #[error("the handshake timed out after {0:?}")]
    HandshakeTimeout(Duration),
    /// The connection ended during the handshake.
    #[error(
        "the peer closed the connection during the handshake: see its log (different cluster key?)"
    )]
    HandshakeEof,
    /// No data was received for this time.
    #[error("no data received for {0:?}")]
    IdleTimeout(Duration),
    /// The connection ended.
    #[error("the connection was closed")]
    Closed,
    /// The peer has closed the link with this reason.
    #[error("peer closed the link: {0}")]
    PeerClosed(String),
    /// A record is too short, of an unknown kind, or cannot be decrypted.
    #[error("record failed authentication")]
    BadRecord,
    /// A message exceeds the length limit.
    #[error("a message exceeds the limit of {MAX_BODY} bytes")]
    TooLong,
    /// A message cannot be decoded.
    #[error("a message does not decode as the expected one")]
    Malformed,
    /// The cryptography itself failed, for example because no random numbers were available.
    #[error("cannot encrypt: {0}")]
    Noise(String),
}

impl LinkError {
    /// An error of the cryptography.
    pub(super) fn of_noise(error: snow::Error) -> Self {
        Self::Noise(error.to_string())
    }
}

/// The reason why a message was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// The message exceeds the length limit.
    #[error("a message exceeds the limit of {MAX_BODY} bytes")]
    TooLong,
    /// The queue is full because the peer does not read. The caller may try again later.
    #[error("more than {MAX_QUEUED} bytes are queued for a peer that does not read")]
    Full,
    /// The link has ended.
    #[error("the link is closed")]
    Closed,
}
