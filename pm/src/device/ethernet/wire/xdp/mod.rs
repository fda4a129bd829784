//! The AF_XDP wire in copy mode (SKB mode). A small BPF program at the interface passes the frames
//! of this process to its socket before the kernel's network stack processes them. All other frames
//! go to the network stack. The program is attached by a BPF link, and the kernel detaches it when
//! the last descriptor of that link is closed.

mod bpf_program;
mod receive;
mod rings;
mod send;
mod umem;

use super::address::{Address, WireAddress};
use super::endpoint::{OpenedSockets, WireEndpoint, WireKind, claim_port};
use super::error::{WireError, WireFault};
use super::ether_header::{self, MacEndpoint, packet_mtu};
use super::{PacketSource, PeerHandle, PeerNumber, Received, Stats, link, sockopt};
use crate::rma::UserMemoryCopier;
use nix::errno::Errno;
use rings::{XskRing, XskRingKind};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
pub(super) use umem::domain;
use umem::{ChunkAllocator, Umem};

/// The number of descriptors: the socket, the memory, the program's BPF link, and the socket that
/// holds the port.
pub(super) const FD_COUNT: usize = 4;
const UMEM_FD_INDEX: usize = 1;

/// The longest time to retry a bind. After a process has exited, the kernel releases its queue with
/// a delay.
const BIND_TIMEOUT: Duration = Duration::from_millis(600);
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Returns the length of the longest packet that fits into a chunk, on a link of this MTU.
fn mtu(link_mtu: usize) -> usize {
    packet_mtu(link_mtu).min(umem::CHUNK_MAX - umem::HEADROOM - ether_header::HEADER)
}

/// Opens a socket with its memory, binds it to the interface's only queue and attaches the program.
/// [`WireOptions`](super::WireOptions) describes `secret`.
pub(super) fn open(link: &str, secret: Option<u64>) -> Result<OpenedSockets, WireError> {
    let (claim, port) = claim_port(link)?;
    let fd = claim.as_fd();
    let (link_mtu, mac) = (link::mtu(fd, link)?, link::mac(fd, link)?);
    let index = link::index(fd, link)?;
    let queues = link::receive_queues(fd, link);
    if queues > 1 {
        // Frames may arrive at any queue, but a socket serves only one.
        return Err(WireError::new(format!(
            "{link}: AF_XDP: {queues} receive queues, but only 1 is supported"
        )));
    }
    if packet_mtu(link_mtu) > mtu(link_mtu) {
        // A frame must fit into a page, and a smaller MTU than that of the link would cost
        // bandwidth.
        return Err(WireError::new(format!("{link}: AF_XDP: no room for an MTU of {link_mtu}")));
    }
    let to_error = |what: &'static str| {
        move |error: io::Error| WireError::with_cause(format!("{link}: AF_XDP: {what}"), error)
    };
    let socket = umem::socket().map_err(to_error("socket"))?;
    let memory = umem::create_memory(link_mtu).map_err(to_error("memory"))?;
    umem::register(socket.as_fd(), memory.as_fd(), link_mtu).map_err(to_error("memory"))?;
    retry_while_busy(|| umem::bind(&socket, index)).map_err(to_error("bind"))?;
    let local = MacEndpoint { mac, port };
    let program =
        bpf_program::load_for(socket.as_fd(), local, secret).map_err(to_error("program"))?;
    let attach = || bpf_program::attach(program.as_fd(), index);
    let bpf_link = retry_while_busy(attach).map_err(to_error("attaching the program"))?;
    let address = Address { mtu: mtu(link_mtu) as u16, location: WireAddress::Raw(mac, port) };
    let descriptors = vec![socket.into(), memory, bpf_link, claim];
    Ok(OpenedSockets { kind: WireKind::Xdp, link: link.into(), link_mtu, address, descriptors })
}

/// Retries `step` for a bounded time while the queue or the interface is still busy with a process
/// that has just exited.
fn retry_while_busy<T>(mut step: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match step() {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy
                    && start.elapsed() < BIND_TIMEOUT =>
            {
                std::thread::sleep(BIND_RETRY_INTERVAL)
            }
            other => return other,
        }
    }
}

