//! Notifies the shepherd (`proto/src/idle_notify.rs`) by one byte to its datagram socket. The
//! shepherd has sent the abstract name of this socket. The sending socket exists only during the
//! call. A program that closes all descriptors would close a permanent socket, and the bytes would
//! then go to the next descriptor that it opens.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The address at which the shepherd is notified; None if it has sent no name.
pub(crate) struct ShepherdNotifier(Option<SocketAddr>);

impl ShepherdNotifier {
    /// # Errors
    /// The name is too long.
    pub(crate) fn new(name: &[u8]) -> Result<Self, String> {
        if name.is_empty() {
            return Ok(Self(None));
        }
        let address = SocketAddr::from_abstract_name(name);
        address
            .map(|address| Self(Some(address)))
            .map_err(|e| format!("the name of the notification socket: {e}"))
    }

    /// Notifies the shepherd. Returns false if that has failed and may succeed later. Returns true
    /// if the queue is full, because the shepherd wakes up anyway, and if there is no receiver.
    #[cold]
    pub(crate) fn notify(&self) -> bool {
        let Some(address) = &self.0 else { return true };
        let send = || -> io::Result<usize> {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to_addr(&[1], address)
        };
        match send() {
            Ok(_) => true,
            Err(error) => {
                matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ECONNREFUSED))
            }
        }
    }
}
