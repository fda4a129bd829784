//! Copies between locked memory of this process and buffers of a device, by whichever thread makes
//! progress. The user may unmap what is locked at any time, so no instruction touches it: the
//! kernel copies, and what is not mapped, or must not be written, is an error.

// UNSAFETY: system calls that take addresses.
#![expect(unsafe_code)]

use crate::debug;
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The most parts of one copy.
pub(crate) const PARTS: usize = 64;

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

/// Copies with process_vm_readv and process_vm_writev on this process; where these are refused
/// (seccomp) by way of a file in memory, which takes two copies.
#[derive(Default)]
pub(crate) struct Copier {
    pid: i32,
    /// The file, once the calls have been refused.
    scratch: Option<OwnedFd>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From the user's memory to the parts.
    Gather,
    Scatter,
}

impl Copier {
    pub(crate) fn new() -> Copier {
        Copier { pid: std::process::id() as i32, scratch: None }
    }

    /// Copies what lies at `from` to the parts, one after the other.
    ///
    /// # Safety
    /// The parts, at most [`PARTS`], are the caller's to write.
    pub(crate) unsafe fn gather(&mut self, from: usize, parts: &[Part]) -> io::Result<()> {
        self.copy(Way::Gather, from, parts)
    }

    /// Copies the parts, one after the other, to where `to` is.
    ///
    /// # Safety
    /// The parts, at most [`PARTS`], may be read; whoever uses the memory at `to` expects it to
    /// change.
    pub(crate) unsafe fn scatter(&mut self, parts: &[Part], to: usize) -> io::Result<()> {
        self.copy(Way::Scatter, to, parts)
    }

    fn copy(&mut self, way: Way, user: usize, parts: &[Part]) -> io::Result<()> {
        if self.scratch.is_none() {
            match self.by_kernel(way, user, parts) {
                Err(error) if is_refused(&error) => self.make_scratch(&error)?,
                done => return done,
            }
        }
        let Some(scratch) = &self.scratch else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut at = user;
        for part in parts {
            match way {
                Way::Gather => pass(scratch, at, part.at, part.len)?,
                Way::Scatter => pass(scratch, part.at, at, part.len)?,
            }
            at = at.wrapping_add(part.len);
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

    #[cold]
    fn make_scratch(&mut self, why: &io::Error) -> io::Result<()> {
        debug::say(debug::INFO, || {
            format!("process_vm_readv or process_vm_writev: {why}; remote memory is copied twice")
        });
        let file = memfd_create(c"score-pm-scratch", MFdFlags::MFD_CLOEXEC);
        self.scratch = Some(file.map_err(io::Error::from)?);
        Ok(())
    }
}

fn is_refused(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES))
}

/// Copies by way of the file's first bytes. Memory that is not mapped is an error on both ends.
fn pass(scratch: &OwnedFd, from: usize, to: usize, len: usize) -> io::Result<()> {
    let fd = scratch.as_raw_fd();
    // SAFETY: the kernel checks the addresses, and only reads there.
    whole(len, |done| unsafe {
        let from = from.wrapping_add(done) as *const libc::c_void;
        libc::pwrite(fd, from, len - done, done as i64)
    })?;
    // SAFETY: the kernel checks the addresses; the callers of `gather` and `scatter` answer for
    // what is there.
    whole(len, |done| unsafe {
        let to = to.wrapping_add(done) as *mut libc::c_void;
        libc::pread(fd, to, len - done, done as i64)
    })
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
        let scratch = memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap();
        let other = Copier { pid: 0, scratch: Some(scratch) };
        for mut copier in [Copier::new(), other] {
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
            // SAFETY: there is nothing.
            let failed = unsafe { [copier.gather(16, &all), copier.scatter(&all, 16)] };
            for error in failed {
                assert_eq!(error.unwrap_err().raw_os_error(), Some(libc::EFAULT));
            }
        }
    }
}
