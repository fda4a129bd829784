//! What devices share whose nodes are on many hosts: memory of the job that outlives its
//! processes, what sender, receiver and progress hand each other, contexts and their owner. A
//! device is a [`NetworkDevice`]: it says how what was sent is brought to other hosts.
//!
//! Beside the files that every device has:
//!
//! | file | what is in it |
//! |---|---|
//! | `context.rs` | the context's part of the device, and its `Transport` |
//! | `attach.rs` | what goes to the process that a context is given to |
//! | `lanes.rs`, `spsc_queue.rs`, `receive_buffers.rs` | what sender, receiver and progress hand each other |
//! | `slot_allocator.rs` | which frame of the slab the next message is written to |
//! | `slab.rs`, `layout.rs`, `addresses.rs` | memory of the job |

pub(crate) mod address_table;
mod attach;
mod context;
mod control;
pub(crate) mod endpoint_queues;
pub(crate) mod layout;
pub(crate) mod open;
mod receive;
pub(crate) mod receive_buffers;
mod select;
mod send;
pub(crate) mod slab;
pub(crate) mod slot_allocator;
mod spsc_queue;
mod state;

use crate::error::{Error, PmResult};
use crate::progress_lock::{ProgressGuard, ProgressLock};
use crate::rma::{Direction, Region, RegionId, RmaOperation};
use crate::sync::{AtomicU64, Ordering};
use address_table::AddressTable;
pub(crate) use context::NetworkContext;
use endpoint_queues::{ControlMessage, EndpointQueues, PeerSendState, SendRequest};
use layout::LocalNodeRecord;
pub(super) use open::count_unread;
pub(crate) use open::{Channels, attach};
use slab::{PublishedMessage, Slab};
pub(super) use state::is_saved_context;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// What a pass is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressMode {
    /// Something was sent: that goes out first, and nothing is received but before a time-out.
    Send,
    /// A message is wanted: when one comes, the rest may be left to the next pass.
    Receive,
    /// Everything.
    All,
}

/// Who an end is, and what the job's packets carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointIdentity {
    pub(super) self_node: u32,
    pub(super) channel: u32,
    pub(super) secret: u64,
}

/// What makes progress. Whoever holds its lock does all of it.
pub(crate) trait Engine {
    /// One pass; answers whether something was delivered.
    fn progress(&mut self, queues: &EndpointQueues, mode: ProgressMode) -> bool;
    /// How many control messages wait to be read.
    fn control_message_count(&self) -> usize;
    /// Sends a control message. NoBuffers: as many as may be are on the way.
    fn send_control(&mut self, queues: &EndpointQueues, to: u32, message: &[u8]) -> PmResult<()>;
    /// Gives the next letter to `read`, which says whether it took it. NoBuffers: there is none.
    fn receive_control<T>(
        &mut self,
        queues: &EndpointQueues,
        read: impl FnOnce(&ControlMessage) -> PmResult<T>,
    ) -> PmResult<T>;
    /// For people.
    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()>;
}

/// A kind of network, and what it keeps for an endpoint beside what all have.
pub(crate) trait NetworkDevice: Sized {
    /// The device's name.
    const KIND: &'static str;
    /// Option bits of its contexts.
    const OPTIONS: u64;
    /// How a saved context begins: name and version of the format.
    const SAVE_MAGIC: u64;
    /// The same of the message of an attach descriptor.
    const ATTACH_MAGIC: u64;

    /// What makes progress.
    type Engine: Engine;
    /// How the device was opened.
    type OpenParams;
    /// One node's end of one channel: where it is reached.
    type LocalSockets;
    /// What its owner does for a process that has ended.
    type Orphan: Orphan;

    // The owner.

