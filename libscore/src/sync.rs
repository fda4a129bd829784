//! Atomics, and the only access of this crate to shared memory: words of a mapping, each of which
//! is read or written as a whole. Comments with SYNC mark the two ends of every ordering.

// UNSAFETY: turns checked offsets in a mapping into atomics.
#![expect(unsafe_code)]

use memmap2::MmapRaw;

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};

/// Words of a shared mapping.
pub(crate) struct SharedMapping(MmapRaw);

impl SharedMapping {
    /// Takes over the mapping.
    pub(crate) fn new(mapping: MmapRaw) -> Self {
        Self(mapping)
    }

    /// The byte at `offset`, which must be in the mapping.
    pub(crate) fn u8(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: `checked_ptr` has checked the range. The mapping exists as long as `self`, and
        // its bytes are only ever used as atomics.
        unsafe { AtomicU8::from_ptr(self.checked_ptr(offset, 1)) }
    }

    /// The u32 at `offset`, which must be aligned and in the mapping.
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as in `u8`.
        unsafe { AtomicU32::from_ptr(self.checked_ptr(offset, 4).cast()) }
    }

    /// The u64 at `offset`, which must be aligned and in the mapping.
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `u8`.
        unsafe { AtomicU64::from_ptr(self.checked_ptr(offset, 8).cast()) }
    }

    fn checked_ptr(&self, offset: usize, size: usize) -> *mut u8 {
        let start = self.0.as_mut_ptr().wrapping_add(offset);
        assert!(offset + size <= self.0.len() && start.addr().is_multiple_of(size));
        start
    }
}
