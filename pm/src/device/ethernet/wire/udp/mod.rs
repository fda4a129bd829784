//! The UDP wire (`agent-udp` in the manual's table of devices): one socket per process and link.
//! Runs of packets of equal size to one peer go out as one datagram that the kernel or the NIC
//! segments (UDP_SEGMENT), and come in as one (UDP_GRO).
//!
//! Before each packet its length stands in 2 bytes, big-endian; packets that share a datagram are
//! padded so that the next one's length stands a multiple of 16 bytes behind.

mod destination;
mod receive;
mod send;

use super::address::{Address, Place};
use super::endpoint::{Endpoint, Kind, Opened};
use super::fault::{Fault, WireError};
use super::pool::{Class, Pool};
use super::{PACKET_MAX, Peer, ROUTED_MAX, Received, Source, Stats};
use super::{link, sockopt};
use destination::Destination;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, SockaddrStorage,
    bind, connect, getsockname, socket,
};
use receive::Segments;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Bytes of IP and UDP headers.
fn overhead(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// Bytes of the length before a packet.
pub const PREFIX: usize = 2;
/// Bytes before a datagram in its buffer, so that packets begin at multiples of 16. Far from the
/// buffer's beginning: the kernel copies from the beginning of pages, and a copy to an address that
/// is a few bytes behind in the page waits for its own stores (60 KiB took 34 us instead of 14).
const LEAD: usize = 512 - PREFIX;

/// From one packet's length to the next one's.
fn stride(len: usize) -> usize {
    (PREFIX + len).next_multiple_of(16)
}

/// The longest packet on a way that carries datagrams of `room` bytes: one that needs no padding.
fn packet_mtu(room: usize) -> usize {
    (room.min(PACKET_MAX + 16) / 16 * 16).saturating_sub(PREFIX).min(PACKET_MAX)
}

/// Receive buffers. A datagram that is not longer than a small one is copied there, so that a
/// short message which is kept does not keep 64 KiB.
const SMALL: Class = Class { size: 2048, count: 2048 };
const LARGE: Class = Class { size: 64 << 10, count: 128 };

/// How many peers get a socket of their own to be sent to: those that are added first.
const CONNECTED: usize = 64;

/// Opens and binds a socket.
pub(super) fn open(link: Option<&str>, address: Option<IpAddr>) -> Result<Opened, WireError> {
    let (ip, link) = match (address, link) {
        (Some(ip), _) => (ip, link::of_address(ip)?),
        (None, Some(link)) => (link::first_address(link)?, link.to_owned()),
        (None, None) => return Err(WireError::new("UDP needs an interface or an address")),
    };
    let refused = |errno: Errno| WireError::of(format!("{link}: a UDP socket for {ip}"), errno);
    let family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp).map_err(refused)?;
    match SocketAddr::new(ip, 0) {
        SocketAddr::V4(own) => bind(socket.as_raw_fd(), &SockaddrIn::from(own)),
        SocketAddr::V6(own) => {
            let scope = if is_link_local(ip) { link::index(socket.as_fd(), &link)? } else { 0 };
            let own = SocketAddrV6::new(*own.ip(), 0, 0, scope);
            bind(socket.as_raw_fd(), &SockaddrIn6::from(own))
        }
    }
    .map_err(refused)?;
    set_up(&socket, ip).map_err(refused)?;
    let port = own_port(&socket).map_err(refused)?;
    let link_mtu = link::mtu(socket.as_fd(), &link)?;
    let mtu = packet_mtu(link_mtu.saturating_sub(overhead(ip)));
    let address = Address { mtu: mtu as u16, place: Place::Udp(ip, port) };
    Ok(Opened { kind: Kind::Udp, link, link_mtu, address, descriptors: vec![socket] })
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

fn set_up(socket: &OwnedFd, ip: IpAddr) -> nix::Result<()> {
    let fd = socket.as_fd();
    sockopt::large_buffers(fd);
    // Refused by kernels that cannot; then datagrams come one by one.
    let _ = sockopt::set(fd, libc::SOL_UDP, libc::UDP_GRO, &1);
    // A packet that turns out too long for a router on its way is fragmented rather than lost
    // for ever: the packet length is fixed when a context is opened (pmGetMtu).
    if ip.is_ipv4() {
        let how = libc::IP_PMTUDISC_DONT;
        sockopt::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &how)
    } else {
        let how = libc::IPV6_PMTUDISC_DONT;
        sockopt::set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &how)
    }
}

