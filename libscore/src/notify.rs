//! Ringing for the shepherd (`proto/src/idle_notify.rs`): a byte to its datagram socket, whose abstract
//! name it has told. The socket to send it from lives as long as the call. One that is kept would
//! be closed by programs that close all descriptors, and what they open next would be written to.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendto, socket};

/// Where the shepherd is rung for; nowhere, if it has told no name.
pub(crate) struct ShepherdNotifier(Option<UnixAddr>);

impl ShepherdNotifier {
    /// # Errors
    /// The name is too long.
    pub(crate) fn new(name: &[u8]) -> Result<Self, String> {
        if name.is_empty() {
            return Ok(Self(None));
        }
        let address = UnixAddr::new_abstract(name);
        address.map(|address| Self(Some(address))).map_err(|e| format!("the bell's name: {e}"))
    }

    /// Rings; false when that was not possible and may be later. A full queue is rung for anyhow,
    /// and where nobody listens nobody has to hear.
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
