//! The UDP wire (`agent-udp` in the manual's table of devices). It has one socket for each process
//! and link. A run of packets of equal size to one peer is sent as one datagram, which the kernel
//! or the NIC segments (UDP_SEGMENT). The receiver's kernel may coalesce the segments into one
//! datagram again (UDP_GRO).
//!
//! The length of a packet precedes it in 2 bytes, big-endian. Packets that share a datagram are
//! padded, so that the length of each packet is at a multiple of 16 bytes.

mod destination;
mod receive;
mod send;

use super::address::{Address, WireAddress};
use super::endpoint::{OpenedSockets, WireEndpoint, WireKind};
use super::error::{WireError, WireFault};
use super::pool::{BufferPool, SizeClass};
use super::{PACKET_MAX, PacketSource, PeerHandle, ROUTED_MAX, Received, Stats};
use super::{link, sockopt};
use destination::Destination;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage,
    bind, connect, getsockname, socket,
};
use receive::GroDatagram;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Returns the length of the IP and UDP headers in bytes.
fn overhead(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// The size in bytes of the length in front of a packet.
pub const LENGTH_PREFIX_LEN: usize = 2;
/// The bytes in front of a datagram in its buffer, so that packets begin at multiples of 16. The
/// datagram is far from the buffer's beginning, because the kernel copies from the beginning of
/// pages. A copy to an address that is a few bytes further in a page waits for its own stores (60
/// KiB took 34 us instead of 14).
const BUFFER_HEADROOM: usize = 512 - LENGTH_PREFIX_LEN;

/// Returns the distance from the length of a packet of `len` bytes to the length of the next
/// packet.
fn stride(len: usize) -> usize {
    (LENGTH_PREFIX_LEN + len).next_multiple_of(16)
}

/// Returns the length of the longest packet on a route that carries datagrams of `max_len` bytes. A
/// packet of this length needs no padding.
fn packet_mtu(max_len: usize) -> usize {
    (max_len.min(PACKET_MAX + 16) / 16 * 16).saturating_sub(LENGTH_PREFIX_LEN).min(PACKET_MAX)
}

/// The sizes of receive buffers. A datagram that fits into a small buffer is copied there, so that
/// a short message that is kept does not occupy 64 KiB.
const SMALL: SizeClass = SizeClass { size: 2048, count: 2048 };
const LARGE: SizeClass = SizeClass { size: 64 << 10, count: 128 };

/// The number of peers that have a connected socket of their own. These are the peers that are
/// added first.
const MAX_CONNECTED_PEERS: usize = 64;

/// Opens and binds a socket on an interface or a local address.
pub(super) fn open(
    link: Option<&str>,
    address: Option<IpAddr>,
) -> Result<OpenedSockets, WireError> {
    let (ip, link) = match (address, link) {
        (Some(ip), _) => (ip, link::interface_of(ip)?),
        (None, Some(link)) => (link::first_address(link)?, link.to_owned()),
        (None, None) => return Err(WireError::new("UDP needs an interface or an address")),
    };
    let to_error =
        |errno: Errno| WireError::with_errno(format!("{link}: a UDP socket for {ip}"), errno);
    let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp).map_err(to_error)?;
    match SocketAddr::new(ip, 0) {
        SocketAddr::V4(local) => bind(socket.as_raw_fd(), &SockaddrIn::from(local)),
        SocketAddr::V6(local) => {
            let scope = if is_link_local(ip) { link::index(socket.as_fd(), &link)? } else { 0 };
            let local = SocketAddrV6::new(*local.ip(), 0, 0, scope);
            bind(socket.as_raw_fd(), &SockaddrIn6::from(local))
        }
    }
    .map_err(to_error)?;
    configure(&socket, ip).map_err(to_error)?;
    let port = bound_port(&socket).map_err(to_error)?;
    let link_mtu = link::mtu(socket.as_fd(), &link)?;
    let mtu = packet_mtu(link_mtu.saturating_sub(overhead(ip)));
    let address = Address { mtu: mtu as u16, location: WireAddress::Udp(ip, port) };
    Ok(OpenedSockets { kind: WireKind::Udp, link, link_mtu, address, descriptors: vec![socket] })
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn configure(socket: &OwnedFd, ip: IpAddr) -> nix::Result<()> {
    let fd = socket.as_fd();
    sockopt::large_buffers(fd);
    // If the kernel does not support UDP_GRO, datagrams are received one by one.
    let _ = sockopt::set(fd, libc::SOL_UDP, libc::UDP_GRO, &1);
    // A packet that is too long for a router is fragmented. Otherwise it would always be lost,
    // because the packet length is fixed when a context is opened (pmGetMtu).
    if ip.is_ipv4() {
        let mode = libc::IP_PMTUDISC_DONT;
        sockopt::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &mode)
    } else {
        let mode = libc::IPV6_PMTUDISC_DONT;
        sockopt::set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &mode)
    }
}

