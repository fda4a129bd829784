//! The network that the protocol uses.

use crate::memory::{Message, UserBuffer};

/// A network of short messages. Messages between two nodes arrive in their order, none is lost.
pub trait Network {
    /// The longest message to `node`, in bytes.
    fn mtu(&mut self, node: u32) -> usize;
    /// Sends a header and what follows it as one message.
    ///
    /// # Errors
    /// See [`SendError`]. Nothing was sent then.
    fn send(&mut self, node: u32, header: &[u8], body: Body<'_>) -> Result<(), SendError>;
    /// Passes the next message to `handle`. False: there is none.
    fn receive(&mut self, handle: impl FnOnce(Message<'_>)) -> bool;
    /// Lets `node` read the program's memory. The handle by which it does, which is not 0. None:
    /// that is not possible.
    fn expose(&mut self, node: u32, buffer: &UserBuffer) -> Option<u64>;
    /// Ends that.
    fn conceal(&mut self, node: u32, buffer: &UserBuffer);
    /// Starts to read as many bytes as `into` has from memory that `node` has exposed.
    ///
    /// # Errors
    /// See [`ReadError`].
    fn start_read(&mut self, node: u32, handle: u64, into: &UserBuffer) -> Result<(), ReadError>;
    /// A read has ended, well or not.
    fn end_read(&mut self, node: u32, into: &UserBuffer);
    /// Whether all reads that were started are complete.
    ///
    /// # Errors
    /// Some of them have failed, and none is under way any more.
    fn are_reads_done(&mut self) -> Result<bool, ReadError>;
}

/// What follows a header.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// `len` bytes of the program's memory, from `offset` on.
    Memory {
        /// The memory.
        buffer: &'a UserBuffer,
        /// Where the bytes begin.
        offset: usize,
        /// Their number.
        len: usize,
    },
    /// Bytes of our own.
    Bytes(&'a [u8]),
}

impl Body<'_> {
    /// Nothing.
    pub const NONE: Body<'static> = Body::Bytes(&[]);

    /// The number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Body::Memory { len, .. } => *len,
            Body::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether nothing follows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a message is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no room now.
    Full,
    /// There is no such node, or it cannot be reached any more.
    Unreachable,
}

/// Why memory of another node is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// There is no room for another read now.
    Full,
    /// It has failed, or is not possible.
    Failed,
}
