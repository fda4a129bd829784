//! The UDP wire (`agent-udp` in the manual's table of devices). It receives from one socket for
//! each process and link. A run of packets of equal size to one peer is sent as one datagram, which
//! the kernel or the NIC segments (UDP_SEGMENT). The receiver's kernel may coalesce the segments
//! into one datagram again (UDP_GRO).
//!
//! The length of a packet precedes it in 2 bytes, big-endian. Packets that share a datagram are
//! padded, so that each length is at a multiple of 16 bytes.

mod destination;
mod receive;
mod send;

use super::address::{Address, WireAddress};
use super::endpoint::{OpenedSockets, WireEndpoint, WireKind};
use super::error::{WireError, WireFault};
use super::pool::{BufferPool, SizeClass};
use super::{PACKET_MAX, PacketSource, PeerHandle, PeerNumber, ROUTED_MAX, Received, Stats};
use super::{link, sockopt};
use destination::Destination;
use nix::errno::Errno;
use receive::GroDatagram;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Returns the length of the IP and UDP headers in bytes.
fn overhead(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// The size in bytes of the length in front of a packet.
pub const LENGTH_PREFIX_LEN: usize = 2;
/// The bytes in front of a datagram in its buffer, so that packets begin at multiples of 16. The
/// datagram is far from the buffer's beginning, because the kernel copies from the beginning of
/// pages. A copy to an address that is a few bytes further in its page waits for its own stores.
/// Measured, for 60 KiB: 34 us instead of 14.
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
        |error: io::Error| WireError::with_cause(format!("{link}: UDP socket for {ip}"), error);
    let socket = new_socket(ip).map_err(to_error)?;
    let local = with_scope(SocketAddr::new(ip, 0), socket.as_fd(), &link)?;
    socket.bind(&local.into()).map_err(to_error)?;
    configure(&socket, ip).map_err(to_error)?;
    let bound = socket.local_addr().map_err(to_error)?.as_socket();
    let port = bound.map_or(0, |bound| bound.port());
    let link_mtu = link::mtu(socket.as_fd(), &link)?;
    let mtu = packet_mtu(link_mtu.saturating_sub(overhead(ip)));
    let address = Address { mtu: mtu as u16, location: WireAddress::Udp(ip, port) };
    Ok(OpenedSockets {
        kind: WireKind::Udp,
        link,
        link_mtu,
        address,
        descriptors: vec![socket.into()],
    })
}

/// Opens a socket of the IP version of an address.
fn new_socket(ip: IpAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(SocketAddr::new(ip, 0));
    Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))
}

/// Adds the scope to a link-local address. The scope is an interface number of this host, so peers
/// do not send it.
fn with_scope(
    mut address: SocketAddr,
    socket: BorrowedFd<'_>,
    link: &str,
) -> Result<SocketAddr, WireError> {
    if let SocketAddr::V6(v6) = &mut address
        && v6.ip().is_unicast_link_local()
    {
        v6.set_scope_id(link::index(socket, link)?);
    }
    Ok(address)
}

fn configure(socket: &Socket, ip: IpAddr) -> io::Result<()> {
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
fn connected(local_ip: IpAddr, to: SocketAddr, neighbour: bool) -> io::Result<OwnedFd> {
    let socket = new_socket(local_ip)?;
    // Peers do not know the port of this socket, so it need not receive packets.
    let _ = socket.set_recv_buffer_size(1);
    if neighbour && to.is_ipv4() {
        // There is no router on this route, so the packets need neither fragmentation nor an IP
        // identification.
        let mode = libc::IP_PMTUDISC_DO;
        sockopt::set(socket.as_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &mode)?;
    }
    // Both addresses have the same scope, because they are on one link.
    let mut local = to;
    local.set_ip(local_ip);
    local.set_port(0);
    socket.bind(&local.into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
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
        let socket = clone.map_err(|error| WireError::with_cause(endpoint.link_name(), error))?;
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
        let to = with_scope(SocketAddr::new(ip, port), self.socket.as_fd(), &self.link)?;
        let mut peer = Destination::new(to, mtu);
        if self.peers.len() < MAX_CONNECTED_PEERS {
            peer.connected_socket = connected(self.local_ip, to, neighbour).ok();
        }
        self.peers.push(peer);
        Ok(PeerHandle { number: PeerNumber::last_of(&self.peers), mtu })
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
