//! The buffers that received messages wait in. Private memory: nobody else writes it.

// UNSAFETY: hands out addresses of memory that it holds.
#![expect(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// What all buffers of a context may take.
const BUDGET: usize = 8 << 20;
const MIN: usize = 128;
const MAX: usize = 4096;
const LINE: usize = size_of::<Line>();

/// Aligned memory.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Line([u64; 8]);

impl Line {
    /// Lines that hold `bytes`.
    pub(crate) fn copy(bytes: &[u8]) -> Box<[Line]> {
        let line = |part: &[u8]| {
            let mut line = Line::default();
            for (word, eight) in line.0.iter_mut().zip(part.chunks(8)) {
                let mut whole = [0; 8];
                whole[..eight.len()].copy_from_slice(eight);
                *word = u64::from_ne_bytes(whole);
            }
            line
        };
        bytes.chunks(LINE).map(line).collect()
    }
}

/// How many buffers there are for messages of up to `mtu` bytes; a power of two.
pub(crate) fn buffers(mtu: usize) -> usize {
    1 << (BUDGET / mtu.next_multiple_of(LINE).max(LINE)).clamp(MIN, MAX).ilog2()
}

/// Buffers of one length, by number.
pub(crate) struct Pool {
    memory: NonNull<u8>,
    layout: Layout,
    /// The first buffer, at a line of `memory`.
    start: NonNull<u8>,
    stride: usize,
    count: usize,
}

// SAFETY: plain memory; who uses which buffer is settled by the queues of its owner.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Large zeroed memory is mapped, not written: a buffer takes no page before its first use.
    /// That holds for the alignment that all memory has; for another, zeros are written.
    pub(crate) fn new(mtu: usize) -> Pool {
        let stride = mtu.next_multiple_of(LINE).max(LINE);
        let count = buffers(mtu);
        let bytes = stride * count + LINE;
        let layout =
            Layout::from_size_align(bytes, size_of::<u64>()).unwrap_or(Layout::new::<u64>());
        // SAFETY: the layout is not empty.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        let before = memory.as_ptr().align_offset(LINE);
        assert!(before + stride * count <= layout.size());
        // SAFETY: inside the allocation.
        let start = unsafe { memory.add(before) };
        Pool { memory, layout, start, stride, count }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Where buffer `number` lies.
    #[inline(always)]
    pub(crate) fn at(&self, number: usize) -> *mut u8 {
        assert!(number < self.count);
        // SAFETY: inside the allocation.
        unsafe { self.start.as_ptr().add(number * self.stride) }
    }

    /// Copies a message to buffer `number`, which nobody else uses.
    #[inline(always)]
    pub(crate) fn fill(&self, number: usize, message: &[u8]) {
        let len = message.len().min(self.stride);
        // SAFETY: the buffer has `stride` bytes; `message` is other memory.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), self.at(number), len) };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: from alloc_zeroed with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_aligned_and_within_the_budget() {
        for mtu in [1024, 1411, 8911, 65_000] {
            let pool = Pool::new(mtu);
            assert!(pool.count().is_power_of_two() && pool.count() >= MIN);
            assert!(pool.at(1) as usize - pool.at(0) as usize >= mtu);
            assert_eq!(pool.at(1) as usize % LINE, 0);
            pool.fill(pool.count() - 1, &vec![7; mtu]);
        }
    }
}
