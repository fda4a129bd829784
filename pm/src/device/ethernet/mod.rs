//! The ethernet device: messages between hosts, over UDP or raw frames. `docs/ethernet.md` tells
//! how packets become messages; `docs/ARCHITECTURE.md` how the parts hang together.
//!
//! Beside the files that every device has:
//!
//! | file | what is in it |
//! |---|---|
//! | `reliability/` | the machine: what to send when, what has arrived. Sans I/O |
//! | `wire/` | how packets travel |
//! | `engine.rs`, `letters.rs` | progress: between wires, machine, sender and receiver |
//! | `transfers/`, `pump.rs`, `desk.rs` | remote memory: its machine, its bytes, its callers |
//! | `links.rs`, `store.rs` | its wires; its received messages |
//! | `lanes.rs`, `queue.rs`, `pool.rs` | what sender, receiver and progress hand each other |
//! | `slots.rs` | which frame of the slab the next message is written to |
//! | `slab.rs`, `layout.rs`, `addresses.rs` | memory of the job |
//! | `progress.rs` | the thread that makes progress while the application computes |
//! | `adopt.rs` | what the owner does for a process that has ended |

// UNSAFETY: hands out a pointer to an endpoint beside the references that keep it.
#![expect(unsafe_code)]

pub(super) mod addresses;
pub(crate) mod adopt;
mod attach;
mod clock;
pub(crate) mod config;
mod control;
mod desk;
mod engine;
pub(super) mod lanes;
pub(super) mod layout;
mod letters;
mod links;
pub(crate) mod open;
pub(super) mod pool;
mod progress;
mod pump;
pub(super) mod queue;
mod receive;
pub mod reliability;
mod remote;
mod select;
mod send;
pub(super) mod slab;
pub(super) mod slots;
pub(super) mod state;
mod store;
mod transfers;
pub mod wire;

use super::{Capabilities, Found, Transport};
use crate::config::{ContextConfig, QueueStatus};
use crate::error::{Error, Result};
use crate::remote::{Direction, Number, Operation, Region};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use crate::watch::{Served, Turn};
use addresses::Addresses;
use engine::{Engine, Identity, Pass};
use lanes::Lanes;
use layout::Record;
pub(crate) use remote::OPTIONS;
use slab::Slab;
use std::io::Write;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What this process keeps for one channel and node.
pub(crate) struct Endpoint {
    channel: u32,
    own: u32,
    place: usize,
    /// The longest message to any node.
    mtu: usize,
    lanes: Lanes,
    served: Served<Engine>,
    turn: Turn,
    send: send::Sender,
    receive: receive::Receiver,
    select: select::Sleeper,
    thread: OnceLock<Arc<progress::Thread>>,
    /// Given up: nobody serves it any more.
    left: AtomicU64,
    slab: Arc<Slab>,
}

