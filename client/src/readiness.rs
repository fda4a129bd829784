//! Waiting for one descriptor, for programs without an event loop.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

/// The events to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Data can be read, or the connection is closed.
    Readable,
    /// Data can be written, or the connection is closed.
    Writable,
    /// Data can be read or written, or the connection is closed.
    Any,
}

/// Waits until the descriptor is ready, for at most `timeout`. Returns false after this time, and
/// after a signal.
///
/// # Errors
/// See ppoll(2).
pub fn wait_until_ready(
    fd: BorrowedFd<'_>,
    readiness: Readiness,
    timeout: Duration,
) -> io::Result<bool> {
    let events = match readiness {
        Readiness::Readable => PollFlags::POLLIN,
        Readiness::Writable => PollFlags::POLLOUT,
        Readiness::Any => PollFlags::POLLIN | PollFlags::POLLOUT,
    };
    match ppoll(&mut [PollFd::new(fd, events)], Some(TimeSpec::from(timeout)), None) {
        Err(Errno::EINTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// Whether the descriptor becomes readable, or is closed, within `timeout` and before a signal.
///
/// # Errors
/// See ppoll(2).
pub fn is_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    wait_until_ready(fd, Readiness::Readable, timeout)
}
