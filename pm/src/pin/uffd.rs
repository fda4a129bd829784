//! userfaultfd in write-protect mode. PM uses only its events, and never protects memory. Layouts
//! and numbers are from linux/userfaultfd.h.

// UNSAFETY: system calls without a safe wrapper.
#![expect(unsafe_code)]

use super::page_range::PageRange;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
/// The event of fork is left out, because it needs CAP_SYS_PTRACE. Therefore the memory of a child
/// is not monitored. This does no harm, because the child uses no context of its parent.
const FEATURES: u64 =
    FEATURE_WRITE_PROTECT | FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;
const MODE_WRITE_PROTECT: u64 = 1 << 1;

const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// `_IOWR(0xaa, number, size)`.
const fn request(number: u64, size: usize) -> libc::Ioctl {
    ((3 << 30) | ((size as u64) << 16) | (API << 8) | number) as libc::Ioctl
}

#[repr(C)]
struct ApiCall {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

const API_CALL: libc::Ioctl = request(0x3f, size_of::<ApiCall>());
const REGISTER: libc::Ioctl = request(0x00, size_of::<Register>());
const WRITE_PROTECT: libc::Ioctl = request(0x06, size_of::<WriteProtect>());

/// One message of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Message {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}

const _: () = assert!(size_of::<Message>() == 32);

impl Message {
    /// The memory that has changed: up to two ranges.
    pub(super) fn changed(&self) -> [Option<PageRange>; 2] {
        let [first, second, third] = self.words.map(|word| word as usize);
        match self.event {
            EVENT_UNMAP | EVENT_REMOVE => [PageRange::new(first, second), None],
            // Old address, new address, length.
            EVENT_REMAP => {
                let span = |start: usize| PageRange::new(start, start.saturating_add(third));
                [span(first), span(second)]
            }
            _ => [None, None],
        }
    }
}

/// The descriptor that reports changes of monitored memory.
pub(super) struct Uffd(OwnedFd);

impl Uffd {
    /// # Errors
    /// The kernel has no userfaultfd, refuses it, or lacks some of these events.
    pub(super) fn open() -> io::Result<Uffd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, without another owner.
        let uffd = Uffd(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        let mut call = ApiCall { api: API, features: FEATURES, ioctls: 0 };
        uffd.call(API_CALL, &mut call)?;
        Ok(uffd)
    }

    /// The descriptor's number, for the monitor thread, which calls the kernel directly.
    pub(super) fn raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Makes the kernel report changes of `span`, which must consist of whole mappings.
    ///
    /// # Errors
    /// This memory cannot be monitored, or it has another userfaultfd.
    pub(super) fn monitor(&self, span: PageRange) -> io::Result<()> {
        let (start, len) = (span.start() as u64, span.bytes() as u64);
        let mut call = Register { start, len, mode: MODE_WRITE_PROTECT, ioctls: 0 };
        self.call(REGISTER, &mut call)
    }

    /// Whether monitored memory is changing: a mapping was removed and its event is not yet read.
    /// The kernel checks for such events before it checks the arguments, which are not valid here.
    pub(super) fn is_changing(&self) -> bool {
        let mut call = WriteProtect { start: 0, len: 0, mode: 0 };
        let refused = self.call(WRITE_PROTECT, &mut call).err();
        refused.and_then(|error| error.raw_os_error()) == Some(libc::EAGAIN)
    }

    fn call<T>(&self, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
        // SAFETY: each caller pairs the request with the structure whose size is in its number.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_kernels_header() {
        assert_eq!(API_CALL as u32, 0xc018_aa3f);
        assert_eq!(REGISTER as u32, 0xc020_aa00);
        assert_eq!(WRITE_PROTECT as u32, 0xc018_aa06);
    }

    #[test]
    fn messages_name_all_memory_that_changed() {
        let message = |event, words| Message { event, words, ..Message::default() };
        let span = PageRange::new;
        assert_eq!(message(EVENT_UNMAP, [1, 2, 0]).changed(), [span(1, 2), None]);
        assert_eq!(message(EVENT_REMOVE, [1, 2, 0]).changed(), [span(1, 2), None]);
        assert_eq!(message(EVENT_REMAP, [10, 20, 5]).changed(), [span(10, 15), span(20, 25)]);
        assert_eq!(message(0x12, [1, 2, 3]).changed(), [None, None]);
    }
}
