//! The segment of a test bed, to which a hostile process writes arbitrary data.

use super::TestBed;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The mapped segment, the attach message, and the descriptor, as a hostile process gets them.
pub struct Segment(memmap2::MmapRaw, pub Vec<u8>, pub OwnedFd);

impl Segment {
    pub fn steal(bed: &TestBed) -> Segment {
        let fd = bed.opened[0].create_attach_fd().unwrap();
        let (bytes, fds) = score_sys::fd_passing::receive(&fd, 256, 2).unwrap();
        let memory = fds.into_iter().next().unwrap();
        let map = memmap2::MmapOptions::new().map_raw(memory.as_raw_fd()).unwrap();
        Segment(map, bytes, memory)
    }

    pub fn words(&self) -> usize {
        self.0.len() / 8
    }

    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words());
        // SAFETY: the word is inside the mapping, and the other processes also access it
        // atomically.
        unsafe { &*self.0.as_mut_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Returns the index of the first word with this value.
    pub fn find(&self, value: u64) -> usize {
        (0..self.words()).find(|&index| self.word(index).load(Ordering::Relaxed) == value).unwrap()
    }
}
