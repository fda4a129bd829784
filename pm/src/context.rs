//! Contexts: end points of communication. Here are the locks and the checks; what is behind them
//! is the device's.

// UNSAFETY: the object may be zeroed under our feet by fork, so its inside is reached by hand.
#![expect(unsafe_code)]

mod membership;
mod message;
mod owner;
mod remote;
mod short;

use crate::config::{ContextConfig, QueueStatus};
use crate::device::{Body, Owner, Transport, network, on, refuse_kind, shmem};
use crate::error::{Error, Result};
pub use crate::handle::ContextRef;
use crate::handle::{free_page, new_page};
use crate::lock::{Lock, Locks};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::threads::is_alone;
pub use short::Poll;
use std::cell::UnsafeCell;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// "PMCONTXT": a context that may be used.
const LIVE: u64 = u64::from_le_bytes(*b"PMCONTXT");
/// A context that was closed or detached and to which references are left.
const CLOSED: u64 = u64::from_le_bytes(*b"PMCLOSED");

/// An end point. It never moves: a C `pmContext *` points to one, and [`Context::from_ptr`]
/// checks such a pointer. Held by [`ContextRef`].
#[repr(C)]
pub struct Context {
    /// [`LIVE`], [`CLOSED`], or 0: free, or wiped by fork.
    magic: AtomicU64,
    references: AtomicUsize,
    /// Valid unless the magic number is 0.
    inner: UnsafeCell<MaybeUninit<Inner>>,
}

// SAFETY: what is inside is atomic, guarded by the locks, or set before the context is handed out.
unsafe impl Sync for Context {}
// SAFETY: as above; nothing belongs to a thread.
unsafe impl Send for Context {}

/// Where a context came from.
enum Origin {
    /// From a device of this process, and by which number.
    Opened(Arc<Owner>, usize),
    Attached,
}

/// The inside of a live context: what messages are sent and received with.
pub struct Inner {
    /// The name that it takes locks by.
    id: u32,
    /// The locks in force: a composite's for its members, else its own.
    locks: AtomicPtr<Locks>,
    own_locks: Arc<Locks>,
    /// All locks that were ever in force: somebody may be trying an old one.
    old_locks: Mutex<Vec<Arc<Locks>>>,
    /// The composite that it is a member of, by id; 0: none.
    composite: AtomicU32,
    patience: message::Patience,
    origin: Origin,
    /// What is locked for remote access.
    book: Mutex<remote::Book>,
    body: Body,
}

impl Inner {
    #[inline(always)]
    fn locks(&self) -> &Locks {
        // SYNC: locks
        // SAFETY: points into own_locks or one of old_locks, which live as long as `self`.
        unsafe { &*self.locks.load(Ordering::Acquire) }
    }

    /// Takes the send lock that is in force.
    #[inline(always)]
    fn lock_send(&self) -> Result<&Locks> {
        self.lock(is_alone(), |locks| &locks.send)
    }

    #[inline(always)]
    fn lock_receive(&self) -> Result<&Locks> {
        self.lock(is_alone(), |locks| &locks.receive)
    }

    /// `alone`: this process has one thread.
    #[inline(always)]
    fn lock(&self, alone: bool, which: impl Fn(&Locks) -> &Lock) -> Result<&Locks> {
        let locks = self.locks();
        if alone {
            which(locks).try_take_alone(self.id)?;
            return Ok(locks);
        }
        which(locks).try_take(self.id)?;
        if std::ptr::eq(locks, self.locks()) {
            return Ok(locks);
        }
        // It became a member, or ceased to be one, just now.
        which(locks).release();
        Err(Error::Busy)
    }

    fn lock_both(&self) -> Result<&Locks> {
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
    pub(crate) fn opened(owner: &Arc<Owner>, number: usize) -> Result<ContextRef> {
        let body = Body::opened(owner, number)?;
        ContextRef::new(body, Origin::Opened(owner.clone(), number))
    }

    fn new(body: Body, origin: Origin) -> Result<ContextRef> {
        static IDS: AtomicU32 = AtomicU32::new(1);
        // 2³¹ contexts before a name is used twice; 0 and all ones never are.
        let id = IDS.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1) | 1 << 30;
        let own_locks = Arc::new(Locks::default());
        let inner = Inner {
            id,
            locks: AtomicPtr::new(Arc::as_ptr(&own_locks).cast_mut()),
            own_locks,
            old_locks: Mutex::default(),
            composite: AtomicU32::new(0),
            patience: message::Patience::default(),
            origin,
            book: Mutex::default(),
            body,
        };
        let page = new_page()?;
        // SAFETY: a zeroed page of ours, which is a valid Context that nobody knows yet.
        let context = unsafe { page.as_ref() };
        // SAFETY: nobody looks inside while the magic number is 0.
        unsafe { (*context.inner.get()).write(inner) };
        context.references.store(1, Ordering::Relaxed);
        // SYNC: magic
        context.magic.store(LIVE, Ordering::Release);
        Ok(ContextRef::counted(page))
    }