/// The AF_XDP wire of one process.
pub(super) struct Xdp {
    socket: OwnedFd,
    local: MacEndpoint,
    mtu: usize,
    peers: Vec<(MacEndpoint, usize)>,
    umem: Umem,
    fill_ring: XskRing<u64>,
    completion_ring: XskRing<u64>,
    rx_ring: XskRing<libc::xdp_desc>,
    tx_ring: XskRing<libc::xdp_desc>,
    chunks: ChunkAllocator,
    copier: UserMemoryCopier,
    /// Whether a system call is needed to make the kernel send the frames in the send ring.
    wakeup_pending: bool,
    /// The kernel's error, if the last call could not send.
    send_error: Option<Errno>,
    fault: Option<WireFault>,
    stats: Stats,
}

impl Xdp {
    pub(super) fn attach(endpoint: &WireEndpoint) -> Result<Xdp, WireError> {
        let WireAddress::Raw(mac, port) = endpoint.decoded_address().location else {
            return Err(WireError::new("endpoint: a raw socket with a UDP address"));
        };
        let link = endpoint.link_name();
        let to_error = |what: &'static str| {
            move |error: io::Error| WireError::new(format!("{link}: AF_XDP: {what}: {error}"))
        };
        let socket = endpoint.socket().try_clone_to_owned().map_err(to_error("socket"))?;
        let memory = endpoint.descriptor(UMEM_FD_INDEX);
        let umem = Umem::map(memory, endpoint.link_mtu()).map_err(to_error("memory"))?;
        let fd = socket.as_fd();
        let mut xdp = Xdp {
            local: MacEndpoint { mac, port },
            mtu: endpoint.mtu(),
            peers: Vec::new(),
            fill_ring: XskRing::map(fd, XskRingKind::Fill).map_err(to_error("fill ring"))?,
            completion_ring: XskRing::map(fd, XskRingKind::Completion)
                .map_err(to_error("completion ring"))?,
            rx_ring: XskRing::map(fd, XskRingKind::Receive).map_err(to_error("receive ring"))?,
            tx_ring: XskRing::map(fd, XskRingKind::Send).map_err(to_error("send ring"))?,
            chunks: ChunkAllocator::new(),
            copier: UserMemoryCopier::new(),
            umem,
            socket,
            wakeup_pending: false,
            send_error: None,
            fault: None,
            stats: Stats::default(),
        };
        xdp.recover_chunks();
        Ok(xdp)
    }

    /// Determines the use of each chunk. At the first attach, all chunks are free. After a process
    /// has exited, the rings show which chunks are in use, and the others are free.
    fn recover_chunks(&mut self) {
        let chunk_of = |offset: u64| self.umem.chunk_index(offset);
        let filled: Vec<_> = self.fill_ring.pending().filter_map(chunk_of).collect();
        let received: Vec<_> =
            self.rx_ring.pending().filter_map(|one| self.umem.chunk_index(one.addr)).collect();
        let outgoing: Vec<_> =
            self.tx_ring.pending().filter_map(|one| self.umem.chunk_index(one.addr)).collect();
        let completed: Vec<_> = self.completion_ring.pending().filter_map(chunk_of).collect();
        self.chunks.recover(&filled, &received, &outgoing, &completed);
        while let Some(chunk) = self.chunks.next_to_fill() {
            if !self.fill_ring.push(self.umem.chunk_offset(chunk)) {
                break;
            }
        }
        self.wakeup_pending = !outgoing.is_empty();
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
        if self.chunks.is_held(received.buffer) {
            self.umem.pointer(received)
        } else {
            std::ptr::null_mut()
        }
    }

    pub(super) fn spare(&self) -> usize {
        self.chunks.spare()
    }

    pub(super) fn buffers(&self) -> usize {
        umem::RECEIVE_CHUNKS
    }

    pub(super) fn fault(&mut self) -> &mut Option<WireFault> {
        &mut self.fault
    }

    pub(super) fn stats(&mut self) -> Stats {
        let fd = self.socket.as_fd();
        let statistics: io::Result<libc::xdp_statistics> =
            sockopt::get(fd, libc::SOL_XDP, libc::XDP_STATISTICS);
        self.stats.overrun = statistics.map_or(self.stats.overrun, |counters| {
            counters.rx_dropped + counters.rx_ring_full + counters.rx_fill_ring_empty_descs
        });
        self.stats
    }

    fn on_send_failed(&mut self, errno: Errno) {
        self.stats.unsent += 1;
        self.fault = Some(WireFault(errno));
    }
}

impl PacketSource for Xdp {
    fn receive(&mut self, out: &mut [Received]) -> usize {
        Xdp::receive(self, out)
    }

    fn release(&mut self, buffer: u32) {
        Xdp::release(self, buffer);
    }

    fn retain(&mut self, buffer: u32) {
        self.chunks.retain(buffer);
    }
}
