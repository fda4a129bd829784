//! The code that the inter-host devices ethernet and verbs share: memory of the job that outlives
//! its processes, queues between sender, receiver and engine, and contexts and their owner. A
//! device implements [`NetworkDevice`], which defines how messages reach other hosts.
//!
//! In addition to the files that every device has:
//!
//! | file | content |
//! |---|---|
//! | `context.rs` | the context's part of the device |
//! | `attach.rs` | the message to the process that a context is given to |
//! | `endpoint_queues.rs`, `spsc_queue.rs` | the queues between sender, receiver and engine |
//! | `receive_buffers.rs` | the buffers of received messages |
//! | `slot_allocator.rs` | the choice of the slab slot for the next message |
//! | `slab.rs`, `layout.rs`, `address_table.rs` | memory of the job |
//! | `indices.rs` | types for the indices of slots, entries and local nodes |
//! | `node_slab.rs` | the part of a slab that an engine uses |
//! | `control_messages.rs` | control messages in an engine |

pub(crate) mod address_table;
mod attach;
mod context;
mod control;
pub(crate) mod control_messages;
pub(crate) mod endpoint_queues;
pub(crate) mod indices;
pub(crate) mod layout;
pub(crate) mod node_slab;
pub(crate) mod open;
mod receive;
pub(crate) mod receive_buffers;
mod select;
mod send;
pub(crate) mod slab;
pub(crate) mod slot_allocator;
mod spsc_queue;
mod state;

use crate::device::Endpoint;
use crate::error::{Error, PmResult};
use crate::progress_lock::{ProgressGuard, ProgressLock};
use crate::sync::AtomicU64;
use address_table::AddressTable;
pub(crate) use context::{NetworkContext, attach};
use endpoint_queues::{ControlMessage, EndpointQueues, PeerSendState, SendRequest};
use indices::LocalIndex;
use layout::LocalNodeRecord;
pub(crate) use open::Channels;
pub(super) use open::count_unread;
use slab::{PublishedMessage, Slab};
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The purpose of a pass of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressMode {
    /// A message was submitted. The pass sends it first, and receives packets only before a
    /// time-out.
    Send,
    /// The caller waits for a message. After a message is delivered, the pass may leave the rest of
    /// its work to the next pass.
    Receive,
    /// The pass does all work.
    All,
}

/// The identity of an endpoint, and the secret in the job's packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointIdentity {
    pub(super) self_node: u32,
    pub(super) channel: u32,
    pub(super) secret: u64,
}

/// The engine of a device. The thread that holds its lock does all of its work.
pub(crate) trait Engine {
    /// Makes one pass. Returns whether a message was delivered.
    fn progress(&mut self, queues: &EndpointQueues, mode: ProgressMode) -> bool;
    /// Returns the number of control messages that wait to be read.
    fn control_message_count(&self) -> usize;
    /// Sends a control message. Returns `NoBuffers` if the maximum number is in flight.
    fn send_control(&mut self, queues: &EndpointQueues, to: u32, message: &[u8]) -> PmResult<()>;
    /// Passes the next control message to `read`. If `read` succeeds, removes the message. Returns
    /// `NoBuffers` if there is no message.
    fn receive_control<T>(
        &mut self,
        queues: &EndpointQueues,
        read: impl FnOnce(&ControlMessage) -> PmResult<T>,
    ) -> PmResult<T>;
    /// Writes a description of the state.
    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()>;
}

/// A kind of network, and the state that it adds to each endpoint.
pub(crate) trait NetworkDevice: Sized {
    /// The device's name.
    const KIND: &'static str;
    /// The option bits of the device's contexts.
    const OPTIONS: u64;
    /// Whether a poll may be a system call even if no message waits.
    const IS_POLL_SYSTEM_CALL: bool;
    /// The first word of a saved context: the name and version of the format.
    const SAVE_MAGIC: u64;
    /// The first word of an attach descriptor's message.
    const ATTACH_MAGIC: u64;

