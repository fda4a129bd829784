//! The segment of a test bed, to which a hostile process writes arbitrary data.

use super::TestBed;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, recvmsg};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The mapped segment, the attach message, and the descriptor, as a hostile process gets them.
pub struct Segment(memmap2::MmapRaw, pub Vec<u8>, pub OwnedFd);

impl Segment {
    pub fn steal(bed: &TestBed) -> Segment {
        let fd = bed.opened[0].create_attach_fd().unwrap();
        let mut bytes = vec![0; 256];
        let mut space = nix::cmsg_space!([i32; 2]);
        let mut iovecs = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::empty();
        let message =
            recvmsg::<UnixAddr>(fd.as_raw_fd(), &mut iovecs, Some(&mut space), flags).unwrap();
        let fds: Vec<i32> = message
            .cmsgs()
            .unwrap()
            .filter_map(|c| match c {
                ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
                _ => None,
            })
            .collect();
        let len = message.bytes;
        bytes.truncate(len);
        // SAFETY: the descriptor was just received, and no other code uses it.
        let memory = unsafe { OwnedFd::from_raw_fd(fds[0]) };
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
