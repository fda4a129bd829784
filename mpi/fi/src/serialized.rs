//! State that one thread at a time uses: by the program's promise, or by a lock.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// See the [module](self).
pub(crate) struct Serialized<T> {
    /// Whether several threads may call at the same time.
    needs_lock: AtomicBool,
    lock: Mutex<()>,
    value: UnsafeCell<T>,
}

// PM relies on this, too: `pm_network.rs` promises it that calls are serialized.
// SAFETY: `with` is used by one thread at a time: with the lock, or, without `needs_lock`, by the
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

    /// Uses the state. `use_value` must not call this again.
    #[inline(always)]
    pub(crate) fn with<R>(&self, use_value: impl FnOnce(&mut T) -> R) -> R {
        let _guard = self
            .needs_lock
            .load(Ordering::Relaxed)
            .then(|| self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: no other thread uses it now, as the comment on `Sync` says.
        use_value(unsafe { &mut *self.value.get() })
    }
}
