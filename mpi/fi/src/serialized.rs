//! State that one thread at a time uses. Either the program serializes its calls, or a lock does.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the [module](self).
pub(crate) struct Serialized<T> {
    /// Whether several threads may call at the same time.
    needs_lock: AtomicBool,
    lock: Mutex<()>,
    value: UnsafeCell<T>,
}

/// Exclusive access to the state, until it is dropped.
pub(crate) struct Access<'a, T> {
    value: &'a mut T,
    _guard: Option<MutexGuard<'a, ()>>,
}

// SAFETY: one thread at a time uses the value. If `needs_lock` is set, the lock ensures this.
// Otherwise the program promises it by `FI_THREAD_DOMAIN` (fi_domain(3)). PM also relies on this,
// because `pm_network.rs` promises PM that calls are serialized.
unsafe impl<T> Sync for Serialized<T> {}
// SAFETY: as above. Addresses of the program's memory do not depend on a thread, and nothing
// outside of the state refers to what its parts share.
unsafe impl<T> Send for Serialized<T> {}

impl<T> Serialized<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { needs_lock: AtomicBool::new(false), lock: Mutex::new(()), value: value.into() }
    }

    /// Requires the lock from now on, because several threads may call at the same time. Must be
    /// called while only one thread uses the state.
    pub(crate) fn require_lock(&self) {
        self.needs_lock.store(true, Ordering::Release);
    }

    /// Access to the state. A thread that has access must not request it again.
    #[inline(always)]
    pub(crate) fn access(&self) -> Access<'_, T> {
        let needs_lock = self.needs_lock.load(Ordering::Relaxed);
        let _guard = if needs_lock { Some(self.wait_for_lock()) } else { None };
        // SAFETY: no other thread has access now; see the comment on `Sync`.
        Access { value: unsafe { &mut *self.value.get() }, _guard }
    }

    #[inline(never)]
    fn wait_for_lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `use_value` with the state. `use_value` must not request access again.
    #[inline(always)]
    pub(crate) fn with<R>(&self, use_value: impl FnOnce(&mut T) -> R) -> R {
        use_value(&mut self.access())
    }
}

impl<T> Deref for Access<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Access<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}
