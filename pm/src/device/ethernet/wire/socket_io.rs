//! Sends and receives one contiguous buffer. The C library's functions enable and disable thread
//! cancellation, which a call that never blocks does not need. The kernel is therefore called
//! directly.

// UNSAFETY: system calls with addresses.
#![expect(unsafe_code)]

use nix::errno::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// The argument for no address, if the socket is connected or bound to its destination.
pub const NO_ADDRESS: (*mut libc::c_void, libc::socklen_t) = (std::ptr::null_mut(), 0);

/// Sends `len` bytes at `buf` to the socket address.
///
/// # Safety
/// The `len` bytes at `buf` and the socket address must be readable.
#[inline]
pub unsafe fn send(
    socket: &OwnedFd,
    buf: *const u8,
    len: usize,
    (name, name_len): (*mut libc::c_void, libc::socklen_t),
) -> nix::Result<()> {
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: the kernel only reads the buffer and the address, which the caller guarantees to be
    // readable.
    let code = unsafe { libc::syscall(libc::SYS_sendto, socket, buf, len, flags, name, name_len) };
    Errno::result(code).map(drop)
}

/// Receives up to `len` bytes at `buf` and returns their number.
///
/// # Safety
/// The `len` bytes at `buf` must be writable and not used by other code.
#[inline]
pub unsafe fn receive(socket: &OwnedFd, buf: *mut u8, len: usize) -> nix::Result<usize> {
    let (socket, flags, (addr, addr_len)) = (socket.as_raw_fd(), libc::MSG_DONTWAIT, NO_ADDRESS);
    // SAFETY: the kernel writes only to the buffer, which the caller guarantees. It writes no
    // address.
    let code =
        unsafe { libc::syscall(libc::SYS_recvfrom, socket, buf, len, flags, addr, addr_len) };
    Errno::result(code).map(|n| n as usize)
}
