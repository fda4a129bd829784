//! Sending and receiving one piece. The C library's own functions make a thread ready to be
//! cancelled and unready again, which a call that never blocks has no use for: the kernel is
//! called directly.

// UNSAFETY: system calls with addresses.
#![expect(unsafe_code)]

use nix::errno::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// Nowhere in particular: what a connected socket sends to.
pub const NO_NAME: (*mut libc::c_void, libc::socklen_t) = (std::ptr::null_mut(), 0);

/// Sends `len` bytes at `at` to the socket address `name`.
///
/// # Safety
/// Both must be readable.
#[inline]
pub unsafe fn send(
    socket: &OwnedFd,
    at: *const u8,
    len: usize,
    (name, name_len): (*mut libc::c_void, libc::socklen_t),
) -> nix::Result<()> {
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: the kernel reads what the caller says is readable.
    let code = unsafe { libc::syscall(libc::SYS_sendto, socket, at, len, flags, name, name_len) };
    Errno::result(code).map(drop)
}

/// Receives up to `len` bytes at `at` and answers how many.
///
/// # Safety
/// They must be writable, and nobody else's.
#[inline]
pub unsafe fn receive(socket: &OwnedFd, at: *mut u8, len: usize) -> nix::Result<usize> {
    let (socket, flags, (nobody, nothing)) = (socket.as_raw_fd(), libc::MSG_DONTWAIT, NO_NAME);
    // SAFETY: the kernel writes where the caller says, and no address.
    let code =
        unsafe { libc::syscall(libc::SYS_recvfrom, socket, at, len, flags, nobody, nothing) };
    Errno::result(code).map(|came| came as usize)
}
