//! Safe Rust functions that call the functions of `pm.h`.

// UNSAFETY: foreign functions, and slices over the buffers that they return.
#![expect(unsafe_code)]

use std::ffi::{CStr, CString, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};

use crate::pm_h::*;
use crate::sync::AtomicU32;

/// PM's return value as a result.
fn check(code: c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// A device that PM has opened, until its context is closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device(NonNull<pmDevice>);

// SAFETY: as for contexts below.
unsafe impl Send for Device {}
// SAFETY: as for contexts below.
unsafe impl Sync for Device {}

/// A context that PM has made. PM checks the pointer on every call, and returns EINVAL in a forked
/// child and after [`Context::detach`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context(NonNull<pmContext>);

// SAFETY: PM's functions may be called by all threads at once (manual 2.3.1); the pointer is
// never dereferenced here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Attaches a context that the shepherd has made. The caller keeps the descriptor.
    pub(crate) fn attach(kind: &CStr, fd: BorrowedFd<'_>) -> io::Result<Self> {
        let mut context = null_mut();
        // SAFETY: the pointers are valid for the call.
        check(unsafe { pmAttachContext(kind.as_ptr(), fd.as_raw_fd(), &raw mut context) })?;
        NonNull::new(context).map(Self).ok_or(io::ErrorKind::InvalidData.into())
    }

    /// Creates an empty composite for `nodes` nodes, and its device.
    pub(crate) fn composite(nodes: u32) -> io::Result<(Self, Device)> {
        let count = CString::new(nodes.to_string()).unwrap_or_default();
        let argv = [c"-nodes".as_ptr(), count.as_ptr(), std::ptr::null()];
        let (mut device, mut context) = (null_mut(), null_mut());
        // SAFETY: the pointers are valid for the calls, and PM has opened `device`.
        unsafe {
            check(pmOpenDevice(c"composite".as_ptr(), 2, argv.as_ptr(), &raw mut device))?;
            check(pmOpenContext(device, 0, &raw mut context))?;
        }
        match (NonNull::new(context), NonNull::new(device)) {
            (Some(context), Some(device)) => Ok((Self(context), Device(device))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The pointer that C programs use.
    pub(crate) fn as_ptr(self) -> *mut pmContext {
        self.0.as_ptr()
    }

    /// The context of a pointer that [`Self::as_ptr`] returned.
    pub(crate) fn from_ptr(pointer: *mut pmContext) -> Option<Self> {
        NonNull::new(pointer).map(Self)
    }

    pub(crate) fn add_node(self, node: u32, member: Self, member_node: u32) -> io::Result<()> {
        // SAFETY: PM checks both contexts.
        check(unsafe {
            pmAddNode(self.as_ptr(), to_c_int(node), member.as_ptr(), to_c_int(member_node))
        })
    }

    /// Undoes [`Context::attach`]. No other thread may be using the context.
    pub(crate) fn detach(self) -> io::Result<()> {
        // SAFETY: PM checks the context.
        check(unsafe { pmDetachContext(self.as_ptr()) })
    }

    /// Undoes [`Context::composite`]. No other thread may be using the context.
    pub(crate) fn close(self, device: Device) -> io::Result<()> {
        // SAFETY: PM checks both.
        check(unsafe { pmCloseContext(self.as_ptr()) })?;
        // SAFETY: PM checks the device.
        check(unsafe { pmCloseDevice(device.0.as_ptr()) })
    }

    pub(crate) fn mtu(self, node: u32) -> io::Result<usize> {
        let mut mtu = 0;
        // SAFETY: PM checks the context; `mtu` is valid for the call.
        check(unsafe { pmGetMtu(self.as_ptr(), to_c_int(node), &raw mut mtu) })?;
        Ok(mtu)
    }

    /// Gets a buffer for `len` bytes, lets `fill` write it, and sends it. `fill` returns the number
    /// of bytes that it has written, from 1 to `len`. A buffer cannot be returned unused, so any
    /// other number means `len`.
    pub(crate) fn send_with<T>(
        self,
        node: u32,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> (usize, T),
    ) -> io::Result<T> {
        let mut buffer = null_mut();
        // SAFETY: PM checks the context; `buffer` is valid for the call.
        check(unsafe { pmGetSendBuffer(self.as_ptr(), to_c_int(node), &raw mut buffer, len) })?;
        // SAFETY: PM has provided `len` bytes at `buffer`, exclusively until pmSend.
        let send_buffer = unsafe { std::slice::from_raw_parts_mut(buffer, len) };
        let (used, result) = fill(send_buffer);
        if (1..len).contains(&used) {
            // SAFETY: PM checks the context.
            check(unsafe { pmTruncateBuffer(self.as_ptr(), used) })?;
        }
        // SAFETY: PM checks the context.
        check(unsafe { pmSend(self.as_ptr()) })?;
        Ok(result)
    }

    /// Receives the next message. It stays valid until the caller calls [`Self::release`], which it
    /// has to do.
    pub(crate) fn receive<'m>(self) -> io::Result<&'m [u8]> {
        let (mut buffer, mut len) = (null_mut(), 0);
        // SAFETY: PM checks the context; the pointers are valid for the call.
        check(unsafe { pmReceive(self.as_ptr(), &raw mut buffer, &raw mut len) })?;
        // SAFETY: PM has provided `len` bytes at `buffer` until they are released, and the only
        // caller, `Message`, does not use them longer.
        Ok(unsafe { std::slice::from_raw_parts(buffer, len) })
    }

    pub(crate) fn release(self) -> io::Result<()> {
        // SAFETY: PM checks the context.
        check(unsafe { pmReleaseReceiveBuffer(self.as_ptr()) })
    }

    /// The descriptors to wait on for messages. They belong to PM and exist as long as the process.
    pub(crate) fn descriptors(self) -> io::Result<Vec<BorrowedFd<'static>>> {
        let mut fds: Vec<RawFd> = vec![-1; 64];
        let mut count = 64;
        // SAFETY: PM checks the context; `fds` has `count` entries.
        check(unsafe { pmGetFd(self.as_ptr(), fds.as_mut_ptr(), &raw mut count) })?;
        fds.truncate(usize::try_from(count).unwrap_or(0));
        // SAFETY: PM has just returned them, and contexts are never closed before exit.
        Ok(fds.into_iter().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }).collect())
    }

    pub(crate) fn before_select(self) -> io::Result<()> {
        // SAFETY: PM checks the context.
        check(unsafe { pmBeforeSelect(self.as_ptr()) })
    }

    pub(crate) fn after_select(self) -> io::Result<()> {
        // SAFETY: PM checks the context.
        check(unsafe { pmAfterSelect(self.as_ptr()) })
    }
}

/// Converts a node number, which is below PM_MAX_NODE. A larger number becomes one that PM refuses.
fn to_c_int(node: u32) -> c_int {
    c_int::try_from(node).unwrap_or(-1)
}

/// Makes PM call `callback` when PM sends while `word` is above 0 (docs/dev/messages.md, "Idle and
/// sending").
pub(crate) fn set_idle_word(word: &'static AtomicU32, callback: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the word is never freed and PM reads it atomically.
    check(unsafe { pmSetIdleWord(word.as_ptr(), Some(callback)) })
}
