//! The network that the protocol uses.

use crate::memory::UserBuffer;
use crate::wire::EncodedHeader;

/// A network of short messages. Messages between two nodes arrive in their order, none is lost;
/// they are given to [`Engine::on_message`](crate::Engine::on_message).
pub trait Network {
    /// The longest message to `node`, in bytes.
    fn mtu(&mut self, node: u32) -> usize;
    /// Sends a header and what follows it as one message.
    ///
    /// # Errors
    /// See [`SendError`]. Nothing was sent then.
    fn send(&mut self, node: u32, header: EncodedHeader, body: Body<'_>) -> Result<(), SendError>;
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
    /// Starts to read as many bytes as `into` has from memory that `node` has exposed. Returns the
    /// number of this access.
    ///
    /// # Errors
    /// See [`AccessError`].
    fn start_read(
        &mut self,
        node: u32,
        handle: u64,
        into: &UserBuffer,
    ) -> Result<AccessNumber, AccessError>;
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
    /// The next read or write that has ended since it was started. Each is returned once, those of
    /// one node in the order in which they were started, but for some that have failed. Others may
    /// be in flight, and may be started meanwhile.
    fn next_ended(&mut self) -> Option<EndedAccess>;
    /// An access that [`Network::next_ended`] has returned does not need its buffer any more.
    fn release_buffer(&mut self, node: u32, buffer: &UserBuffer);
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
    /// It has this number. [`Network::next_ended`] returns it when the bytes are there.
    Started(AccessNumber),
}

/// The number of a read or write of another node's memory that was started. A network gives each
/// number once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessNumber(pub u64);

/// A read or write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedAccess {
    /// Its number.
    pub number: AccessNumber,
    /// Whether it has failed: some bytes may be there, and others not.
    pub has_failed: bool,
}

/// Why memory of another node is not read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// There is no room for another read or write now.
    Full,
    /// It has failed, or is not possible.
    Failed,
}
