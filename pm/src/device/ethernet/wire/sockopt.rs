//! Socket options that nix does not support.

// UNSAFETY: getsockopt and setsockopt with structures of the kernel.
#![expect(unsafe_code)]

use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Plain data that the kernel reads or writes as the value of a socket option.
///
/// # Safety
/// Every bit pattern must be a valid value.
pub unsafe trait SockOptValue: Copy {}

// SAFETY: integers and structures of integers have no invalid bit pattern.
unsafe impl SockOptValue for libc::c_int {}
// SAFETY: as above.
unsafe impl SockOptValue for libc::tpacket_req {}
// SAFETY: as above.
unsafe impl SockOptValue for libc::tpacket_stats {}
// SAFETY: as above.
unsafe impl SockOptValue for libc::xdp_umem_reg {}
// SAFETY: as above.
unsafe impl SockOptValue for libc::xdp_mmap_offsets {}
// SAFETY: as above.
unsafe impl SockOptValue for libc::xdp_statistics {}

/// Sets a socket option.
pub fn set<T: SockOptValue>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> nix::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let ptr = std::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads `len` bytes of a value that outlives the call.
    let code = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr, len) };
    Errno::result(code).map(drop)
}

/// Reads a socket option. Returns EINVAL if the kernel's value has another size.
pub fn get<T: SockOptValue>(fd: BorrowedFd<'_>, level: i32, name: i32) -> nix::Result<T> {
    // SAFETY: every bit pattern is a valid value, by the trait's contract.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    let ptr = (&raw mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes, the size of the value.
    let code = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, ptr, &raw mut len) };
    Errno::result(code)?;
    if len as usize == size_of::<T>() { Ok(value) } else { Err(Errno::EINVAL) }
}

/// Returns the address family of a socket, or None if the descriptor is not a socket.
pub fn domain(fd: BorrowedFd<'_>) -> Option<i32> {
    get::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()
}

/// Requests large socket buffers. They may exceed the system's limit only if the process has
/// CAP_NET_ADMIN.
pub fn large_buffers(fd: BorrowedFd<'_>) {
    const SOCKET_BUFFER_LEN: libc::c_int = 8 << 20;
    let options =
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)];
    for (force, plain) in options {
        if set(fd, libc::SOL_SOCKET, force, &SOCKET_BUFFER_LEN).is_err() {
            // The kernel reduces a request above the limit. A smaller buffer is not an error.
            let _ = set(fd, libc::SOL_SOCKET, plain, &SOCKET_BUFFER_LEN);
        }
    }
}
