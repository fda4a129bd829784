//! Why a link came to its end, or did not take a message: one line each, for the log.

use std::time::Duration;

use score_proto::frame::MAX_BODY;
use thiserror::Error;

use super::MAX_QUEUED;

/// Why a link is at its end. What [`super::Link::outgoing`] still holds is worth one attempt to
/// write; then the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LinkError {
    /// Something else than a scored is at the other end.
    #[error("what came is not the beginning of a scored link")]
    BadPreface,
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs} of the protocol, this scored version {ours}")]
    Version {
        /// The peer's.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The handshake does not decrypt.
    #[error("the peer does not hold this cluster's key, or repeats what another has sent")]
    WrongKey,
    /// The peer did not finish the handshake in time.
    #[error("the handshake was not finished within {0:?}")]
    HandshakeTimeout(Duration),
    /// The connection ended in the handshake.
    #[error(
        "the peer closed the connection during the handshake: its log tells why (another cluster key?)"
    )]
    HandshakeEof,
    /// Nothing came for that long.
    #[error("nothing was heard from it for {0:?}")]
    IdleTimeout(Duration),
    /// The connection ended.
    #[error("the connection was closed")]
    Closed,
    /// The peer has said that it goes.
    #[error("it has left: {0}")]
    PeerClosed(String),
    /// A record that is too short, of an unknown kind, or does not decrypt.
    #[error("a record was changed on its way, or was never one")]
    BadRecord,
    /// A message longer than allowed.
    #[error("a message exceeds the limit of {MAX_BODY} bytes")]
    TooLong,
    /// A message that does not decode.
    #[error("a message does not decode as the expected one")]
    Malformed,
    /// The cryptography itself failed, for want of random numbers for example.
    #[error("cannot encrypt: {0}")]
    Noise(String),
}

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// It is longer than a message may be.
    #[error("a message exceeds the limit of {MAX_BODY} bytes")]
    TooLong,
    /// The peer does not read: too much waits already. The message may be tried again later.
    #[error("more than {MAX_QUEUED} bytes wait for a peer that does not read")]
    Full,
    /// The link has come to its end.
    #[error("the link is closed")]
    Closed,
}
