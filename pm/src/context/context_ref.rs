//! The memory of context objects: pages that are zeroed in a child of `fork`. Therefore one load of
//! the magic number distinguishes a live context from a closed one, a forked one, and memory that
//! is no context. Pages are reused but never unmapped, so that a stale C pointer reads a wrong
//! magic number and not an unmapped page.

// UNSAFETY: allocates and counts references to objects that C holds by address.
#![expect(unsafe_code)]

use super::Context;
use crate::error::PmResult;
use crate::wipe_on_fork;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

const PAGE: usize = 4096;

/// The addresses of pages without a context.
static FREE_PAGES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

const _: () = assert!(size_of::<Context>() <= PAGE && align_of::<Context>() <= PAGE);

/// A page of zeroes.
pub(crate) fn new_page() -> PmResult<NonNull<Context>> {
    let free = FREE_PAGES.lock().unwrap_or_else(PoisonError::into_inner).pop();
    if let Some(page) = free.and_then(|page| NonNull::new(page as *mut Context)) {
        return Ok(page);
    }
    wipe_on_fork::map_pages(PAGE).map(NonNull::cast)
}

/// Adds a page, whose magic number is 0, to the free pages.
pub(crate) fn free_page(page: NonNull<Context>) {
    FREE_PAGES.lock().unwrap_or_else(PoisonError::into_inner).push(page.as_ptr() as usize);
}

/// A counted reference to a [`Context`].
pub struct ContextRef(NonNull<Context>);

// SAFETY: a context may be used by any thread; the count is atomic.
unsafe impl Send for ContextRef {}
// SAFETY: as above.
unsafe impl Sync for ContextRef {}

impl ContextRef {
    /// Wraps a reference that is already counted.
    pub(crate) fn from_counted(page: NonNull<Context>) -> ContextRef {
        ContextRef(page)
    }

    /// Whether both are the same context.
    pub fn is_same(&self, other: &ContextRef) -> bool {
        self.0 == other.0
    }

    /// The address that C uses for the context; valid as long as there is any reference.
    pub fn as_ptr(&self) -> *mut Context {
        self.0.as_ptr()
    }

    /// Like `as_ptr`, but the pointer takes over the reference.
    pub fn into_raw(self) -> *mut Context {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// Takes back the reference of [`ContextRef::into_raw`].
    ///
    /// # Safety
    /// `pointer` was returned by `into_raw`, and its reference was not taken back before.
    pub unsafe fn from_raw(pointer: *mut Context) -> ContextRef {
        // SAFETY: into_raw never returns null.
        ContextRef(unsafe { NonNull::new_unchecked(pointer) })
    }
}

impl Clone for ContextRef {
    fn clone(&self) -> ContextRef {
        self.add_reference();
        ContextRef(self.0)
    }
}

impl Deref for ContextRef {
    type Target = Context;
    #[inline]
    fn deref(&self) -> &Context {
        // SAFETY: the page is never unmapped, and a Context of zeroes is valid.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for ContextRef {
    fn drop(&mut self) {
        if self.drop_reference() {
            // SAFETY: this was the last reference.
            unsafe { Context::free(self.0) };
        }
    }
}

impl std::fmt::Debug for ContextRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ContextRef({:p})", self.0)
    }
}
