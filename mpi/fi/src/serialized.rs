//! State that one thread at a time uses: by the program's promise, or by a lock.

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

/// Access to the state, until it is dropped.
pub(crate) struct Access<'a, T> {
    value: &'a mut T,
    _guard: Option<MutexGuard<'a, ()>>,
}

// PM relies on this, too: `pm_network.rs` promises it that calls are serialized.
// SAFETY: `access` is used by one thread at a time: with the lock, or, without `needs_lock`, by the
// promise of `FI_THREAD_DOMAIN` (fi_domain(3)).
unsafe impl<T> Sync for Serialized<T> {}
// SAFETY: as above; addresses of the program's memory are bound to no thread, and what the parts of
// the state share is not reached from outside of it.
unsafe impl<T> Send for Serialized<T> {}

impl<T> Serialized<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { needs_lock: AtomicBool::new(false), lock: Mutex::new(()), value: value.into() }
    }

    /// From now on several threads may call at the same time. Called while only one does.
    pub(crate) fn require_lock(&self) {
        self.needs_lock.store(true, Ordering::Release);
    }

    /// Access to the state. A thread that has it must not ask for it again.
    #[inline(always)]
    pub(crate) fn access(&self) -> Access<'_, T> {
        let needs_lock = self.needs_lock.load(Ordering::Relaxed);
        let _guard = if needs_lock { Some(self.wait_for_lock()) } else { None };
        // SAFETY: no other thread uses it now, as the comment on `Sync` says.
        Access { value: unsafe { &mut *self.value.get() }, _guard }
    }

    #[inline(never)]
    fn wait_for_lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the state. `use_value` must not ask for it again.
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
