//! Holds the endpoints of a context, of which at most one is in force.

// UNSAFETY: returns a reference by a pointer to an endpoint that other references keep alive.
#![expect(unsafe_code)]

use crate::error::{Error, PmResult};
use crate::sync::{AtomicPtr, Ordering};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// See the [module](self).
pub(crate) struct EndpointHolder<E> {
    /// The endpoint in force. Null: no endpoint is in force.
    current: AtomicPtr<E>,
    /// All endpoints that this context ever had, because another thread may still use an earlier
    /// endpoint.
    endpoints: Mutex<Vec<Arc<E>>>,
}

impl<E> EndpointHolder<E> {
    pub(crate) fn empty() -> EndpointHolder<E> {
        EndpointHolder { current: AtomicPtr::new(null_mut()), endpoints: Mutex::default() }
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<E>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `endpoint` in force.
    pub(crate) fn install(&self, endpoint: Arc<E>) {
        let pointer = Arc::as_ptr(&endpoint).cast_mut();
        self.endpoints().push(endpoint);
        // SYNC: endpoint
        self.current.store(pointer, Ordering::Release);
    }

    /// Takes the current endpoint out of force.
    pub(crate) fn clear(&self) {
        self.current.store(null_mut(), Ordering::Release);
    }

    /// The endpoint in force. Invalid: no endpoint is in force.
    #[inline(always)]
    pub(crate) fn get(&self) -> PmResult<&E> {
        // SYNC: endpoint
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: null or one of `endpoints`, which live as long as `self`.
        unsafe { current.as_ref() }.ok_or(Error::Invalid)
    }

    /// All endpoints that the context ever had.
    pub(crate) fn all(&self) -> Vec<Arc<E>> {
        self.endpoints().clone()
    }
}
