//! The operations of the owner on its contexts (manual table 1.2, "SCore-D"), and the closing of
//! contexts.

#![forbid(unsafe_code)]

use super::{Context, ContextKind, ContextRef, LiveContext, MAGIC_CLOSED};
use crate::device::{
    Device, DeviceContext, DeviceKind, DeviceState, StateInterface, composite, ethernet, on_device,
    shmem, verbs,
};
use crate::error::{Error, PmResult};
use crate::lock::HANDED_OVER;
use crate::sync::Ordering;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Device {
    /// Opens context `number`.
    ///
    /// # Errors
    /// Invalid: no such number. Busy: the context is already open.
    pub fn open_context(&self, number: usize) -> PmResult<ContextRef> {
        let device_state = self.state_if_open()?;
        device_state.acquire_context(number)?;
        ContextRef::opened(device_state, number)
            .inspect_err(|_| device_state.release_context(number))
    }
}

impl DeviceContext {
    pub(super) fn opened(owner: &DeviceState, number: usize) -> PmResult<DeviceContext> {
        match &owner.kind {
            DeviceKind::Shmem(channels) => {
                Ok(DeviceContext::Shmem(shmem::Shmem::opened(number, *channels.geometry())))
            }
            DeviceKind::Ethernet(channels) => {
                Ok(DeviceContext::Ethernet(ethernet::EthernetContext::opened(number, channels)))
            }
            DeviceKind::Verbs(channels) => {
                Ok(DeviceContext::Verbs(verbs::VerbsContext::opened(number, channels)))
            }
            DeviceKind::Composite(options) => {
                composite::Composite::new(number, options.nodes).map(DeviceContext::Composite)
            }
        }
    }

    /// Unbinds the context from its channel. The caller holds both locks. Invalid: the context is
    /// not bound.
    fn unbind(&self, owner: &DeviceState) -> PmResult<()> {
        match self {
            DeviceContext::Shmem(shmem) => shmem.unbind(owner.shmem_channels()?),
            DeviceContext::Ethernet(ethernet) => ethernet.unbind(),
            DeviceContext::Verbs(verbs) => verbs.unbind(),
            DeviceContext::Composite(composite) => composite.routing().unbind(),
        }
    }
}

impl LiveContext {
    /// The device of an opened context. Permission: the context was attached.
    fn owner(&self) -> PmResult<&Arc<DeviceState>> {
        match &self.origin {
            ContextKind::Opened(owner, _) => Ok(owner),
            ContextKind::Attached => Err(Error::Permission),
        }
    }

    pub(super) fn is_handed_over(&self) -> bool {
        self.self_locks.send.is_held_by(HANDED_OVER)
    }

    /// Releases the members, and leaves the channel and the device. The caller holds both locks, or
    /// has the only reference.
    pub(super) fn tear_down(&self) {
        self.unlock_all_regions(u32::MAX);
        match &self.device_context {
            DeviceContext::Composite(composite) => self.release_members(composite.remove_all()),
            DeviceContext::Shmem(shmem) => shmem.leave(),
            DeviceContext::Ethernet(ethernet) => ethernet.close(),
            DeviceContext::Verbs(verbs) => verbs.close(),
        }
        if let ContextKind::Opened(owner, number) = &self.origin {
            let _ = self.device_context.unbind(owner);
            owner.release_context(*number);
        }
    }
}

impl Context {
    /// Detaches an attached context. Afterwards every call fails with Invalid.
    ///
    /// # Errors
    /// Invalid: the context was opened, not attached. Busy: a buffer is held, or the context is a
    /// member of a composite.
    pub fn detach(&self) -> PmResult<()> {
        match self.live()?.origin {
            ContextKind::Attached => self.shut_down(),
            ContextKind::Opened(..) => Err(Error::Invalid),
        }
    }

    /// Closes an opened context.
    ///
    /// # Errors
    /// Permission: the context was attached. Busy: see `detach`.
    pub fn close(&self) -> PmResult<()> {
        self.live()?.owner()?;
        self.shut_down()
    }

    fn shut_down(&self) -> PmResult<()> {
        let inner = self.live()?;
        if inner.composite.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        if !inner.is_handed_over() {
            inner.lock_both()?;
        }
        // From now on every other call finds the context closed or locked.
        if self.magic.swap(MAGIC_CLOSED, Ordering::AcqRel) == MAGIC_CLOSED {
            return Err(Error::Invalid);
        }
        inner.tear_down();
        Ok(())
    }

