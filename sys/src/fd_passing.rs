//! Datagrams with descriptors (SCM_RIGHTS, unix(7)), over a UNIX socket that preserves message
//! boundaries. Received descriptors are closed by execve(2).

// UNSAFETY: recvmsg(2) returns descriptors as numbers in a buffer. nix gives no access to the
// buffer if it was too small, but the descriptors in it must be closed.
#![expect(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

/// The largest number of descriptors in one datagram (SCM_MAX_FD of the kernel).
pub const MAX_FDS: usize = 253;

/// Sends one datagram.
///
/// # Errors
/// The peer has closed the socket, or does not read in time.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket.as_fd(), bytes, fds, MsgFlags::empty())
}

/// Like [`send`], but does not wait.
///
/// # Errors
/// The peer has closed the socket. WouldBlock: the peer has to read first.
pub fn try_send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket.as_fd(), bytes, fds, MsgFlags::MSG_DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: MsgFlags,
) -> io::Result<()> {
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let rights = if numbers.is_empty() { &[][..] } else { &rights[..] };
    let iov = [IoSlice::new(bytes)];
    let flags = flags | MsgFlags::MSG_NOSIGNAL;
    retry_interrupted(|| Ok(sendmsg::<()>(socket.as_raw_fd(), &iov, rights, flags, None)?))?;
    Ok(())
}

/// Receives one datagram of at most `max_len` bytes with at most `max_fds` descriptors. The bytes
/// are empty if the peer has closed the socket.
///
/// # Errors
/// No datagram arrived in time. EMSGSIZE: the datagram has more bytes or descriptors, or this
/// process may not have so many descriptors. All descriptors of the datagram are closed then.
pub fn receive(
    socket: impl AsFd,
    max_len: usize,
    max_fds: usize,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    receive_with(socket.as_fd(), max_len, max_fds, 0)
}

/// Like [`receive`], but does not wait.
///
/// # Errors
/// See [`receive`]. WouldBlock: no datagram has arrived.
pub fn try_receive(
    socket: impl AsFd,
    max_len: usize,
    max_fds: usize,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    receive_with(socket.as_fd(), max_len, max_fds, libc::MSG_DONTWAIT)
}

/// A datagram in a buffer.
#[derive(Debug)]
pub struct Datagram {
    /// The number of bytes in the buffer. 0: the peer has closed the socket.
    pub len: usize,
    /// The descriptors. The list is empty if the datagram is not complete.
    pub fds: Vec<OwnedFd>,
    /// Whether the datagram is complete. If not, the datagram exceeds the buffer or the number of
    /// descriptors that the caller accepts, or this process may not have so many descriptors. All
    /// descriptors of the datagram are closed then.
    pub is_complete: bool,
}

/// Like [`try_receive`], but reads into a buffer. Also returns the beginning of a longer datagram.
///
/// # Errors
/// WouldBlock: no datagram has arrived.
pub fn try_receive_into(
    socket: impl AsFd,
    buffer: &mut [u8],
    max_fds: usize,
) -> io::Result<Datagram> {
    receive_into(socket.as_fd(), buffer, max_fds, libc::MSG_DONTWAIT)
}

fn receive_with(
    socket: BorrowedFd<'_>,
    max_len: usize,
    max_fds: usize,
    flags: i32,
) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; max_len];
    let Datagram { len, fds, is_complete } = receive_into(socket, &mut bytes, max_fds, flags)?;
    if !is_complete {
        return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
    }
    bytes.truncate(len);
    Ok((bytes, fds))
}

fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    max_fds: usize,
    flags: i32,
) -> io::Result<Datagram> {
    assert!(max_fds <= MAX_FDS);
    // SAFETY: computes a number.
    let control_len = unsafe { libc::CMSG_SPACE((max_fds * size_of::<RawFd>()) as u32) } as usize;
    // The buffer consists of words, because a control message must be aligned.
    let mut control = vec![0_u64; control_len.div_ceil(size_of::<u64>())];
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a structure of numbers and pointers, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control_len;
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    let len = retry_interrupted(|| {
        // SAFETY: all pointers and lengths describe the two buffers, which outlive the call.
        let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        usize::try_from(len).map_err(|_| io::Error::last_os_error())
    })?;
    // SAFETY: the kernel has filled the message, whose buffers still exist. Its descriptors are
    // taken this once.
    let mut fds = unsafe { take_fds(&message) };
    let is_truncated = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let is_complete = !is_truncated && fds.len() <= max_fds;
    if !is_complete {
        fds.clear();
    }
    Ok(Datagram { len, fds, is_complete })
}