/// Opens a socket that sends to one peer only. The kernel looks up its route once instead of for
/// each packet.
fn connected(local_ip: IpAddr, to: SocketAddr, neighbour: bool) -> nix::Result<OwnedFd> {
    let family = if local_ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp)?;
    let fd = socket.as_fd();
    // No peer gets the port of this socket, so it need not receive packets.
    let _ = sockopt::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &1);
    match (local_ip, to) {
        (IpAddr::V4(local), SocketAddr::V4(to)) => {
            if neighbour {
                // There is no router on this route, so the packets need neither fragmentation nor
                // an IP identification.
                let mode = libc::IP_PMTUDISC_DO;
                sockopt::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &mode)?;
            }
            bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(local, 0)))?;
            connect(socket.as_raw_fd(), &SockaddrIn::from(to))?;
        }
        (IpAddr::V6(local), SocketAddr::V6(to)) => {
            let local = SocketAddrV6::new(local, 0, 0, to.scope_id());
            bind(socket.as_raw_fd(), &SockaddrIn6::from(local))?;
            connect(socket.as_raw_fd(), &SockaddrIn6::from(to))?;
        }
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    Ok(socket)
}

fn bound_port(socket: &OwnedFd) -> nix::Result<u16> {
    let bound: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    let v4 = bound.as_sockaddr_in().map(SockaddrIn::port);
    v4.or_else(|| bound.as_sockaddr_in6().map(SockaddrIn6::port)).ok_or(Errno::EAFNOSUPPORT)
}

/// The UDP wire of one process.
pub(super) struct Udp {
    socket: OwnedFd,
    link: String,
    local_ip: IpAddr,
    mtu: usize,
    peers: Vec<Destination>,
    /// The buffer in which runs are built.
    staging: Box<[u8]>,
    pool: BufferPool,
    /// Received datagrams with packets that were not returned yet.
    pending_datagrams: VecDeque<GroDatagram>,
    /// Large buffers that are ready for receiving.
    ready_buffers: Vec<u32>,
    /// The number of consecutive calls that received a datagram.
    nonempty_calls: u32,
    fault: Option<WireFault>,
    stats: Stats,
}

impl Udp {
    pub(super) fn attach(endpoint: &WireEndpoint) -> Result<Udp, WireError> {
        let WireAddress::Udp(local_ip, _) = endpoint.decoded_address().location else {
            return Err(WireError::new("endpoint: a UDP socket with another wire's address"));
        };
        let clone = endpoint.socket().try_clone_to_owned();
        let socket = clone.map_err(|_| WireError::last_os_error(endpoint.link_name()))?;
        Ok(Udp {
            socket,
            link: endpoint.link_name().into(),
            local_ip,
            mtu: endpoint.mtu(),
            peers: Vec::new(),
            staging: vec![0; send::STAGING_LEN].into(),
            pool: BufferPool::new(SMALL, LARGE)?,
            pending_datagrams: VecDeque::with_capacity(8),
            ready_buffers: Vec::with_capacity(8),
            nonempty_calls: 0,
            fault: None,
            stats: Stats::default(),
        })
    }

    pub(super) fn add_peer(&mut self, address: &Address) -> Result<PeerHandle, WireError> {
        let WireAddress::Udp(ip, port) = address.location else {
            return Err(WireError::new("a raw wire's address on a UDP wire"));
        };
        if ip.is_ipv4() != self.local_ip.is_ipv4() {
            let local_ip = self.local_ip;
            return Err(WireError::new(format!(
                "{ip}: the IP version differs from that of {local_ip}"
            )));
        }
        let mut mtu = self.mtu.min(address.mtu.into());
        let neighbour = link::is_neighbour(&self.link, ip);
        if !neighbour {
            mtu = mtu.min(packet_mtu(ROUTED_MAX));
        }
        let to = match SocketAddr::new(ip, port) {
            SocketAddr::V6(to) if is_link_local(ip) => {
                // The scope is an interface number of this host, so it is not part of the address.
                let scope = link::index(self.socket.as_fd(), &self.link)?;
                SocketAddr::V6(SocketAddrV6::new(*to.ip(), port, 0, scope))
            }
            to => to,
        };
        let mut peer = Destination::new(to, mtu);
        if self.peers.len() < MAX_CONNECTED_PEERS {
            peer.connected_socket = connected(self.local_ip, to, neighbour).ok();
        }
        self.peers.push(peer);
        Ok(PeerHandle { number: self.peers.len() as u32 - 1, mtu })
    }

    pub(super) fn pointer(&self, received: Received) -> *mut u8 {
        self.pool.pointer(received)
    }

    pub(super) fn spare(&self) -> usize {
        self.pool.free_small().min(self.pool.free_large() + self.ready_buffers.len())
    }

    pub(super) fn buffers(&self) -> usize {
        self.pool.large_count()
    }

    pub(super) fn fault(&mut self) -> &mut Option<WireFault> {
        &mut self.fault
    }

    pub(super) fn stats(&mut self) -> Stats {
        self.stats
    }

    /// Counts packets that could not be sent as lost, and keeps the error.
    fn on_send_failed(&mut self, errno: Errno, packets: usize) {
        self.stats.unsent += packets as u64;
        self.fault = Some(WireFault(errno));
    }
}

impl PacketSource for Udp {
    fn receive(&mut self, out: &mut [Received]) -> usize {
        Udp::receive(self, out)
    }

    fn release(&mut self, buffer: u32) {
        Udp::release(self, buffer);
    }

    fn retain(&mut self, buffer: u32) {
        self.pool.retain(buffer);
    }
}
