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

use super::memory;
use crate::debug;
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The most parts of one copy.
pub(crate) const PARTS: usize = 64;
/// Bytes that go by the file at a time: at least a part.
const ROOM: usize = 128 << 10;
const PAGE: usize = 4096;

/// A piece of a device's buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Part {
    fn iovec(self) -> libc::iovec {
        libc::iovec { iov_base: self.at as *mut libc::c_void, iov_len: self.len }
    }
}

/// See the [module](self).
pub(crate) struct Copier {
    pid: i32,
    /// Made when it is first needed. None inside: it cannot be.
    scratch: OnceCell<Option<Scratch>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From the user's memory to the parts.
    Gather,
    Scatter,
}

impl Way {
    /// Copies between the parts and memory that is theirs, one after the other.
    ///
    /// # Safety
    /// All of it is mapped, may be written where bytes go, and is apart.
    unsafe fn copy(self, parts: &[Part], mut other: *mut u8) {
        for part in parts {
            let own = part.at as *mut u8;
            // SAFETY: the caller's word.
            unsafe {
                match self {
                    Way::Gather => own.copy_from_nonoverlapping(other, part.len),
                    Way::Scatter => other.copy_from_nonoverlapping(own, part.len),
                }
                other = other.add(part.len);
            }
        }
    }
}

impl Copier {
    pub(crate) fn new() -> Copier {
        Copier { pid: std::process::id() as i32, scratch: OnceCell::new() }
    }

    /// Copies what lies at `from` to the parts, one after the other.
    ///
    /// # Safety
    /// The parts, at most [`PARTS`], are the caller's to write.
    pub(crate) unsafe fn gather(&self, from: usize, parts: &[Part]) -> io::Result<()> {
        self.copy(Way::Gather, from, parts)
    }

    /// Copies the parts, one after the other, to where `to` is.
    ///
    /// # Safety
    /// The parts, at most [`PARTS`], may be read; whoever uses the memory at `to` expects it to
    /// change.
    pub(crate) unsafe fn scatter(&self, parts: &[Part], to: usize) -> io::Result<()> {
        self.copy(Way::Scatter, to, parts)
    }

