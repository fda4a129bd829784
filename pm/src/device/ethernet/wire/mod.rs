//! Wires send and receive packets of the ethernet device. A wire loses, duplicates and reorders
//! packets as a network does. The reliability machine makes reliable messages from them.
//!
//! | wire | packets | use |
//! |---|---|---|
//! | UDP | datagrams, in runs with segmentation offload | all links |
//! | AF_PACKET | Ethernet frames, received from a mapped ring | trusted links |
//! | AF_XDP | Ethernet frames that bypass the network stack | trusted links, one process per NIC |
//!
//! Both raw wires use an EtherType for local experiments (`ether_header.rs`).
//!
//! The owner of a process (the shepherd) opens a [`WireEndpoint`] for each process and link with
//! its own rights. It passes the description and the descriptors to the process. The process
//! attaches a [`Wire`] to them. After the process has exited, the owner attaches a wire to its
//! duplicates and continues.
//!
//! A wire is not shared between threads. Only the thread that holds the device's progress lock
//! sends, receives and releases buffers. No call of a wire blocks.

mod address;
mod endpoint;
mod error;
mod ether_header;
pub mod fault_injection;
mod link;
mod open;
mod packet;
mod pool;
mod slab;
mod socket_io;
mod sockopt;
mod udp;
mod xdp;

pub use address::{Address, WireAddress};
pub use endpoint::{WireEndpoint, WireKind};
pub use error::{WireError, WireFault};
pub use link::LinkState;
pub use open::{WireOptions, WirePreference};
pub use slab::SendMemory;
pub use udp::LENGTH_PREFIX_LEN as UDP_PREFIX;

use fault_injection::FaultInjector;
use packet::PacketWire;
use std::os::fd::BorrowedFd;
use udp::Udp;
use xdp::Xdp;

/// The longest packet of any wire, including the machine's header. Some links carry longer packets,
/// such as 64 KiB on a loopback interface, but each buffer would have to be as large.
pub const PACKET_MAX: usize = 16 << 10;

/// The longest packet to a peer beyond routers, including the machine's header. IPv6 guarantees an
/// MTU of 1,280 bytes, of which 48 are headers of IPv6 and UDP.
pub const ROUTED_MAX: usize = 1280 - 48;

/// A shorter packet is copied if it is kept, because its buffer may hold many packets.
pub const RX_COPYBREAK: usize = 512;

/// Bytes in user memory of this process. Only the kernel reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserBytes {
    /// The address of the first byte.
    pub addr: usize,
    /// The number of bytes.
    pub len: usize,
}

impl UserBytes {
    /// Returns the addresses of the cache lines of these bytes. They are never dereferenced.
    pub(super) fn cache_lines(self) -> impl Iterator<Item = *const u8> {
        const LINE: usize = 64;
        let first = self.addr / LINE * LINE;
        (first..self.addr.saturating_add(self.len)).step_by(LINE).map(|line| line as *const u8)
    }
}

/// A packet to send. It consists of a header of the machine, a slice of the send slab, and bytes in
/// user memory.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The number that [`Wire::add_peer`] has returned for the receiver.
    pub to: PeerNumber,
    /// The header in front of the payload. It is the only part that is read through a slice.
    pub header: &'a [u8],
    /// The offset of the payload in the slab.
    pub offset: usize,
    /// The payload's length; 0 for a packet that has only a header.
    pub len: usize,
    /// The bytes after the payload. If they are not mapped when the packet is sent, the packet is
    /// lost.
    pub user_bytes: UserBytes,
}

impl Packet<'_> {
    fn total_len(&self) -> usize {
        self.header.len() + self.len + self.user_bytes.len
    }
}

/// A received packet. Its bytes are in a buffer of the wire until [`Wire::release`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The buffer's number. A buffer may hold several packets, and is released once for each of
    /// them.
    pub buffer: u32,
    /// The offset of the packet in the buffer.
    pub offset: u32,
    /// The length of the packet, including the machine's header.
    pub len: u32,
}

/// The statistics of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that the kernel accepted.
    pub sent: u64,
    /// System calls for sending.
    pub send_calls: u64,
    /// Packets that were dropped before they were sent, because the link was down, the packet was
    /// longer than the peer's MTU, or the payload was not in the slab.
    pub unsent: u64,
    /// Packets returned to the caller.
    pub received: u64,
    /// System calls for receiving.
    pub receive_calls: u64,
    /// Received data that was not a whole packet of this wire.
    pub malformed: u64,
    /// The number of times that a packet may have waited and no buffer was free.
    pub starved: u64,
    /// Packets that the kernel dropped because this wire had no room for them, if it reports them.
    pub overrun: u64,
    /// Packets dropped, duplicated and reordered by [`fault_injection`].
    pub injected: u64,
}

/// A peer's number on one wire. Peers are numbered from 0 in the order of adding. The number does
/// not depend on the peer's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerNumber(pub u32);

impl PeerNumber {
    /// The number of the peer that was added last to the list of a wire.
    fn last_of<T>(peers: &[T]) -> PeerNumber {
        PeerNumber(peers.len() as u32 - 1)
    }

