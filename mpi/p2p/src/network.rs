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
    /// Lets all nodes read and write the program's memory. The handle by which they do: its lower
    /// [`HANDLE_OFFSET_BITS`] are 0, others are not; an offset can be added to it (manual 3.6.4).
    /// None: that is not possible.
    fn expose_to_all(&mut self, buffer: &UserBuffer) -> Option<u64>;
    /// Ends that.
    fn conceal_from_all(&mut self, buffer: &UserBuffer);
    /// Starts to read as many bytes as `into` has from memory that `node` has exposed.
    ///
    /// # Errors
    /// See [`AccessError`].
    fn start_read(&mut self, node: u32, handle: u64, into: &UserBuffer) -> Result<(), AccessError>;
    /// Starts to write all bytes of `from` to memory that `node` has exposed.
    ///
    /// # Errors
    /// See [`AccessError`].
    fn start_write(
        &mut self,
        node: u32,
        handle: u64,
        from: &UserBuffer,
    ) -> Result<WriteProgress, AccessError>;
    /// A read or write that was started has ended, well or not.
    fn end_access(&mut self, node: u32, buffer: &UserBuffer);
    /// Whether all reads and writes that were started are complete: what was written is in the
    /// other node's memory.
    ///
    /// # Errors
    /// Some of them have failed, and none is under way any more.
    fn are_accesses_done(&mut self) -> Result<bool, AccessError>;
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

/// Bits of a handle that are an offset in its region.
pub const HANDLE_OFFSET_BITS: u32 = 40;

/// How far a write to memory of another node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProgress {
    /// It has ended: the bytes are there.
    Delivered,
    /// [`Network::are_accesses_done`] tells its end.
    Started,
}

/// Why memory of another node is not read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// There is no room for another read or write now.
    Full,
    /// It has failed, or is not possible.
    Failed,
}
