//! PM over RDMA hardware: InfiniBand, RoCE and iWARP, by libibverbs. `docs/verbs.md` tells how
//! messages travel; `docs/ARCHITECTURE.md` how the parts hang together. It is a [`Network`]: what
//! such devices share is in `network/`.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs`, `open.rs`, `attach.rs`, `config.rs` | the network; its ends, here and given away |
//! | `choice.rs` | which port of which adapter, and how it is addressed; pure |
//! | `library.rs`, `bindings.rs` | libibverbs, opened at run time; its declarations |
//! | `adapter.rs`, `pair.rs` | what is made of it: queues, registered memory; queue pairs |
//! | `peer.rs` | what is kept for one peer |
//! | `connection.rs`, `hello.rs` | how two processes come to a pair of queue pairs; pure |
//! | `cm_library.rs`, `manager.rs`, `calls.rs` | on iWARP: librdmacm, and connecting by it |
//! | `flow.rs` | what is under way to one peer; pure |
//! | `engine.rs` | progress |
//! | `departures.rs`, `arrivals.rs`, `meeting.rs` | of it: what goes, what comes, who is met |
//! | `letters.rs` | control messages on their way through it |
//! | `remote.rs`, `regions.rs` | remote memory; locked regions: pinned, and listed for peers |
//! | `progress.rs` | the thread that makes progress while the application computes |
//! | `trial.rs` | whether an owner can offer it |
//! | `adopt.rs` | what the owner does for a process that has ended |

mod adapter;
mod adopt;
mod arrivals;
mod attach;
mod bindings;
mod calls;
pub(crate) mod choice;
mod cm_library;
pub(crate) mod config;
mod connection;
mod departures;
mod engine;
mod flow;
mod hello;
mod letters;
mod library;
mod manager;
mod meeting;
pub(crate) mod open;
mod pair;
mod peer;
mod progress;
mod regions;
mod remote;
mod trial;

use super::network::addresses::Addresses;
use super::network::lanes::{Peer, Submitted};
use super::network::layout::Published;
use super::network::slab::{Content, Slab};
use super::network::{self, Engine as _, Identity, Network, Pass, count_unread};
use crate::error::{Error, Result};
use crate::remote::{Direction, Number, Operation, Region};
use crate::segment::from_errno;
use crate::sync::{AtomicU64, Ordering};
use adapter::Buffers;
use adopt::Orphan;
use choice::Chosen;
use engine::Engine;
use nix::sys::eventfd::{EfdFlags, EventFd};
pub use open::probe;
use regions::Regions;
use score_proto::wire::Kind;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
pub use trial::{Unusable, Usable, try_out};

/// This network, and what it keeps for an endpoint.
pub(crate) struct Verbs {
    /// Messages that may be on the way to one peer, or unread there.
    window: u32,
    /// What each peer says that it has consumed.
    credits: Arc<Buffers>,
    regions: Arc<Regions>,
    /// Wakes the thread to its end.
    stop: EventFd,
    /// The adapter has gone.
    broken: AtomicU64,
}

/// What this process keeps for one channel and node.
pub(crate) type Endpoint = network::Endpoint<Verbs>;
/// The verbs part of a context.
pub(crate) type Bound = network::Bound<Verbs>;

impl Network for Verbs {
    const KIND: &'static str = "verbs";
    const OPTIONS: u64 = remote::OPTIONS;
    const SAVED: u64 = u64::from_le_bytes(*b"SCPMVSV\x01");
    const ATTACH: u64 = u64::from_le_bytes(*b"SCPMVAT\x02");

    type Engine = Engine;
    type Setup = Chosen;
    /// Where hellos are heard.
    type Port = UdpSocket;
    type Orphan = Orphan;

