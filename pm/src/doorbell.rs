//! The doorbell: a datagram socket that wakes a receiver in `select` when a byte arrives. Its name
//! is in the abstract name space and consists of the segment's nonce and the node. Therefore
//! processes pass and look up no addresses, and the kernel removes the name when the process ends.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult, from_errno};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, recv, sendto, socket,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

fn new_socket() -> PmResult<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Datagram, flags, None).map_err(from_errno)
}

fn address(nonce: [u64; 2], node: usize) -> PmResult<UnixAddr> {
    let name = format!("score-pm-{:016x}{:016x}-{node}", nonce[0], nonce[1]);
    UnixAddr::new_abstract(name.as_bytes()).map_err(|_| Error::Io)
}

/// The receiving side.
pub(crate) struct DoorbellReceiver(OwnedFd);

impl DoorbellReceiver {
    /// Creates the doorbell of `node`. Busy: another socket has this name.
    pub(crate) fn new(nonce: [u64; 2], node: usize) -> PmResult<DoorbellReceiver> {
        let socket = new_socket()?;
        bind(socket.as_raw_fd(), &address(nonce, node)?).map_err(|errno| match errno {
            Errno::EADDRINUSE => Error::Busy,
            errno => from_errno(errno),
        })?;
        Ok(DoorbellReceiver(socket))
    }

    /// Reads the waiting bytes; true if there were any. The number of reads is bounded, because a
    /// hostile process may send without end.
    pub(crate) fn drain(&self) -> bool {
        let mut byte = [0];
        (0..64)
            .take_while(|_| recv(self.0.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).is_ok())
            .count()
            > 0
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The sending side: one socket reaches every doorbell.
pub(crate) struct DoorbellSender(OwnedFd);

impl DoorbellSender {
    pub(crate) fn new() -> PmResult<DoorbellSender> {
        new_socket().map(DoorbellSender)
    }

    /// Rings the doorbell of `node`. False: try again with the next message. A full queue counts as
    /// success because the receiver wakes anyway; so does a missing receiver.
    pub(crate) fn ring(&self, nonce: [u64; 2], node: usize) -> bool {
        let Ok(address) = address(nonce, node) else { return false };
        match sendto(self.0.as_raw_fd(), &[1], &address, MsgFlags::MSG_DONTWAIT) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ECONNREFUSED | Errno::EPERM) => true,
            Err(_) => false,
        }
    }
}
