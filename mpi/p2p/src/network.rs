//! The network that the protocol uses.

use crate::memory::UserBuffer;
use crate::wire::EncodedHeader;

/// A network of short messages. It loses no message and keeps the order of messages between two
/// nodes. The user of the network passes messages to
/// [`Engine::on_message`](crate::Engine::on_message).
pub trait Network {
    /// The longest message to `node`, in bytes.
    fn mtu(&mut self, node: u32) -> usize;
    /// Sends a header and a body as one message.
    ///
    /// # Errors
    /// See [`SendError`]. Nothing was sent in this case.
    fn send(&mut self, node: u32, header: EncodedHeader, body: Body<'_>) -> Result<(), SendError>;
    /// Lets `node` read the program's memory. Returns the handle for `node`, which is not 0, or
    /// None if this is not possible.
    fn expose(&mut self, node: u32, buffer: &UserBuffer) -> Option<u64>;
    /// Ends the access that [`Network::expose`] has granted.
    fn conceal(&mut self, node: u32, buffer: &UserBuffer);
    /// Lets all nodes read and write the program's memory. Returns the handle, or None if this is
    /// not possible. The lower [`HANDLE_OFFSET_BITS`] bits of the handle are 0, and the other bits
    /// are not all 0. An offset can be added to the handle (manual 3.6.4).
    fn expose_to_all(&mut self, buffer: &UserBuffer) -> Option<u64>;
    /// Ends the access that [`Network::expose_to_all`] has granted.
    fn conceal_from_all(&mut self, buffer: &UserBuffer);
    /// Starts to read `into.len()` bytes from memory that `node` has exposed. Returns the number of
    /// this access.
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
    /// The next read or write that has ended. Each access is returned once. Accesses to one node
    /// are returned in the order in which they were started, except for some that have failed.
    /// Several accesses may be in flight.
    fn next_ended(&mut self) -> Option<EndedAccess>;
    /// Releases the buffer of an access that [`Network::next_ended`] has returned.
    fn release_buffer(&mut self, node: u32, buffer: &UserBuffer);
}

/// The body of a message, which follows the header.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// `len` bytes of the program's memory, from `offset` on.
    Memory {
        /// The memory.
        buffer: &'a UserBuffer,
        /// The offset of the first byte.
        offset: usize,
        /// The number of bytes.
        len: usize,
    },
    /// Bytes of the engine.
    Bytes(&'a [u8]),
}

impl Body<'_> {
    /// An empty body.
    pub const NONE: Body<'static> = Body::Bytes(&[]);

    /// The number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Body::Memory { len, .. } => *len,
            Body::Bytes(bytes) => bytes.len(),
        }
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no room now.
    Full,
    /// The node does not exist, or cannot be reached any more.
    Unreachable,
}

/// The number of bits of a handle that are an offset in its region.
pub const HANDLE_OFFSET_BITS: u32 = 40;

/// The progress of a write to the memory of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProgress {
    /// The write has ended: the bytes have arrived.
    Delivered,
    /// The write was started with this number. [`Network::next_ended`] returns the number when the
    /// bytes have arrived.
    Started(AccessNumber),
}

/// The number of a started read or write of another node's memory. A network uses each number once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessNumber(pub u64);

/// A read or write that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedAccess {
    /// The number of the access.
    pub number: AccessNumber,
    /// Whether the access has failed. Some of the bytes may have been transferred.
    pub has_failed: bool,
}

/// Why memory of another node cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// There is no room for another read or write now.
    Full,
    /// The access has failed, or is not possible.
    Failed,
}
