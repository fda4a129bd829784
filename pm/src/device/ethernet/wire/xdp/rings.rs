//! The four rings between us and the kernel: each has a producer and a consumer, and one of them is
//! the kernel.

// UNSAFETY: reads and writes mappings that the kernel shares.
#![expect(unsafe_code)]

use super::umem::{RECEIVE, SEND};
use crate::device::ethernet::wire::sockopt;
use crate::sync::{AtomicU32, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Which ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Chunks for the kernel to receive into.
    Fill,
    /// Chunks that the kernel has sent.
    Completion,
    /// Frames that came.
    Receive,
    /// Frames to send.
    Send,
}

/// A mapped ring of entries that any bits are valid for.
pub struct Ring<T> {
    map: MmapRaw,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// The own index: the producer's of rings that we fill, else the consumer's.
    own: u32,
    /// The other's, as last seen.
    other: u32,
    of: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    pub fn map(socket: BorrowedFd<'_>, which: Which) -> std::io::Result<Ring<T>> {
        let all: libc::xdp_mmap_offsets =
            sockopt::get(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let (offsets, page, size) = match which {
            Which::Fill => (all.fr, libc::XDP_UMEM_PGOFF_FILL_RING, RECEIVE),
            Which::Completion => (all.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING, SEND),
            Which::Receive => (all.rx, libc::XDP_PGOFF_RX_RING as u64, RECEIVE),
            Which::Send => (all.tx, libc::XDP_PGOFF_TX_RING as u64, SEND),
        };
        let len = offsets.desc as usize + size * size_of::<T>();
        let map =
            MmapOptions::new().offset(page).len(len).populate().map_raw(socket.as_raw_fd())?;
        let inside = |at: u64| at as usize + size_of::<u32>() <= len && at.is_multiple_of(4);
        let words = [offsets.producer, offsets.consumer, offsets.flags];
        let aligned = offsets.desc.is_multiple_of(align_of::<T>() as u64);
        if !words.into_iter().all(inside) || !aligned {
            return Err(std::io::Error::other("the kernel's offsets make no sense"));
        }
        let mut ring = Ring {
            map,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            flags: offsets.flags as usize,
            entries: offsets.desc as usize,
            size: size as u32,
            own: 0,
            other: 0,
            of: PhantomData,
        };
        let ours = matches!(which, Which::Fill | Which::Send);
        (ring.own, ring.other) = if ours {
            (ring.load(ring.producer), ring.load(ring.consumer))
        } else {
            (ring.load(ring.consumer), ring.load(ring.producer))
        };
        Ok(ring)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: an aligned word inside the mapping, checked when it was made; both sides access
        // it atomically.
        unsafe { AtomicU32::from_ptr(self.map.as_mut_ptr().add(at).cast()) }
    }

    fn load(&self, at: usize) -> u32 {
        // With the kernel's store after it wrote, or read, the entries.
        self.word(at).load(Ordering::Acquire)
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = self.entries + (index & (self.size - 1)) as usize * size_of::<T>();
        // SAFETY: inside the mapping by the mask.
        unsafe { self.map.as_mut_ptr().add(at).cast() }
    }

    fn read(&self, index: u32) -> T {
        // SAFETY: any bits are a value; others may write, so it is read once.
        unsafe { self.entry(index).read_volatile() }
    }

    /// Entries between consumer and producer, without taking them.
    pub fn pending(&self) -> impl Iterator<Item = T> + '_ {
        let (from, to) = (self.load(self.consumer), self.load(self.producer));
        let count = to.wrapping_sub(from).min(self.size);
        (0..count).map(move |k| self.read(from.wrapping_add(k)))
    }

    /// Adds an entry and makes it visible; false where the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> bool {
        let added = self.stage(value);
        self.publish();
        added
    }

    /// Adds an entry that becomes visible with `publish`.
    #[inline]
    pub fn stage(&mut self, value: T) -> bool {
        if self.own.wrapping_sub(self.other) >= self.size {
            self.other = self.load(self.consumer);
            if self.own.wrapping_sub(self.other) >= self.size {
                return false;
            }
        }
        // SAFETY: inside the mapping; the entry is ours until published.
        unsafe { self.entry(self.own).write_volatile(value) };
        self.own = self.own.wrapping_add(1);
        true
    }

    #[inline]
    pub fn publish(&self) {
        self.word(self.producer).store(self.own, Ordering::Release);
    }

    /// Takes an entry; it stays the kernel's until `free`.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        if self.own == self.other {
            self.other = self.load(self.producer);
            if self.own == self.other {
                return None;
            }
        }
        let value = self.read(self.own);
        self.own = self.own.wrapping_add(1);
        Some(value)
    }

    /// Gives the entries that were taken back to the kernel.
    #[inline]
    pub fn free(&self) {
        self.word(self.consumer).store(self.own, Ordering::Release);
    }

    /// Whether the kernel has not taken all of what we added.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.load(self.consumer) != self.own
    }

    /// Whether the kernel asks to be called.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.load(self.flags) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}