/// A socket that sends to one peer: the kernel looks its way up once and not for each packet.
fn connected(own: IpAddr, to: SocketAddr, neighbour: bool) -> nix::Result<OwnedFd> {
    let family = if own.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(family, SockType::Datagram, flags, SockProtocol::Udp)?;
    let fd = socket.as_fd();
    // Nobody is told its port; what comes there nevertheless is not kept.
    let _ = sockopt::set(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &1);
    match (own, to) {
        (IpAddr::V4(own), SocketAddr::V4(to)) => {
            if neighbour {
                // Nothing on the way can find a packet too long, and it needs no number.
                let how = libc::IP_PMTUDISC_DO;
                sockopt::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &how)?;
            }
            bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(own, 0)))?;
            connect(socket.as_raw_fd(), &SockaddrIn::from(to))?;
        }
        (IpAddr::V6(own), SocketAddr::V6(to)) => {
            let own = SocketAddrV6::new(own, 0, 0, to.scope_id());
            bind(socket.as_raw_fd(), &SockaddrIn6::from(own))?;
            connect(socket.as_raw_fd(), &SockaddrIn6::from(to))?;
        }
        _ => return Err(Errno::EAFNOSUPPORT),
    }
    Ok(socket)
}

fn own_port(socket: &OwnedFd) -> nix::Result<u16> {
    let own: SockaddrStorage = getsockname(socket.as_raw_fd())?;
    let four = own.as_sockaddr_in().map(SockaddrIn::port);
    four.or_else(|| own.as_sockaddr_in6().map(SockaddrIn6::port)).ok_or(Errno::EAFNOSUPPORT)
}

/// One process's end.
pub(super) struct Udp {
    socket: OwnedFd,
    link: String,
    own: IpAddr,
    mtu: usize,
    peers: Vec<Destination>,
    /// Where runs are put together.
    staging: Box<[u8]>,
    pool: Pool,
    /// Datagrams whose packets are not all handed out.
    waiting: VecDeque<Segments>,
    /// Large buffers that are ready to be received into.
    landing: Vec<u32>,
    /// How many calls in a row found something.
    streak: u32,
    fault: Option<Fault>,
    stats: Stats,
}

impl Udp {
    pub(super) fn attach(endpoint: &Endpoint) -> Result<Udp, WireError> {
        let Place::Udp(own, _) = endpoint.place().place else {
            return Err(WireError::new("endpoint: a UDP socket with another wire's address"));
        };
        let clone = endpoint.socket().try_clone_to_owned();
        let socket = clone.map_err(|_| WireError::last(endpoint.link_name()))?;
        Ok(Udp {
            socket,
            link: endpoint.link_name().into(),
            own,
            mtu: endpoint.mtu(),
            peers: Vec::new(),
            staging: vec![0; send::STAGING].into(),
            pool: Pool::new(SMALL, LARGE)?,
            waiting: VecDeque::with_capacity(8),
            landing: Vec::with_capacity(8),
            streak: 0,
            fault: None,
            stats: Stats::default(),
        })
    }

    pub(super) fn add_peer(&mut self, address: &Address) -> Result<Peer, WireError> {
        let Place::Udp(ip, port) = address.place else {
            return Err(WireError::new("a raw wire's address on a UDP wire"));
        };
        if ip.is_ipv4() != self.own.is_ipv4() {
            let own = self.own;
            return Err(WireError::new(format!("{ip} is not of the IP version of {own}")));
        }
        let mut mtu = self.mtu.min(address.mtu.into());
        let neighbour = link::is_neighbour(&self.link, ip);
        if !neighbour {
            mtu = mtu.min(packet_mtu(ROUTED_MAX));
        }
        let to = match SocketAddr::new(ip, port) {
            SocketAddr::V6(to) if is_link_local(ip) => {
                // The scope is a number of this host's.
                let scope = link::index(self.socket.as_fd(), &self.link)?;
                SocketAddr::V6(SocketAddrV6::new(*to.ip(), port, 0, scope))
            }
            to => to,
        };
        let mut peer = Destination::new(to, mtu);
        if self.peers.len() < CONNECTED {
            peer.connected = connected(self.own, to, neighbour).ok();
        }
        self.peers.push(peer);
        Ok(Peer { number: self.peers.len() as u32 - 1, mtu })
    }

    pub(super) fn pointer(&self, received: Received) -> *mut u8 {
        self.pool.pointer(received)
    }

    pub(super) fn spare(&self) -> usize {
        self.pool.free_small().min(self.pool.free_large() + self.landing.len())
    }

    pub(super) fn buffers(&self) -> usize {
        self.pool.large_count()
    }

    pub(super) fn fault(&mut self) -> &mut Option<Fault> {
        &mut self.fault
    }

    pub(super) fn stats(&mut self) -> Stats {
        self.stats
    }

    /// A packet could not travel; it counts as lost on its way.
    fn lost(&mut self, errno: Errno, packets: usize) {
        self.stats.unsent += packets as u64;
        self.fault = Some(Fault(errno));
    }
}

impl Source for Udp {
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
