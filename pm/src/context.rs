//! Contexts: end points of communication. Here are the locks and the checks; what is behind them
//! is the device's.

// UNSAFETY: the object may be zeroed under our feet by fork, so its inside is reached by hand.
#![expect(unsafe_code)]

mod fast_path;
mod membership;
mod owner;
mod rma;
mod send_receive;

use crate::config::{ContextConfig, QueueStatus};
pub use crate::context_ref::ContextRef;
use crate::context_ref::{free_page, new_page};
use crate::device::{DeviceContext, DeviceState, Transport, net_common, on, refuse_kind, shmem};
use crate::error::{Error, PmResult};
use crate::lock::{Lock, Locks};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::threads::is_only_app_thread;
pub use fast_path::FastReceive;
use std::cell::UnsafeCell;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// "PMCONTXT": a context that may be used.
const MAGIC_LIVE: u64 = u64::from_le_bytes(*b"PMCONTXT");
/// A context that was closed or detached and to which references are left.
const MAGIC_CLOSED: u64 = u64::from_le_bytes(*b"PMCLOSED");

/// An end point. It never moves: a C `pmContext *` points to one, and [`Context::from_ptr`]
/// checks such a pointer. Held by [`ContextRef`].
#[repr(C)]
pub struct Context {
    /// [`MAGIC_LIVE`], [`MAGIC_CLOSED`], or 0: free, or wiped by fork.
    magic: AtomicU64,
    references: AtomicUsize,
    /// Valid unless the magic number is 0.
    inner: UnsafeCell<MaybeUninit<LiveContext>>,
}

// SAFETY: what is inside is atomic, guarded by the locks, or set before the context is handed out.
unsafe impl Sync for Context {}
// SAFETY: as above; nothing belongs to a thread.
unsafe impl Send for Context {}

/// Where a context came from.
enum ContextKind {
    /// From a device of this process, and by which number.
    Opened(Arc<DeviceState>, usize),
    Attached,
}

/// The inside of a live context: what messages are sent and received with.
pub struct LiveContext {
    /// The name that it takes locks by.
    id: u32,
    /// The locks in force: a composite's for its members, else its own.
    locks: AtomicPtr<Locks>,
    self_locks: Arc<Locks>,
    /// All locks that were ever in force: somebody may be trying an old one.
    old_locks: Mutex<Vec<Arc<Locks>>>,
    /// The composite that it is a member of, by id; 0: none.
    composite: AtomicU32,
    poll_backoff: send_receive::PollBackoff,
    origin: ContextKind,
    /// What is locked for remote access.
    locked_regions: Mutex<rma::LockedRegions>,
    device_context: DeviceContext,
}

impl LiveContext {
    #[inline(always)]
    fn locks(&self) -> &Locks {
        // SYNC: locks
        // SAFETY: points into own_locks or one of old_locks, which live as long as `self`.
        unsafe { &*self.locks.load(Ordering::Acquire) }
    }

    /// Takes the send lock that is in force.
    #[inline(always)]
    fn lock_send(&self) -> PmResult<&Locks> {
        self.lock(is_only_app_thread(), |locks| &locks.send)
    }

    #[inline(always)]
    fn lock_receive(&self) -> PmResult<&Locks> {
        self.lock(is_only_app_thread(), |locks| &locks.receive)
    }

    /// `single_threaded`: this process has one thread.
    #[inline(always)]
    fn lock(
        &self,
        single_threaded: bool,
        select_lock: impl Fn(&Locks) -> &Lock,
    ) -> PmResult<&Locks> {
        let locks = self.locks();
        if single_threaded {
            select_lock(locks).try_acquire_single_threaded(self.id)?;
            return Ok(locks);
        }
        select_lock(locks).try_acquire(self.id)?;
        if std::ptr::eq(locks, self.locks()) {
            return Ok(locks);
        }
        // It became a member, or ceased to be one, just now.
        select_lock(locks).release();
        Err(Error::Busy)
    }

    fn lock_both(&self) -> PmResult<&Locks> {
        self.lock_send()?;
        self.lock_receive().inspect_err(|_| self.locks().send.release())
    }

