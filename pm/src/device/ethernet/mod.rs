//! The ethernet device: messages between hosts, over UDP or raw frames. `docs/ethernet.md` tells
//! how packets become messages; `docs/ARCHITECTURE.md` how the parts hang together. It is a
//! [`Network`]: what such devices share is in `network/`.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs`, `open.rs`, `attach.rs`, `config.rs` | the network; its ends, here and given away |
//! | `reliability/` | the machine: what to send when, what has arrived. Sans I/O |
//! | `wire/` | how packets travel |
//! | `engine.rs`, `letters.rs` | progress: between wires, machine, sender and receiver |
//! | `send.rs` | when a message that was sent goes out |
//! | `remote.rs`, `desk.rs` | remote memory: its callers |
//! | `transfers/`, `pump.rs` | its machine, its bytes |
//! | `links.rs`, `store.rs` | its wires; its received messages |
//! | `progress.rs` | the thread that makes progress while the application computes |
//! | `adopt.rs` | what the owner does for a process that has ended |

mod adopt;
mod attach;
mod away;
mod clock;
pub(crate) mod config;
mod desk;
mod engine;
mod homing;
mod letters;
mod links;
pub(crate) mod open;
mod progress;
mod pump;
pub mod reliability;
mod remote;
mod send;
mod store;
mod transfers;
pub mod wire;

use super::network::addresses::Addresses;
use super::network::lanes::{Peer, Submitted};
use super::network::slab::{Content, Slab};
use super::network::{self, Identity, Network, Pass, count_unread, pool};
use crate::error::{Error, Result};
use crate::remote::{Direction, Number, Operation, Region};
use crate::sync::{Local, Ordering};
use crate::watch::Turn;
use adopt::Orphan;
use desk::Desk;
use engine::Engine;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// This network, and what it keeps for an endpoint.
pub(crate) struct Ethernet {
    turn: Turn,
    thread: OnceLock<Arc<progress::Thread>>,
    desk: Arc<Desk>,
    /// Messages sent since the last poll.
    burst: Local,
    /// When one of them was sent last.
    last: Local,
}

/// What this process keeps for one channel and node.
pub(crate) type Endpoint = network::Endpoint<Ethernet>;
/// The ethernet part of a context.
pub(crate) type Bound = network::Bound<Ethernet>;

impl Network for Ethernet {
    const KIND: &'static str = "ethernet";
    const OPTIONS: u64 = remote::OPTIONS;
    const SAVED: u64 = u64::from_le_bytes(*b"SCPMESV\x01");
    const ATTACH: u64 = u64::from_le_bytes(*b"SCPMETH\x05");

    type Engine = Engine;
    /// How often the job was restarted.
    type Setup = u32;
    /// A socket for each link.
    type Port = Vec<wire::Endpoint>;
    type Orphan = Orphan;

    fn duplicate(links: &Self::Port) -> Result<Self::Port> {
        links.iter().map(|link| link.try_clone().map_err(engine::refused)).collect()
    }
    fn addresses(links: &Self::Port) -> Result<Vec<Vec<u8>>> {
        Ok(links.iter().map(wire::Endpoint::address).collect())
    }
    fn describe<'a>(restarts: &u32, links: &'a Self::Port) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
        attach::describe(*restarts, links)
    }
    fn rebuild(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(u32, Self::Port, usize)> {
        attach::rebuild(bytes, fds)
    }

    /// NoMemory: the kernel refuses the progress thread.
    fn open(
        restarts: &u32,
        identity: Identity,
        links: Self::Port,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Arc<Endpoint>> {
        let entries = pool::buffers(slab.geometry().mtu);
        let engine = Engine::new(identity, *restarts, links, addresses, slab.clone())?;
        let net = Ethernet {
            turn: Turn::default(),
            thread: OnceLock::new(),
            desk: engine.desk.clone(),
            burst: Local::default(),
            last: Local::default(),
        };
        let endpoint = Endpoint::new(identity, slab, entries, engine, net)?;
        let thread = progress::join(&endpoint)?;
        let _ = endpoint.net.thread.set(thread);
        Ok(endpoint)
    }
    fn adopt(
        restarts: &u32,
        identity: Identity,
        links: Self::Port,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Orphan> {
        let entries = pool::buffers(slab.geometry().mtu);
        let engine = Engine::new(identity, *restarts, links, addresses, slab)?;
        Ok(Orphan::adopt(engine, entries))
    }

    fn longest(end: &Endpoint, node: u32) -> Result<usize> {
        end.served.enter().links.mtu(node).map_err(|_| Error::Io)
    }
    #[inline(always)]
    fn content(_: &Endpoint, node: u32, peer: &Peer, len: usize) -> Content {
        send::content(node, peer, len)
    }
    #[inline(always)]
    fn send(end: &Endpoint, peer: &Peer, message: Submitted) {
        end.go_out(peer, message);
    }
    #[inline(always)]
    fn has_work(end: &Endpoint) -> bool {
        !end.lanes.submitted.is_empty() || !end.net.desk.is_empty()
    }
    #[inline(always)]
    fn pass(end: &Endpoint, engine: &mut Engine, what: Pass) -> bool {
        // Who is about to sleep leaves the wires to the thread.
        if what != Pass::Send && !end.is_selecting() && end.net.turn.polled() {
            end.unwatch(engine);
        }
        network::Engine::pass(engine, &end.lanes, what)
    }
    #[inline(always)]
    fn poll(end: &Endpoint, what: Pass) {
        // A stream goes on over the polls that make room for it.
        if end.lanes.outstanding.load(Ordering::Relaxed) < send::STREAM {
            end.net.burst.set(0);
        }
        end.serve(what);
    }
    /// The thread watches the wires, until a poll of one who does not sleep.
    fn watch(end: &Endpoint) {
        let engine = end.served.enter();
        if end.net.turn.give_now() {
            end.watch(&engine);
        }
    }
    fn reads(end: &Endpoint) -> usize {
        end.net.desk.pending(Direction::Read) as usize
    }
    fn leave(end: &Endpoint) {
        if end.left.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        progress::leave(end);
        end.linger();
        end.record().node.door.0.exit(crate::barrier::issue);
        count_unread(&end.slab, end.place);
    }

    fn publish_region(end: &Endpoint, region: &Region) -> Result<()> {
        end.net.desk.publish(region);
        Ok(())
    }
    fn withdraw_region(end: &Endpoint, number: Number) {
        // Whoever copies is waited for; what others have asked for in time they get as it is now.
        let mut engine = end.served.enter();
        engine.bring_all_home(None);
        end.net.desk.withdraw(number);
    }
    fn remote(end: &Endpoint, node: u32, operation: &Operation) -> Result<()> {
        end.begin(node, operation)
    }
    fn is_remote_done(end: &Endpoint, direction: Direction) -> Result<()> {
        if end.net.desk.pending(direction) > 0 {
            Self::poll(end, Pass::All);
        }
        end.net.desk.is_done(direction)
    }
}

impl Endpoint {
    fn unwatch(&self, engine: &Engine) {
        if let Some(thread) = self.net.thread.get() {
            thread.unwatch(engine);
        }
    }

    fn watch(&self, engine: &Engine) {
        if let Some(thread) = self.net.thread.get() {
            thread.watch(engine);
        }
    }
}