    fn copy(&self, way: Way, user: usize, parts: &[Part]) -> io::Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        let len = parts.iter().map(|part| part.len).sum();
        // SAFETY: memory that is ours, and stays; the callers answer for the parts.
        if memory::if_ours(user, len, || unsafe { way.copy(parts, user as *mut u8) }) {
            return Ok(());
        }
        let Some(scratch) = self.scratch.get_or_init(Scratch::new) else {
            return self.by_kernel(way, user, parts);
        };
        let (mut at, mut rest) = (user, parts);
        while !rest.is_empty() {
            let mut len = 0;
            let fits = |part: &&Part| {
                len += part.len;
                len <= ROOM
            };
            let count = rest.iter().take_while(fits).count();
            let (some, more) = rest.split_at(count);
            if some.is_empty() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            at = scratch.pass(way, at, some)?;
            rest = more;
        }
        Ok(())
    }

    fn by_kernel(&self, way: Way, user: usize, parts: &[Part]) -> io::Result<()> {
        let mut local = [Part::default().iovec(); PARTS];
        let count = parts.len().min(PARTS);
        for (to, part) in local.iter_mut().zip(parts) {
            *to = part.iovec();
        }
        let len = parts[..count].iter().map(|part| part.len).sum();
        let remote = Part { at: user, len }.iovec();
        let (local, count, pid) = (local.as_ptr(), count as libc::c_ulong, self.pid);
        let copied = match way {
            // SAFETY: the kernel checks every address; the caller answers for the parts.
            Way::Gather => unsafe { libc::process_vm_readv(pid, local, count, &remote, 1, 0) },
            // SAFETY: as above, and for the user's memory.
            Way::Scatter => unsafe { libc::process_vm_writev(pid, local, count, &remote, 1, 0) },
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
        let make = || -> io::Result<Scratch> {
            let size = ROOM + PAGE;
            // To exceed that limit is a signal.
            if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(most, _)| most < size as u64) {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            let file = memfd_create(c"score-pm-scratch", MFdFlags::MFD_CLOEXEC)?;
            nix::unistd::ftruncate(&file, size as i64)?;
            let map = MmapOptions::new().len(size).map_raw(&file)?;
            Ok(Scratch { file, map })
        };
        let made = make();
        if let Err(why) = &made {
            debug::say(debug::INFO, || {
                format!("a file in memory: {why}; remote memory is copied by process_vm_readv")
            });
        }
        made.ok()
    }

    /// Copies between the parts, [`ROOM`] bytes at most, and where `user` is; answers where that
    /// ends.
    fn pass(&self, way: Way, user: usize, parts: &[Part]) -> io::Result<usize> {
        let len: usize = parts.iter().map(|part| part.len).sum();
        // As far as can be from the same place in a page.
        let begin = (user % PAGE + PAGE / 2) % PAGE;
        let fd = self.file.as_raw_fd();
        if way == Way::Gather {
            // SAFETY: the kernel checks the addresses, and only reads there. By number, since a
            // sanitizer's pwrite takes memory that is given up while it is locked for our fault.
            whole(len, |done| unsafe {
                let from = user.wrapping_add(done);
                libc::syscall(libc::SYS_pwrite64, fd, from, len - done, begin + done) as isize
            })?;
        }
        assert!(begin + len <= self.map.len());
        // SAFETY: inside the map, which nobody else uses; the callers of `gather` and `scatter`
        // answer for the parts.
        unsafe { way.copy(parts, self.map.as_mut_ptr().add(begin)) };
        if way == Way::Scatter {
            // SAFETY: the kernel checks the addresses; the caller of `scatter` answers for what is
            // there.
            whole(len, |done| unsafe {
                let to = user.wrapping_add(done) as *mut libc::c_void;
                libc::pread(fd, to, len - done, (begin + done) as i64)
            })?;
        }
        Ok(user.wrapping_add(len))
    }
}

/// Repeats a call that may do less than all.
fn whole(len: usize, call: impl Fn(usize) -> isize) -> io::Result<()> {
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

    fn parts(buffers: &mut [Vec<u8>]) -> Vec<Part> {
        let part =
            |buffer: &mut Vec<u8>| Part { at: buffer.as_mut_ptr().addr(), len: buffer.len() };
        buffers.iter_mut().map(part).collect()
    }

    #[test]
    fn parts_are_copied_one_after_the_other_and_what_is_not_mapped_is_an_error() {
        let without = Copier::new();
        assert!(without.scratch.set(None).is_ok());
        for copier in [Copier::new(), without] {
            let text: Vec<u8> = (0..5000).map(|i| i as u8).collect();
            let mut buffers = [vec![0; 1390], vec![0; 3], vec![0; 3607]];
            let all = parts(&mut buffers);
            // SAFETY: buffers of this test.
            unsafe { copier.gather(text.as_ptr().addr(), &all).unwrap() };
            assert_eq!(buffers.concat(), text);
            let mut copy = vec![9; 5002];
            // SAFETY: as above.
            unsafe { copier.scatter(&all, copy.as_mut_ptr().addr() + 1).unwrap() };
            assert_eq!((copy[0], &copy[1..5001], copy[5001]), (9, &text[..], 9));
            let ours = memory::allocate(None, 5000).unwrap();
            // SAFETY: as above.
            unsafe {
                copier.scatter(&all, ours).unwrap();
                buffers.iter_mut().for_each(|buffer| buffer.fill(0));
                copier.gather(ours, &all).unwrap();
            }
            assert_eq!(buffers.concat(), text);
            memory::free(ours).unwrap();
            // SAFETY: there is nothing.
            let failed = unsafe { [copier.gather(16, &all), copier.scatter(&all, 16)] };
            for error in failed {
                assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EFAULT));
            }
        }
    }
}
