//! The doorbell: a datagram socket that wakes a receiver in `select` when a byte arrives. Its name
//! is in the abstract name space and consists of the segment's nonce and the node. Therefore
//! processes pass and look up no addresses, and the kernel removes the name when the process ends.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult, from_io};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

fn address(nonce: [u64; 2], node: usize) -> PmResult<SocketAddr> {
    let name = format!("score-pm-{:016x}{:016x}-{node}", nonce[0], nonce[1]);
    SocketAddr::from_abstract_name(name).map_err(|_| Error::Io)
}

/// The receiving side.
pub(crate) struct DoorbellReceiver(UnixDatagram);

impl DoorbellReceiver {
    /// Creates the doorbell of `node`. Busy: another socket has this name.
    pub(crate) fn new(nonce: [u64; 2], node: usize) -> PmResult<DoorbellReceiver> {
        let bound = UnixDatagram::bind_addr(&address(nonce, node)?);
        let socket = bound.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => Error::Busy,
            _ => from_io(error),
        })?;
        socket.set_nonblocking(true).map_err(from_io)?;
        Ok(DoorbellReceiver(socket))
    }

    /// Reads the waiting bytes; true if there were any. The number of reads is bounded, because a
    /// hostile process may send without end.
    pub(crate) fn drain(&self) -> bool {
        let mut byte = [0];
        (0..64).take_while(|_| self.0.recv(&mut byte).is_ok()).count() > 0
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The sending side: one socket reaches every doorbell.
pub(crate) struct DoorbellSender(UnixDatagram);

impl DoorbellSender {
    pub(crate) fn new() -> PmResult<DoorbellSender> {
        let socket = UnixDatagram::unbound().map_err(from_io)?;
        socket.set_nonblocking(true).map_err(from_io)?;
        Ok(DoorbellSender(socket))
    }

    /// Rings the doorbell of `node`. False: the caller tries again with the next message. A full
    /// queue counts as success, because the receiver wakes anyway. A receiver that does not exist,
    /// or that has connected its socket to another one (EPERM), also counts as success.
    pub(crate) fn ring(&self, nonce: [u64; 2], node: usize) -> bool {
        let Ok(address) = address(nonce, node) else { return false };
        match self.0.send_to_addr(&[1], &address) {
            Ok(_) => true,
            Err(error) => matches!(
                error.raw_os_error(),
                Some(libc::EAGAIN | libc::ECONNREFUSED | libc::EPERM)
            ),
        }
    }
}
