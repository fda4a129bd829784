//! The two locks of a context (manual 2.3.1): taken by trying, never by waiting.

// UNSAFETY: reads a variable of the C library.
#![expect(unsafe_code)]

use crate::error::{Error, Result};
use crate::sync::{AtomicU32, Ordering, compiler_fence};

/// Held by nobody.
const FREE: u32 = 0;
/// Held because the context was given to another process.
pub(crate) const LENT: u32 = u32::MAX;

/// Whether this process never had a second thread. A lock that is taken while it has none is
/// seen by a thread that it creates afterwards, because creation orders the two.
#[inline(always)]
pub(crate) fn is_single_threaded() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            // glibc 2.32: true until the first thread is created.
            static __libc_single_threaded: std::sync::atomic::AtomicU8;
        }
        // SAFETY: a byte of the C library that lives as long as the process; loaded atomically.
        unsafe { __libc_single_threaded.load(Ordering::Relaxed) != 0 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    false
}

/// One lock word, on its own pair of cache lines. It holds the number of the context that took
/// it, because a composite and its members share one: whoever gives a buffer back must be the
/// context that it was got from.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Lock(AtomicU32);

impl Lock {
    /// Takes it in a process of one thread: by a load and a store.
    #[inline(always)]
    pub(crate) fn try_take_alone(&self, by: u32) -> Result<()> {
        if !self.is_free() {
            return Err(Error::Busy);
        }
        self.0.store(by, Ordering::Relaxed);
        compiler_fence(Ordering::Acquire);
        Ok(())
    }

    /// Takes it by the one atomic read-modify-write of a message on this side.
    #[inline(always)]
    pub(crate) fn try_take(&self, by: u32) -> Result<()> {
        // SYNC: lock
        match self.0.compare_exchange(FREE, by, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Busy),
        }
    }

    #[inline(always)]
    pub(crate) fn is_held_by(&self, by: u32) -> bool {
        self.0.load(Ordering::Relaxed) == by
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
    pub(crate) fn try_both(&self, by: u32) -> Result<()> {
        self.send.try_take(by)?;
        self.receive.try_take(by).inspect_err(|_| self.send.release())
    }

    pub(crate) fn release_both(&self) {
        self.receive.release();
        self.send.release();
    }
}
