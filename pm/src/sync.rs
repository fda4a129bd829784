//! Atomics, fences and prefetches. Tests replace the types by those of loom (`--cfg loom`) to check
//! the data that threads or processes share.

// UNSAFETY: prefetch instructions.
#![allow(unsafe_code)]

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// Loom has no compiler fences. It needs none, because it does not reorder like a compiler.
#[cfg(loom)]
pub(crate) fn compiler_fence(_: Ordering) {}

/// A word with a single writer, which needs no read-modify-write. Other threads may read the word
/// at any time. Only `get_acquire` and `set_release` order other accesses.
#[derive(Default)]
#[repr(transparent)]
pub(crate) struct SingleWriterU64(AtomicU64);

impl SingleWriterU64 {
    #[inline(always)]
    pub(crate) fn new(value: u64) -> SingleWriterU64 {
        SingleWriterU64(AtomicU64::new(value))
    }
    #[inline(always)]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    #[inline(always)]
    pub(crate) fn get_acquire(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    #[inline(always)]
    pub(crate) fn set_release(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Prefetches the cache line at `line` for writing.
#[inline(always)]
pub(crate) fn prefetch_write<T>(line: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a prefetch reads and writes nothing and never faults.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = line;
}

/// Prefetches the cache line at `line` for reading.
#[inline(always)]
pub(crate) fn prefetch_read<T>(line: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: as in `prefetch_write`.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = line;
}
