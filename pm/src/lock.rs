//! The two locks of a context (manual 2.3.1). A thread tries them and never waits.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};
use crate::sync::{AtomicU32, Ordering, compiler_fence};

/// Not held.
const FREE: u32 = 0;
/// Held because the context was handed over to another process.
pub(crate) const HANDED_OVER: u32 = u32::MAX;

/// One lock word, on its own pair of cache lines. It holds the id of the context that took it,
/// because a composite and its members share one lock: a buffer must be released on the context
/// that it was taken from.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Lock(AtomicU32);

impl Lock {
    /// Takes the lock in a single-threaded process: a load and a store.
    #[inline(always)]
    pub(crate) fn try_acquire_single_threaded(&self, owner: u32) -> PmResult<()> {
        if !self.is_free() {
            return Err(Error::Busy);
        }
        self.0.store(owner, Ordering::Relaxed);
        compiler_fence(Ordering::Acquire);
        Ok(())
    }

    /// Takes the lock by an atomic read-modify-write, the only one of a message on this side.
    #[inline(always)]
    pub(crate) fn try_acquire(&self, owner: u32) -> PmResult<()> {
        // SYNC: lock
        match self.0.compare_exchange(FREE, owner, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Busy),
        }
    }

    #[inline(always)]
    pub(crate) fn is_held_by(&self, owner: u32) -> bool {
        self.0.load(Ordering::Relaxed) == owner
    }

    #[inline(always)]
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Relaxed) == FREE
    }

    #[inline(always)]
    pub(crate) fn release(&self) {
        // SYNC: lock
        self.0.store(FREE, Ordering::Release);
    }
}

/// The locks of a context. A send excludes other sends only, a receive other receives only.
#[derive(Default)]
pub(crate) struct Locks {
    pub(crate) send: Lock,
    pub(crate) receive: Lock,
}

impl Locks {
    pub(crate) fn try_acquire_both(&self, owner: u32) -> PmResult<()> {
        self.send.try_acquire(owner)?;
        self.receive.try_acquire(owner).inspect_err(|_| self.send.release())
    }

    pub(crate) fn release_both(&self) {
        self.receive.release();
        self.send.release();
    }
}
