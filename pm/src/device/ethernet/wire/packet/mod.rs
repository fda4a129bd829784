//! The AF_PACKET wire sends and receives frames of the project's EtherType. The kernel writes
//! received frames to a mapped ring, so that an empty poll is one load. A filter in the kernel
//! passes each process only its own frames.

mod filter;
mod receive;
mod ring;
mod send;

use super::address::{Address, WireAddress};
use super::endpoint::{OpenedSockets, WireEndpoint, WireKind, claim_port};
use super::error::{WireError, WireFault};
use super::ether_header::{self, MacEndpoint, packet_mtu};
use super::pool::{BufferPool, SizeClass};
use super::{PacketSource, PeerHandle, PeerNumber, Received, Stats, link, sockopt};
use nix::errno::Errno;
use ring::{PacketRing, PacketRingGeometry};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The number of descriptors: the socket, and the socket that holds the port.
pub(super) const FD_COUNT: usize = 2;

/// Opens a socket with its ring and binds it to an interface. [`WireOptions`](super::WireOptions)
/// describes `secret`.
pub(super) fn open(link: &str, secret: Option<u64>) -> Result<OpenedSockets, WireError> {
    let (claim, port) = claim_port(link)?;
    let (link_mtu, mac) = (link::mtu(claim.as_fd(), link)?, link::mac(claim.as_fd(), link)?);
    let index = link::index(claim.as_fd(), link)?;
    let to_error = |what: &'static str| {
        move |error: io::Error| WireError::with_cause(format!("{link}: AF_PACKET: {what}"), error)
    };
    let socket = ring::socket().map_err(to_error("socket"))?;
    let geometry = PacketRingGeometry::new(packet_mtu(link_mtu));
    geometry.install(socket.as_fd()).map_err(to_error("ring"))?;
    filter::attach(&socket, port, secret).map_err(to_error("filter"))?;
    sockopt::large_buffers(socket.as_fd());
    ring::bind(&socket, index).map_err(to_error("bind"))?;
    let address =
        Address { mtu: packet_mtu(link_mtu) as u16, location: WireAddress::Raw(mac, port) };
    let descriptors = vec![socket.into(), claim];
    Ok(OpenedSockets { kind: WireKind::Packet, link: link.into(), link_mtu, address, descriptors })
}

/// The AF_PACKET wire of one process.
pub(super) struct PacketWire {
    socket: OwnedFd,
    local: MacEndpoint,
    mtu: usize,
    peers: Vec<(MacEndpoint, usize)>,
    ring: PacketRing,
    pool: BufferPool,
    fault: Option<WireFault>,
    stats: Stats,
}

impl PacketWire {
    pub(super) fn attach(endpoint: &WireEndpoint) -> Result<PacketWire, WireError> {
        let WireAddress::Raw(mac, port) = endpoint.decoded_address().location else {
            return Err(WireError::new("endpoint: a raw socket with a UDP address"));
        };
        let link = endpoint.link_name();
        let clone = endpoint.socket().try_clone_to_owned();
        let socket = clone.map_err(|error| WireError::with_cause(link, error))?;
        let mtu = endpoint.mtu();
        let geometry = PacketRingGeometry::new(packet_mtu(endpoint.link_mtu()));
        let ring = PacketRing::map(socket.as_fd(), geometry)
            .map_err(|error| WireError::new(format!("{link}: AF_PACKET: receive ring: {error}")))?;
        let size = packet_mtu(endpoint.link_mtu()).next_multiple_of(64);
        let count = (8 << 20) / size;
        let pool = BufferPool::new(SizeClass { size, count }, SizeClass { size: 64, count: 0 })?;
        let local = MacEndpoint { mac, port };
        let (peers, fault, stats) = (Vec::new(), None, Stats::default());
        Ok(PacketWire { socket, local, mtu, peers, ring, pool, fault, stats })
    }

    pub(super) fn add_peer(&mut self, address: &Address) -> Result<PeerHandle, WireError> {
        let WireAddress::Raw(mac, port) = address.location else {
            return Err(WireError::new("a UDP address on a raw wire"));
        };
        let mtu = self.mtu.min(address.mtu.into());
        self.peers.push((MacEndpoint { mac, port }, mtu));
        Ok(PeerHandle { number: PeerNumber::last_of(&self.peers), mtu })
    }

    pub(super) fn pointer(&self, received: Received) -> *mut u8 {
        self.pool.pointer(received)
    }

    pub(super) fn spare(&self) -> usize {
        self.pool.free_small()
    }

    pub(super) fn buffers(&self) -> usize {
        self.pool.small_count()
    }

    pub(super) fn fault(&mut self) -> &mut Option<WireFault> {
        &mut self.fault
    }

    pub(super) fn stats(&mut self) -> Stats {
        // Reading resets the kernel's counter.
        let statistics = sockopt::get::<libc::tpacket_stats>(
            self.socket.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
        );
        self.stats.overrun += statistics.map_or(0, |counters| u64::from(counters.tp_drops));
        self.stats
    }

    fn on_send_failed(&mut self, errno: Errno) {
        self.stats.unsent += 1;
        self.fault = Some(WireFault(errno));
    }
}

impl PacketSource for PacketWire {
    fn receive(&mut self, out: &mut [Received]) -> usize {
        PacketWire::receive(self, out)
    }

    fn release(&mut self, buffer: u32) {
        PacketWire::release(self, buffer);
    }

    fn retain(&mut self, buffer: u32) {
        self.pool.retain(buffer);
    }
}
