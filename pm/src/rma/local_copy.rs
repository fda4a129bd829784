//! Copies between locked memory of this process and buffers of a device. The thread that makes
//! progress copies memory of PM's own allocator directly, because only PM unmaps it, and does not
//! free it meanwhile. The program may unmap other memory at any time. Therefore the kernel copies
//! it, and a copy of memory that is not mapped, or is read-only, fails.
//!
//! The kernel copies to or from a file in memory, which stays in the cache, and PM copies between
//! the file and the segments. This takes half the time of process_vm_readv and process_vm_writev,
//! which pin each page of the user's memory and which some containers refuse. PM calls these only
//! if it cannot create the file.
//!
//! A byte's offset in its page differs between the file and the user's memory by half a page. On
//! some processors a copy is much slower if the last 12 bits of the target address are slightly
//! above those of the source address.

// UNSAFETY: system calls that take addresses, and copies between buffers.
#![expect(unsafe_code)]

use super::allocator;
use crate::debug;
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::resource::{Resource, getrlimit};
use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The largest number of segments of one copy.
pub(crate) const MAX_SEGMENTS: usize = 64;
/// Bytes that are copied through the file at a time. A segment must not be longer.
const SCRATCH_LEN: usize = 128 << 10;
const PAGE: usize = 4096;

/// A contiguous part of a device's buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IoSegment {
    pub(crate) addr: usize,
    pub(crate) len: usize,
}

impl IoSegment {
    fn iovec(self) -> libc::iovec {
        libc::iovec { iov_base: self.addr as *mut libc::c_void, iov_len: self.len }
    }
}

/// See the [module](self).
pub(crate) struct UserMemoryCopier {
    pid: i32,
    /// The file. It is created when it is first needed. None inside: it cannot be created.
    scratch: OnceCell<Option<Scratch>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GatherScatter {
    /// From the user's memory to the segments.
    Gather,
    /// From the segments to the user's memory.
    Scatter,
}

impl GatherScatter {
    /// Copies between the segments, one after the other, and contiguous memory at `user`.
    ///
    /// # Safety
    /// All memory is mapped, the targets are writable, and sources and targets do not overlap.
    unsafe fn copy(self, segments: &[IoSegment], mut user: *mut u8) {
        for segment in segments {
            let segment_addr = segment.addr as *mut u8;
            // SAFETY: guaranteed by the caller.
            unsafe {
                match self {
                    GatherScatter::Gather => {
                        segment_addr.copy_from_nonoverlapping(user, segment.len)
                    }
                    GatherScatter::Scatter => {
                        user.copy_from_nonoverlapping(segment_addr, segment.len)
                    }
                }
                user = user.add(segment.len);
            }
        }
    }
}

impl UserMemoryCopier {
    pub(crate) fn new() -> UserMemoryCopier {
        UserMemoryCopier { pid: std::process::id() as i32, scratch: OnceCell::new() }
    }

    /// Copies the bytes at `from` to the segments, one after the other.
    ///
    /// # Safety
    /// The caller may write the segments, of which there are at most [`MAX_SEGMENTS`].
    pub(crate) unsafe fn gather(&self, from: usize, segments: &[IoSegment]) -> io::Result<()> {
        self.copy(GatherScatter::Gather, from, segments)
    }

    /// Copies the segments, one after the other, to `to`.
    ///
    /// # Safety
    /// The caller may read the segments, of which there are at most [`MAX_SEGMENTS`]. All users of
    /// the memory at `to` expect it to change.
    pub(crate) unsafe fn scatter(&self, segments: &[IoSegment], to: usize) -> io::Result<()> {
        self.copy(GatherScatter::Scatter, to, segments)
    }

    fn copy(
        &self,
        direction: GatherScatter,
        user: usize,
        segments: &[IoSegment],
    ) -> io::Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        let len = segments.iter().map(|segment| segment.len).sum();
        // SAFETY: PM's memory, which is not freed meanwhile; the callers guarantee the segments.
        if allocator::with_retained(user, len, || unsafe {
            direction.copy(segments, user as *mut u8)
        }) {
            return Ok(());
        }
        let Some(scratch) = self.scratch.get_or_init(Scratch::new) else {
            return self.copy_cross_memory(direction, user, segments);
        };
        let (mut addr, mut remaining) = (user, segments);
        while !remaining.is_empty() {
            let mut len = 0;
            let fits = |segment: &&IoSegment| {
                len += segment.len;
                len <= SCRATCH_LEN
            };
            let count = remaining.iter().take_while(fits).count();
            let (batch, later) = remaining.split_at(count);
            if batch.is_empty() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            addr = scratch.copy_via_scratch(direction, addr, batch)?;
            remaining = later;
        }
        Ok(())
    }

