//! Contexts: end points of communication.

use crate::config::{ContextConfig, QueueStatus};
use crate::error::{Error, Result};
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};

/// An end point. It never moves: a C `pmContext *` points to one, and [`Context::from_ptr`]
/// checks such a pointer. Held by [`ContextRef`].
pub struct Context(());

/// A counted reference to a [`Context`].
pub struct ContextRef(());

impl ContextRef {
    /// The address that C knows the context by. The reference is given away with it.
    pub fn into_raw(self) -> *mut Context {
        std::ptr::null_mut()
    }
}

impl std::ops::Deref for ContextRef {
    type Target = Context;
    fn deref(&self) -> &Context {
        const { &Context(()) }
    }
}

impl Context {
    /// Makes a context of type `kind` from a descriptor of [`Context::create_attach_fd`].
    /// NoDevice: no such type. Invalid: not such a descriptor.
    pub fn attach(_kind: &str, _fd: OwnedFd) -> Result<ContextRef> {
        Err(Error::NoSys)
    }
    /// Gives an attached context up. Invalid: it was opened, not attached. Busy: a buffer is held,
    /// or it is a member of a composite. Afterwards every call answers Invalid.
    pub fn detach(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Closes an opened context. Permission: it was attached. Busy: as `detach`.
    pub fn close(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Makes a descriptor for `attach`, to be used once by another process. From then on the
    /// messages of this context are that process's: sending and receiving here answer Busy until
    /// `unbind_channel`. TooManyFiles. Permission on an attached context. Invalid: not bound.
    pub fn create_attach_fd(&self) -> Result<OwnedFd> {
        Err(Error::NoSys)
    }
    /// Joins channel `channel` of the device as node `own`.
    pub fn bind_channel(&self, _channel: u32, _own: u32) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Leaves the channel.
    pub fn unbind_channel(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// The context's properties.
    pub fn config(&self) -> Result<ContextConfig> {
        Err(Error::NoSys)
    }
    /// The own node number. Invalid: not set.
    pub fn self_node(&self) -> Result<u32> {
        Err(Error::NoSys)
    }
    /// The longest message to `node`.
    pub fn mtu(&self, _node: u32) -> Result<usize> {
        Err(Error::NoSys)
    }
    /// Sets `member_node` of `member` for `node` of this composite. The entry of the own node is
    /// made so, too: `node` is the composite's own where `member_node` is the member's.
    pub fn add_node(&self, _node: u32, _member: &Context, _member_node: u32) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Adds `(node, member node)` pairs, all or nothing.
    pub fn associate_nodes(&self, _member: &Context, _nodes: &[(u32, u32)]) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Takes `node` out of this composite.
    pub fn remove_node(&self, _node: u32) -> Result<()> {
        Err(Error::NoSys)
    }
    /// The member that `node` is reached by, and the node's number there.
    pub fn extract_node(&self, _node: u32) -> Result<(ContextRef, u32)> {
        Err(Error::NoSys)
    }
    /// Reserves room for `len` bytes towards `node` and locks sending until `send`.
    #[inline]
    pub fn get_send_buffer(&self, _node: u32, _len: usize) -> Result<*mut u8> {
        Err(Error::NoSys)
    }
    /// Reserves room towards all of `nodes`, or none.
    pub fn get_multicast_buffer(&self, _nodes: &[u32], _len: usize) -> Result<*mut u8> {
        Err(Error::NoSys)
    }
    /// Shortens the reserved message.
    #[inline]
    pub fn truncate(&self, _len: usize) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Sends the reserved message. Io: no buffer is reserved.
    #[inline]
    pub fn send(&self) -> Result<()> {
        crate::idle::before_send();
        Err(Error::NoSys)
    }
    /// Polls once: the payload where it lies. It is valid, and receiving locked, until release.
    #[inline]
    pub fn receive(&self) -> Result<(*mut u8, usize)> {
        Err(Error::NoSys)
    }
    /// Gives the received message's memory back. Io: none was received.
    #[inline]
    pub fn release_receive_buffer(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Whether all sent messages are in their receivers' queues. Busy: not yet. Io: a link broke.
    pub fn is_send_done(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// As `is_send_done`, for the owner.
    pub fn is_send_stable(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// What waits in the queues.
    pub fn queue_status(&self) -> Result<QueueStatus> {
        Err(Error::NoSys)
    }
    /// Sends a control message of 1 to `CONTROL_MTU` bytes.
    pub fn control_send(&self, _node: u32, _message: &[u8]) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Takes a control message; answers its source. `len` is set to its length, on NoSpace (the
    /// buffer is too small, the message stays) too. NoBuffers: there is none.
    pub fn control_receive(&self, _buffer: &mut [u8], _len: &mut usize) -> Result<u32> {
        Err(Error::NoSys)
    }
    /// How many descriptors `get_fds` gives.
    pub fn fd_count(&self) -> Result<usize> {
        Err(Error::NoSys)
    }
    /// The descriptors for `select`; answers how many. NoSpace: `fds` is too small.
    pub fn get_fds(&self, _fds: &mut [RawFd]) -> Result<usize> {
        Err(Error::NoSys)
    }
    /// To be called before `select`; then `receive` must be called until it finds nothing.
    pub fn before_select(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// To be called after `select`.
    pub fn after_select(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Drops what is queued here: held buffers, received messages, control messages.
    pub fn reset(&self) -> Result<()> {
        Err(Error::NoSys)
    }
    /// How many bytes `save` needs now.
    pub fn save_size(&self) -> Result<usize> {
        Err(Error::NoSys)
    }
    /// Writes the queued messages to `buffer`; answers the bytes used. NoSpace: too small.
    pub fn save(&self, _buffer: &mut [u8]) -> Result<usize> {
        Err(Error::NoSys)
    }
    /// Brings back what `save` wrote. Invalid: not a saved context of this kind.
    pub fn restore(&self, _saved: &[u8]) -> Result<()> {
        Err(Error::NoSys)
    }
    /// Writes the context's state for people to read.
    pub fn dump(&self, _out: &mut dyn Write) -> Result<()> {
        Err(Error::NoSys)
    }
}

impl Context {
    /// Checks a pointer that C holds: Invalid for null, for a closed context, and in a child
    /// after `fork`.
    ///
    /// # Safety
    /// `pointer` is null or came from [`ContextRef::into_raw`] (closed since, or not).
    #[inline]
    #[expect(unsafe_code)]
    pub unsafe fn from_ptr<'a>(_pointer: *const Context) -> Result<&'a Context> {
        Err(Error::NoSys)
    }
}

impl ContextRef {
    /// Takes back the reference that [`ContextRef::into_raw`] gave away.
    ///
    /// # Safety
    /// `pointer` came from `into_raw` and was not taken back before.
    #[expect(unsafe_code)]
    pub unsafe fn from_raw(_pointer: *mut Context) -> ContextRef {
        ContextRef(())
    }
    /// The address that C knows the context by; stays valid as long as any reference lives.
    pub fn as_ptr(&self) -> *mut Context {
        std::ptr::null_mut()
    }
}
