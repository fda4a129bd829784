//! What the machines of scatter and gather need of the world: messages that are tried without
//! waiting, and input and output that answer `WouldBlock`.

use std::io;
use std::os::fd::BorrowedFd;

use thiserror::Error;

use crate::node_protocol::{MIN_RING_MESSAGES, Message, ProtocolError};

/// Why a node cannot go on.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The network refused.
    #[error("{0}: {1}")]
    Network(&'static str, io::Error),
    /// Another node broke the rules of [`crate::node_protocol`].
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Another node said something out of turn.
    #[error("another node sent {0} out of turn")]
    OutOfTurn(&'static str),
    /// Reading or writing failed; what and where, then why.
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

/// Messages to other nodes.
pub trait Transport {
    /// The most data that one message to or from this node carries.
    fn max_payload(&self, node: u32) -> usize;

    /// Bytes that this node may be sent by that one before it has taken any: what lies between
    /// holds them.
    fn window(&self, node: u32) -> usize {
        self.max_payload(node) * MIN_RING_MESSAGES
    }

    /// Sends; false when there is no room now.
    ///
    /// # Errors
    /// The network is of no more use.
    fn send(&mut self, node: u32, message: Message<'_>) -> Result<bool, NodeError>;

    /// Hands the next message to `on_message`; false when there is none now.
    ///
    /// # Errors
    /// Those of the network, of the message, and of `on_message`.
    fn receive(
        &mut self,
        on_message: &mut dyn FnMut(Message<'_>) -> Result<(), NodeError>,
    ) -> Result<bool, NodeError>;
}

/// One node's part, moved on by whoever owns the sockets.
pub trait NodeTask {
    /// Does everything that can be done without waiting; false when that was nothing.
    ///
    /// # Errors
    /// The node cannot go on.
    fn step(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError>;

    /// Whether the node's part is done.
    fn is_finished(&self) -> bool;

    /// The descriptor whose readability would help, if any.
    fn input_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The descriptor whose writability would help, if any.
    fn output_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// What one try to read or write gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoProgress {
    /// That many bytes.
    Transferred(usize),
    /// Nothing now.
    WouldBlock,
    /// The end: of the file, or no reader any more.
    Closed,
}

/// Reads once, without waiting.
///
/// # Errors
/// The input is broken.
pub fn try_read(
    input: &mut impl io::Read,
    buffer: &mut [u8],
    name: &str,
) -> Result<IoProgress, NodeError> {
    match input.read(buffer) {
        Ok(0) => Ok(IoProgress::Closed),
        Ok(count) => Ok(IoProgress::Transferred(count)),
        Err(error) if is_retryable(&error) => Ok(IoProgress::WouldBlock),
        Err(error) => Err(NodeError::Io(format!("reading {name}"), error)),
    }
}

/// Writes once, without waiting.
///
/// # Errors
/// The output is broken in another way than by its reader's going.
pub fn try_write(
    output: &mut impl io::Write,
    bytes: &[u8],
    name: &str,
) -> Result<IoProgress, NodeError> {
    match output.write(bytes) {
        Ok(count) => Ok(IoProgress::Transferred(count)),
        Err(error) if is_retryable(&error) => Ok(IoProgress::WouldBlock),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(IoProgress::Closed),
        Err(error) => Err(NodeError::Io(format!("writing {name}"), error)),
    }
}

fn is_retryable(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
