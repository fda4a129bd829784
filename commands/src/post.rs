//! What the machines of scatter and gather need of the world: messages that are tried without
//! waiting, and input and output that answer `WouldBlock`.

use std::io;
use std::os::fd::BorrowedFd;

use thiserror::Error;

use crate::hop::{HopError, Message, RING_PIECES};

/// Why a node cannot go on.
#[derive(Debug, Error)]
pub enum Failure {
    /// The network refused.
    #[error("{0}: {1}")]
    Network(&'static str, io::Error),
    /// Another node broke the rules of [`crate::hop`].
    #[error(transparent)]
    Hop(#[from] HopError),
    /// Another node said something out of turn.
    #[error("another node sent {0} out of turn")]
    OutOfTurn(&'static str),
    /// Reading or writing failed; what and where, then why.
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

/// Messages to other nodes.
pub trait Post {
    /// The most data that one message to or from this node carries.
    fn piece(&self, node: u32) -> usize;

    /// Bytes that this node may be sent by that one before it has taken any: what lies between
    /// holds them.
    fn window(&self, node: u32) -> usize {
        self.piece(node) * RING_PIECES
    }

    /// Sends; false when there is no room now.
    ///
    /// # Errors
    /// The network is of no more use.
    fn send(&mut self, node: u32, message: Message<'_>) -> Result<bool, Failure>;

    /// Hands the next message to `take`; false when there is none now.
    ///
    /// # Errors
    /// Those of the network, of the message, and of `take`.
    fn receive(
        &mut self,
        take: &mut dyn FnMut(Message<'_>) -> Result<(), Failure>,
    ) -> Result<bool, Failure>;
}

/// One node's part, moved on by whoever owns the sockets.
pub trait Machine {
    /// Does everything that can be done without waiting; false when that was nothing.
    ///
    /// # Errors
    /// The node cannot go on.
    fn step(&mut self, post: &mut dyn Post) -> Result<bool, Failure>;

    /// Whether the node's part is done.
    fn finished(&self) -> bool;

    /// The descriptor whose readability would help, if any.
    fn input(&self) -> Option<BorrowedFd<'_>>;

    /// The descriptor whose writability would help, if any.
    fn output(&self) -> Option<BorrowedFd<'_>>;
}

/// What one try to read or write gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Try {
    /// That many bytes.
    Moved(usize),
    /// Nothing now.
    Blocked,
    /// The end: of the file, or no reader any more.
    Ended,
}

/// Reads once, without waiting.
///
/// # Errors
/// The input is broken.
pub fn try_read(input: &mut impl io::Read, space: &mut [u8], what: &str) -> Result<Try, Failure> {
    match input.read(space) {
        Ok(0) => Ok(Try::Ended),
        Ok(count) => Ok(Try::Moved(count)),
        Err(error) if patient(&error) => Ok(Try::Blocked),
        Err(error) => Err(Failure::Io(format!("reading {what}"), error)),
    }
}

/// Writes once, without waiting.
///
/// # Errors
/// The output is broken in another way than by its reader's going.
pub fn try_write(output: &mut impl io::Write, bytes: &[u8], what: &str) -> Result<Try, Failure> {
    match output.write(bytes) {
        Ok(count) => Ok(Try::Moved(count)),
        Err(error) if patient(&error) => Ok(Try::Blocked),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Try::Ended),
        Err(error) => Err(Failure::Io(format!("writing {what}"), error)),
    }
}

fn patient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
