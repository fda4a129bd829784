//! Wires: how the packets of PM/Ethernet travel. A wire loses, duplicates and reorders packets as a
//! network does; the reliability machine above makes messages of them.
//!
//! | wire | packets are | where |
//! |---|---|---|
//! | UDP | datagrams, in runs with segmentation offload | everywhere |
//! | AF_PACKET | Ethernet frames of an own EtherType, received from a mapped ring | trusted links |
//! | AF_XDP | the same, before the kernel's network stack | trusted links, one a NIC |
//!
//! The owner of a job (the shepherd) opens an [`Endpoint`] for each process and link, with its
//! rights, and passes description and descriptors; the process attaches a [`Wire`] to them. After
//! the process has died, its owner attaches one to its own duplicates and goes on.
//!
//! A wire is not shared: whoever has it exclusively (the device's progress lock) sends, receives
//! and gives buffers back. No call of a wire blocks.

mod address;
mod endpoint;
mod error;
mod ether_header;
pub mod fault_injection;
mod link;
mod packet;
mod pool;
mod slab;
mod socket_io;
mod sockopt;
mod udp;
mod xdp;

pub use address::{Address, WireAddress};
pub use endpoint::{WireEndpoint, WireKind, WireOptions, WirePreference};
pub use error::{WireError, WireFault};
pub use link::LinkState;
pub use slab::SendMemory;
pub use udp::LENGTH_PREFIX_LEN as UDP_PREFIX;

use fault_injection::FaultInjector;
use packet::PacketWire;
use std::os::fd::BorrowedFd;
use udp::Udp;
use xdp::Xdp;

/// The longest packet of any wire, header of the machine included, whatever the link would carry
/// (a loopback's 64 KiB would make each buffer as large).
pub const PACKET_MAX: usize = 16 << 10;

/// The longest packet that reaches a peer behind routers: IPv6 guarantees 1,280 bytes, and 48 are
/// headers of IPv6 and UDP.
pub const ROUTED_MAX: usize = 1280 - 48;

/// Who keeps a packet that is shorter copies it: it may lie in a buffer for many.
pub const RX_COPYBREAK: usize = 512;

/// Bytes of this process, wherever they lie. Only the kernel looks at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserBytes {
    /// The first one's address.
    pub addr: usize,
    /// How many.
    pub len: usize,
}

impl UserBytes {
    /// The cache lines that they lie in. Nobody looks there.
    pub(super) fn cache_lines(self) -> impl Iterator<Item = *const u8> {
        const LINE: usize = 64;
        let first = self.addr / LINE * LINE;
        (first..self.addr.saturating_add(self.len)).step_by(LINE).map(|line| line as *const u8)
    }
}

/// A packet to send: a header of the machine, then a slice of the send slab, then other bytes.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The peer, as [`Wire::add_peer`] numbered it.
    pub to: u32,
    /// Goes before the payload; the only part that is read from here.
    pub header: &'a [u8],
    /// Where the payload begins in the slab.
    pub offset: usize,
    /// The payload's length; 0 for a packet of header alone.
    pub len: usize,
    /// Goes behind it. What is not mapped when the packet is sent is a lost packet.
    pub user_bytes: UserBytes,
}

impl Packet<'_> {
    fn total_len(&self) -> usize {
        self.header.len() + self.len + self.user_bytes.len
    }
}

/// A packet that came. Its bytes lie in a buffer of the wire until [`Wire::release`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The buffer's number; several packets may lie in one, and each releases it once.
    pub buffer: u32,
    /// Where the packet begins in it.
    pub offset: u32,
    /// Its length, header of the machine included.
    pub len: u32,
}

/// What a wire has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that the kernel took.
    pub sent: u64,
    /// System calls for it.
    pub send_calls: u64,
    /// Packets that were given up on the way out: the link was down, or the packet was longer than
    /// the peer's way carries, or not in the slab.
    pub unsent: u64,
    /// Packets handed out.
    pub received: u64,
    /// System calls for it.
    pub receive_calls: u64,
    /// What came and was not a whole packet of this wire.
    pub malformed: u64,
    /// Times that something waited and no buffer was free.
    pub starved: u64,
    /// Packets that the kernel dropped for want of room here, as far as it tells.
    pub overrun: u64,
    /// Packets dropped, duplicated and reordered on purpose ([`fault_injection`]).
    pub injected: u64,
}

/// Answers of [`Wire::add_peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerHandle {
    /// Goes into [`Packet::to`]. Numbers count from 0 in the order of adding.
    pub number: u32,
    /// The longest packet to this peer, header of the machine included: at least [`ROUTED_MAX`]
    /// where the link carries it.
    pub mtu: usize,
}

enum WireImpl {
    Udp(Box<Udp>),
    Packet(Box<PacketWire>),
    Xdp(Box<Xdp>),
}

