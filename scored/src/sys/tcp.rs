//! TCP sockets of daemons: listeners, and the options of connections between daemons.

#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// The connections that may wait for accept(2). All daemons of a cluster may connect at once. The
/// kernel reduces this to net.core.somaxconn, whose default is 4096.
const BACKLOG: i32 = 4096;

/// Listens on an address. Port 0 is any free port.
///
/// # Errors
/// See socket(2) and bind(2).
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    // A restarted daemon gets its port although old connections are still in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        // Otherwise net.ipv6.bindv6only could exclude IPv4.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listens on a free port of all addresses of this host, of IPv6 and of IPv4. The address of a peer
/// that connects by IPv4 is an IPv6 address that contains it ([`IpAddr::to_canonical`]).
///
/// # Errors
/// See socket(2) and bind(2).
pub fn listen_on_all_addresses() -> io::Result<TcpListener> {
    match listen((Ipv6Addr::UNSPECIFIED, 0).into()) {
        // The kernel has no IPv6.
        Err(error) if error.raw_os_error() == Some(Errno::EAFNOSUPPORT as i32) => {
            listen((Ipv4Addr::UNSPECIFIED, 0).into())
        }
        result => result,
    }
}

/// Sets the options of a connection to another daemon. `silence_timeout` is how long a peer may be
/// silent, at least 4 s, because keepalive counts whole seconds.
///
/// - Messages are written whole, so that a delay for more bytes (Nagle) would only cost latency.
/// - A peer that acknowledges nothing for `silence_timeout` is lost, and waiting longer is useless
///   (TCP_USER_TIMEOUT). This includes bytes that this daemon has sent before it closed the
///   connection, or before it exited. By default the kernel retransmits them for minutes.
/// - A link with slow heartbeats detects a dead host after five times `silence_timeout`. The kernel
///   detects it after `silence_timeout` and one interval (keepalive), and wakes no daemon for this.
///   On other links a heartbeat arrives before a probe is due. Probes end by TCP_USER_TIMEOUT, not
///   by their number.
///
/// # Errors
/// See setsockopt(2).
pub fn configure_link(stream: &impl AsFd, silence_timeout: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(silence_timeout))?;
    let keepalive =
        TcpKeepalive::new().with_time(silence_timeout).with_interval(silence_timeout / 4);
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    // Promise of `a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job`.
    #[test]
    fn one_listener_accepts_connections_of_both_ip_versions() {
        let listener = listen_on_all_addresses().unwrap();
        listener.set_nonblocking(false).unwrap();
        let port = listener.local_addr().unwrap().port();
        let has_ipv6 = listener.local_addr().unwrap().is_ipv6();
        let addresses = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        for address in addresses.into_iter().filter(|address| has_ipv6 || address.is_ipv4()) {
            let _stream = TcpStream::connect((address, port)).unwrap();
            let (_, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip().to_canonical(), address);
        }
    }

    // Promise of `a_cluster_whose_hosts_have_ipv6_addresses_only_runs_a_job`.
    #[test]
    fn a_connection_ends_if_its_peer_reads_no_byte_for_the_timeout() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listener.set_nonblocking(false).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _peer = listener.accept().unwrap();
        configure_link(&stream, Duration::from_secs(4)).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 64 * 1024]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        // A read time-out would be another error, EAGAIN.
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ETIMEDOUT as i32));
    }

    #[test]
    fn a_listener_of_one_address_is_not_reachable_by_another_address() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
        let error = TcpStream::connect(("127.0.0.2", port)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
