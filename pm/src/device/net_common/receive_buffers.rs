//! The buffers of received messages. They are private memory, which no other process can write.

// UNSAFETY: returns addresses of memory that it owns.
#![expect(unsafe_code)]

use super::indices::EntryIndex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// The most bytes of all buffers of a context.
const RECEIVE_BUFFER_BUDGET: usize = 8 << 20;
const MIN_BUFFERS: usize = 128;
const MAX_BUFFERS: usize = 4096;
const LINE: usize = size_of::<AlignedLine>();

/// Memory that is aligned to a cache line.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct AlignedLine([u64; 8]);

impl AlignedLine {
    /// Copies `bytes` to newly allocated lines.
    pub(crate) fn copy(bytes: &[u8]) -> Box<[AlignedLine]> {
        let line = |part: &[u8]| {
            let mut line = AlignedLine::default();
            for (word, eight) in line.0.iter_mut().zip(part.chunks(8)) {
                let mut padded = [0; 8];
                padded[..eight.len()].copy_from_slice(eight);
                *word = u64::from_ne_bytes(padded);
            }
            line
        };
        bytes.chunks(LINE).map(line).collect()
    }
}

/// Returns the number of buffers for messages of up to `mtu` bytes. It is a power of two.
pub(crate) fn buffer_count(mtu: usize) -> usize {
    1 << (RECEIVE_BUFFER_BUDGET / mtu.next_multiple_of(LINE).max(LINE))
        .clamp(MIN_BUFFERS, MAX_BUFFERS)
        .ilog2()
}

/// Buffers of equal length, one for each entry.
pub(crate) struct ReceiveBuffers {
    memory: NonNull<u8>,
    layout: Layout,
    /// The address of the first buffer, which is aligned to a cache line.
    start: NonNull<u8>,
    stride: usize,
    count: usize,
}

// SAFETY: this is plain memory, and the owner's queues determine which thread uses which buffer.
unsafe impl Send for ReceiveBuffers {}
// SAFETY: as above.
unsafe impl Sync for ReceiveBuffers {}

impl ReceiveBuffers {
    /// Allocates the buffers. The allocator maps large zeroed memory instead of writing it, so that
    /// a buffer needs no page before its first use. This holds for the default alignment only. For
    /// a larger alignment, the allocator writes the zeros.
    pub(crate) fn new(mtu: usize) -> ReceiveBuffers {
        let stride = mtu.next_multiple_of(LINE).max(LINE);
        let count = buffer_count(mtu);
        let bytes = stride * count + LINE;
        let layout =
            Layout::from_size_align(bytes, size_of::<u64>()).unwrap_or(Layout::new::<u64>());
        // SAFETY: the size of the layout is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        let padding = memory.as_ptr().align_offset(LINE);
        assert!(padding + stride * count <= layout.size());
        // SAFETY: the address is inside the allocation.
        let start = unsafe { memory.add(padding) };
        ReceiveBuffers { memory, layout, start, stride, count }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the address of the buffer of `entry`.
    #[inline(always)]
    pub(crate) fn buffer(&self, entry: EntryIndex) -> *mut u8 {
        assert!(entry.as_usize() < self.count);
        // SAFETY: the address is inside the allocation.
        unsafe { self.start.as_ptr().add(entry.as_usize() * self.stride) }
    }

    /// Copies a message to the buffer of `entry`, which no other code may use.
    #[inline(always)]
    pub(crate) fn fill(&self, entry: EntryIndex, message: &[u8]) {
        let len = message.len().min(self.stride);
        // SAFETY: the buffer has `stride` bytes, and `message` is other memory.
        unsafe { std::ptr::copy_nonoverlapping(message.as_ptr(), self.buffer(entry), len) };
    }
}

impl Drop for ReceiveBuffers {
    fn drop(&mut self) {
        // SAFETY: the memory comes from alloc_zeroed with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_separate_aligned_and_within_the_budget() {
        for mtu in [1024, 1411, 8911, 65_000] {
            let pool = ReceiveBuffers::new(mtu);
            assert!(pool.count().is_power_of_two() && pool.count() >= MIN_BUFFERS);
            let [first, second] = [0, 1].map(|entry| pool.buffer(EntryIndex(entry)) as usize);
            assert!(second - first >= mtu);
            assert_eq!(second % LINE, 0);
            pool.fill(EntryIndex(pool.count() as u32 - 1), &vec![7; mtu]);
        }
    }
}
