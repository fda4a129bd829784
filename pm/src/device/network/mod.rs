//! What devices share whose nodes are on many hosts: memory of the job that outlives its
//! processes, what sender, receiver and progress hand each other, contexts and their owner. A
//! device is a [`Network`]: it says how what was sent is brought to other hosts.
//!
//! Beside the files that every device has:
//!
//! | file | what is in it |
//! |---|---|
//! | `bound.rs` | the context's part of the device, and its `Transport` |
//! | `attach.rs` | what goes to the process that a context is given to |
//! | `lanes.rs`, `queue.rs`, `pool.rs` | what sender, receiver and progress hand each other |
//! | `slots.rs` | which frame of the slab the next message is written to |
//! | `slab.rs`, `layout.rs`, `addresses.rs` | memory of the job |

pub(crate) mod addresses;
mod attach;
mod bound;
mod control;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod open;
pub(crate) mod pool;
mod queue;
mod receive;
mod select;
mod send;
pub(crate) mod slab;
pub(crate) mod slots;
mod state;

use crate::error::{Error, Result};
use crate::remote::{Direction, Number, Operation, Region};
use crate::sync::{AtomicU64, Ordering};
use crate::watch::{Inside, Served};
use addresses::Addresses;
pub(crate) use bound::Bound;
use lanes::{Lanes, Letter, Peer, Submitted};
use layout::Record;
pub(super) use open::count_unread;
pub(crate) use open::{Channels, attach};
use slab::{Content, Slab};
pub(super) use state::is_saved_context;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Something was sent: that goes out first, and nothing is received but before a time-out.
    Send,
    /// A message is wanted: when one comes, the rest may be left to the next pass.
    Receive,
    /// Everything.
    All,
}

/// Who an end is, and what the job's packets carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(super) own: u32,
    pub(super) channel: u32,
    pub(super) secret: u64,
}

/// What makes progress. Whoever holds its lock does all of it.
pub(crate) trait Engine {
    /// One pass; answers whether something was delivered.
    fn pass(&mut self, lanes: &Lanes, what: Pass) -> bool;
    /// How many control messages wait to be read.
    fn letters(&self) -> usize;
    /// Sends a control message. NoBuffers: as many as may be are on the way.
    fn send_letter(&mut self, lanes: &Lanes, to: u32, message: &[u8]) -> Result<()>;
    /// Gives the next letter to `read`, which says whether it took it. NoBuffers: there is none.
    fn read_letter<T>(
        &mut self,
        lanes: &Lanes,
        read: impl FnOnce(&Letter) -> Result<T>,
    ) -> Result<T>;
    /// For people.
    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()>;
}

/// A kind of network, and what it keeps for an endpoint beside what all have.
pub(crate) trait Network: Sized {
    /// The device's name.
    const KIND: &'static str;
    /// Option bits of its contexts.
    const OPTIONS: u64;
    /// How a saved context begins: name and version of the format.
    const SAVED: u64;
    /// The same of the message of an attach descriptor.
    const ATTACH: u64;

    /// What makes progress.
    type Engine: Engine;
    /// How the device was opened.
    type Setup;
    /// One node's end of one channel: where it is reached.
    type Port;
    /// What its owner does for a process that has ended.
    type Orphan: Orphan;

    // The owner.