    fn copy_cross_memory(
        &self,
        direction: GatherScatter,
        user: usize,
        segments: &[IoSegment],
    ) -> io::Result<()> {
        let mut local = [IoSegment::default().iovec(); MAX_SEGMENTS];
        let count = segments.len().min(MAX_SEGMENTS);
        for (iovec, segment) in local.iter_mut().zip(segments) {
            *iovec = segment.iovec();
        }
        let len = segments[..count].iter().map(|segment| segment.len).sum();
        let remote = IoSegment { addr: user, len }.iovec();
        let (local, count, pid) = (local.as_ptr(), count as libc::c_ulong, self.pid);
        let copied = match direction {
            // SAFETY: the kernel checks every address; the caller guarantees the segments.
            GatherScatter::Gather => unsafe {
                libc::process_vm_readv(pid, local, count, &remote, 1, 0)
            },
            // SAFETY: as above; the caller also guarantees the user's memory.
            GatherScatter::Scatter => unsafe {
                libc::process_vm_writev(pid, local, count, &remote, 1, 0)
            },
        };
        match usize::try_from(copied) {
            Ok(copied) if copied == len => Ok(()),
            // The copy has ended at a bad page.
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// A mapped file in memory.
struct Scratch {
    file: OwnedFd,
    map: MmapRaw,
}

impl Scratch {
    fn new() -> Option<Scratch> {
        let try_new = || -> io::Result<Scratch> {
            let len = SCRATCH_LEN + PAGE;
            // A file beyond this limit causes a signal.
            if getrlimit(Resource::RLIMIT_FSIZE)
                .is_ok_and(|(soft_limit, _)| soft_limit < len as u64)
            {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let file = score_sys::memfd::create("score-pm-scratch")?;
            file.set_len(len as u64)?;
            let map = MmapOptions::new().len(len).map_raw(&file)?;
            Ok(Scratch { file: file.into(), map })
        };
        let created = try_new();
        if let Err(error) = &created {
            debug::log(debug::INFO, || {
                format!("memory file: {error}; remote memory is copied by process_vm_readv")
            });
        }
        created.ok()
    }

    /// Copies between the segments, which have at most [`SCRATCH_LEN`] bytes, and `user`. Returns
    /// the end of the user's bytes.
    fn copy_via_scratch(
        &self,
        direction: GatherScatter,
        user: usize,
        segments: &[IoSegment],
    ) -> io::Result<usize> {
        let len: usize = segments.iter().map(|segment| segment.len).sum();
        // Half a page away from the user's offset in its page: see the module's comment.
        let scratch_offset = (user % PAGE + PAGE / 2) % PAGE;
        let fd = self.file.as_raw_fd();
        if direction == GatherScatter::Gather {
            // SAFETY: the kernel checks the addresses, and only reads the memory. This calls the
            // kernel directly, because a sanitizer's pwrite reports memory that was freed while it
            // is locked.
            retry_until_complete(len, |done| unsafe {
                let from = user.wrapping_add(done);
                libc::syscall(libc::SYS_pwrite64, fd, from, len - done, scratch_offset + done)
                    as isize
            })?;
        }
        assert!(scratch_offset + len <= self.map.len());
        // SAFETY: inside the map, which has no other user; the callers of `gather` and `scatter`
        // guarantee the segments.
        unsafe { direction.copy(segments, self.map.as_mut_ptr().add(scratch_offset)) };
        if direction == GatherScatter::Scatter {
            // SAFETY: the kernel checks the addresses; the caller of `scatter` guarantees that the
            // user's memory may change.
            retry_until_complete(len, |done| unsafe {
                let to = user.wrapping_add(done) as *mut libc::c_void;
                libc::pread(fd, to, len - done, (scratch_offset + done) as i64)
            })?;
        }
        Ok(user.wrapping_add(len))
    }
}

/// Repeats a call that may copy less than all bytes.
fn retry_until_complete(len: usize, call: impl Fn(usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match call(done) {
            0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            copied if copied > 0 => done += copied as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments_of(buffers: &mut [Vec<u8>]) -> Vec<IoSegment> {
        let segment = |buffer: &mut Vec<u8>| IoSegment {
            addr: buffer.as_mut_ptr().addr(),
            len: buffer.len(),
        };
        buffers.iter_mut().map(segment).collect()
    }

    #[test]
    fn segments_are_copied_one_after_the_other_and_unmapped_memory_is_an_error() {
        let without_scratch = UserMemoryCopier::new();
        assert!(without_scratch.scratch.set(None).is_ok());
        for copier in [UserMemoryCopier::new(), without_scratch] {
            let text: Vec<u8> = (0..5000).map(|i| i as u8).collect();
            let mut buffers = [vec![0; 1390], vec![0; 3], vec![0; 3607]];
            let segments = segments_of(&mut buffers);
            // SAFETY: buffers of this test.
            unsafe { copier.gather(text.as_ptr().addr(), &segments).unwrap() };
            assert_eq!(buffers.concat(), text);
            let mut copy = vec![9; 5002];
            // SAFETY: as above.
            unsafe { copier.scatter(&segments, copy.as_mut_ptr().addr() + 1).unwrap() };
            assert_eq!((copy[0], &copy[1..5001], copy[5001]), (9, &text[..], 9));
            let allocated = allocator::allocate(None, 5000).unwrap();
            // SAFETY: as above.
            unsafe {
                copier.scatter(&segments, allocated).unwrap();
                buffers.iter_mut().for_each(|buffer| buffer.fill(0));
                copier.gather(allocated, &segments).unwrap();
            }
            assert_eq!(buffers.concat(), text);
            allocator::free(allocated).unwrap();
            // SAFETY: no memory is mapped at this address.
            let failed = unsafe { [copier.gather(16, &segments), copier.scatter(&segments, 16)] };
            for error in failed {
                assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EFAULT));
            }
        }
    }
}
