//! The UDP wire (`agent-udp` in the manual's table of devices): one socket for each process and
//! link. Runs of packets of equal size to one peer are sent as one datagram that the kernel or the
//! NIC segments (UDP_SEGMENT), and are received as one (UDP_GRO).
//!
//! Each packet is preceded by its length in 2 bytes, big-endian. Packets that share a datagram are
//! padded, so that the next packet's length follows at a multiple of 16 bytes.

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

/// Bytes of IP and UDP headers.
fn overhead(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// Bytes of the length in front of a packet.
pub const LENGTH_PREFIX_LEN: usize = 2;
/// Bytes in front of a datagram in its buffer, so that packets begin at multiples of 16. It is far
/// from the buffer's beginning: the kernel copies from the beginning of pages, and a copy to an
/// address a few bytes further in the page waits for its own stores (60 KiB took 34 us instead of
/// 14).
const BUFFER_HEADROOM: usize = 512 - LENGTH_PREFIX_LEN;

/// The distance from one packet's length to the next one's.
fn stride(len: usize) -> usize {
    (LENGTH_PREFIX_LEN + len).next_multiple_of(16)
}

/// The longest packet on a route that carries datagrams of `max_len` bytes: one that needs no
/// padding.
fn packet_mtu(max_len: usize) -> usize {
    (max_len.min(PACKET_MAX + 16) / 16 * 16).saturating_sub(LENGTH_PREFIX_LEN).min(PACKET_MAX)
}

/// Receive buffers. A datagram that fits a small buffer is copied there, so that a short message
/// that is kept does not occupy 64 KiB.
const SMALL: SizeClass = SizeClass { size: 2048, count: 2048 };
const LARGE: SizeClass = SizeClass { size: 64 << 10, count: 128 };

/// The number of peers with a connected socket of their own: those that are added first.
const MAX_CONNECTED_PEERS: usize = 64;

/// Opens and binds a socket.
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
    // Some kernels do not support it; datagrams are then received one by one.
    let _ = sockopt::set(fd, libc::SOL_UDP, libc::UDP_GRO, &1);
    // A packet that is too long for a router is fragmented rather than always lost: the packet
    // length is fixed when a context is opened (pmGetMtu).
    if ip.is_ipv4() {
        let mode = libc::IP_PMTUDISC_DONT;
        sockopt::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &mode)
    } else {
        let mode = libc::IPV6_PMTUDISC_DONT;
        sockopt::set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &mode)
    }
}

/// A socket that sends to one peer: the kernel looks up the route once and not for each packet.
fn connected(local_ip: IpAddr, to: SocketAddr, neighbour: bool) -> nix::Result<OwnedFd> {
    let family = if local_ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp)?;
    let fd = socket.as_fd();
    // No peer learns its port; packets that arrive there are dropped.
    let _ = sockopt::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &1);
    match (local_ip, to) {
        (IpAddr::V4(local), SocketAddr::V4(to)) => {
            if neighbour {
                // No router can find the packet too long, and it needs no IP identification.
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
    /// The buffer for building runs.
    staging: Box<[u8]>,
    pool: BufferPool,
    /// Datagrams with packets that were not returned yet.
    pending_datagrams: VecDeque<GroDatagram>,
    /// Large buffers that are ready for receiving.
    ready_buffers: Vec<u32>,
    /// The number of calls in a row that received something.
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
            return Err(WireError::new(format!("{ip} is not of the IP version of {local_ip}")));
        }
        let mut mtu = self.mtu.min(address.mtu.into());
        let neighbour = link::is_neighbour(&self.link, ip);
        if !neighbour {
            mtu = mtu.min(packet_mtu(ROUTED_MAX));
        }
        let to = match SocketAddr::new(ip, port) {
            SocketAddr::V6(to) if is_link_local(ip) => {
                // The scope is a number of this host.
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

    /// A packet could not be sent; it counts as lost.
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
