//! Notifies the shepherd (`proto/src/idle_notify.rs`) by one byte to its datagram socket. The
//! shepherd has sent the abstract name of this socket. The sending socket exists only during the
//! call. A program that closes all descriptors would close a permanent socket, and the bytes would
//! then go to the next descriptor that it opens.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendto, socket};

/// The address at which the shepherd is notified; None if it has sent no name.
pub(crate) struct ShepherdNotifier(Option<UnixAddr>);

impl ShepherdNotifier {
    /// # Errors
    /// The name is too long.
    pub(crate) fn new(name: &[u8]) -> Result<Self, String> {
        if name.is_empty() {
            return Ok(Self(None));
        }
        let address = UnixAddr::new_abstract(name);
        address
            .map(|address| Self(Some(address)))
            .map_err(|e| format!("the name of the notification socket: {e}"))
    }

    /// Notifies the shepherd. Returns false if that has failed and may succeed later. Returns true
    /// if the queue is full, because the shepherd wakes up anyway, and if there is no receiver.
    #[cold]
    pub(crate) fn notify(&self) -> bool {
        let Some(address) = &self.0 else { return true };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let Ok(socket) = socket(AddressFamily::Unix, SockType::Datagram, flags, None) else {
            return false;
        };
        let sent = sendto(socket.as_raw_fd(), &[1], address, MsgFlags::MSG_DONTWAIT);
        matches!(sent, Ok(_) | Err(Errno::EAGAIN | Errno::ECONNREFUSED))
    }
}
