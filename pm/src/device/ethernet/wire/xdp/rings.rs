//! The four rings that this process shares with the kernel. Each ring has a producer and a
//! consumer, and the kernel is one of them.

// UNSAFETY: reads and writes mappings that it shares with the kernel.
#![expect(unsafe_code)]

use super::umem::{RECEIVE_CHUNKS, SEND_CHUNKS};
use crate::device::ethernet::wire::sockopt;
use crate::sync::{AtomicU32, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XskRingKind {
    /// Chunks that the kernel may receive into.
    Fill,
    /// Chunks that the kernel has sent.
    Completion,
    /// Received frames.
    Receive,
    /// Frames to send.
    Send,
}

/// A mapped ring whose entries are valid for any bit pattern.
pub struct XskRing<T> {
    map: MmapRaw,
    producer_offset: usize,
    consumer_offset: usize,
    flags_offset: usize,
    entries_offset: usize,
    capacity: u32,
    /// The index of this process: the producer's index for rings that it fills, otherwise the
    /// consumer's.
    local_index: u32,
    /// The kernel's index when it was last read.
    cached_kernel_index: u32,
    marker: PhantomData<T>,
}

impl<T: Copy> XskRing<T> {
    pub fn map(socket: BorrowedFd<'_>, kind: XskRingKind) -> std::io::Result<XskRing<T>> {
        let all_offsets: libc::xdp_mmap_offsets =
            sockopt::get(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let (offsets, page, size) = match kind {
            XskRingKind::Fill => (all_offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING, RECEIVE_CHUNKS),
            XskRingKind::Completion => {
                (all_offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING, SEND_CHUNKS)
            }
            XskRingKind::Receive => {
                (all_offsets.rx, libc::XDP_PGOFF_RX_RING as u64, RECEIVE_CHUNKS)
            }
            XskRingKind::Send => (all_offsets.tx, libc::XDP_PGOFF_TX_RING as u64, SEND_CHUNKS),
        };
        let len = offsets.desc as usize + size * size_of::<T>();
        let map =
            MmapOptions::new().offset(page).len(len).populate().map_raw(socket.as_raw_fd())?;
        let is_inside =
            |offset: u64| offset as usize + size_of::<u32>() <= len && offset.is_multiple_of(4);
        let words = [offsets.producer, offsets.consumer, offsets.flags];
        let aligned = offsets.desc.is_multiple_of(align_of::<T>() as u64);
        if !words.into_iter().all(is_inside) || !aligned {
            return Err(std::io::Error::other("the kernel's ring offsets are invalid"));
        }
        let mut ring = XskRing {
            map,
            producer_offset: offsets.producer as usize,
            consumer_offset: offsets.consumer as usize,
            flags_offset: offsets.flags as usize,
            entries_offset: offsets.desc as usize,
            capacity: size as u32,
            local_index: 0,
            cached_kernel_index: 0,
            marker: PhantomData,
        };
        let is_producer = matches!(kind, XskRingKind::Fill | XskRingKind::Send);
        (ring.local_index, ring.cached_kernel_index) = if is_producer {
            (ring.load(ring.producer_offset), ring.load(ring.consumer_offset))
        } else {
            (ring.load(ring.consumer_offset), ring.load(ring.producer_offset))
        };
        Ok(ring)
    }

    fn atomic_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: this is an aligned word inside the mapping, as `map` has checked. Both sides
        // access it atomically.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    fn load(&self, offset: usize) -> u32 {
        // This pairs with the kernel's store after it has written or read the entries.
        self.atomic_at(offset).load(Ordering::Acquire)
    }

    fn entry(&self, index: u32) -> *mut T {
        let offset = self.entries_offset + (index & (self.capacity - 1)) as usize * size_of::<T>();
        // SAFETY: the mask keeps the offset inside the mapping.
        unsafe { self.map.as_mut_ptr().add(offset).cast() }
    }

    fn read(&self, index: u32) -> T {
        // SAFETY: every bit pattern is a valid value. The kernel may write the entry, so it is read
        // once.
        unsafe { self.entry(index).read_volatile() }
    }

    /// Returns the entries between consumer and producer without removing them.
    pub fn pending(&self) -> impl Iterator<Item = T> + '_ {
        let (from, to) = (self.load(self.consumer_offset), self.load(self.producer_offset));
        let count = to.wrapping_sub(from).min(self.capacity);
        (0..count).map(move |k| self.read(from.wrapping_add(k)))
    }

    /// Adds an entry and makes it visible. Returns false if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> bool {
        let added = self.stage(value);
        self.publish();
        added
    }

    /// Adds an entry that becomes visible with `publish`.
    #[inline]
    pub fn stage(&mut self, value: T) -> bool {
        if self.local_index.wrapping_sub(self.cached_kernel_index) >= self.capacity {
            self.cached_kernel_index = self.load(self.consumer_offset);
            if self.local_index.wrapping_sub(self.cached_kernel_index) >= self.capacity {
                return false;
            }
        }
        // SAFETY: the entry is inside the mapping, and belongs to this process until it is
        // published.
        unsafe { self.entry(self.local_index).write_volatile(value) };
        self.local_index = self.local_index.wrapping_add(1);
        true
    }

    #[inline]
    pub fn publish(&self) {
        self.atomic_at(self.producer_offset).store(self.local_index, Ordering::Release);
    }

    /// Takes an entry. The kernel may reuse it only after `release_taken`.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.local_index == self.cached_kernel_index {
            self.cached_kernel_index = self.load(self.producer_offset);
            if self.local_index == self.cached_kernel_index {
                return None;
            }
        }
        let value = self.read(self.local_index);
        self.local_index = self.local_index.wrapping_add(1);
        Some(value)
    }

    /// Returns all taken entries to the kernel.
    #[inline]
    pub fn release_taken(&self) {
        self.atomic_at(self.consumer_offset).store(self.local_index, Ordering::Release);
    }

    /// Whether the kernel has not yet taken all added entries.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.load(self.consumer_offset) != self.local_index
    }

    /// Whether the kernel requests a system call.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.load(self.flags_offset) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}
