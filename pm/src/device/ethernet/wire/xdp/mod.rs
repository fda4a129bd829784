//! The AF_XDP wire in copy mode (SKB mode): a small program at the interface hands our frames to
//! this process before the kernel's network stack sees them; all other frames pass on. The program
//! is attached by a link, whose last descriptor takes it off again when the process dies.

mod program;
mod receive;
mod rings;
mod send;
mod umem;

use super::address::{Address, Place};
use super::endpoint::{Endpoint, Kind, Opened, claim_port};
use super::fault::{Fault, WireError};
use super::packet::packet_mtu;
use super::raw::{self, Station};
use super::{Peer, Received, Source, Stats, link, sockopt};
use crate::remote::Copier;
use nix::errno::Errno;
use rings::{Ring, Which};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use umem::{Frames, Umem};

/// The socket, the memory, the program's link, and the socket that holds the port.
pub(super) const DESCRIPTORS: usize = 4;
const MEMORY: usize = 1;

/// After an exit the kernel takes a moment to let go of a queue.
const PATIENCE: Duration = Duration::from_millis(600);
const PAUSE: Duration = Duration::from_millis(20);

/// What a frame may hold.
fn mtu(link_mtu: usize) -> usize {
    packet_mtu(link_mtu).min(umem::CHUNK_MAX - umem::HEADROOM - raw::HEADER)
}

/// Opens a socket with its memory, binds it to the interface's only queue and puts the program
/// there. `secret`: as in [`Options`](super::Options).
pub(super) fn open(link: &str, secret: Option<u64>) -> Result<Opened, WireError> {
    let (claim, port) = claim_port(link)?;
    let asked = claim.as_fd();
    let (link_mtu, mac) = (link::mtu(asked, link)?, link::mac(asked, link)?);
    let index = link::index(asked, link)?;
    let queues = link::receive_queues(asked, link);
    if queues > 1 {
        // Frames arrive at any queue, and a socket serves one.
        return Err(WireError::new(format!("{link}: AF_XDP: {queues} receive queues, needs 1")));
    }
    if packet_mtu(link_mtu) > mtu(link_mtu) {
        // A frame lies in one page; smaller ones than the link carries would cost bandwidth.
        return Err(WireError::new(format!("{link}: AF_XDP: no room for an MTU of {link_mtu}")));
    }
    let refused = |what: &'static str| {
        move |errno: Errno| WireError::of(format!("{link}: AF_XDP: {what}"), errno)
    };
    let socket = umem::socket().map_err(refused("socket"))?;
    let memory = umem::memory(link_mtu).map_err(refused("memory"))?;
    umem::register(socket.as_fd(), memory.as_fd(), link_mtu).map_err(refused("memory"))?;
    patiently(|| umem::bind(socket.as_fd(), index)).map_err(refused("bind"))?;
    let own = Station { mac, port };
    let program = program::load_for(socket.as_fd(), own, secret).map_err(refused("program"))?;
    let attach = || program::attach(program.as_fd(), index);
    let attached = patiently(attach).map_err(refused("attaching the program"))?;
    let address = Address { mtu: mtu(link_mtu) as u16, place: Place::Raw(mac, port) };
    let descriptors = vec![socket, memory, attached, claim];
    Ok(Opened { kind: Kind::Xdp, link: link.into(), link_mtu, address, descriptors })
}

