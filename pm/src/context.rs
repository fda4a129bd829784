//! Contexts: the endpoints of communication. This module takes the locks and checks the state of a
//! context; the device transfers the messages.

// UNSAFETY: fork may zero the object. Its contents are therefore in a cell, and each access checks
// whether they are valid.
#![expect(unsafe_code)]

mod context_ref;
mod fast_path;
mod membership;
mod owner;
mod rma;
mod send_receive;

use crate::config::{ContextConfig, QueueStatus};
use crate::device::{
    ControlInterface, DeviceContext, DeviceState, SelectInterface, StateInterface, net_common,
    on_device, refuse_kind, shmem,
};
use crate::error::{Error, PmResult};
use crate::lock::{Lock, Locks};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::threads::is_only_app_thread;
pub use context_ref::ContextRef;
use context_ref::{free_page, new_page};
pub use fast_path::FastReceive;
use std::cell::UnsafeCell;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// "PMCONTXT": a context that can be used.
const MAGIC_LIVE: u64 = u64::from_le_bytes(*b"PMCONTXT");
/// A context that was closed or detached but still has references.
const MAGIC_CLOSED: u64 = u64::from_le_bytes(*b"PMCLOSED");

/// An endpoint. It never moves, because a C `pmContext *` points to it; [`Context::from_ptr`]
/// checks such a pointer. In Rust a [`ContextRef`] holds it.
#[repr(C)]
pub struct Context {
    /// [`MAGIC_LIVE`], [`MAGIC_CLOSED`], or 0: free, or wiped by fork.
    magic: AtomicU64,
    references: AtomicUsize,
    /// Valid unless the magic number is 0.
    inner: UnsafeCell<MaybeUninit<LiveContext>>,
}

// SAFETY: all fields are atomic, guarded by the locks, or set before the context is handed out.
unsafe impl Sync for Context {}
// SAFETY: as above; no field is bound to a thread.
unsafe impl Send for Context {}

/// The origin of a context.
enum ContextKind {
    /// Opened from a device of this process: the device, and the context's number there.
    Opened(Arc<DeviceState>, usize),
    Attached,
}

/// The contents of a live context, with which messages are sent and received.
pub struct LiveContext {
    /// The number that identifies this context as the holder of a lock.
    id: u32,
    /// The locks in force. A member of a composite uses the locks of the composite. Any other
    /// context uses its own locks.
    locks: AtomicPtr<Locks>,
    self_locks: Arc<Locks>,
    /// All locks that were ever in force: a thread may still try an old one.
    old_locks: Mutex<Vec<Arc<Locks>>>,
    /// The id of the composite of which this context is a member; 0: none.
    composite: AtomicU32,
    poll_backoff: send_receive::PollBackoff,
    origin: ContextKind,
    /// The regions that are locked for remote access.
    locked_regions: Mutex<rma::LockedRegions>,
    device_context: DeviceContext,
}

/// Whether no other thread can try the lock at the same time.
#[inline(always)]
fn is_serialized(lock: &Lock) -> bool {
    lock.is_serialized() || is_only_app_thread()
}

impl LiveContext {
    #[inline(always)]
    fn locks(&self) -> &Locks {
        // SYNC: locks
        // SAFETY: points to self_locks or one of old_locks, which live as long as `self`.
        unsafe { &*self.locks.load(Ordering::Acquire) }
    }

    /// Whether no other thread can call a function at the same time, because the program has
    /// promised it or has only one thread.
    #[inline(always)]
    fn is_serialized(&self) -> bool {
        is_serialized(&self.locks().receive)
    }

    /// Takes the send lock that is in force.
    #[inline(always)]
    fn lock_send(&self) -> PmResult<&Locks> {
        self.lock(|locks| &locks.send)
    }

    #[inline(always)]
    fn lock_receive(&self) -> PmResult<&Locks> {
        self.lock(|locks| &locks.receive)
    }

    #[inline(always)]
    fn lock(&self, select_lock: impl Fn(&Locks) -> &Lock) -> PmResult<&Locks> {
        let locks = self.locks();
        if is_serialized(select_lock(locks)) {
            select_lock(locks).try_acquire_serialized(self.id)?;
            return Ok(locks);
        }
        select_lock(locks).try_acquire(self.id)?;
        if std::ptr::eq(locks, self.locks()) {
            return Ok(locks);
        }
        // The context has become a member of a composite, or ceased to be one, in the meantime.
        select_lock(locks).release();
        Err(Error::Busy)
    }

    fn lock_both(&self) -> PmResult<&Locks> {
        self.lock_send()?;
        self.lock_receive().inspect_err(|_| self.locks().send.release())
    }

    /// Puts `locks` in force. The caller holds `locks` and the previous locks.
    fn use_locks(&self, locks: &Arc<Locks>) {
        let mut old = self.old_locks.lock().unwrap_or_else(PoisonError::into_inner);
        if !old.iter().any(|known| Arc::ptr_eq(known, locks)) {
            old.push(locks.clone());
        }
        // SYNC: locks
        self.locks.store(Arc::as_ptr(locks).cast_mut(), Ordering::Release);
    }
}

