//! The interface between the node tasks of scatter and gather and their environment: non-blocking
//! messages, and non-blocking input and output.

use std::io;
use std::os::fd::BorrowedFd;

use thiserror::Error;

use crate::node_protocol::{MIN_RING_MESSAGES, Message, ProtocolError};

/// The reason why a node cannot continue.
#[derive(Debug, Error)]
pub enum NodeError {
    /// A network function failed.
    #[error("{0}: {1}")]
    Network(&'static str, io::Error),
    /// Another node has violated [`crate::node_protocol`].
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Another node has sent a message out of turn.
    #[error("another node sent {0} out of turn")]
    OutOfTurn(&'static str),
    /// Reading or writing failed: the operation with the file name, then the reason.
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

/// Messages to other nodes.
pub trait Transport {
    /// Maximum bytes of data in one message from or to this node.
    fn max_payload(&self, node: u32) -> usize;

    /// Bytes that `node` may send before this node receives any. The network between them buffers
    /// these bytes.
    fn window(&self, node: u32) -> usize {
        self.max_payload(node) * MIN_RING_MESSAGES
    }

    /// Sends a message. Returns false if there is no free slot now.
    ///
    /// # Errors
    /// Returns an error if the network has failed.
    fn send(&mut self, node: u32, message: Message<'_>) -> Result<bool, NodeError>;

    /// Passes the next message to `on_message`. Returns false if there is none now.
    ///
    /// # Errors
    /// Errors of the network, of the message, and of `on_message`.
    fn receive(
        &mut self,
        on_message: &mut dyn FnMut(Message<'_>) -> Result<(), NodeError>,
    ) -> Result<bool, NodeError>;
}

/// The task of one node. A runner with the network and the descriptors calls [`NodeTask::step`].
pub trait NodeTask {
    /// Does all work that is possible without waiting. Returns false if there was none.
    ///
    /// # Errors
    /// Returns an error if the node cannot continue.
    fn step(&mut self, transport: &mut dyn Transport) -> Result<bool, NodeError>;

    /// Whether the task is done.
    fn is_finished(&self) -> bool;

    /// The descriptor that the task waits to read from, if any.
    fn input_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The descriptor that the task waits to write to, if any.
    fn output_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// The result of one attempt to read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoProgress {
    /// This number of bytes was transferred.
    Transferred(usize),
    /// The operation would block.
    WouldBlock,
    /// The input has ended, or the output is closed.
    Closed,
}

/// Reads once, without waiting.
///
/// # Errors
/// Returns an error if the input has failed.
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
/// Returns an error if the output has failed for a reason other than a closed reader.
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
