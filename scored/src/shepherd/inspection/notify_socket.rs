//! Where processes ring when they have done what was wished for (`proto/src/idle_notify.rs`): a datagram
//! socket with a name that the kernel has chosen. Anybody on the host may ring; who hears it only
//! looks, and does so no more often than at its pace.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockname, recv, socket,
};

/// What is taken from it at once: more than its queue has room for.
const MAX_DRAIN: usize = 64;

/// See the [module](self).
pub struct NotifySocket {
    socket: OwnedFd,
    name: Vec<u8>,
}

impl NotifySocket {
    /// Hangs it.
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

    /// Its abstract name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Readable when somebody has rung, until [`NotifySocket::drain`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes away what has been rung.
    pub fn drain(&self) {
        let mut byte = [0];
        for _ in 0..MAX_DRAIN {
            if recv(self.socket.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).is_err() {
                break;
            }
        }
    }
}