/// Again while the queue or the interface is still busy with somebody who has just exited.
fn patiently<T>(mut step: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    let begin = Instant::now();
    loop {
        match step() {
            Err(Errno::EBUSY) if begin.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

/// One process's end.
pub(super) struct Xdp {
    socket: OwnedFd,
    own: Station,
    mtu: usize,
    peers: Vec<(Station, usize)>,
    umem: Umem,
    fill: Ring<u64>,
    completion: Ring<u64>,
    receiving: Ring<libc::xdp_desc>,
    sending: Ring<libc::xdp_desc>,
    frames: Frames,
    copier: Copier,
    /// The kernel has to be called about frames in the send ring.
    unkicked: bool,
    /// What the kernel answered when it sent nothing.
    down: Option<Errno>,
    fault: Option<Fault>,
    stats: Stats,
}

impl Xdp {
    pub(super) fn attach(endpoint: &Endpoint) -> Result<Xdp, WireError> {
        let Place::Raw(mac, port) = endpoint.place().place else {
            return Err(WireError::new("endpoint: a raw socket with a UDP address"));
        };
        let link = endpoint.link_name();
        let io = |what: &'static str| {
            move |error: std::io::Error| WireError::new(format!("{link}: AF_XDP: {what}: {error}"))
        };
        let socket = endpoint.socket().try_clone_to_owned().map_err(io("socket"))?;
        let memory = endpoint.descriptor(MEMORY);
        let umem = Umem::map(memory, endpoint.link_mtu()).map_err(io("memory"))?;
        let fd = socket.as_fd();
        let mut xdp = Xdp {
            own: Station { mac, port },
            mtu: endpoint.mtu(),
            peers: Vec::new(),
            fill: Ring::map(fd, Which::Fill).map_err(io("fill ring"))?,
            completion: Ring::map(fd, Which::Completion).map_err(io("completion ring"))?,
            receiving: Ring::map(fd, Which::Receive).map_err(io("receive ring"))?,
            sending: Ring::map(fd, Which::Send).map_err(io("send ring"))?,
            frames: Frames::new(),
            copier: Copier::new(),
            umem,
            socket,
            unkicked: false,
            down: None,
            fault: None,
            stats: Stats::default(),
        };
        xdp.take_over();
        Ok(xdp)
    }

    /// Finds out whose each frame is. At the first attach all are free; when a process has died
    /// the rings say which ones the kernel has, and the others come back to use.
    fn take_over(&mut self) {
        let number = |at: u64| self.umem.number(at);
        let filled: Vec<_> = self.fill.pending().filter_map(number).collect();
        let arrived: Vec<_> =
            self.receiving.pending().filter_map(|one| self.umem.number(one.addr)).collect();
        let outgoing: Vec<_> =
            self.sending.pending().filter_map(|one| self.umem.number(one.addr)).collect();
        let back: Vec<_> = self.completion.pending().filter_map(number).collect();
        self.frames.take_over(&filled, &arrived, &outgoing, &back);
        while let Some(frame) = self.frames.next_to_fill() {
            if !self.fill.push(self.umem.at(frame)) {
                break;
            }
        }
        self.unkicked = !outgoing.is_empty();
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
        if self.frames.is_held(received.buffer) {
            self.umem.pointer(received)
        } else {
            std::ptr::null_mut()
        }
    }

    pub(super) fn spare(&self) -> usize {
        self.frames.spare()
    }

    pub(super) fn buffers(&self) -> usize {
        umem::RECEIVE
    }

    pub(super) fn fault(&mut self) -> &mut Option<Fault> {
        &mut self.fault
    }

    pub(super) fn stats(&mut self) -> Stats {
        let fd = self.socket.as_fd();
        let told: nix::Result<libc::xdp_statistics> =
            sockopt::get(fd, libc::SOL_XDP, libc::XDP_STATISTICS);
        self.stats.overrun = told.map_or(self.stats.overrun, |told| {
            told.rx_dropped + told.rx_ring_full + told.rx_fill_ring_empty_descs
        });
        self.stats
    }

    fn lost(&mut self, errno: Errno) {
        self.stats.unsent += 1;
        self.fault = Some(Fault(errno));
    }
}

impl Source for Xdp {
    fn receive(&mut self, out: &mut [Received]) -> usize {
        Xdp::receive(self, out)
    }

    fn release(&mut self, buffer: u32) {
        Xdp::release(self, buffer);
    }

    fn retain(&mut self, buffer: u32) {
        self.frames.retain(buffer);
    }
}
