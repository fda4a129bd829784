//! Copies between locked memory of this process and buffers of a device, by whichever thread makes
//! progress. Memory of PM's own allocator is copied directly: nobody else unmaps it, and it is not
//! freed meanwhile. Any other the user may unmap at any time, so no instruction touches it: the
//! kernel copies, and what is not mapped, or must not be written, is an error.
//!
//! The kernel copies to or from a file in memory that stays in the cache, from where or to where
//! we copy the parts. That takes half the time of process_vm_readv and process_vm_writev to the
//! parts, which pin each page of the user's and are refused in some containers: they serve where
//! no file can be made. No byte lies at nearly the same place of its page in the file as at the
//! user's: a copy whose target is a few bytes ahead of its source, by the last 12 bits of the
//! addresses, takes up to ten times as long on some processors.

// UNSAFETY: system calls that take addresses, and copies between buffers.
#![expect(unsafe_code)]

use super::allocator;
use crate::debug;
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The most parts of one copy.
pub(crate) const MAX_SEGMENTS: usize = 64;
/// Bytes that go by the file at a time: at least a part.
const SCRATCH_LEN: usize = 128 << 10;
const PAGE: usize = 4096;

/// A piece of a device's buffers.
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
    /// Made when it is first needed. None inside: it cannot be.
    scratch: OnceCell<Option<Scratch>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GatherScatter {
    /// From the user's memory to the parts.
    Gather,
    Scatter,
}

impl GatherScatter {
    /// Copies between the parts and memory that is theirs, one after the other.
    ///
    /// # Safety
    /// All of it is mapped, may be written where bytes go, and is apart.
    unsafe fn copy(self, segments: &[IoSegment], mut user: *mut u8) {
        for segment in segments {
            let segment_addr = segment.addr as *mut u8;
            // SAFETY: the caller's word.
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

    /// Copies what lies at `from` to the parts, one after the other.
    ///
    /// # Safety
    /// The parts, at most [`MAX_SEGMENTS`], are the caller's to write.
    pub(crate) unsafe fn gather(&self, from: usize, segments: &[IoSegment]) -> io::Result<()> {
        self.copy(GatherScatter::Gather, from, segments)
    }

    /// Copies the parts, one after the other, to where `to` is.
    ///
    /// # Safety
    /// The parts, at most [`MAX_SEGMENTS`], may be read; whoever uses the memory at `to` expects it to
    /// change.
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
        // SAFETY: memory that is ours, and stays; the callers answer for the parts.
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
            // SAFETY: the kernel checks every address; the caller answers for the parts.
            GatherScatter::Gather => unsafe {
                libc::process_vm_readv(pid, local, count, &remote, 1, 0)
            },
            // SAFETY: as above, and for the user's memory.
            GatherScatter::Scatter => unsafe {
                libc::process_vm_writev(pid, local, count, &remote, 1, 0)
            },
        };
        match usize::try_from(copied) {
            Ok(copied) if copied == len => Ok(()),
            // It ends at a bad page.
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// A file in memory, mapped.
struct Scratch {
    file: OwnedFd,
    map: MmapRaw,
}

impl Scratch {
    fn new() -> Option<Scratch> {
        let try_new = || -> io::Result<Scratch> {
            let len = SCRATCH_LEN + PAGE;
            // To exceed that limit is a signal.
            if getrlimit(Resource::RLIMIT_FSIZE)
                .is_ok_and(|(soft_limit, _)| soft_limit < len as u64)
            {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let file = memfd_create(c"score-pm-scratch", MFdFlags::MFD_CLOEXEC)?;
            nix::unistd::ftruncate(&file, len as i64)?;
            let map = MmapOptions::new().len(len).map_raw(&file)?;
            Ok(Scratch { file, map })
        };
        let created = try_new();
        if let Err(why) = &created {
            debug::log(debug::INFO, || {
                format!("a file in memory: {why}; remote memory is copied by process_vm_readv")
            });
        }
        created.ok()
    }

    /// Copies between the parts, [`SCRATCH_LEN`] bytes at most, and where `user` is; answers where that
    /// ends.
    fn copy_via_scratch(
        &self,
        direction: GatherScatter,
        user: usize,
        segments: &[IoSegment],
    ) -> io::Result<usize> {
        let len: usize = segments.iter().map(|segment| segment.len).sum();
        // As far as can be from the same place in a page.
        let scratch_offset = (user % PAGE + PAGE / 2) % PAGE;
        let fd = self.file.as_raw_fd();
        if direction == GatherScatter::Gather {
            // SAFETY: the kernel checks the addresses, and only reads there. By number, since a
            // sanitizer's pwrite takes memory that is given up while it is locked for our fault.
            retry_until_complete(len, |done| unsafe {
                let from = user.wrapping_add(done);
                libc::syscall(libc::SYS_pwrite64, fd, from, len - done, scratch_offset + done)
                    as isize
            })?;
        }
        assert!(scratch_offset + len <= self.map.len());
        // SAFETY: inside the map, which nobody else uses; the callers of `gather` and `scatter`
        // answer for the parts.
        unsafe { direction.copy(segments, self.map.as_mut_ptr().add(scratch_offset)) };
        if direction == GatherScatter::Scatter {
            // SAFETY: the kernel checks the addresses; the caller of `scatter` answers for what is
            // there.
            retry_until_complete(len, |done| unsafe {
                let to = user.wrapping_add(done) as *mut libc::c_void;
                libc::pread(fd, to, len - done, (scratch_offset + done) as i64)
            })?;
        }
        Ok(user.wrapping_add(len))
    }
}

/// Repeats a call that may do less than all.
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
    fn parts_are_copied_one_after_the_other_and_what_is_not_mapped_is_an_error() {
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
            // SAFETY: there is nothing.
            let failed = unsafe { [copier.gather(16, &segments), copier.scatter(&segments, 16)] };
            for error in failed {
                assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EFAULT));
            }
        }
    }
}