    /// The peer's position in the list of its wire.
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The result of [`Wire::add_peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHandle {
    /// The number for [`Packet::to`].
    pub number: PeerNumber,
    /// The longest packet to this peer, including the machine's header: at least [`ROUTED_MAX`] if
    /// the link carries packets of this length.
    pub mtu: usize,
}

enum WireImpl {
    Udp(Box<Udp>),
    Packet(Box<PacketWire>),
    Xdp(Box<Xdp>),
}

/// Makes the same call on any kind of wire.
macro_rules! dispatch {
    ($body:expr, $wire:ident => $call:expr) => {
        match $body {
            WireImpl::Udp($wire) => $call,
            WireImpl::Packet($wire) => $call,
            WireImpl::Xdp($wire) => $call,
        }
    };
}

/// One link of one process.
pub struct Wire {
    inner: WireImpl,
    slab: SendMemory,
    endpoint: WireEndpoint,
    fault_injector: Option<FaultInjector>,
}

impl Wire {
    /// Attaches to an endpoint: maps its rings and allocates the receive buffers. `slab` holds the
    /// payloads of packets.
    ///
    /// # Errors
    /// The descriptors do not match the description, or memory cannot be mapped.
    pub fn attach(endpoint: WireEndpoint, slab: SendMemory) -> Result<Wire, WireError> {
        let inner = match endpoint.kind() {
            WireKind::Udp => WireImpl::Udp(Box::new(Udp::attach(&endpoint)?)),
            WireKind::Packet => WireImpl::Packet(Box::new(PacketWire::attach(&endpoint)?)),
            WireKind::Xdp => WireImpl::Xdp(Box::new(Xdp::attach(&endpoint)?)),
        };
        let fault_injector = endpoint.loss().map(FaultInjector::new);
        Ok(Wire { inner, slab, endpoint, fault_injector })
    }

    /// Returns the kind of the wire.
    pub fn kind(&self) -> WireKind {
        self.endpoint.kind()
    }

    /// Returns the endpoint that the wire is attached to.
    pub fn endpoint(&self) -> &WireEndpoint {
        &self.endpoint
    }

    /// Returns the length of the longest packet that the local link carries, including the
    /// machine's header.
    pub fn mtu(&self) -> usize {
        self.endpoint.mtu()
    }

    /// Adds a peer by its address.
    ///
    /// # Errors
    /// The address is malformed or belongs to another kind of wire.
    pub fn add_peer(&mut self, address: &[u8]) -> Result<PeerHandle, WireError> {
        let address = Address::decode(address)?;
        dispatch!(&mut self.inner, wire => wire.add_peer(&address))
    }

    /// Sends packets in order, and returns how many the kernel accepted. If the queue becomes full,
    /// the rest must be sent again when the descriptor is writable. Packets that cannot be sent
    /// now, because the link is down or there is no route, count as accepted and are lost: see
    /// [`Wire::take_fault`].
    pub fn send(&mut self, batch: &[Packet<'_>]) -> usize {
        dispatch!(&mut self.inner, wire => wire.send(&self.slab, batch))
    }

    /// Receives the waiting packets, at most as many as `out` holds, and returns their number. It
    /// makes at most one system call to receive.
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        match &mut self.fault_injector {
            None => dispatch!(&mut self.inner, wire => wire.receive(out)),
            Some(lossy) => dispatch!(&mut self.inner, wire => lossy.receive(out, wire.as_mut())),
        }
    }

    /// Returns the address of a received packet. The pointer is valid for `received.len` bytes
    /// until the packet is released. It is null if this wire does not hold the packet. On AF_XDP
    /// other processes may be able to write there, so copy bytes before you check them.
    #[inline]
    pub fn pointer(&self, received: Received) -> *mut u8 {
        dispatch!(&self.inner, wire => wire.pointer(received))
    }

    /// Returns a copy of the first bytes of the packet, or None if it is shorter.
    #[inline]
    pub fn copy_prefix<const N: usize>(&self, received: Received) -> Option<[u8; N]> {
        let ptr = self.pointer(received);
        if ptr.is_null() || (received.len as usize) < N {
            return None;
        }
        Some(pool::copy_prefix(ptr))
    }

    /// Releases a packet's buffer. Call this once for each packet. A buffer that is not held is
    /// ignored.
    #[inline]
    pub fn release(&mut self, buffer: u32) {
        dispatch!(&mut self.inner, wire => wire.release(buffer));
    }

    /// Returns the number of buffers that are free for receiving. A machine that keeps packets
    /// which arrived too early must drop some of them before this number is 0. Otherwise it cannot
    /// receive the missing packets.
    pub fn free_buffers(&self) -> usize {
        dispatch!(&self.inner, wire => wire.spare())
    }

    /// Returns the total number of buffers.
    pub fn buffer_count(&self) -> usize {
        dispatch!(&self.inner, wire => wire.buffers())
    }

    /// Returns a descriptor for polling. It is readable when a packet waits, and writable when a
    /// packet may be sent.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.endpoint.socket()
    }

    /// Reads the link's state and MTU from the kernel. A link is up if it is administratively up
    /// and has a carrier. This costs a few system calls: call it from timers, not for each packet.
    pub fn link(&self) -> LinkState {
        self.endpoint.link()
    }

    /// Returns the latest error since the last call: the errno of a packet that could not be sent,
    /// or of a link that went down. This is an ordinary event. The wire continues, and packets are
    /// sent again when the link is up.
    pub fn take_fault(&mut self) -> Option<WireFault> {
        dispatch!(&mut self.inner, wire => wire.fault().take())
    }

    /// Returns the statistics so far. It may make a system call.
    pub fn stats(&mut self) -> Stats {
        let injected = self.fault_injector.as_ref().map_or(0, FaultInjector::injected);
        let stats = dispatch!(&mut self.inner, wire => wire.stats());
        Stats { injected, ..stats }
    }
}

/// A source of received packets: the part of a wire that [`FaultInjector`] needs.
trait PacketSource {
    fn receive(&mut self, out: &mut [Received]) -> usize;
    fn release(&mut self, buffer: u32);
    /// Adds one to the number of releases after which this buffer is free.
    fn retain(&mut self, buffer: u32);
}
