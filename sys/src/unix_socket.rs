//! UNIX sockets that std does not create: pairs that preserve message boundaries, and datagram
//! sockets with a name that the kernel chooses. All of them are closed by execve(2).

use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;

use socket2::{Domain, SockAddr, Socket, Type};

/// Two connected SOCK_SEQPACKET sockets. std has pairs of streams ([`UnixStream::pair`]).
///
/// # Errors
/// See socketpair(2).
///
/// [`UnixStream::pair`]: std::os::unix::net::UnixStream::pair
pub fn seqpacket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (first, second) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
    Ok((first.into(), second.into()))
}

/// A non-blocking datagram socket, and the abstract name that the kernel has chosen for it
/// (unix(7), "Autobind feature").
///
/// # Errors
/// See socket(2) and bind(2).
pub fn autobound_datagram_socket() -> io::Result<(UnixDatagram, Vec<u8>)> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM.nonblocking(), None)?;
    // The address without a path: bind(2) then chooses a name.
    socket.bind(&SockAddr::unix("")?)?;
    let socket = UnixDatagram::from(OwnedFd::from(socket));
    let name = match socket.local_addr()?.as_abstract_name() {
        Some(name) => name.to_vec(),
        None => return Err(io::ErrorKind::AddrNotAvailable.into()),
    };
    Ok((socket, name))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::SocketAddr;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    use nix::sys::socket::{SockType, getsockopt, sockopt};

    use super::*;
    use crate::fd_passing::{receive, send};

    fn is_closed_by_exec(socket: impl AsFd) -> bool {
        let flags = FdFlag::from_bits_retain(fcntl(socket, FcntlArg::F_GETFD).unwrap());
        flags.contains(FdFlag::FD_CLOEXEC)
    }

    #[test]
    fn a_pair_preserves_message_boundaries_and_is_closed_by_exec() {
        let (first, second) = seqpacket_pair().unwrap();
        assert_eq!(getsockopt(&first, sockopt::SockType), Ok(SockType::SeqPacket));
        assert!(is_closed_by_exec(&first) && is_closed_by_exec(&second));
        for message in [&b"one"[..], b"two"] {
            send(&first, message, &[]).unwrap();
        }
        assert_eq!(receive(&second, 64, 0).unwrap().0, b"one");
        drop(first);
        assert_eq!(receive(&second, 64, 0).unwrap().0, b"two");
        assert_eq!(receive(&second, 64, 0).unwrap().0, b"");
    }

    #[test]
    fn a_datagram_socket_is_reached_by_the_name_that_the_kernel_has_chosen() {
        let (socket, name) = autobound_datagram_socket().unwrap();
        let (_other, other_name) = autobound_datagram_socket().unwrap();
        assert_ne!(name, other_name);
        assert!(is_closed_by_exec(&socket));
        let mut buffer = [0; 8];
        let error = socket.recv(&mut buffer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let address = SocketAddr::from_abstract_name(name).unwrap();
        UnixDatagram::unbound().unwrap().send_to_addr(b"x", &address).unwrap();
        assert_eq!(socket.recv(&mut buffer).unwrap(), 1);
    }
}