/// Takes ownership of the descriptors in a received message, including those in a truncated
/// message.
///
/// # Safety
/// recvmsg(2) has filled the message, its buffers exist, and this is the only call for it.
unsafe fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel has set the length of the control buffer to what it has written. These
    // macros return only headers that are complete.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data_len = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..data_len / size_of::<RawFd>() {
                    // The kernel has just opened it for this process.
                    fds.push(OwnedFd::from_raw_fd(first.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    use super::*;
    use crate::memfd;
    use crate::unix_socket::seqpacket_pair;

    /// The number of descriptors of this process that refer to the file. Other tests open and close
    /// descriptors at the same time, so that only the descriptors of one file can be counted.
    fn open_count(file: &File) -> usize {
        let inode = file.metadata().unwrap().ino();
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        let metadata = entries.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
        metadata.filter(|metadata| metadata.ino() == inode).count()
    }

    fn datagram_with(fds: usize) -> (OwnedFd, File) {
        let (ours, theirs) = seqpacket_pair().unwrap();
        let file = memfd::create("score-test").unwrap();
        send(&ours, b"some bytes", &vec![file.as_fd(); fds]).unwrap();
        (theirs, file)
    }

    #[test]
    fn bytes_and_descriptors_arrive_and_are_closed_by_exec() {
        for count in [0, 1, 2, 3, MAX_FDS] {
            let (socket, file) = datagram_with(count);
            let (bytes, fds) = receive(&socket, 10, count).unwrap();
            assert_eq!((&bytes[..], fds.len()), (&b"some bytes"[..], count));
            for fd in &fds {
                let flags = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD).unwrap());
                assert!(flags.contains(FdFlag::FD_CLOEXEC));
            }
            assert_eq!(open_count(&file), 1 + count);
        }
    }

    #[test]
    fn the_descriptors_of_a_truncated_datagram_are_closed() {
        for (fds, max_len, max_fds) in [(3, 9, 3), (3, 10, 2), (4, 10, 1), (1, 10, 0), (9, 0, 0)] {
            let (socket, file) = datagram_with(fds);
            let error = receive(&socket, max_len, max_fds).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE), "{fds} {max_len} {max_fds}");
            assert_eq!(open_count(&file), 1, "{fds} {max_len} {max_fds}");
        }
    }

    #[test]
    fn the_first_bytes_of_a_longer_datagram_are_received_without_its_descriptors() {
        for (fds, len, max_fds, is_complete) in
            [(1, 10, 1, true), (1, 4, 1, false), (2, 10, 1, false), (3, 10, 1, false)]
        {
            let (socket, file) = datagram_with(fds);
            let mut buffer = vec![0; len];
            let datagram = try_receive_into(&socket, &mut buffer, max_fds).unwrap();
            assert_eq!((datagram.len, datagram.is_complete), (len, is_complete), "{fds} {len}");
            assert_eq!(buffer, b"some bytes"[..len]);
            assert_eq!(datagram.fds.len(), usize::from(is_complete));
            assert_eq!(open_count(&file), 1 + usize::from(is_complete), "{fds} {len}");
        }
    }

    #[test]
    fn a_closed_peer_is_an_error_for_the_sender_and_an_empty_datagram_for_the_receiver() {
        let (ours, theirs) = seqpacket_pair().unwrap();
        assert!(
            nix::sys::socket::shutdown(ours.as_raw_fd(), nix::sys::socket::Shutdown::Write).is_ok()
        );
        assert_eq!(receive(&theirs, 10, 1).unwrap().0, b"");
        drop(theirs);
        assert_eq!(send(&ours, b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn an_attempt_does_not_wait() {
        let (ours, theirs) = seqpacket_pair().unwrap();
        let error = try_receive(&theirs, 10, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let full = (0..1 << 20).find_map(|_| try_send(&ours, &[0; 1024], &[]).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }
}
