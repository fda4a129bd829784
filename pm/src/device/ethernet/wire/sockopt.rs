//! Socket options and addresses that socket2 does not support.

// UNSAFETY: getsockopt, setsockopt and socket addresses with structures of the kernel.
#![expect(unsafe_code)]

use nix::errno::Errno;
use socket2::{SockAddr, SockRef};
use std::io;
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

pub fn set<T: SockOptValue>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let ptr = std::ptr::from_ref(value).cast();
    // SAFETY: the kernel reads `len` bytes of a value that outlives the call.
    let code = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr, len) };
    Errno::result(code)?;
    Ok(())
}

/// Reads a socket option. Returns EINVAL if the kernel's value has another size.
pub fn get<T: SockOptValue>(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<T> {
    // SAFETY: every bit pattern is a valid value, by the trait's contract.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut len = size_of::<T>() as libc::socklen_t;
    let ptr = (&raw mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes, the size of the value.
    let code = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, ptr, &raw mut len) };
    Errno::result(code)?;
    if len as usize == size_of::<T>() { Ok(value) } else { Err(Errno::EINVAL.into()) }
}

/// A socket address of a family that socket2 has no constructor for.
///
/// # Safety
/// The structure must begin with its address family, and have no padding.
pub unsafe trait RawAddress: Copy {}

// SAFETY: by the declaration of the structure.
unsafe impl RawAddress for libc::sockaddr_ll {}
// SAFETY: as above.
unsafe impl RawAddress for libc::sockaddr_xdp {}

/// Converts an address for bind.
pub fn socket_address<T: RawAddress>(address: T) -> io::Result<SockAddr> {
    const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
    // SAFETY: the storage is aligned for each address and has room by the line above. The structure
    // is an address of its family by the trait's contract.
    let initialized = unsafe {
        SockAddr::try_init(|storage, len| {
            storage.cast::<T>().write(address);
            *len = size_of::<T>() as libc::socklen_t;
            Ok(())
        })
    };
    initialized.map(|((), address)| address)
}

/// Requests large socket buffers. They may exceed the system's limit only if the process has
/// CAP_NET_ADMIN.
pub fn large_buffers(fd: BorrowedFd<'_>) {
    const SOCKET_BUFFER_LEN: usize = 8 << 20;
    let is_forced =
        |option| set(fd, libc::SOL_SOCKET, option, &(SOCKET_BUFFER_LEN as libc::c_int)).is_ok();
    // The kernel reduces a request above the limit. A smaller buffer is not an error.
    if !is_forced(libc::SO_RCVBUFFORCE) {
        let _ = SockRef::from(&fd).set_recv_buffer_size(SOCKET_BUFFER_LEN);
    }
    if !is_forced(libc::SO_SNDBUFFORCE) {
        let _ = SockRef::from(&fd).set_send_buffer_size(SOCKET_BUFFER_LEN);
    }
}