    fn duplicate(socket: &UdpSocket) -> Result<UdpSocket> {
        socket.try_clone().map_err(open::io)
    }
    fn addresses(socket: &UdpSocket) -> Result<Vec<Vec<u8>>> {
        Ok(vec![meeting::encode(socket.local_addr().map_err(open::io)?)])
    }
    fn describe<'a>(chosen: &Chosen, socket: &'a UdpSocket) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
        (attach::End::of(chosen).encode(), vec![socket.as_fd()])
    }
    fn rebuild(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(Chosen, UdpSocket, usize)> {
        let end = attach::End::decode(bytes)?;
        let [socket] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Error::Invalid)?;
        let socket = UdpSocket::from(socket);
        socket.local_addr().map_err(|_| Error::Invalid)?;
        Ok((open::choose(&end.options())?, socket, 1))
    }

    /// NoMemory: the adapter or the kernel refuses something, which a line names.
    fn open(
        chosen: &Chosen,
        identity: Identity,
        socket: UdpSocket,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Arc<Endpoint>> {
        let entries = arrivals::entries(slab.geometry().nodes);
        let engine = Engine::new(chosen, identity, socket, addresses, slab.clone())?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let net = Verbs {
            window: engine.window,
            credits: engine.credits(),
            regions: engine.regions.clone(),
            stop: EventFd::from_flags(flags).map_err(from_errno)?,
            broken: AtomicU64::new(0),
        };
        let endpoint = Endpoint::new(identity, slab, entries, engine, net)?;
        progress::start(&endpoint)?;
        Ok(endpoint)
    }
    fn adopt(
        chosen: &Chosen,
        identity: Identity,
        socket: UdpSocket,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Orphan> {
        Ok(Orphan::adopt(Engine::new(chosen, identity, socket, addresses, slab)?))
    }

    /// Io: the adapter has gone.
    #[inline(always)]
    fn check(end: &Endpoint) -> Result<()> {
        if end.is_broken() { Err(Error::Io) } else { Ok(()) }
    }
    fn longest(end: &Endpoint, _: u32) -> Result<usize> {
        Ok(end.mtu)
    }
    /// Nobody sends more than the receiver has buffers for: it says by RDMA what it has consumed.
    #[inline(always)]
    fn may_send(end: &Endpoint, node: u32, peer: &Peer) -> bool {
        let consumed = end.net.credits.word(node as usize).load(Ordering::Acquire) as u32;
        (peer.sent.get() as u32).wrapping_sub(consumed) < end.net.window
    }
    #[inline(always)]
    fn content(_: &Endpoint, node: u32, peer: &Peer, len: usize) -> Content {
        let published = Published::new(len, Kind::Data);
        Content { to: node, order: 0, sequence: Some(peer.sent.get() as u32), published }
    }
    /// Past the queue, unless somebody else makes progress.
    #[inline(always)]
    fn send(end: &Endpoint, peer: &Peer, message: Submitted) {
        end.publish_slot(peer, message);
        let Some(mut inside) = end.served.try_enter() else {
            // As many words as slots: there is room.
            end.lanes.submitted.push(message.word());
            return end.serve(Pass::Send);
        };
        inside.send_at_once(&end.lanes, message);
        end.serve_inside(inside, Pass::Send);
        // The way to the next message is shorter then.
        end.collect();
    }
    /// Waits for the thread, if that is at it.
    fn poll_surely(end: &Endpoint) {
        let mut engine = end.served.enter();
        let ring = engine.pass(&end.lanes, Pass::All) && end.lanes.bell.must_ring();
        drop(engine);
        if ring {
            end.select.ring();
        }
        // For those who found the engine taken.
        end.serve(Pass::Send);
    }
    /// What comes after this makes the adapter's channel readable, and the thread rings.
    fn watch(end: &Endpoint) {
        end.served.enter().adapter.request_notify();
    }
    fn reads(end: &Endpoint) -> usize {
        end.served.enter().moves[Direction::Read as usize] as usize
    }
    fn leave(end: &Endpoint) {
        if end.left.load(Ordering::Acquire) != 0 {
            return;
        }
        end.linger();
        end.left.store(1, Ordering::Release);
        let _ = end.net.stop.write(1);
        end.record().node.door.0.exit(crate::barrier::issue);
        count_unread(&end.slab, end.place);
        end.served.enter().close();
    }

    fn publish_region(end: &Endpoint, region: &Region) -> Result<()> {
        end.net.regions.publish(region)
    }
    fn withdraw_region(end: &Endpoint, number: Number) {
        end.net.regions.withdraw(number);
    }
    fn remote(end: &Endpoint, node: u32, operation: &Operation) -> Result<()> {
        end.begin(node, operation)
    }
    fn is_remote_done(end: &Endpoint, direction: Direction) -> Result<()> {
        end.outcome(direction)
    }
}

impl Endpoint {
    #[inline(always)]
    fn is_broken(&self) -> bool {
        self.net.broken.load(Ordering::Relaxed) != 0
    }
}
