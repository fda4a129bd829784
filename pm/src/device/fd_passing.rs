//! Attach descriptors. An attach descriptor is a socket that holds one message of bytes and
//! descriptors, and is read once.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult, from_io};
use score_sys::{fd_passing, unix_socket};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The most descriptors in one message: memory, addresses, and the sockets of all links.
const MAX_DESCRIPTORS: usize = 40;

/// Makes a descriptor that [`unpack`] reads.
pub(crate) fn pack(message: &[u8], fds: &[BorrowedFd<'_>]) -> PmResult<OwnedFd> {
    let (write, read) = unix_socket::seqpacket_pair().map_err(from_io)?;
    fd_passing::try_send(&write, message, fds).map_err(from_io)?;
    Ok(read)
}

/// Reads the message of [`pack`], `max_len` bytes at most. Invalid: the message is missing or
/// malformed, or was already read.
pub(crate) fn unpack(fd: &OwnedFd, max_len: usize) -> PmResult<(Vec<u8>, Vec<OwnedFd>)> {
    fd_passing::try_receive(fd, max_len, MAX_DESCRIPTORS).map_err(|error| match from_io(error) {
        Error::TooManyFiles => Error::TooManyFiles,
        _ => Error::Invalid,
    })
}