    /// Puts other locks in force. The caller holds those that are, and these.
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
        // 2³¹ contexts before a name is used twice; 0 and all ones never are.
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
        // SAFETY: a zeroed page of ours, which is a valid Context that nobody knows yet.
        let context = unsafe { page.as_ref() };
        // SAFETY: nobody looks inside while the magic number is 0.
        unsafe { (*context.inner.get()).write(inner) };
        context.references.store(1, Ordering::Relaxed);
        // SYNC: magic
        context.magic.store(MAGIC_LIVE, Ordering::Release);
        Ok(ContextRef::from_counted(page))
    }

    pub(crate) fn add_reference(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    /// True when it was the last reference. In a child after fork nothing is counted any more.
    pub(crate) fn drop_reference(&self) -> bool {
        self.magic.load(Ordering::Acquire) != 0
            && self.references.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Context {
    /// Makes a context of type `kind` from a descriptor of [`Context::create_attach_fd`].
    /// NoDevice: no such type. Invalid: not such a descriptor.
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
    /// `pointer` is null or came from [`ContextRef::into_raw`] (taken back since, or not).
    #[inline(always)]
    pub unsafe fn from_ptr<'a>(pointer: *const Context) -> PmResult<&'a Context> {
        // SAFETY: pages of contexts are never unmapped, and zero is a valid Context.
        let context = unsafe { pointer.as_ref() }.ok_or(Error::Invalid)?;
        context.live().map(|_| context)
    }

    /// As `from_ptr`, for a call that needs the magic number looked at only once.
    ///
    /// # Safety
    /// As `from_ptr`.
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
    /// Nobody else refers to the context.
    pub(crate) unsafe fn free(page: NonNull<Context>) {
        // SAFETY: pages of contexts are never unmapped.
        let context = unsafe { page.as_ref() };
        // SAFETY: the magic number was not 0, so there is an Inner, and nobody else looks at it.
        let inner = unsafe { (*context.inner.get()).assume_init_mut() };
        if context.magic.load(Ordering::Relaxed) == MAGIC_LIVE {
            inner.tear_down();
        }
        context.magic.store(0, Ordering::Release);
        // SAFETY: as above; the magic number says that it is gone.
        unsafe { std::ptr::drop_in_place(inner) };
        free_page(page);
    }

    #[inline(always)]
    fn live(&self) -> PmResult<&LiveContext> {
        // SYNC: magic
        if self.magic.load(Ordering::Acquire) != MAGIC_LIVE {
            return Err(Error::Invalid);
        }
        // SAFETY: written before the magic number, and dropped by the last reference only.
        Ok(unsafe { (*self.inner.get()).assume_init_ref() })
    }

    /// The context's properties.
    pub fn config(&self) -> PmResult<ContextConfig> {
        Ok(on!(&self.live()?.device_context, device => device.config()))
    }

    /// The own node number. Invalid: not set.
    pub fn self_node(&self) -> PmResult<u32> {
        on!(&self.live()?.device_context, device => device.self_node())
    }

    /// The longest message to `node`. Invalid: no such node, or none associated with it.
    pub fn mtu(&self, node: u32) -> PmResult<usize> {
        on!(&self.live()?.device_context, device => device.mtu(node))
    }

    /// Whether all sent messages are in their receivers' queues. Busy: not yet. Io: a link broke.
    pub fn is_send_done(&self) -> PmResult<()> {
        on!(&self.live()?.device_context, device => device.is_send_done())
    }

    /// What waits in the queues.
    pub fn queue_status(&self) -> PmResult<QueueStatus> {
        let inner = self.live()?;
        let receive_locked = inner.locks().receive.is_held_by(inner.id);
        Ok(on!(&inner.device_context, device => device.queue_status(receive_locked)))
    }

    /// Takes a control message; answers its source. `len` is set to its length, on NoSpace (the
    /// buffer is too small, the message stays) too. NoBuffers: there is none.
    pub fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        on!(&self.live()?.device_context, device => device.control_receive(buffer, len))
    }

    /// How many descriptors `get_fds` gives.
    pub fn fd_count(&self) -> PmResult<usize> {
        self.live().map(|_| 1)
    }

    /// The descriptors for `select`; answers how many. NoSpace: `fds` is too small. NoMemory: no
    /// number below FD_SETSIZE.
    pub fn get_fds(&self, fds: &mut [RawFd]) -> PmResult<usize> {
        let inner = self.live()?;
        let first = fds.first_mut().ok_or(Error::NoSpace)?;
        *first = on!(&inner.device_context, device => device.fd())?;
        Ok(1)
    }

    /// To be called before `select`; then `receive` must be called until it finds nothing.
    pub fn before_select(&self) -> PmResult<()> {
        on!(&self.live()?.device_context, device => device.before_select())
    }

    /// To be called after `select`.
    pub fn after_select(&self) -> PmResult<()> {
        on!(&self.live()?.device_context, device => device.after_select());
        Ok(())
    }

    /// Drops what is queued here: reserved and held buffers, received messages, control messages.
    /// Keeps the binding. Busy: the context belongs to another process, or a member's or the
    /// composite's buffer is held.
    pub fn reset(&self) -> PmResult<()> {
        let inner = self.live()?;
        let locks = inner.locks();
        if !locks.send.is_held_by(inner.id) {
            inner.lock_send()?;
        }
        if !locks.receive.is_held_by(inner.id) {
            inner.lock_receive().inspect_err(|_| locks.send.release())?;
        }
        on!(&inner.device_context, device => device.reset());
        locks.release_both();
        Ok(())
    }

    /// Writes the context's state for people to read, all of it at once: who shares the place it
    /// goes to, like the other nodes' dumps, comes before or after it.
    pub fn dump(&self, out: &mut dyn Write) -> PmResult<()> {
        let inner = self.live()?;
        let lock_state = |is_held: bool| if is_held { "held" } else { "free" };
        let locks = inner.locks();
        let mut text = Vec::new();
        writeln!(
            text,
            "{} context {}: send lock {}, receive lock {}",
            inner.device_context.kind(),
            inner.id,
            lock_state(!locks.send.is_free()),
            lock_state(!locks.receive.is_free()),
        )
        .and_then(|()| on!(&inner.device_context, device => device.dump(&mut text)))
        .and_then(|()| out.write_all(&text))
        .map_err(|_| Error::Io)
    }
}