    /// An end of its own for who takes it into use; `port` stays.
    fn duplicate(port: &Self::Port) -> Result<Self::Port>;
    /// Where peers reach it: an address for each link.
    fn addresses(port: &Self::Port) -> Result<Vec<Vec<u8>>>;
    /// What goes with an attach descriptor: bytes and descriptors, of which [`Network::rebuild`]
    /// makes the same.
    fn describe<'a>(setup: &Self::Setup, port: &'a Self::Port) -> (Vec<u8>, Vec<BorrowedFd<'a>>);
    /// Setup and port of another process, and the number of links. Invalid: no such thing was
    /// described. NoDevice: this process has no such device.
    fn rebuild(bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(Self::Setup, Self::Port, usize)>;
    /// Takes an end into use.
    fn open(
        setup: &Self::Setup,
        identity: Identity,
        port: Self::Port,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Arc<Endpoint<Self>>>;
    /// Takes over what a process that has ended has left.
    fn adopt(
        setup: &Self::Setup,
        identity: Identity,
        port: Self::Port,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Self::Orphan>;

    // The endpoint.

    /// Io: nothing goes out any more.
    #[inline(always)]
    fn check(_end: &Endpoint<Self>) -> Result<()> {
        Ok(())
    }
    /// The longest message to a node that nothing was sent to yet. Io: it cannot be reached.
    fn longest(end: &Endpoint<Self>, node: u32) -> Result<usize>;
    /// Whether one more message may go to that peer, if there is a slot for it.
    #[inline(always)]
    fn may_send(_end: &Endpoint<Self>, _node: u32, _peer: &Peer) -> bool {
        true
    }
    /// What stands in the slot of the next message to that peer.
    fn content(end: &Endpoint<Self>, node: u32, peer: &Peer, len: usize) -> Content;
    /// A message lies in its slot: publishes it, and sends it now or before long.
    #[inline(always)]
    fn send(end: &Endpoint<Self>, peer: &Peer, message: Submitted) {
        end.hand_over(peer, message);
        end.serve(Pass::Send);
    }
    /// Whether something waits for whoever makes progress.
    #[inline(always)]
    fn has_work(end: &Endpoint<Self>) -> bool {
        !end.lanes.submitted.is_empty()
    }
    /// A pass, under the lock.
    #[inline(always)]
    fn pass(end: &Endpoint<Self>, engine: &mut Self::Engine, what: Pass) -> bool {
        engine.pass(&end.lanes, what)
    }
    /// Makes progress for who polls.
    #[inline(always)]
    fn poll(end: &Endpoint<Self>, what: Pass) {
        end.serve(what);
    }
    /// The same with everything, also where somebody else is at it.
    fn poll_surely(end: &Endpoint<Self>) {
        Self::poll(end, Pass::All);
    }
    /// From now on whatever comes wakes who sleeps.
    fn watch(end: &Endpoint<Self>);
    /// Reads of remote memory that are under way.
    fn reads(end: &Endpoint<Self>) -> usize;
    /// Gives it up: what was sent goes out, for a bounded time; the rest is the owner's.
    fn leave(end: &Endpoint<Self>);

    // Remote memory, as in `Transport`.

    fn publish_region(end: &Endpoint<Self>, region: &Region) -> Result<()>;
    fn withdraw_region(end: &Endpoint<Self>, number: Number);
    fn remote(end: &Endpoint<Self>, node: u32, operation: &Operation) -> Result<()>;
    fn is_remote_done(end: &Endpoint<Self>, direction: Direction) -> Result<()>;
}

/// A process that has ended: what it has sent is brought home by its owner.
pub(crate) trait Orphan {
    /// Makes progress. None: nothing more is to be done before something comes.
    fn serve(&mut self) -> Option<Duration>;
    /// Whether all that it had sent has arrived, or its receivers have gone.
    fn is_quiet(&self) -> bool;
    /// What becomes readable when something comes.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
}

/// What this process keeps for one channel and node.
pub(crate) struct Endpoint<N: Network> {
    pub(super) channel: u32,
    pub(super) own: u32,
    pub(super) place: usize,
    /// The longest message to any node.
    pub(super) mtu: usize,
    pub(super) lanes: Lanes,
    pub(super) served: Served<N::Engine>,
    send: send::Sender,
    receive: receive::Receiver,
    pub(super) select: select::Sleeper,
    /// What this kind of network has besides.
    pub(super) net: N,
    /// Given up: nobody serves it any more.
    pub(super) left: AtomicU64,
    pub(super) slab: Arc<Slab>,
}

impl<N: Network> Endpoint<N> {
    /// `entries`: received messages that may wait. Invalid: the node is not of this host.
    pub(super) fn new(
        identity: Identity,
        slab: Arc<Slab>,
        entries: usize,
        engine: N::Engine,
        net: N,
    ) -> Result<Arc<Endpoint<N>>> {
        let geometry = *slab.geometry();
        let place = geometry.place(identity.own as usize).ok_or(Error::Invalid)?;
        Ok(Arc::new(Endpoint {
            channel: identity.channel,
            own: identity.own,
            place,
            mtu: geometry.mtu,
            lanes: Lanes::new(&geometry, entries),
            served: Served::new(engine),
            send: send::Sender::new(&geometry),
            receive: receive::Receiver::default(),
            select: select::Sleeper::default(),
            net,
            left: AtomicU64::new(0),
            slab,
        }))
    }

    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Nodes that it reaches, itself included.
    pub(crate) fn nodes(&self) -> usize {
        self.slab.geometry().nodes
    }

    /// Bytes of memory that it shares with others.
    pub(crate) fn size(&self) -> usize {
        self.slab.geometry().size
    }

    /// The longest message over the own links.
    pub(crate) fn largest(&self) -> usize {
        self.mtu
    }

    #[inline(always)]
    pub(super) fn record(&self) -> &Record {
        self.slab.record(self.place)
    }

    #[inline(always)]
    pub(crate) fn oversubscribed(&self) -> bool {
        self.slab.oversubscribed().load(Ordering::Relaxed) != 0
    }

    /// Invalid: no such node, or the own one.
    pub(crate) fn check_peer(&self, node: u32) -> Result<()> {
        let known = (node as usize) < self.nodes() && node != self.own;
        if known { Ok(()) } else { Err(Error::Invalid) }
    }

    /// Makes progress, or leaves it to whoever is at it.
    #[inline(always)]
    pub(super) fn serve(&self, what: Pass) {
        if let Some(inside) = self.served.try_enter() {
            self.serve_inside(inside, what);
        } else if let Some(inside) = self.served.ask(|| N::has_work(self)) {
            self.serve_after_all(inside, what);
        }
    }

    /// Makes progress itself, after whoever is at it.
    pub(super) fn serve_in_turn(&self, what: Pass) {
        self.serve_after_all(self.served.enter(), what);
    }

    #[cold]
    fn serve_after_all(&self, inside: Inside<'_, N::Engine>, what: Pass) {
        self.serve_inside(inside, what);
    }

    #[inline(always)]
    pub(super) fn serve_inside(&self, mut inside: Inside<'_, N::Engine>, what: Pass) {
        let mut ring = self.pass(&mut inside, what);
        inside.leave(|engine| ring |= self.pass(engine, what));
        if ring {
            self.select.ring();
        }
    }

    /// Answers whether a sleeper is to be woken.
    #[inline(always)]
    fn pass(&self, engine: &mut N::Engine, what: Pass) -> bool {
        N::pass(self, engine, what) && self.lanes.bell.must_ring()
    }

    // Remote memory: see `Transport`.

    pub(crate) fn publish_region(&self, region: &Region) -> Result<()> {
        N::publish_region(self, region)
    }
    pub(crate) fn withdraw_region(&self, number: Number) {
        N::withdraw_region(self, number);
    }
    pub(crate) fn remote(&self, node: u32, operation: &Operation) -> Result<()> {
        N::remote(self, node, operation)
    }
    pub(crate) fn is_remote_done(&self, direction: Direction) -> Result<()> {
        N::is_remote_done(self, direction)
    }
}