    /// An end of its own for who takes it into use; `socket` stays.
    fn duplicate(socket: &Self::LocalSockets) -> PmResult<Self::LocalSockets>;
    /// Where peers reach it: an address for each link.
    fn addresses(socket: &Self::LocalSockets) -> PmResult<Vec<Vec<u8>>>;
    /// What goes with an attach descriptor: bytes and descriptors, of which [`NetworkDevice::rebuild`]
    /// makes the same.
    fn describe<'a>(
        setup: &Self::OpenParams,
        socket: &'a Self::LocalSockets,
    ) -> (Vec<u8>, Vec<BorrowedFd<'a>>);
    /// Setup and port of another process, and the number of links. Invalid: no such thing was
    /// described. NoDevice: this process has no such device.
    fn rebuild(
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> PmResult<(Self::OpenParams, Self::LocalSockets, usize)>;
    /// Takes an end into use.
    fn open(
        setup: &Self::OpenParams,
        identity: EndpointIdentity,
        socket: Self::LocalSockets,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<Arc<NetworkEndpoint<Self>>>;
    /// Takes over what a process that has ended has left.
    fn adopt(
        setup: &Self::OpenParams,
        identity: EndpointIdentity,
        socket: Self::LocalSockets,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<Self::Orphan>;

    // The endpoint.

    /// Io: nothing goes out any more.
    #[inline(always)]
    fn check_operational(_endpoint: &NetworkEndpoint<Self>) -> PmResult<()> {
        Ok(())
    }
    /// The longest message to a node that nothing was sent to yet. Io: it cannot be reached.
    fn max_message_len(endpoint: &NetworkEndpoint<Self>, node: u32) -> PmResult<usize>;
    /// Whether one more message may go to that peer, if there is a slot for it.
    #[inline(always)]
    fn may_send(_endpoint: &NetworkEndpoint<Self>, _node: u32, _peer: &PeerSendState) -> bool {
        true
    }
    /// What stands in the slot of the next message to that peer.
    fn content(
        endpoint: &NetworkEndpoint<Self>,
        node: u32,
        peer: &PeerSendState,
        len: usize,
    ) -> PublishedMessage;
    /// A message lies in its slot: publishes it, and sends it now or before long.
    #[inline(always)]
    fn send(endpoint: &NetworkEndpoint<Self>, peer: &PeerSendState, message: SendRequest) {
        endpoint.hand_over(peer, message);
        endpoint.serve(ProgressMode::Send);
    }
    /// Whether something waits for whoever makes progress.
    #[inline(always)]
    fn has_work(endpoint: &NetworkEndpoint<Self>) -> bool {
        !endpoint.queues.submitted.is_empty()
    }
    /// A pass, under the lock.
    #[inline(always)]
    fn progress(
        endpoint: &NetworkEndpoint<Self>,
        engine: &mut Self::Engine,
        mode: ProgressMode,
    ) -> bool {
        engine.progress(&endpoint.queues, mode)
    }
    /// Makes progress for who polls.
    #[inline(always)]
    fn poll(endpoint: &NetworkEndpoint<Self>, mode: ProgressMode) {
        endpoint.serve(mode);
    }
    /// The same with everything, also where somebody else is at it.
    fn poll_blocking(endpoint: &NetworkEndpoint<Self>) {
        Self::poll(endpoint, ProgressMode::All);
    }
    /// From now on whatever comes wakes who sleeps.
    fn arm_wakeup(endpoint: &NetworkEndpoint<Self>);
    /// Reads of remote memory that are under way.
    fn pending_reads(endpoint: &NetworkEndpoint<Self>) -> usize;
    /// Gives it up: what was sent goes out, for a bounded time; the rest is the owner's.
    fn close(endpoint: &NetworkEndpoint<Self>);

    // Remote memory, as in `Transport`.

    fn publish_region(endpoint: &NetworkEndpoint<Self>, region: &Region) -> PmResult<()>;
    fn withdraw_region(endpoint: &NetworkEndpoint<Self>, number: RegionId);
    fn start_rma(
        endpoint: &NetworkEndpoint<Self>,
        node: u32,
        operation: &RmaOperation,
    ) -> PmResult<()>;
    fn is_remote_done(endpoint: &NetworkEndpoint<Self>, direction: Direction) -> PmResult<()>;
}

/// A process that has ended: what it has sent is brought home by its owner.
pub(crate) trait Orphan {
    /// Makes progress. None: nothing more is to be done before something comes.
    fn serve(&mut self) -> Option<Duration>;
    /// Whether all that it had sent has arrived, or its receivers have gone.
    fn is_drained(&self) -> bool;
    /// What becomes readable when something comes.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
}

/// What this process keeps for one channel and node.
pub(crate) struct NetworkEndpoint<N: NetworkDevice> {
    pub(super) channel: u32,
    pub(super) self_node: u32,
    pub(super) local_index: usize,
    /// The longest message to any node.
    pub(super) mtu: usize,
    pub(super) queues: EndpointQueues,
    pub(super) progress_lock: ProgressLock<N::Engine>,
    send: send::NetworkSender,
    receive: receive::NetworkReceiver,
    pub(super) select: select::SelectState,
    /// What this kind of network has besides.
    pub(super) net: N,
    /// Given up: nobody serves it any more.
    pub(super) closed: AtomicU64,
    pub(super) slab: Arc<Slab>,
}

impl<N: NetworkDevice> NetworkEndpoint<N> {
    /// `entries`: received messages that may wait. Invalid: the node is not of this host.
    pub(super) fn new(
        identity: EndpointIdentity,
        slab: Arc<Slab>,
        entries: usize,
        engine: N::Engine,
        net: N,
    ) -> PmResult<Arc<NetworkEndpoint<N>>> {
        let geometry = *slab.geometry();
        let local_index =
            geometry.local_index(identity.self_node as usize).ok_or(Error::Invalid)?;
        Ok(Arc::new(NetworkEndpoint {
            channel: identity.channel,
            self_node: identity.self_node,
            local_index,
            mtu: geometry.mtu,
            queues: EndpointQueues::new(&geometry, entries),
            progress_lock: ProgressLock::new(engine),
            send: send::NetworkSender::new(&geometry),
            receive: receive::NetworkReceiver::default(),
            select: select::SelectState::default(),
            net,
            closed: AtomicU64::new(0),
            slab,
        }))
    }

    pub(crate) fn self_node(&self) -> u32 {
        self.self_node
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
    pub(crate) fn max_message_len(&self) -> usize {
        self.mtu
    }

    #[inline(always)]
    pub(super) fn record(&self) -> &LocalNodeRecord {
        self.slab.record(self.local_index)
    }

    #[inline(always)]
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.slab.oversubscribed().load(Ordering::Relaxed) != 0
    }

    /// Invalid: no such node, or the own one.
    pub(crate) fn check_peer(&self, node: u32) -> PmResult<()> {
        let known = (node as usize) < self.nodes() && node != self.self_node;
        if known { Ok(()) } else { Err(Error::Invalid) }
    }

    /// Makes progress, or leaves it to whoever is at it.
    #[inline(always)]
    pub(super) fn serve(&self, mode: ProgressMode) {
        if let Some(guard) = self.progress_lock.try_lock() {
            self.serve_locked(guard, mode);
        } else if let Some(guard) = self.progress_lock.request_rerun(|| N::has_work(self)) {
            self.serve_locked_cold(guard, mode);
        }
    }

    /// Makes progress itself, after whoever is at it.
    pub(super) fn serve_blocking(&self, mode: ProgressMode) {
        self.serve_locked_cold(self.progress_lock.lock(), mode);
    }

    #[cold]
    fn serve_locked_cold(&self, guard: ProgressGuard<'_, N::Engine>, mode: ProgressMode) {
        self.serve_locked(guard, mode);
    }

    #[inline(always)]
    pub(super) fn serve_locked(&self, mut guard: ProgressGuard<'_, N::Engine>, mode: ProgressMode) {
        let mut wake = self.progress(&mut guard, mode);
        guard.unlock_or_rerun(|engine| wake |= self.progress(engine, mode));
        if wake {
            self.select.notify();
        }
    }

    /// Answers whether a sleeper is to be woken.
    #[inline(always)]
    fn progress(&self, engine: &mut N::Engine, mode: ProgressMode) -> bool {
        N::progress(self, engine, mode) && self.queues.wakeup_flag.take_wakeup()
    }

    // Remote memory: see `Transport`.

    pub(crate) fn publish_region(&self, region: &Region) -> PmResult<()> {
        N::publish_region(self, region)
    }
    pub(crate) fn withdraw_region(&self, number: RegionId) {
        N::withdraw_region(self, number);
    }
    pub(crate) fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        N::start_rma(self, node, operation)
    }
    pub(crate) fn is_remote_done(&self, direction: Direction) -> PmResult<()> {
        N::is_remote_done(self, direction)
    }
}