    /// The device's engine.
    type Engine: Engine;
    /// The parameters that the device was opened with.
    type OpenParams;
    /// The sockets of one node on one channel. Other networks keep their equivalent of sockets
    /// here.
    type LocalSockets;
    /// The state that an exited process leaves.
    type Orphan: Orphan;

    // Functions that the owner calls.

    /// Duplicates the sockets for a process or for the owner. `socket` stays open.
    fn duplicate(socket: &Self::LocalSockets) -> PmResult<Self::LocalSockets>;
    /// Returns the addresses for peers, one for each link.
    fn addresses(socket: &Self::LocalSockets) -> PmResult<Vec<Vec<u8>>>;
    /// Returns the device's part of an attach descriptor: bytes and descriptors, from which
    /// [`NetworkDevice::rebuild`] makes the same parameters and sockets.
    fn describe<'a>(
        setup: &Self::OpenParams,
        socket: &'a Self::LocalSockets,
    ) -> (Vec<u8>, Vec<BorrowedFd<'a>>);
    /// Returns the parameters and sockets that another process has described, and the number of
    /// links. Returns `Invalid` if the description is malformed, and `NoDevice` if this process has
    /// no such device.
    fn rebuild(
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> PmResult<(Self::OpenParams, Self::LocalSockets, usize)>;
    /// Opens an endpoint.
    fn open(
        setup: &Self::OpenParams,
        identity: EndpointIdentity,
        socket: Self::LocalSockets,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<Arc<NetworkEndpoint<Self>>>;
    /// Adopts the messages of a process that has exited.
    fn adopt(
        setup: &Self::OpenParams,
        identity: EndpointIdentity,
        socket: Self::LocalSockets,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<Self::Orphan>;

    // Functions of an endpoint.

    /// Returns `Io` if the device can no longer send.
    #[inline(always)]
    fn check_operational(_endpoint: &NetworkEndpoint<Self>) -> PmResult<()> {
        Ok(())
    }
    /// Returns the length of the longest message to a node. Called before the first message to the
    /// node. Returns `Io` if the node cannot be reached.
    fn max_message_len(endpoint: &NetworkEndpoint<Self>, node: u32) -> PmResult<usize>;
    /// Whether the device permits one more message to a peer. The caller checks for a free slot.
    #[inline(always)]
    fn may_send(_endpoint: &NetworkEndpoint<Self>, _node: u32, _peer: &PeerSendState) -> bool {
        true
    }
    /// Returns the slot content of the next message to a peer.
    fn content(
        endpoint: &NetworkEndpoint<Self>,
        node: u32,
        peer: &PeerSendState,
        len: usize,
    ) -> PublishedMessage;
    /// Publishes the message that was written to its slot, and sends it now or soon.
    #[inline(always)]
    fn send(endpoint: &NetworkEndpoint<Self>, peer: &PeerSendState, message: SendRequest) {
        endpoint.hand_over(peer, message);
        endpoint.serve(ProgressMode::Send);
    }
    /// Whether work is waiting for the engine.
    #[inline(always)]
    fn has_work(endpoint: &NetworkEndpoint<Self>) -> bool {
        !endpoint.queues.submitted.is_empty()
    }
    /// Makes a pass, under the lock.
    #[inline(always)]
    fn progress(
        endpoint: &NetworkEndpoint<Self>,
        engine: &mut Self::Engine,
        mode: ProgressMode,
    ) -> bool {
        engine.progress(&endpoint.queues, mode)
    }
    /// Makes progress for a caller that polls.
    #[inline(always)]
    fn poll(endpoint: &NetworkEndpoint<Self>, mode: ProgressMode) {
        endpoint.serve(mode);
    }
    /// Makes progress of all kinds, for callers that need an up-to-date state. A device may wait
    /// for the thread that is making progress.
    fn poll_blocking(endpoint: &NetworkEndpoint<Self>) {
        Self::poll(endpoint, ProgressMode::All);
    }
    /// Makes received messages wake the sleeping receiver from now on.
    fn arm_wakeup(endpoint: &NetworkEndpoint<Self>);
    /// Returns the number of pending remote reads.
    fn pending_reads(endpoint: &NetworkEndpoint<Self>) -> usize;
    /// Closes the endpoint. It sends messages for a bounded time, and the owner delivers the rest.
    fn close(endpoint: &NetworkEndpoint<Self>);
}

/// The state that an exited process leaves. The owner delivers the messages that the process has
/// sent.
pub(crate) trait Orphan {
    /// Makes progress, and returns the time until the next call. Returns None if there is no work
    /// until a packet arrives.
    fn serve(&mut self) -> Option<Duration>;
    /// Whether every message of the process was acknowledged, or its receiver has exited.
    fn is_drained(&self) -> bool;
    /// Returns descriptors that become readable when a packet arrives.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
}

/// The state of this process for one channel and node.
pub(crate) struct NetworkEndpoint<N: NetworkDevice> {
    pub(super) channel: u32,
    pub(super) self_node: u32,
    pub(super) local_index: LocalIndex,
    /// The longest message to any node.
    pub(super) mtu: usize,
    pub(super) queues: EndpointQueues,
    pub(super) progress_lock: ProgressLock<N::Engine>,
    send: send::NetworkSender,
    receive: receive::NetworkReceiver,
    pub(super) select: select::NetworkSelectState,
    /// The state that this kind of network adds.
    pub(super) net: N,
    /// The word is not 0 if the endpoint is closed.
    pub(super) closed: AtomicU64,
    pub(super) slab: Arc<Slab>,
}

impl<N: NetworkDevice> NetworkEndpoint<N> {
    /// Makes an endpoint on which at most `entries` received messages may wait. Returns `Invalid`
    /// if the node is not local.
    pub(super) fn new(
        identity: EndpointIdentity,
        slab: Arc<Slab>,
        entries: usize,
        engine: N::Engine,
        net: N,
    ) -> PmResult<Arc<NetworkEndpoint<N>>> {
        let geometry = *slab.geometry();
        let local_index = geometry.local_index(identity.self_node).ok_or(Error::Invalid)?;
        Ok(Arc::new(NetworkEndpoint {
            channel: identity.channel,
            self_node: identity.self_node,
            local_index,
            mtu: geometry.mtu,
            queues: EndpointQueues::new(&geometry, entries),
            progress_lock: ProgressLock::new(engine),
            send: send::NetworkSender::new(&geometry),
            receive: receive::NetworkReceiver::default(),
            select: select::NetworkSelectState::default(),
            net,
            closed: AtomicU64::new(0),
            slab,
        }))
    }

    #[inline(always)]
    pub(super) fn record(&self) -> &LocalNodeRecord {
        self.slab.record(self.local_index)
    }

    /// Makes progress, or leaves the work to the thread that is already making progress.
    #[inline(always)]
    pub(super) fn serve(&self, mode: ProgressMode) {
        if let Some(guard) = self.progress_lock.try_lock() {
            self.serve_locked(guard, mode);
        } else if let Some(guard) = self.progress_lock.request_rerun(|| N::has_work(self)) {
            self.serve_locked_cold(guard, mode);
        }
    }

    /// Waits for the thread that is making progress, if there is one, and then makes progress.
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

    /// Makes one pass. Returns whether a sleeping receiver must be woken.
    #[inline(always)]
    fn progress(&self, engine: &mut N::Engine, mode: ProgressMode) -> bool {
        N::progress(self, engine, mode) && self.queues.wakeup_flag.take_wakeup()
    }
}

impl<N: NetworkDevice> Endpoint for NetworkEndpoint<N> {
    #[inline(always)]
    fn self_node(&self) -> u32 {
        self.self_node
    }
    #[inline(always)]
    fn nodes(&self) -> usize {
        self.slab.geometry().nodes as usize
    }
    fn size(&self) -> usize {
        self.slab.geometry().size
    }
    fn max_message_len(&self) -> usize {
        self.mtu
    }
    fn mtu(&self, node: u32) -> PmResult<usize> {
        if node == self.self_node {
            return Ok(self.mtu);
        }
        Ok(self.peer(node)?.mtu.get() as usize)
    }
}