/// The same call on whichever wire it is.
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
    /// Takes an endpoint into use: maps its rings, makes the receive buffers. `slab` is where
    /// payloads of packets lie.
    ///
    /// # Errors
    /// The descriptors are not what the description says, or memory cannot be mapped.
    pub fn attach(endpoint: WireEndpoint, slab: SendMemory) -> Result<Wire, WireError> {
        let inner = match endpoint.kind() {
            WireKind::Udp => WireImpl::Udp(Box::new(Udp::attach(&endpoint)?)),
            WireKind::Packet => WireImpl::Packet(Box::new(PacketWire::attach(&endpoint)?)),
            WireKind::Xdp => WireImpl::Xdp(Box::new(Xdp::attach(&endpoint)?)),
        };
        let fault_injector = endpoint.loss().map(FaultInjector::new);
        Ok(Wire { inner, slab, endpoint, fault_injector })
    }

    /// Which wire it is.
    pub fn kind(&self) -> WireKind {
        self.endpoint.kind()
    }

    /// The endpoint it was attached to.
    pub fn endpoint(&self) -> &WireEndpoint {
        &self.endpoint
    }

    /// The longest packet that the own link carries, header of the machine included.
    pub fn mtu(&self) -> usize {
        self.endpoint.mtu()
    }

    /// Makes a peer's address known.
    ///
    /// # Errors
    /// The address is malformed or of another wire.
    pub fn add_peer(&mut self, address: &[u8]) -> Result<PeerHandle, WireError> {
        let address = Address::decode(address)?;
        dispatch!(&mut self.inner, wire => wire.add_peer(&address))
    }

    /// Sends packets, in order, and answers how many the kernel took; the rest found its queue
    /// full: once the descriptor is writable they may be sent again. Packets that cannot travel now
    /// (the link is down, no route) count as taken and lost: see [`Wire::take_fault`].
    pub fn send(&mut self, batch: &[Packet<'_>]) -> usize {
        dispatch!(&mut self.inner, wire => wire.send(&self.slab, batch))
    }

    /// Receives what waits, at most as much as `out` holds, and answers how many packets it put
    /// there. One system call at most; one that finds nothing is the cheapest.
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        match &mut self.fault_injector {
            None => dispatch!(&mut self.inner, wire => wire.receive(out)),
            Some(lossy) => dispatch!(&mut self.inner, wire => lossy.receive(out, wire.as_mut())),
        }
    }

    /// Where a received packet lies. The pointer is valid for `received.len` bytes until the
    /// packet is released; null for what this wire never handed out. Other processes may be able
    /// to write there (AF_XDP): copy what is checked.
    #[inline]
    pub fn pointer(&self, received: Received) -> *mut u8 {
        dispatch!(&self.inner, wire => wire.pointer(received))
    }

    /// A copy of the packet's beginning; None where it is shorter.
    #[inline]
    pub fn copy_prefix<const N: usize>(&self, received: Received) -> Option<[u8; N]> {
        let ptr = self.pointer(received);
        if ptr.is_null() || (received.len as usize) < N {
            return None;
        }
        Some(pool::copy_prefix(ptr))
    }

    /// Gives a packet's buffer back. Each packet once; what is not held is ignored.
    #[inline]
    pub fn release(&mut self, buffer: u32) {
        dispatch!(&mut self.inner, wire => wire.release(buffer));
    }

    /// Buffers that are free to be received into. A machine that keeps packets which came too
    /// early must drop some of them before this is 0, or what they wait for cannot come.
    pub fn free_buffers(&self) -> usize {
        dispatch!(&self.inner, wire => wire.spare())
    }

    /// All of its buffers.
    pub fn buffer_count(&self) -> usize {
        dispatch!(&self.inner, wire => wire.buffers())
    }

    /// To poll: readable when a packet waits, writable when one may be sent.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.endpoint.socket()
    }

    /// Asks the kernel whether the link is up (administratively, and has a carrier) and for its
    /// MTU. A system call or two: for timers, not for each packet.
    pub fn link(&self) -> LinkState {
        self.endpoint.link()
    }

    /// What went wrong since this was last asked: the errno of a packet that could not travel or
    /// of a link that went down. An ordinary event: the wire goes on, and packets travel again
    /// when the link is back.
    pub fn take_fault(&mut self) -> Option<WireFault> {
        dispatch!(&mut self.inner, wire => wire.fault().take())
    }

    /// What it has done so far. May ask the kernel.
    pub fn stats(&mut self) -> Stats {
        let injected = self.fault_injector.as_ref().map_or(0, FaultInjector::injected);
        let stats = dispatch!(&mut self.inner, wire => wire.stats());
        Stats { injected, ..stats }
    }
}

/// Where received packets come from and go back to: what [`FaultInjector`] needs of a wire.
trait PacketSource {
    fn receive(&mut self, out: &mut [Received]) -> usize;
    fn release(&mut self, buffer: u32);
    /// One more release will come for this packet.
    fn retain(&mut self, buffer: u32);
}