    pub(crate) fn count_up(&self) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }

    /// True when it was the last reference. In a child after fork nothing is counted any more.
    pub(crate) fn count_down(&self) -> bool {
        self.magic.load(Ordering::Acquire) != 0
            && self.references.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Context {
    /// Makes a context of type `kind` from a descriptor of [`Context::create_attach_fd`].
    /// NoDevice: no such type. Invalid: not such a descriptor.
    pub fn attach(kind: &str, fd: OwnedFd) -> Result<ContextRef> {
        match kind {
            "shmem" => ContextRef::new(Body::Shmem(shmem::open::attach(fd)?), Origin::Attached),
            "ethernet" | "agent-udp" => {
                ContextRef::new(Body::Ethernet(network::attach(&fd)?), Origin::Attached)
            }
            "verbs" => ContextRef::new(Body::Verbs(network::attach(&fd)?), Origin::Attached),
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
    pub unsafe fn from_ptr<'a>(pointer: *const Context) -> Result<&'a Context> {
        // SAFETY: pages of contexts are never unmapped, and zero is a valid Context.
        let context = unsafe { pointer.as_ref() }.ok_or(Error::Invalid)?;
        context.live().map(|_| context)
    }

    /// As `from_ptr`, for a call that needs the magic number looked at only once.
    ///
    /// # Safety
    /// As `from_ptr`.
    #[inline(always)]
    pub unsafe fn live_at<'a>(pointer: *const Context) -> Result<&'a Inner> {
        // SAFETY: as in `from_ptr`.
        unsafe { pointer.as_ref() }.ok_or(Error::Invalid)?.live()
    }

    /// Another reference to this context.
    pub fn reference(&self) -> Result<ContextRef> {
        self.live()?;
        let reference = ContextRef::counted(NonNull::from(self));
        reference.count_up();
        Ok(reference)
    }

    /// # Safety
    /// Nobody else refers to the context.
    pub(crate) unsafe fn free(page: NonNull<Context>) {
        // SAFETY: pages of contexts are never unmapped.
        let context = unsafe { page.as_ref() };
        // SAFETY: the magic number was not 0, so there is an Inner, and nobody else looks at it.
        let inner = unsafe { (*context.inner.get()).assume_init_mut() };
        if context.magic.load(Ordering::Relaxed) == LIVE {
            inner.give_up();
        }
        context.magic.store(0, Ordering::Release);
        // SAFETY: as above; the magic number says that it is gone.
        unsafe { std::ptr::drop_in_place(inner) };
        free_page(page);
    }

    #[inline(always)]
    fn live(&self) -> Result<&Inner> {
        // SYNC: magic
        if self.magic.load(Ordering::Acquire) != LIVE {
            return Err(Error::Invalid);
        }
        // SAFETY: written before the magic number, and dropped by the last reference only.
        Ok(unsafe { (*self.inner.get()).assume_init_ref() })
    }

    /// The context's properties.
    pub fn config(&self) -> Result<ContextConfig> {
        Ok(on!(&self.live()?.body, device => device.config()))
    }

    /// The own node number. Invalid: not set.
    pub fn self_node(&self) -> Result<u32> {
        on!(&self.live()?.body, device => device.own())
    }

    /// The longest message to `node`. Invalid: no such node, or none associated with it.
    pub fn mtu(&self, node: u32) -> Result<usize> {
        on!(&self.live()?.body, device => device.mtu(node))
    }

    /// Whether all sent messages are in their receivers' queues. Busy: not yet. Io: a link broke.
    pub fn is_send_done(&self) -> Result<()> {
        on!(&self.live()?.body, device => device.is_send_done())
    }

    /// What waits in the queues.
    pub fn queue_status(&self) -> Result<QueueStatus> {
        let inner = self.live()?;
        let held = inner.locks().receive.is_held_by(inner.id);
        Ok(on!(&inner.body, device => device.queue_status(held)))
    }

    /// Takes a control message; answers its source. `len` is set to its length, on NoSpace (the
    /// buffer is too small, the message stays) too. NoBuffers: there is none.
    pub fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        on!(&self.live()?.body, device => device.control_receive(buffer, len))
    }

    /// How many descriptors `get_fds` gives.
    pub fn fd_count(&self) -> Result<usize> {
        self.live().map(|_| 1)
    }

    /// The descriptors for `select`; answers how many. NoSpace: `fds` is too small. NoMemory: no
    /// number below FD_SETSIZE.
    pub fn get_fds(&self, fds: &mut [RawFd]) -> Result<usize> {
        let inner = self.live()?;
        let first = fds.first_mut().ok_or(Error::NoSpace)?;
        *first = on!(&inner.body, device => device.fd())?;
        Ok(1)
    }

    /// To be called before `select`; then `receive` must be called until it finds nothing.
    pub fn before_select(&self) -> Result<()> {
        on!(&self.live()?.body, device => device.before_select())
    }

    /// To be called after `select`.
    pub fn after_select(&self) -> Result<()> {
        on!(&self.live()?.body, device => device.after_select());
        Ok(())
    }

    /// Drops what is queued here: reserved and held buffers, received messages, control messages.
    /// Keeps the binding. Busy: the context belongs to another process, or a member's or the
    /// composite's buffer is held.
    pub fn reset(&self) -> Result<()> {
        let inner = self.live()?;
        let locks = inner.locks();
        if !locks.send.is_held_by(inner.id) {
            inner.lock_send()?;
        }
        if !locks.receive.is_held_by(inner.id) {
            inner.lock_receive().inspect_err(|_| locks.send.release())?;
        }
        on!(&inner.body, device => device.reset());
        locks.release_both();
        Ok(())
    }

    /// Writes the context's state for people to read, all of it at once: who shares the place it
    /// goes to, like the other nodes' dumps, comes before or after it.
    pub fn dump(&self, out: &mut dyn Write) -> Result<()> {
        let inner = self.live()?;
        let words = |held: bool| if held { "held" } else { "free" };
        let locks = inner.locks();
        let mut text = Vec::new();
        writeln!(
            text,
            "{} context {}: send lock {}, receive lock {}",
            inner.body.kind(),
            inner.id,
            words(!locks.send.is_free()),
            words(!locks.receive.is_free()),
        )
        .and_then(|()| on!(&inner.body, device => device.dump(&mut text)))
        .and_then(|()| out.write_all(&text))
        .map_err(|_| Error::Io)
    }
}