impl Endpoint {
    /// Takes sockets into use. NoMemory: the kernel refuses the progress thread.
    fn new(
        identity: Identity,
        links: Vec<wire::Endpoint>,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Arc<Endpoint>> {
        let geometry = *slab.geometry();
        let place = geometry.place(identity.own as usize).ok_or(Error::Invalid)?;
        let endpoint = Arc::new(Endpoint {
            channel: identity.channel as u32,
            own: identity.own,
            place,
            mtu: geometry.mtu,
            lanes: Lanes::new(&geometry, pool::buffers(geometry.mtu)),
            served: Served::new(Engine::new(identity, links, addresses, slab.clone())?),
            turn: Turn::default(),
            send: send::Sender::new(&geometry),
            receive: receive::Receiver::default(),
            select: select::Sleeper::default(),
            thread: OnceLock::new(),
            left: AtomicU64::new(0),
            slab,
        });
        let thread = progress::join(&endpoint)?;
        let _ = endpoint.thread.set(thread);
        Ok(endpoint)
    }

    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Nodes that it reaches, itself included.
    pub(crate) fn nodes(&self) -> usize {
        self.slab.geometry().nodes
    }

    /// Bytes of memory that it maps.
    pub(crate) fn size(&self) -> usize {
        self.slab.geometry().size
    }

    /// The longest message over the own links.
    pub(crate) fn largest(&self) -> usize {
        self.mtu
    }

    #[inline(always)]
    fn record(&self) -> &Record {
        self.slab.record(self.place)
    }

    #[inline(always)]
    pub(crate) fn oversubscribed(&self) -> bool {
        self.slab.oversubscribed().load(Ordering::Relaxed) != 0
    }

    /// Makes progress: reads what waits on the wires, and sends.
    #[inline(always)]
    fn poll(&self, pass: Pass) {
        // A stream goes on over the polls that make room for it.
        if self.lanes.outstanding.load(Ordering::Relaxed) < send::STREAM {
            self.lanes.burst.set(0);
        }
        self.serve(pass);
    }

    #[inline(always)]
    fn serve(&self, what: Pass) {
        let mut ring = false;
        let sleeping = self.is_selecting();
        let pass = |engine: &mut Engine| {
            // Who is about to sleep leaves the wires to the thread.
            if what != Pass::Send && !sleeping && self.turn.polled() {
                self.unwatch(engine);
            }
            ring |= engine.pass(&self.lanes, what) && self.lanes.bell.must_ring();
        };
        self.served.serve(pass, || self.lanes.has_work());
        if ring {
            self.select.ring();
        }
    }

    /// Gives it up: what was sent goes out, for a bounded time; the rest is the owner's.
    fn leave(&self) {
        if self.left.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        progress::leave(self);
        self.linger();
        let door = &self.record().node.door.0;
        door.exit(crate::barrier::issue);
        adopt::count_unread(&self.slab, self.place);
    }

    fn unwatch(&self, engine: &Engine) {
        if let Some(thread) = self.thread.get() {
            thread.unwatch(engine);
        }
    }

    fn watch(&self, engine: &Engine) {
        if let Some(thread) = self.thread.get() {
            thread.watch(engine);
        }
    }
}

/// The ethernet part of a context.
pub(crate) struct Ethernet {
    number: usize,
    /// Where an opened context is bound, and all endpoints there ever were: somebody may still
    /// look at an old one.
    state: Mutex<State>,
    owner: Option<Arc<open::Channels>>,
    /// Null while it is not bound, and until a bound one is first used: one that is given to
    /// another process never is.
    endpoint: AtomicPtr<Endpoint>,
}

#[derive(Default)]
struct State {
    bound: Option<(u32, u32)>,
    kept: Vec<Arc<Endpoint>>,
}

impl Ethernet {
    pub(crate) fn opened(number: usize, owner: &Arc<open::Channels>) -> Ethernet {
        Ethernet {
            number,
            state: Mutex::default(),
            owner: Some(owner.clone()),
            endpoint: AtomicPtr::new(null_mut()),
        }
    }

    pub(super) fn attached(number: usize, endpoint: Arc<Endpoint>) -> Ethernet {
        let ethernet = Ethernet {
            number,
            state: Mutex::default(),
            owner: None,
            endpoint: AtomicPtr::new(null_mut()),
        };
        ethernet.install(&mut ethernet.state(), endpoint);
        ethernet
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn install(&self, state: &mut State, endpoint: Arc<Endpoint>) {
        let pointer = Arc::as_ptr(&endpoint).cast_mut();
        state.kept.push(endpoint);
        // SYNC: endpoint
        self.endpoint.store(pointer, Ordering::Release);
    }

    /// Invalid: not bound, or the peers are not known yet.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> Result<&Endpoint> {
        // SYNC: endpoint
        let endpoint = self.endpoint.load(Ordering::Acquire);
        // SAFETY: null or one of `kept`, which live as long as `self`.
        match unsafe { endpoint.as_ref() } {
            Some(endpoint) => Ok(endpoint),
            None => self.take_into_use(),
        }
    }

    #[cold]
    fn take_into_use(&self) -> Result<&Endpoint> {
        let owner = self.owner.as_ref().ok_or(Error::Invalid)?;
        let mut state = self.state();
        if self.endpoint.load(Ordering::Acquire).is_null() {
            let (channel, own) = state.bound.ok_or(Error::Invalid)?;
            let endpoint = owner.take_into_use(channel, own)?;
            self.install(&mut state, endpoint);
        }
        // SAFETY: as `endpoint`.
        unsafe { self.endpoint.load(Ordering::Acquire).as_ref() }.ok_or(Error::Invalid)
    }

    /// Both locks. Busy: bound already, or somebody else is bound there.
    pub(crate) fn bind(&self, channel: u32, own: u32) -> Result<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut state = self.state();
        if state.bound.is_some() {
            return Err(Error::Busy);
        }
        owner.bind(channel, own)?;
        state.bound = Some((channel, own));
        Ok(())
    }

    /// Both locks. Invalid: not bound.
    pub(crate) fn unbind(&self) -> Result<()> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let mut state = self.state();
        let (channel, own) = state.bound.take().ok_or(Error::Invalid)?;
        self.endpoint.store(null_mut(), Ordering::Release);
        state.kept.iter().for_each(|endpoint| endpoint.leave());
        owner.unbind(channel, own);
        Ok(())
    }

    /// Both locks: the process that this end was given to gives it up.
    pub(crate) fn leave(&self) {
        if self.owner.is_none() {
            self.state().kept.iter().for_each(|endpoint| endpoint.leave());
        }
    }

    pub(crate) fn create_attach_fd(&self) -> Result<OwnedFd> {
        let owner = self.owner.as_ref().ok_or(Error::Permission)?;
        let (channel, own) = self.state().bound.ok_or(Error::Invalid)?;
        owner.create_attach_fd(self.number, channel, own)
    }

    pub(crate) fn config(&self) -> ContextConfig {
        let (nodes, mtu, size) = match (&self.owner, self.endpoint()) {
            (_, Ok(endpoint)) => (endpoint.nodes(), endpoint.largest(), endpoint.size()),
            (Some(owner), Err(_)) => owner.measures(),
            (None, Err(_)) => (0, 0, 0),
        };
        ContextConfig { kind: Self::KIND, number: self.number, nodes, mtu, size, option: OPTIONS }
    }
}

