//! Registrations for which mio has no interest.

// UNSAFETY: one system call on borrowed descriptors.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use mio::{Registry, Token};

/// Has `registry` report of a registered socket only that the connection has ended. mio can also
/// ask for priority data alone, but then the kernel wakes the waiting thread at each arrival: a
/// socket announces all data with one mask, and whether there is anything to report is found out
/// after that. To be undone by [`Registry::reregister`].
///
/// # Errors
/// As epoll_ctl(2).
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
