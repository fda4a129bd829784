//! Receive buffers: private memory in buffers of two sizes. Each buffer counts the packets in it.

// UNSAFETY: returns addresses inside a mapping that it has made.
#![expect(unsafe_code)]

use super::Received;
use super::error::WireError;
use memmap2::{MmapOptions, MmapRaw};

/// A buffer size and the number of buffers of that size.
#[derive(Debug, Clone, Copy)]
pub struct SizeClass {
    pub size: usize,
    pub count: usize,
}

/// A pool of buffers. Small buffers have the lower numbers, large buffers the higher ones.
pub struct BufferPool {
    map: MmapRaw,
    small: SizeClass,
    large: SizeClass,
    /// The number of packets in each buffer that are not released yet.
    refcounts: Vec<u16>,
    free_small: Vec<u32>,
    free_large: Vec<u32>,
}

impl BufferPool {
    /// Maps the buffers. Sizes must be multiples of 64, so that every buffer begins on a cache
    /// line. The kernel allocates a page when a packet is first received into it.
    pub fn new(small: SizeClass, large: SizeClass) -> Result<BufferPool, WireError> {
        assert!(small.size.is_multiple_of(64) && large.size.is_multiple_of(64));
        let len = small.size * small.count + large.size * large.count;
        let map = MmapOptions::new()
            .len(len)
            .map_anon()
            .map_err(|error| WireError::new(format!("receive buffers ({len} bytes): {error}")))?;
        let total = small.count + large.count;
        // The most recently released buffer is used first, because it is in the cache.
        let descending = |from: usize, to: usize| (from as u32..to as u32).rev().collect();
        Ok(BufferPool {
            map: map.into(),
            small,
            large,
            refcounts: vec![0; total],
            free_small: descending(0, small.count),
            free_large: descending(small.count, total),
        })
    }

    pub fn small_count(&self) -> usize {
        self.small.count
    }

    pub fn large_count(&self) -> usize {
        self.large.count
    }

    pub fn small_size(&self) -> usize {
        self.small.size
    }

    pub fn large_size(&self) -> usize {
        self.large.size
    }

    pub fn free_small(&self) -> usize {
        self.free_small.len()
    }

    pub fn free_large(&self) -> usize {
        self.free_large.len()
    }

    /// Acquires a small buffer for one packet.
    pub fn acquire_small(&mut self) -> Option<u32> {
        let buffer = self.free_small.pop()?;
        self.refcounts[buffer as usize] = 1;
        Some(buffer)
    }

    /// Acquires a large buffer for one packet. For several packets, see
    /// [`BufferPool::set_refcount`].
    pub fn acquire_large(&mut self) -> Option<u32> {
        let buffer = self.free_large.pop()?;
        self.refcounts[buffer as usize] = 1;
        Some(buffer)
    }

    /// Sets the number of releases after which the buffer is free.
    pub fn set_refcount(&mut self, buffer: u32, packets: u16) {
        self.refcounts[buffer as usize] = packets;
    }

    pub fn retain(&mut self, buffer: u32) {
        if let Some(refcount @ 1..) = self.refcounts.get_mut(buffer as usize) {
            *refcount = refcount.saturating_add(1);
        }
    }

    pub fn release(&mut self, buffer: u32) {
        let Some(refcount @ 1..) = self.refcounts.get_mut(buffer as usize) else { return };
        *refcount -= 1;
        if *refcount == 0 {
            let small = (buffer as usize) < self.small.count;
            if small { &mut self.free_small } else { &mut self.free_large }.push(buffer);
        }
    }

    /// Returns the address of the buffer and its size.
    pub fn buffer(&self, buffer: u32) -> (*mut u8, usize) {
        let number = buffer as usize;
        assert!(number < self.refcounts.len());
        let (offset, size) = match number.checked_sub(self.small.count) {
            None => (number * self.small.size, self.small.size),
            Some(large) => {
                let small_len = self.small.count * self.small.size;
                (small_len + large * self.large.size, self.large.size)
            }
        };
        // SAFETY: the offset is inside the mapping, because `number` is below the number of
        // buffers, from which the length of the mapping was computed.
        (unsafe { self.map.as_mut_ptr().add(offset) }, size)
    }

    /// Returns the address of a packet, or null if it is not inside a held buffer.
    pub fn pointer(&self, received: Received) -> *mut u8 {
        if self.refcounts.get(received.buffer as usize).is_none_or(|refcount| *refcount == 0) {
            return std::ptr::null_mut();
        }
        let (base, size) = self.buffer(received.buffer);
        let (offset, len) = (received.offset as usize, received.len as usize);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the packet is inside the buffer by the checks above.
        unsafe { base.add(offset) }
    }

    /// Copies `len` bytes from other memory to the beginning of the buffer.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes and not be in this pool.
    pub unsafe fn fill(&mut self, buffer: u32, from: *const u8, len: usize) {
        let (to, size) = self.buffer(buffer);
        assert!(len <= size);
        // SAFETY: the caller guarantees the source, and the line above checks the target.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }

    /// Copies a packet from a large buffer to the beginning of a small one.
    pub fn copy_to_small(&mut self, from: u32, len: usize, to: u32) {
        let (source, target) = (self.buffer(from), self.buffer(to));
        assert!(from != to && len <= source.1 && len <= target.1);
        // SAFETY: these are two different buffers of the pool, each at least `len` bytes long.
        unsafe { std::ptr::copy_nonoverlapping(source.0, target.0, len) };
    }
}

/// Copies the first bytes at `ptr`.
#[inline]
pub(super) fn copy_prefix<const N: usize>(ptr: *const u8) -> [u8; N] {
    // SAFETY: the callers pass the address of a received packet of at least N bytes. Other
    // processes may write there meanwhile, so the bytes are copied once, and any value is valid.
    unsafe { std::ptr::read_volatile(ptr.cast::<[u8; N]>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> BufferPool {
        BufferPool::new(SizeClass { size: 64, count: 2 }, SizeClass { size: 128, count: 1 })
            .unwrap()
    }

    #[test]
    fn a_buffer_is_free_again_after_its_last_packet() {
        let mut pool = pool();
        let large = pool.acquire_large().unwrap();
        assert_eq!(pool.acquire_large(), None);
        pool.set_refcount(large, 2);
        pool.release(large);
        assert_eq!(pool.free_large(), 0);
        pool.release(large);
        assert_eq!(pool.free_large(), 1);
        pool.release(large);
        pool.release(99);
        assert_eq!(pool.free_large(), 1, "a buffer is freed once");
    }

    #[test]
    fn a_pointer_is_returned_only_for_a_held_buffer_and_inside_it() {
        let mut pool = pool();
        let packet = |buffer, offset, len| Received { buffer, offset, len };
        assert!(pool.pointer(packet(0, 0, 1)).is_null());
        let small = pool.acquire_small().unwrap();
        assert!(!pool.pointer(packet(small, 0, 64)).is_null());
        assert!(pool.pointer(packet(small, 1, 64)).is_null());
        assert!(pool.pointer(packet(small, u32::MAX, u32::MAX)).is_null());
        assert!(pool.pointer(packet(3, 0, 1)).is_null());
    }
}
