//! The send slab as a wire sees it: bytes that it may read, and nothing outside them.

// UNSAFETY: holds the address of memory that other processes may write.
#![expect(unsafe_code)]

use std::ptr::NonNull;

/// Memory that payloads are sent from.
pub struct Slab {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address and a length; whoever made it promised that the memory stays.
unsafe impl Send for Slab {}

impl Slab {
    /// `len` bytes at `base`.
    ///
    /// # Safety
    /// They must stay readable as long as the wire lives that gets this. Others may write them.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Slab {
        Slab { base, len }
    }

    /// No payloads: packets of header alone.
    pub fn none() -> Slab {
        Slab { base: NonNull::dangling(), len: 0 }
    }

    /// Where that slice begins; None where it is not inside.
    #[inline]
    pub(super) fn slice(&self, at: usize, len: usize) -> Option<*const u8> {
        let end = at.checked_add(len)?;
        // SAFETY: inside the slab, or one past its end for an empty slice.
        (end <= self.len).then(|| unsafe { self.base.as_ptr().add(at).cast_const() })
    }
}
