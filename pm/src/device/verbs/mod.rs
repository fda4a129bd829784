//! PM over RDMA hardware: InfiniBand and RoCE, through libibverbs. `docs/verbs.md` tells how
//! messages travel; `docs/ARCHITECTURE.md` how the parts hang together. Memory of the job, and what
//! sender, receiver and progress hand each other, are ethernet's.
//!
//! Beside the files that every device has:
//!
//! | file | what is in it |
//! |---|---|
//! | `choice.rs` | which port of which adapter, and how it is addressed; pure |
//! | `library.rs`, `bindings.rs` | libibverbs, opened at run time; its declarations |
//! | `adapter.rs`, `pair.rs` | what is made of it: queues, registered memory; queue pairs |
//! | `connection.rs`, `hello.rs` | how two processes come to a pair of queue pairs; pure |
//! | `flow.rs` | what is under way to one peer; pure |
//! | `engine.rs`, `arrivals.rs`, `meeting.rs` | progress: what is sent, what comes, who is met |
//! | `regions.rs` | locked regions: pinned, and listed for peers |
//! | `progress.rs` | the thread that makes progress while the application computes |
//! | `attach.rs`, `adopt.rs` | what goes to a process; what the owner does after its end |

// UNSAFETY: hands out a pointer to an endpoint beside the references that keep it.
#![expect(unsafe_code)]

mod adapter;
mod adopt;
mod arrivals;
mod attach;
mod bindings;
pub(crate) mod choice;
pub(crate) mod config;
mod connection;
mod control;
mod engine;
mod flow;
mod hello;
mod library;
mod meeting;
pub(crate) mod open;
mod pair;
mod progress;
mod receive;
mod regions;
mod remote;
mod select;
mod send;
mod state;

use super::{Capabilities, Found, Transport};
use crate::config::{ContextConfig, QueueStatus};
use crate::device::ethernet::addresses::Addresses;
use crate::device::ethernet::lanes::Lanes;
use crate::device::ethernet::layout::Record;
use crate::device::ethernet::slab::Slab;
use crate::error::{Error, Result};
use crate::remote::{Direction, Number, Operation, Region};
use crate::segment::from_errno;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use crate::watch::Served;
use adapter::Buffers;
use choice::Chosen;
use engine::{Engine, Identity, Pass};
use nix::sys::eventfd::{EfdFlags, EventFd};
pub use open::probe;
use regions::Regions;
pub(crate) use remote::OPTIONS;
pub(crate) use state::is_saved_context;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What this process keeps for one channel and node.
pub(crate) struct Endpoint {
    channel: u32,
    own: u32,
    place: usize,
    mtu: usize,
    /// Messages that may be on the way to one peer, or unread there.
    window: u32,
    /// What each peer says that it has consumed.
    credits: Arc<Buffers>,
    regions: Arc<Regions>,
    lanes: Lanes,
    served: Served<Engine>,
    send: send::Sender,
    receive: receive::Receiver,
    select: select::Sleeper,
    /// Wakes the thread to its end.
    stop: EventFd,
    /// Given up: nobody serves it any more.
    left: AtomicU64,
    /// The adapter has gone.
    broken: AtomicU64,
    slab: Arc<Slab>,
}

impl Endpoint {
    /// NoMemory: the adapter or the kernel refuses something, which PM_DEBUG names.
    fn new(
        chosen: &Chosen,
        identity: Identity,
        socket: UdpSocket,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Arc<Endpoint>> {
        let geometry = *slab.geometry();
        let place = geometry.place(identity.own as usize).ok_or(Error::Invalid)?;
        let engine = Engine::new(chosen, identity, socket, addresses, slab.clone())?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let endpoint = Arc::new(Endpoint {
            channel: identity.channel,
            own: identity.own,
            place,
            mtu: geometry.mtu,
            window: engine.window(),
            credits: engine.credits(),
            regions: engine.regions.clone(),
            lanes: Lanes::new(&geometry, arrivals::entries(geometry.nodes)),
            served: Served::new(engine),
            send: send::Sender::new(&geometry),
            receive: receive::Receiver::default(),
            select: select::Sleeper::default(),
            stop: EventFd::from_flags(flags).map_err(from_errno)?,
            left: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            slab,
        });
        progress::start(&endpoint)?;
        Ok(endpoint)
    }

    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Nodes that it reaches, itself included.
    pub(crate) fn nodes(&self) -> usize {
        self.slab.geometry().nodes
    }

    /// Bytes of memory that it maps, without the receive buffers of peers.
    pub(crate) fn size(&self) -> usize {
        self.slab.geometry().size
    }

    /// The longest message.
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

    #[inline(always)]
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    fn serve(&self, what: Pass) {
        let mut ring = false;
        let pass = |engine: &mut Engine| {
            ring |= engine.pass(&self.lanes, what) && self.lanes.bell.must_ring();
        };
        self.served.serve(pass, || !self.lanes.submitted.is_empty());
        if ring {
            self.select.ring();
        }
    }

    /// As `serve` with everything; waits for the thread, if that is at it.
    fn serve_surely(&self) {
        let mut engine = self.served.enter();
        let ring = engine.pass(&self.lanes, Pass::All) && self.lanes.bell.must_ring();
        drop(engine);
        if ring {
            self.select.ring();
        }
        // For those who found the engine taken.
        self.serve(Pass::Send);
    }

    /// Gives it up: what was sent goes out, for a bounded time; the rest is the owner's.
    fn leave(&self) {
        if self.left.load(Ordering::Acquire) != 0 {
            return;
        }
        self.linger();
        self.left.store(1, Ordering::Release);
        let _ = self.stop.write(1);
        let door = &self.record().node.door.0;
        door.exit(crate::barrier::issue);
        open::count_unread(&self.slab, self.place);
        self.served.enter().close();
    }
}

/// The verbs part of a context.
pub(crate) struct Verbs {
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

impl Verbs {
    pub(crate) fn opened(number: usize, owner: &Arc<open::Channels>) -> Verbs {
        Verbs {
            number,
            state: Mutex::default(),
            owner: Some(owner.clone()),
            endpoint: AtomicPtr::new(null_mut()),
        }
    }

    pub(super) fn attached(number: usize, endpoint: Arc<Endpoint>) -> Verbs {
        let verbs = Verbs {
            number,
            state: Mutex::default(),
            owner: None,
            endpoint: AtomicPtr::new(null_mut()),
        };
        verbs.install(&mut verbs.state(), endpoint);
        verbs
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

impl Transport for Verbs {
    const KIND: &'static str = "verbs";
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
        node.map_or(Ok(()), |node| endpoint.check_peer(node))?;
        Ok(1)
    }
    fn publish_region(&self, _way: usize, region: &Region) -> Result<()> {
        self.endpoint()?.publish_region(region)
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
