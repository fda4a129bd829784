//! Mappings of sealed memfds: one that only this process can write and other processes can read,
//! and one that other processes write (docs/dev/job-control.md).

// UNSAFETY: mappings of memfds, which only atomics access.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use score_sys::memfd::{self, Seals};

/// Shared memory that this process writes. Other processes can only read it.
#[derive(Debug)]
pub struct PublishedMap {
    fd: OwnedFd,
    map: MmapRaw,
}

impl PublishedMap {
    /// Creates `len` bytes of zeroes and maps them. Then seals them against any other writable
    /// mapping.
    ///
    /// # Errors
    /// The errors of memfd_create(2) and mmap(2), or EINVAL from a kernel without
    /// F_SEAL_FUTURE_WRITE (5.1).
    pub fn new(name: &str, len: usize) -> io::Result<Self> {
        let file = memfd::create(name)?;
        file.set_len(len as u64)?;
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        memfd::seal(&file, Seals::SizeAndNewWriters)?;
        Ok(Self { fd: file.into(), map })
    }

    /// The descriptor for other processes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Stores one word. `offset` must be a multiple of 8 inside the object.
    pub fn store_u64(&self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len());
        // SAFETY: aligned, inside the mapping, which lives as long as self; only atomics touch it.
        let word = unsafe { &*self.map.as_mut_ptr().add(offset).cast::<AtomicU64>() };
        word.store(value, Ordering::Release);
    }

    /// Stores one word. `offset` must be a multiple of 4 inside the object.
    pub fn store_u32(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.map.len());
        // SAFETY: as above.
        let word = unsafe { &*self.map.as_mut_ptr().add(offset).cast::<AtomicU32>() };
        word.store(value, Ordering::Release);
    }
}

/// Shared memory that other processes write. Each word is read once. This process may also write.
#[derive(Debug)]
pub struct UntrustedMap {
    map: MmapRaw,
}

impl UntrustedMap {
    /// Maps the first `len` bytes of an object that [`memfd::create_sealed`] has created.
    ///
    /// # Errors
    /// The errors of mmap(2).
    pub fn new(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Ok(Self { map: MmapOptions::new().len(len).map_raw(&fd)? })
    }

    /// Reads the word at `offset`, which must be a multiple of 4 inside the object.
    pub fn u32(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// The same word as an atomic, for writing.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `word_ptr` has checked the range; the object cannot be shrunk, and its words are
        // only ever used as atomics.
        unsafe { AtomicU32::from_ptr(self.word_ptr(offset, 4).cast()) }
    }

    /// Reads the word at `offset`, which must be a multiple of 8 inside the object.
    pub fn u64(&self, offset: usize) -> u64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.word_ptr(offset, 8).cast()) }.load(Ordering::Acquire)
    }

    fn word_ptr(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(size) && offset + size <= self.map.len());
        self.map.as_mut_ptr().wrapping_add(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::mman::{MapFlags, ProtFlags};
    use std::fs::File;
    use std::num::NonZeroUsize;
    use std::os::unix::fs::FileExt;

    fn writable_mapping(fd: BorrowedFd<'_>) -> nix::Result<std::ptr::NonNull<libc::c_void>> {
        let len = NonZeroUsize::new(4096).unwrap();
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping chosen by the kernel.
        unsafe { nix::sys::mman::mmap(None, len, prot, MapFlags::MAP_SHARED, fd, 0) }
    }

    #[test]
    fn a_published_page_is_seen_by_readers_and_cannot_be_written_or_resized() {
        let page = PublishedMap::new("score-test", 4096).unwrap();
        page.store_u64(8, 0x1122);
        let file = File::from(page.fd().try_clone_to_owned().unwrap());
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 8).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 0x1122);
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(0).is_err());
        assert!(writable_mapping(page.fd()).is_err());
    }

    #[test]
    fn an_untrusted_map_shows_the_writes_of_other_processes() {
        let fd = memfd::create_sealed("score-test", 4096).unwrap();
        let map = UntrustedMap::new(fd.as_fd(), 4096).unwrap();
        File::from(fd).write_at(&0x0102_0304_0506_0708_u64.to_le_bytes(), 64).unwrap();
        assert_eq!(map.u64(64), 0x0102_0304_0506_0708);
        assert_eq!((map.u32(68), map.u64(0)), (0x0102_0304, 0));
    }
}
