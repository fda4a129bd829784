//! The socket to which processes send a notification when an armed change has happened
//! (`proto/src/idle_notify.rs`). It is a datagram socket with a name that the kernel has chosen.
//! Any process on the host may send to it. This is harmless, because a notification only causes a
//! poll, at most one per poll interval.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockname, recv, socket,
};

/// Number of datagrams that are read at once. It is more than the queue of the socket can hold.
const MAX_DRAIN: usize = 64;

/// See the [module](self).
pub struct NotifySocket {
    socket: OwnedFd,
    name: Vec<u8>,
}

impl NotifySocket {
    /// Creates and binds the socket.
    ///
    /// # Errors
    /// As socket(2), bind(2).
    pub fn new() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
        let address: UnixAddr = getsockname(socket.as_raw_fd())?;
        let name = address.as_abstract().ok_or(io::ErrorKind::AddrNotAvailable)?.to_vec();
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

    /// Discards all received notifications.
    pub fn drain(&self) {
        let mut byte = [0];
        for _ in 0..MAX_DRAIN {
            if recv(self.socket.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).is_err() {
                break;
            }
        }
    }
}
