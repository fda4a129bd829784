//! Registrations with an event mask that mio does not offer.

// UNSAFETY: one system call on borrowed descriptors.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use mio::{Registry, Token};

/// Reduces the registration of a socket: `registry` reports only that the connection has ended.
///
/// mio can also request priority data alone. The kernel then wakes the waiting thread whenever data
/// arrives, because it filters events only after the wake-up. [`Registry::reregister`] restores the
/// full registration.
///
/// # Errors
/// See epoll_ctl(2).
pub fn report_only_end(registry: &Registry, socket: BorrowedFd, token: Token) -> io::Result<()> {
    // EPOLLERR and EPOLLHUP are always reported.
    let mut event = libc::epoll_event { events: libc::EPOLLET as u32, u64: token.0 as u64 };
    let (epoll, socket) = (registry.as_raw_fd(), socket.as_raw_fd());
    // SAFETY: the kernel reads `event`, which lives longer than the call.
    match unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_MOD, socket, &mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