    /// Makes a descriptor with which another process attaches this context once. From then on the
    /// context's messages belong to that process: in this process, sending and receiving fail with
    /// Busy until `unbind_channel`.
    ///
    /// # Errors
    /// TooManyFiles: no descriptor is left. Permission: the context was attached. Invalid: the
    /// context is not bound. Busy: a buffer is held, the context is a member of a composite, or
    /// this process has already used the context of a network. NoSys: the context is a composite.
    pub fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        let inner = self.live()?;
        inner.owner()?;
        if inner.is_handed_over() {
            return inner.device_context.create_attach_fd();
        }
        if inner.composite.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        let locks = inner.lock_both()?;
        let fd = inner.device_context.create_attach_fd();
        locks.release_both();
        if fd.is_ok() {
            locks.try_acquire_both(HANDED_OVER)?;
        }
        fd
    }

    /// Binds the context to `channel` of the device as node `self_node`. On a composite this sets
    /// only the node number.
    ///
    /// # Errors
    /// Invalid: no such channel or node. Busy: the context is already bound, or another context is
    /// bound as this node.
    pub fn bind_channel(&self, channel: u32, self_node: u32) -> PmResult<()> {
        let inner = self.live()?;
        let owner = inner.owner()?;
        let locks = inner.lock_both()?;
        let bound = match &inner.device_context {
            DeviceContext::Shmem(shmem) => {
                owner.shmem_channels().and_then(|channels| shmem.bind(channels, channel, self_node))
            }
            DeviceContext::Ethernet(ethernet) => ethernet.bind(channel, self_node),
            DeviceContext::Verbs(verbs) => verbs.bind(channel, self_node),
            DeviceContext::Composite(composite) => composite.routing().bind(self_node),
        };
        locks.release_both();
        bound
    }

    /// Unbinds from the channel.
    ///
    /// # Errors
    /// Invalid: the context is not bound. Busy: a buffer is held, or the context is a member of a
    /// composite.
    pub fn unbind_channel(&self) -> PmResult<()> {
        let inner = self.live()?;
        let owner = inner.owner()?;
        if inner.composite.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        if !inner.is_handed_over() {
            inner.lock_both()?;
        }
        let unbound = inner.device_context.unbind(owner);
        inner.self_locks.release_both();
        unbound
    }

    /// Like `is_send_done`, for the owner. A context can be saved when all its messages are in
    /// their receivers' queues.
    pub fn is_send_stable(&self) -> PmResult<()> {
        self.live()?.owner()?;
        self.is_send_done()
    }

    /// Sends a control message of 1 to `CONTROL_MTU` bytes.
    ///
    /// # Errors
    /// Invalid: bad node or length. NoBuffers: the receiver has to read earlier messages first.
    pub fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let inner = self.live()?;
        inner.owner()?;
        inner.device_context.control_send(node, message)
    }

    /// The number of bytes that `save` needs now.
    pub fn save_size(&self) -> PmResult<usize> {
        self.save_to_vec().map(|saved| saved.len())
    }

    /// Writes the queued messages to `buffer` and returns the number of bytes.
    ///
    /// # Errors
    /// NoSpace: `buffer` is too small (see `save_size`). Busy: a buffer is held. Permission: the
    /// context was attached.
    pub fn save(&self, buffer: &mut [u8]) -> PmResult<usize> {
        let saved = self.save_to_vec()?;
        buffer.get_mut(..saved.len()).ok_or(Error::NoSpace)?.copy_from_slice(&saved);
        Ok(saved.len())
    }

    fn save_to_vec(&self) -> PmResult<Vec<u8>> {
        let inner = self.live()?;
        inner.owner()?;
        let mut saved = Vec::new();
        // The process that uses a handed-over context must be stopped, or the copy is inconsistent.
        let locks = if inner.is_handed_over() { None } else { Some(inner.lock_both()?) };
        let result = on_device!(opened &inner.device_context, device => {
            device.save(&mut saved);
            Ok(())
        });
        if let Some(locks) = locks {
            locks.release_both();
        }
        result.map(|()| saved)
    }

    /// Replaces the queued messages by those that `save` wrote.
    ///
    /// # Errors
    /// Invalid: these are not messages of a context of this kind, size and node; the queues are
    /// unchanged.
    pub fn restore(&self, saved: &[u8]) -> PmResult<()> {
        let inner = self.live()?;
        inner.owner()?;
        let locks = inner.lock_both()?;
        let result = on_device!(opened &inner.device_context, device => device.restore(saved));
        locks.release_both();
        result
    }
}
