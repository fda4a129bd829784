//! Notification of the shepherd (`proto/src/idle_notify.rs`): one byte to its datagram socket,
//! whose abstract name the shepherd has sent. The sending socket exists only during the call. A
//! permanent one would be closed by programs that close all descriptors, and the next descriptor
//! that they open would get the bytes.

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

    /// Notifies the shepherd; false if that failed and may succeed later. True for a full queue,
    /// because the shepherd will wake up anyway, and if there is no receiver.
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
