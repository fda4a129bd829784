//! What the owner of contexts does with them (table 1.2, "SCore-D"), and how contexts go.

#![forbid(unsafe_code)]

use super::{CLOSED, Context, Inner, Origin};
use crate::device::{Body, Owner, OwnerKind, Transport, composite, ethernet, on, shmem, verbs};
use crate::error::{Error, Result};
use crate::lock::LENT;
use crate::sync::Ordering;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Body {
    pub(super) fn opened(owner: &Owner, number: usize) -> Result<Body> {
        match &owner.kind {
            OwnerKind::Shmem(channels) => {
                Ok(Body::Shmem(shmem::Shmem::opened(number, *channels.geometry())))
            }
            OwnerKind::Ethernet(channels) => {
                Ok(Body::Ethernet(ethernet::Bound::opened(number, channels)))
            }
            OwnerKind::Verbs(channels) => Ok(Body::Verbs(verbs::Bound::opened(number, channels))),
            OwnerKind::Composite(options) => {
                composite::Composite::new(number, options.nodes).map(Body::Composite)
            }
        }
    }
}

impl Inner {
    /// The device of an opened context. Permission: it was attached.
    fn owner(&self) -> Result<&Arc<Owner>> {
        match &self.origin {
            Origin::Opened(owner, _) => Ok(owner),
            Origin::Attached => Err(Error::Permission),
        }
    }

    pub(super) fn is_lent(&self) -> bool {
        self.own_locks.send.is_held_by(LENT)
    }

    /// Both locks are held, or nobody else is there: leaves the channel, the members, the device.
    pub(super) fn give_up(&self) {
        self.forget_regions(u32::MAX);
        match &self.body {
            Body::Composite(composite) => self.release_members(composite.remove_all()),
            Body::Shmem(shmem) => shmem.leave(),
            Body::Ethernet(ethernet) => ethernet.leave(),
            Body::Verbs(verbs) => verbs.leave(),
        }
        if let Origin::Opened(owner, number) = &self.origin {
            let _ = match &self.body {
                Body::Shmem(shmem) => shmem.unbind(owner),
                Body::Ethernet(ethernet) => ethernet.unbind(),
                Body::Verbs(verbs) => verbs.unbind(),
                Body::Composite(_) => Ok(()),
            };
            owner.give_back(*number);
        }
    }
}

impl Context {
    /// Gives an attached context up. Invalid: it was opened, not attached. Busy: a buffer is held,
    /// or it is a member of a composite. Afterwards every call answers Invalid.
    pub fn detach(&self) -> Result<()> {
        match self.live()?.origin {
            Origin::Attached => self.end(),
            Origin::Opened(..) => Err(Error::Invalid),
        }
    }

    /// Closes an opened context. Permission: it was attached. Busy: as `detach`.
    pub fn close(&self) -> Result<()> {
        self.live()?.owner()?;
        self.end()
    }

    fn end(&self) -> Result<()> {
        let inner = self.live()?;
        if inner.composite.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        if !inner.is_lent() {
            inner.lock_both()?;
        }
        // From here on every other call finds it closed or locked.
        if self.magic.swap(CLOSED, Ordering::AcqRel) == CLOSED {
            return Err(Error::Invalid);
        }
        inner.give_up();
        Ok(())
    }

    /// Makes a descriptor for `attach`, to be used once by another process. From then on the
    /// messages of this context are that process's: sending and receiving here answer Busy until
    /// `unbind_channel`. TooManyFiles. Permission on an attached context. Invalid: not bound.
    pub fn create_attach_fd(&self) -> Result<OwnedFd> {
        let inner = self.live()?;
        inner.owner()?;
        if inner.is_lent() {
            return inner.body.create_attach_fd();
        }
        if inner.composite.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        let locks = inner.lock_both()?;
        let fd = inner.body.create_attach_fd();
        locks.release_both();
        if fd.is_ok() {
            locks.try_both(LENT)?;
        }
        fd
    }

    /// Joins channel `channel` of the device as node `own`; on a composite only the own node is
    /// set. Invalid: no such channel or node. Busy: bound already, or somebody else is there.
    pub fn bind_channel(&self, channel: u32, own: u32) -> Result<()> {
        let inner = self.live()?;
        let owner = inner.owner()?;
        let locks = inner.lock_both()?;
        let bound = match &inner.body {
            Body::Shmem(shmem) => shmem.bind(owner, channel, own),
            Body::Ethernet(ethernet) => ethernet.bind(channel, own),
            Body::Verbs(verbs) => verbs.bind(channel, own),
            Body::Composite(composite) => composite.bind(own),
        };
        locks.release_both();
        bound
    }

    /// Leaves the channel. Invalid: not bound. Busy: a buffer is held, or it is a member.
    pub fn unbind_channel(&self) -> Result<()> {
        let inner = self.live()?;
        let owner = inner.owner()?;
        if inner.composite.load(Ordering::Acquire) != 0 {
            return Err(Error::Busy);
        }
        if !inner.is_lent() {
            inner.lock_both()?;
        }
        let unbound = match &inner.body {
            Body::Shmem(shmem) => shmem.unbind(owner),
            Body::Ethernet(ethernet) => ethernet.unbind(),
            Body::Verbs(verbs) => verbs.unbind(),
            Body::Composite(composite) => composite.unbind(),
        };
        inner.own_locks.release_both();
        unbound
    }

    /// As `is_send_done`, for the owner: a context whose messages are all in their receivers'
    /// queues can be saved.
    pub fn is_send_stable(&self) -> Result<()> {
        self.live()?.owner()?;
        self.is_send_done()
    }

    /// Sends a control message of 1 to `CONTROL_MTU` bytes. Invalid: bad node or length.
    /// NoBuffers: its receiver has to read the earlier ones first.
    pub fn control_send(&self, node: u32, message: &[u8]) -> Result<()> {
        let inner = self.live()?;
        inner.owner()?;
        on!(&inner.body, device => device.control_send(node, message))
    }

    /// How many bytes `save` needs now.
    pub fn save_size(&self) -> Result<usize> {
        self.saved().map(|saved| saved.len())
    }

    /// Writes the queued messages to `buffer`; answers the bytes used. NoSpace: too small (see
    /// `save_size`). Busy: a buffer is held. Permission on an attached context.
    pub fn save(&self, buffer: &mut [u8]) -> Result<usize> {
        let saved = self.saved()?;
        buffer.get_mut(..saved.len()).ok_or(Error::NoSpace)?.copy_from_slice(&saved);
        Ok(saved.len())
    }

    fn saved(&self) -> Result<Vec<u8>> {
        let inner = self.live()?;
        inner.owner()?;
        let mut saved = Vec::new();
        // A lent context's process is stopped, or the copy is not worth having.
        let locks = if inner.is_lent() { None } else { Some(inner.lock_both()?) };
        let done = on!(&inner.body, device => device.save(&mut saved));
        if let Some(locks) = locks {
            locks.release_both();
        }
        done.map(|()| saved)
    }

    /// Brings back what `save` wrote, in place of what is queued. Invalid, and nothing has
    /// happened: not a saved context of this kind, size and node.
    pub fn restore(&self, saved: &[u8]) -> Result<()> {
        let inner = self.live()?;
        inner.owner()?;
        let locks = inner.lock_both()?;
        let done = on!(&inner.body, device => device.restore(saved));
        locks.release_both();
        done
    }
}
