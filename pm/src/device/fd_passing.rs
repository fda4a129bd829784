//! Attach descriptors. An attach descriptor is a socket that holds one message of bytes and
//! descriptors, and is read once.

// UNSAFETY: takes ownership of descriptors that the kernel just made.
#![expect(unsafe_code)]

use crate::error::{Error, PmResult, from_errno};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    recvmsg, sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The limit of descriptors in one message: memory, addresses, and the sockets of all links.
const MAX_DESCRIPTORS: usize = 40;

/// Makes a descriptor that [`unpack`] reads.
pub(crate) fn pack(message: &[u8], fds: &[BorrowedFd<'_>]) -> PmResult<OwnedFd> {
    let (write, read) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
            .map_err(from_errno)?;
    let fds: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let sent = sendmsg::<UnixAddr>(
        write.as_raw_fd(),
        &[IoSlice::new(message)],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        None,
    )
    .map_err(from_errno)?;
    if sent == message.len() { Ok(read) } else { Err(Error::Io) }
}

/// Reads the message of [`pack`], `max_len` bytes at most. Invalid: the message is missing or
/// malformed, or was already read.
pub(crate) fn unpack(fd: &OwnedFd, max_len: usize) -> PmResult<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; max_len + 1];
    let mut control_buffer = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<UnixAddr>(fd.as_raw_fd(), &mut iov, Some(&mut control_buffer), flags)
        .map_err(|errno| match from_errno(errno) {
        Error::TooManyFiles => Error::TooManyFiles,
        _ => Error::Invalid,
    })?;
    let mut fds = Vec::new();
    for control in message.cmsgs().map_err(|_| Error::Invalid)? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: new descriptors of this process, which no other code knows.
            fds.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let len = message.bytes;
    if message.flags.intersects(MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC) || len > max_len {
        return Err(Error::Invalid);
    }
    bytes.truncate(len);
    Ok((bytes, fds))
}
