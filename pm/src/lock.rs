//! The two locks of a context (manual 2.3.1): taken by trying, never by waiting.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};
use crate::sync::{AtomicU32, Ordering, compiler_fence};

/// Held by nobody.
const FREE: u32 = 0;
/// Held because the context was given to another process.
pub(crate) const HANDED_OVER: u32 = u32::MAX;

/// One lock word, on its own pair of cache lines. It holds the number of the context that took
/// it, because a composite and its members share one: whoever gives a buffer back must be the
/// context that it was got from.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Lock(AtomicU32);

impl Lock {
    /// Takes it in a process of one thread: by a load and a store.
    #[inline(always)]
    pub(crate) fn try_acquire_single_threaded(&self, owner: u32) -> PmResult<()> {
        if !self.is_free() {
            return Err(Error::Busy);
        }
        self.0.store(owner, Ordering::Relaxed);
        compiler_fence(Ordering::Acquire);
        Ok(())
    }

    /// Takes it by the one atomic read-modify-write of a message on this side.
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

/// Sending and receiving exclude only themselves.
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
