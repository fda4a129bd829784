//! The AF_PACKET wire: frames of our EtherType, received from a ring that the kernel fills in
//! mapped memory, so that an empty poll is one load. A filter in the kernel gives each process its
//! own frames alone.

mod filter;
mod receive;
mod ring;
mod send;

use super::address::{Address, Place};
use super::endpoint::{Endpoint, Kind, Opened, claim_port};
use super::fault::{Fault, WireError};
use super::pool::{Class, Pool};
use super::raw::{self, Station};
use super::{PACKET_MAX, Peer, Received, Source, Stats, link, sockopt};
use nix::errno::Errno;
use ring::{Geometry, Ring};
use std::os::fd::{AsFd, OwnedFd};

/// The socket, and the one that holds the port.
pub(super) const DESCRIPTORS: usize = 2;

/// The longest packet on a link of this MTU.
pub(super) fn packet_mtu(link_mtu: usize) -> usize {
    link_mtu.saturating_sub(raw::INSIDE).min(PACKET_MAX)
}

/// Opens a socket with its ring and binds it to an interface. `secret`: as in
/// [`Options`](super::Options).
pub(super) fn open(link: &str, secret: Option<u64>) -> Result<Opened, WireError> {
    let (claim, port) = claim_port(link)?;
    let (link_mtu, mac) = (link::mtu(claim.as_fd(), link)?, link::mac(claim.as_fd(), link)?);
    let index = link::index(claim.as_fd(), link)?;
    let refused = |what: &'static str| {
        move |errno: Errno| WireError::of(format!("{link}: AF_PACKET: {what}"), errno)
    };
    let socket = ring::socket().map_err(refused("socket"))?;
    let geometry = Geometry::new(packet_mtu(link_mtu));
    geometry.install(socket.as_fd()).map_err(refused("ring"))?;
    filter::attach(socket.as_fd(), port, secret).map_err(refused("filter"))?;
    sockopt::large_buffers(socket.as_fd());
    ring::bind(socket.as_fd(), index).map_err(refused("bind"))?;
    let address = Address { mtu: packet_mtu(link_mtu) as u16, place: Place::Raw(mac, port) };
    let descriptors = vec![socket, claim];
    Ok(Opened { kind: Kind::Packet, link: link.into(), link_mtu, address, descriptors })
}

/// One process's end.
pub(super) struct PacketWire {
    socket: OwnedFd,
    own: Station,
    mtu: usize,
    peers: Vec<(Station, usize)>,
    ring: Ring,
    pool: Pool,
    fault: Option<Fault>,
    stats: Stats,
}

impl PacketWire {
    pub(super) fn attach(endpoint: &Endpoint) -> Result<PacketWire, WireError> {
        let Place::Raw(mac, port) = endpoint.place().place else {
            return Err(WireError::new("endpoint: a raw socket with a UDP address"));
        };
        let link = endpoint.link_name();
        let clone = endpoint.socket().try_clone_to_owned();
        let socket = clone.map_err(|_| WireError::last(link))?;
        let mtu = endpoint.mtu();
        let geometry = Geometry::new(packet_mtu(endpoint.link_mtu()));
        let ring = Ring::map(socket.as_fd(), geometry)
            .map_err(|error| WireError::new(format!("{link}: the receive ring: {error}")))?;
        let size = packet_mtu(endpoint.link_mtu()).next_multiple_of(64);
        let count = (8 << 20) / size;
        let pool = Pool::new(Class { size, count }, Class { size: 64, count: 0 })?;
        let own = Station { mac, port };
        let (peers, fault, stats) = (Vec::new(), None, Stats::default());
        Ok(PacketWire { socket, own, mtu, peers, ring, pool, fault, stats })
    }

    pub(super) fn add_peer(&mut self, address: &Address) -> Result<Peer, WireError> {
        let Place::Raw(mac, port) = address.place else {
            return Err(WireError::new("a UDP address on a raw wire"));
        };
        let mtu = self.mtu.min(address.mtu.into());
        self.peers.push((Station { mac, port }, mtu));
        Ok(Peer { number: self.peers.len() as u32 - 1, mtu })
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

    pub(super) fn fault(&mut self) -> &mut Option<Fault> {
        &mut self.fault
    }

    pub(super) fn stats(&mut self) -> Stats {
        // The kernel's counter begins anew with each question.
        let asked = sockopt::get::<libc::tpacket_stats>(
            self.socket.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
        );
        self.stats.overrun += asked.map_or(0, |told| u64::from(told.tp_drops));
        self.stats
    }

    fn lost(&mut self, errno: Errno) {
        self.stats.unsent += 1;
        self.fault = Some(Fault(errno));
    }
}

impl Source for PacketWire {
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
