//! Memory that a tool and the service share, for Copy Memory: a memfd, which both of them map. The
//! service does not trust the tool, and the tool does not trust the service. Either may write at
//! any time, so bytes are copied, or accessed as atomics.

// UNSAFETY: maps memory that another process writes, and lets the kernel write to it.
#![expect(unsafe_code)]

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use libc::c_void;
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use score_sys::memfd::{self, Seals};
use score_tools::wire::MAX_SHARED_LEN;

/// A mapping of the shared memory.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for SharedMemory {}

impl SharedMemory {
    /// Creates memory of this length, for a tool. Returns the mapping, and the descriptor for the
    /// service.
    ///
    /// # Errors
    /// The errors of memfd_create(2), ftruncate(2) and mmap(2).
    pub fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let memfd = memfd::create_sealed("score-tool", len as u64)?;
        Ok((Self::map(&memfd, len)?, memfd))
    }

    /// Maps the memory of a tool.
    ///
    /// # Errors
    /// EINVAL: the descriptor is not a memfd of ordinary pages. EPERM: the size of the memfd is not
    /// sealed, or its seals forbid writing. EFBIG: the memfd is empty, or has more than
    /// [`MAX_SHARED_LEN`] bytes. Otherwise the errors of mmap(2).
    pub fn of_tool(memfd: OwnedFd) -> Result<Self, Errno> {
        // A page of another file system, for example a huge page, may not be available later. The
        // access would then end this process with SIGBUS.
        if fstatfs(&memfd)?.filesystem_type() != TMPFS_MAGIC {
            return Err(Errno::EINVAL);
        }
        let errno_of = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
        let len = memfd::sealed_len(&memfd, Seals::Size).map_err(errno_of)?.ok_or(Errno::EPERM)?;
        if !(1..=u64::from(MAX_SHARED_LEN)).contains(&len) {
            return Err(Errno::EFBIG);
        }
        Self::map(&memfd, len as usize)
    }

    fn map(memfd: impl AsFd, len: usize) -> Result<Self, Errno> {
        let size = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses an unused address. The seals keep the size, so all bytes of
        // the mapping can be accessed.
        let start = unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, memfd, 0) }?;
        Ok(Self { start, len })
    }

    /// The length of the memory in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of a range of the memory.
    ///
    /// # Panics
    /// If the range is not within the memory.
    fn place(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        self.start.as_ptr().cast::<u8>().wrapping_add(range.start)
    }

    /// Copies the memory from this offset on to `bytes`.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let place = self.place(&(offset..offset.saturating_add(bytes.len())));
        // SAFETY: the place is within the mapping, which does not overlap other memory. All bytes
        // are valid, whatever the other process writes meanwhile.
        unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// A range of the memory, in place. The other process may change the bytes at any time.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn view(&self, range: Range<usize>) -> &[AtomicU8] {
        let place = self.place(&range);
        // SAFETY: the range is within the mapping, which lives as long as `self`. Atomics may be
        // changed by others while they are borrowed, and all values are valid. This process writes
        // to the memory only by system calls and by `replace_byte`, which makes no reference.
        unsafe { std::slice::from_raw_parts(place.cast::<AtomicU8>(), range.len()) }
    }

    /// Replaces a byte whose value is `old`.
    ///
    /// # Panics
    /// If the byte is not within the memory.
    pub fn replace_byte(&self, offset: usize, old: u8, new: u8) {
        let place = self.place(&(offset..offset.saturating_add(1)));
        // SAFETY: the byte is within the mapping, and no reference to it exists.
        unsafe {
            if place.read_volatile() == old {
                place.write_volatile(new);
            }
        }
    }

    /// Copies memory of a process to a range. Also copies pages that the program itself cannot
    /// read, if the kernel permits this. Returns the number of bytes up to the first page that
    /// cannot be read.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn copy_from_process(&self, range: Range<usize>, pid: i32, address: u64) -> usize {
        let place = self.place(&range);
        let local = libc::iovec { iov_base: place.cast(), iov_len: range.len() };
        let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: range.len() };
        // SAFETY: the call writes only to the range. The remote address is only a number here.
        let count = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        let mut count = usize::try_from(count).unwrap_or(0);
        if count == range.len() {
            return count;
        }
        let Ok(file) = File::open(format!("/proc/{pid}/mem")) else { return count };
        while count < range.len() {
            let Some(offset) = address.checked_add(count as u64) else { return count };
            let (rest, len) = (place.wrapping_add(count), range.len() - count);
            // SAFETY: the call writes only to the rest of the range.
            let more =
                unsafe { libc::pread(file.as_raw_fd(), rest.cast(), len, offset.cast_signed()) };
            match usize::try_from(more) {
                Ok(more) if more > 0 => count += more,
                _ => return count,
            }
        }
        count
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference to the mapping exists.
        _ = unsafe { munmap(self.start, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering::Relaxed;

    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn memfd(len: u64, seals: SealFlag) -> OwnedFd {
        let file = memfd::create("score-test").unwrap();
        file.set_len(len).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file.into()
    }

    fn refused(fd: OwnedFd) -> Errno {
        SharedMemory::of_tool(fd).unwrap_err()
    }

    #[test]
    fn only_a_memfd_with_a_fixed_size_within_the_bounds_is_mapped() {
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        let max = u64::from(MAX_SHARED_LEN);
        assert_eq!(SharedMemory::of_tool(memfd(max, size)).unwrap().len(), max as usize);
        for seals in [SealFlag::empty(), SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_WRITE] {
            assert_eq!(refused(memfd(4096, seals)), Errno::EPERM);
        }
        assert_eq!(refused(memfd(4096, size | SealFlag::F_SEAL_WRITE)), Errno::EPERM);
        assert_eq!(refused(memfd(0, size)), Errno::EFBIG);
        assert_eq!(refused(memfd(max + 1, size)), Errno::EFBIG);
        let (pipe, _) = nix::unistd::pipe().unwrap();
        assert_eq!(refused(pipe), Errno::EINVAL);
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(refused(file.into()), Errno::EINVAL);
        // The descriptor of a directory of tmpfs is not a memfd, and never has the seals.
        if let Ok(file) = File::open("/dev/shm") {
            assert!([Errno::EINVAL, Errno::EPERM].contains(&refused(file.into())));
        }
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
        if let Ok(huge) = memfd_create("score-test", flags) {
            fcntl(&huge, FcntlArg::F_ADD_SEALS(size)).unwrap();
            assert_eq!(refused(huge), Errno::EINVAL);
        }
        let (_, memfd) = SharedMemory::create(4096).unwrap();
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        assert_eq!(refused(File::open(path).unwrap().into()), Errno::EACCES);
    }

    #[test]
    fn memory_of_a_process_is_copied_up_to_the_first_page_that_cannot_be_read() {
        let page = 4096;
        let (ours, memfd) = SharedMemory::create(4 * page).unwrap();
        let theirs = SharedMemory::of_tool(memfd.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let file = File::from(memfd);
        file.write_all_at(&[7; 4096 * 4], 0).unwrap();
        // If no other mapping follows `source`, the page after `source` cannot be read.
        let source = SharedMemory::create(2 * page).unwrap().0;
        let end = source.start.as_ptr().addr() as u64 + 2 * page as u64;
        let map = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_followed = map.lines().any(|line| line.starts_with(&format!("{end:x}-")));
        let pid = std::process::id().cast_signed();
        let address = source.start.as_ptr().addr() as u64;
        assert_eq!(theirs.copy_from_process(10..10 + 2 * page, pid, address), 2 * page);
        let mut bytes = vec![1; 2 * page + 20];
        ours.read(0, &mut bytes);
        assert_eq!(
            (&bytes[..10], &bytes[10..10 + 2 * page]),
            (&[7; 10][..], &vec![0; 2 * page][..])
        );
        assert_eq!(bytes[10 + 2 * page..], [7; 10]);
        if !is_followed {
            let count = theirs.copy_from_process(0..3 * page, pid, address + 100);
            assert_eq!(count, 2 * page - 100);
        }
        assert_eq!(theirs.copy_from_process(0..page, pid, 8), 0);
        assert_eq!(theirs.copy_from_process(0..page, pid, u64::MAX - 5), 0);
        ours.replace_byte(20, 0, 5);
        ours.replace_byte(21, 1, 5);
        theirs.read(20, &mut bytes[..2]);
        assert_eq!(bytes[..2], [5, 0]);
        let view = ours.view(19..22);
        assert_eq!(view.iter().map(|byte| byte.load(Relaxed)).collect::<Vec<_>>(), [0, 5, 0]);
        theirs.replace_byte(21, 0, 9);
        assert_eq!(view[2].load(Relaxed), 9);
    }

    #[test]
    #[should_panic(expected = "0..4097 of 4096")]
    fn a_view_beyond_the_memory_is_an_error_of_the_caller() {
        SharedMemory::create(4096).unwrap().0.view(0..4097);
    }

    #[test]
    #[should_panic(expected = "4090..4100 of 4096")]
    fn a_range_outside_of_the_memory_is_an_error_of_the_caller() {
        SharedMemory::create(4096).unwrap().0.read(4090, &mut [0; 10]);
    }
}
