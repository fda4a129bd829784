//! Datagrams that carry descriptors, over a blocking socket that preserves message boundaries.

// UNSAFETY: takes ownership of descriptors that the kernel just created.
#![expect(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Largest number of descriptors in one datagram.
pub const MAX_FDS: usize = 64;

/// Sends one datagram.
///
/// # Errors
/// The peer has closed the socket, or does not read in time.
pub fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let rights = if raw.is_empty() { &[][..] } else { &rights[..] };
    let iov = [IoSlice::new(bytes)];
    sendmsg::<()>(socket.as_raw_fd(), &iov, rights, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one datagram of at most `max_len` bytes. It is empty if the peer has closed the socket.
///
/// # Errors
/// No datagram arrived in time, or it was too long.
pub fn receive(socket: &OwnedFd, max_len: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; max_len];
    let mut cmsg_buffer = nix::cmsg_space!([RawFd; MAX_FDS]);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut iov, Some(&mut cmsg_buffer), flags)?;
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = control {
            // SAFETY: fresh descriptors of this process that have no other owner.
            descriptors.extend(received.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    if message.flags.intersects(MsgFlags::MSG_CTRUNC | MsgFlags::MSG_TRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    let length = message.bytes;
    bytes.truncate(length);
    Ok((bytes, descriptors))
}