impl ContextRef {
    pub(crate) fn opened(owner: &Arc<DeviceState>, number: usize) -> PmResult<ContextRef> {
        let device_context = DeviceContext::opened(owner, number)?;
        ContextRef::new(device_context, ContextKind::Opened(owner.clone(), number))
    }

    fn new(device_context: DeviceContext, origin: ContextKind) -> PmResult<ContextRef> {
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);
        // An id repeats after 2³⁰ contexts; 0 and all ones are never used.
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1) | 1 << 30;
        let self_locks = Arc::new(Locks::default());
        let inner = LiveContext {
            id,
            locks: AtomicPtr::new(Arc::as_ptr(&self_locks).cast_mut()),
            self_locks,
            old_locks: Mutex::default(),
            composite: AtomicU32::new(0),
            poll_backoff: send_receive::PollBackoff::default(),
            origin,
            locked_regions: Mutex::default(),
            device_context,
        };
        let page = new_page()?;
        // SAFETY: a new zeroed page, which is a valid Context without any other reference.
        let context = unsafe { page.as_ref() };
        // SAFETY: no thread reads the contents while the magic number is 0.
        unsafe { (*context.inner.get()).write(inner) };
        context.references.store(1, Ordering::Relaxed);
        // SYNC: magic
        context.magic.store(MAGIC_LIVE, Ordering::Release);
        Ok(ContextRef::from_counted(page))
    }

    pub(crate) fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a reference. Returns true if it was the last one. A child of fork does not count
    /// references.
    pub(crate) fn drop_reference(&self) -> bool {
        self.magic.load(Ordering::Acquire) != 0
            && self.references.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Context {
    /// Makes a context of type `kind` from a descriptor of [`Context::create_attach_fd`].
    ///
    /// # Errors
    /// NoDevice: there is no such type. Invalid: the descriptor is of another kind.
    pub fn attach(kind: &str, fd: OwnedFd) -> PmResult<ContextRef> {
        match kind {
            "shmem" => ContextRef::new(
                DeviceContext::Shmem(shmem::open::attach(fd)?),
                ContextKind::Attached,
            ),
            "ethernet" | "agent-udp" => ContextRef::new(
                DeviceContext::Ethernet(net_common::attach(&fd)?),
                ContextKind::Attached,
            ),
            "verbs" => ContextRef::new(
                DeviceContext::Verbs(net_common::attach(&fd)?),
                ContextKind::Attached,
            ),
            "composite" => Err(Error::Invalid),
            other => Err(refuse_kind(other)),
        }
    }

    /// Checks a pointer that C holds: Invalid for null, for a closed context, and in a child
    /// after `fork`.
    ///
    /// # Safety
    /// `pointer` is null or was returned by [`ContextRef::into_raw`]. The reference may have been
    /// taken back since.
    #[inline(always)]
    pub unsafe fn from_ptr<'a>(pointer: *const Context) -> PmResult<&'a Context> {
        // SAFETY: pages of contexts are never unmapped, and zero is a valid Context.
        let context = unsafe { pointer.as_ref() }.ok_or(Error::Invalid)?;
        context.live().map(|_| context)
    }

    /// Like `from_ptr`, for a call that needs to check the magic number only once.
    ///
    /// # Safety
    /// Those of `from_ptr`.
    #[inline(always)]
    pub unsafe fn live_from_ptr<'a>(pointer: *const Context) -> PmResult<&'a LiveContext> {
        // SAFETY: as in `from_ptr`.
        unsafe { pointer.as_ref() }.ok_or(Error::Invalid)?.live()
    }

    /// Another reference to this context.
    pub fn reference(&self) -> PmResult<ContextRef> {
        self.live()?;
        let reference = ContextRef::from_counted(NonNull::from(self));
        reference.add_reference();
        Ok(reference)
    }

    /// # Safety
    /// There is no other reference to the context.
    pub(crate) unsafe fn free(page: NonNull<Context>) {
        // SAFETY: pages of contexts are never unmapped.
        let context = unsafe { page.as_ref() };
        // SAFETY: the magic number was not 0, so there is a LiveContext, and no other reference.
        let inner = unsafe { (*context.inner.get()).assume_init_mut() };
        if context.magic.load(Ordering::Relaxed) == MAGIC_LIVE {
            inner.tear_down();
        }
        context.magic.store(0, Ordering::Release);
        // SAFETY: as above; the magic number marks it as dropped.
        unsafe { std::ptr::drop_in_place(inner) };
        free_page(page);
    }

    #[inline(always)]
    fn live(&self) -> PmResult<&LiveContext> {
        // SYNC: magic
        if self.magic.load(Ordering::Acquire) != MAGIC_LIVE {
            return Err(Error::Invalid);
        }
        // SAFETY: written before the magic number, and dropped with the last reference only.
        Ok(unsafe { (*self.inner.get()).assume_init_ref() })
    }

    /// Records or withdraws the program's promise to call functions of this context one at a time
    /// (`pmSetSerialized`, which is not in the manual; see pm.h). The promise belongs to the locks
    /// in force, which a composite and its members share.
    pub fn set_serialized(&self, is_promised: bool) -> PmResult<()> {
        self.live()?.locks().set_serialized(is_promised);
        Ok(())
    }

    /// Sets whether a poll that finds no message pauses the processor (`pmSetPollPause`, which is
    /// not in the manual; see pm.h).
    pub fn set_poll_pause(&self, pauses: bool) -> PmResult<()> {
        self.live()?.poll_backoff.set_pause(pauses);
        Ok(())
    }

    /// The context's properties.
    pub fn config(&self) -> PmResult<ContextConfig> {
        Ok(self.live()?.device_context.config())
    }

    /// The context's own node number.
    ///
    /// # Errors
    /// Invalid: the node number is not set.
    pub fn self_node(&self) -> PmResult<u32> {
        self.live()?.device_context.self_node()
    }

    /// The longest message to `node`.
    ///
    /// # Errors
    /// Invalid: there is no such node, or no member is associated with it.
    pub fn mtu(&self, node: u32) -> PmResult<usize> {
        self.live()?.device_context.mtu(node)
    }

    /// Whether all sent messages are in their receivers' queues.
    ///
    /// # Errors
    /// Busy: some messages are not. Io: a link has failed.
    pub fn is_send_done(&self) -> PmResult<()> {
        let context = &self.live()?.device_context;
        on_device!(active context, device => device.is_send_done(), else Ok(()))
    }

    /// The lengths of the queues.
    pub fn queue_status(&self) -> PmResult<QueueStatus> {
        let inner = self.live()?;
        let receive_locked = inner.locks().receive.is_held_by(inner.id);
        Ok(on_device!(opened &inner.device_context,
            device => device.queue_status(receive_locked), else QueueStatus::default()))
    }

    /// Receives a control message and returns its source. `len` is set to its length.
    ///
    /// # Errors
    /// NoSpace: the buffer is too small; `len` is set and the message remains in the queue.
    /// NoBuffers: there is no message.
    pub fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        let context = &self.live()?.device_context;
        on_device!(opened context, device => device.control_receive(buffer, len))
    }

    /// The number of descriptors that `get_fds` returns.
    pub fn fd_count(&self) -> PmResult<usize> {
        self.live().map(|_| 1)
    }

    /// Stores the descriptors for `select` and returns their number.
    ///
    /// # Errors
    /// NoSpace: `fds` is too small. NoMemory: no descriptor number below FD_SETSIZE is free.
    pub fn get_fds(&self, fds: &mut [RawFd]) -> PmResult<usize> {
        let inner = self.live()?;
        let first = fds.first_mut().ok_or(Error::NoSpace)?;
        *first = on_device!(opened &inner.device_context, device => device.fd())?;
        Ok(1)
    }

    /// Prepares `select`. After this call, `receive` must be called until it finds no message.
    pub fn before_select(&self) -> PmResult<()> {
        on_device!(opened &self.live()?.device_context, device => device.before_select())
    }

    /// Disarms the doorbell that `before_select` has armed. Call it after `select`.
    pub fn after_select(&self) -> PmResult<()> {
        let context = &self.live()?.device_context;
        on_device!(active context, device => device.after_select(), else ());
        Ok(())
    }

    /// Drops the contents of this context's queues: reserved and held buffers, received messages,
    /// control messages. The context stays bound.
    ///
    /// # Errors
    /// Busy: the context belongs to another process, or a buffer of a member or of the composite is
    /// held.
    pub fn reset(&self) -> PmResult<()> {
        let inner = self.live()?;
        let locks = inner.locks();
        if !locks.send.is_held_by(inner.id) {
            inner.lock_send()?;
        }
        if !locks.receive.is_held_by(inner.id) {
            inner.lock_receive().inspect_err(|_| locks.send.release())?;
        }
        on_device!(opened &inner.device_context, device => device.reset(), else ());
        locks.release_both();
        Ok(())
    }

    /// Writes the context's state as text, in one write, so that it does not mix with the dumps of
    /// other nodes to the same output.
    pub fn dump(&self, out: &mut dyn Write) -> PmResult<()> {
        let inner = self.live()?;
        let lock_state = |is_held: bool| if is_held { "held" } else { "free" };
        let locks = inner.locks();
        let mut text = Vec::new();
        writeln!(
            text,
            "{} context {}: send lock {}, receive lock {}",
            inner.device_context.config().kind,
            inner.id,
            lock_state(!locks.send.is_free()),
            lock_state(!locks.receive.is_free()),
        )
        .and_then(|()| inner.device_context.dump(&mut text))
        .and_then(|()| out.write_all(&text))
        .map_err(|_| Error::Io)
    }
}