impl Transport for Ethernet {
    const KIND: &'static str = "ethernet";
    const CAPABILITIES: Capabilities = Capabilities { routes: false, member: true };

    fn own(&self) -> Result<u32> {
        match self.state().bound {
            Some((_, own)) => Ok(own),
            None => self.endpoint().map(Endpoint::own),
        }
    }
    fn mtu(&self, node: u32) -> Result<usize> {
        self.endpoint()?.mtu(node)
    }
    #[inline(always)]
    fn reserve(&self, node: u32, len: usize) -> Result<*mut u8> {
        self.endpoint()?.reserve(node, len)
    }
    fn reserve_many(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        self.endpoint()?.reserve_many(nodes, len)
    }
    fn truncate(&self, len: usize) -> Result<()> {
        self.endpoint()?.truncate(len)
    }
    #[inline(always)]
    fn publish(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.publish();
        }
    }
    #[inline(always)]
    fn find(&self) -> Option<Found> {
        self.endpoint().ok()?.find().map(|source| Found { member: 0, source })
    }
    #[inline(always)]
    fn take(&self, _: Found) -> Result<(*mut u8, usize)> {
        self.endpoint()?.take()
    }
    #[inline(always)]
    fn release(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.release();
        }
    }
    #[inline(always)]
    fn count_empty_poll(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.count_empty_poll();
        }
    }
    fn oversubscribed(&self) -> bool {
        self.endpoint().is_ok_and(Endpoint::oversubscribed)
    }
    fn control_send(&self, node: u32, message: &[u8]) -> Result<()> {
        let (channel, own) = self.state().bound.ok_or(Error::Invalid)?;
        self.owner.as_ref().ok_or(Error::Permission)?.control_send(channel, own, node, message)
    }
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        self.endpoint()?.control_receive(buffer, len)
    }
    fn fd(&self) -> Result<RawFd> {
        self.endpoint()?.fd()
    }
    fn before_select(&self) -> Result<()> {
        self.endpoint()?.before_select()
    }
    fn after_select(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.after_select();
        }
    }
    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.endpoint().is_ok_and(Endpoint::is_selecting)
    }
    fn look_again(&self) -> Option<Found> {
        let source = self.endpoint().ok()?.look_again()?;
        Some(Found { member: 0, source })
    }
    fn is_send_done(&self) -> Result<()> {
        self.endpoint().map_or(Ok(()), Endpoint::is_send_done)
    }
    fn queue_status(&self, held: bool) -> QueueStatus {
        self.endpoint().map(|e| e.queue_status(held)).unwrap_or_default()
    }
    fn reset(&self) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.reset();
        }
    }
    fn save(&self, out: &mut Vec<u8>) -> Result<()> {
        self.endpoint()?.save(out);
        Ok(())
    }
    fn restore(&self, saved: &[u8]) -> Result<()> {
        self.endpoint()?.restore(saved)
    }
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        match self.endpoint() {
            Ok(endpoint) => endpoint.dump(out),
            Err(_) => writeln!(out, "  not bound"),
        }
    }
    fn options(&self) -> u64 {
        OPTIONS
    }
    fn ways(&self, node: Option<u32>) -> Result<u32> {
        let endpoint = self.endpoint()?;
        node.map_or(Ok(()), |node| endpoint.check_peer(node)).map(|()| 1)
    }
    fn publish_region(&self, _way: usize, region: &Region) -> Result<()> {
        self.endpoint()?.publish_region(region);
        Ok(())
    }
    fn withdraw_region(&self, _way: usize, number: Number) {
        if let Ok(endpoint) = self.endpoint() {
            endpoint.withdraw_region(number);
        }
    }
    fn remote(&self, node: u32, operation: &Operation) -> Result<()> {
        self.endpoint()?.remote(node, operation)
    }
    fn is_remote_done(&self, direction: Direction) -> Result<()> {
        self.endpoint()?.is_remote_done(direction)
    }
}

/// Whether `bytes` are a saved ethernet context, as far as bytes alone tell.
pub(crate) fn is_saved_context(bytes: &[u8]) -> bool {
    state::SavedState::parse(bytes).is_ok()
}
