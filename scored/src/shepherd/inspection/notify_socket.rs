//! The socket to which processes send a notification when an armed change has happened
//! (`proto/src/idle_notify.rs`). It is a datagram socket with a name that the kernel has chosen.
//! Any process on the host may send to it. This is harmless, because a notification only causes a
//! poll, at most one per poll interval.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use score_sys::unix_socket::autobound_datagram_socket;

/// Largest number of datagrams that are read at once. Datagrams that remain only cause another
/// poll.
const MAX_DRAIN: usize = 64;

/// See the [module](self).
pub struct NotifySocket {
    socket: UnixDatagram,
    name: Vec<u8>,
}

impl NotifySocket {
    /// Creates and binds the socket.
    ///
    /// # Errors
    /// The errors of socket(2) and bind(2).
    pub fn new() -> io::Result<Self> {
        let (socket, name) = autobound_datagram_socket()?;
        Ok(Self { socket, name })
    }

    /// The abstract name of the socket.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Readable after a notification, until [`NotifySocket::drain`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Discards the received notifications, at most `MAX_DRAIN`.
    pub fn drain(&self) {
        let mut byte = [0];
        for _ in 0..MAX_DRAIN {
            if self.socket.recv(&mut byte).is_err() {
                break;
            }
        }
    }
}
