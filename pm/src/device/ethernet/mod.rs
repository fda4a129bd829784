//! The ethernet device sends messages between hosts over UDP or raw frames. `docs/dev/ethernet.md`
//! describes how packets become messages, and how the parts work together. The device is a
//! [`NetworkDevice`]. The code that such devices share is in `net_common/`.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs`, `open.rs`, `attach.rs`, `config.rs` | the device, its options and its endpoints |
//! | `wire/` | sending and receiving packets |
//! | `engine.rs`, `control_queue.rs` | progress between wires, machine, sender and receiver |
//! | `send.rs` | when a submitted message is sent |
//! | `rma.rs`, `rma_requests.rs` | remote memory access: the callers' side |
//! | `rma_protocol/` | remote memory access: the state machine |
//! | `rma_engine.rs`, `rma_data.rs` | remote memory access: the state and the bytes |
//! | `zero_copy.rs`, `copy_back.rs` | RMA packets that are sent directly from user memory |
//! | `transmit.rs`, `receive_store.rs` | the wires of an engine; its received messages |
//! | `exited_nodes.rs` | the nodes that have exited, and their grace periods |
//! | `job_clock.rs` | the clock of all timers, which omits the time while the job is stopped |
//! | `progress.rs` | the thread that makes progress while the application computes |
//! | `adopt.rs` | the owner's work for a process that has exited |

mod adopt;
mod attach;
pub(crate) mod config;
mod control_queue;
mod copy_back;
mod engine;
mod exited_nodes;
mod job_clock;
pub(crate) mod open;
mod progress;
mod receive_store;
mod rma;
mod rma_data;
mod rma_engine;
mod rma_protocol;
mod rma_requests;
mod send;
mod transmit;
pub mod wire;
mod zero_copy;

use super::net_common::address_table::AddressTable;
use super::net_common::endpoint_queues::{PeerSendState, SendRequest};
use super::net_common::slab::{PublishedMessage, Slab};
use super::net_common::{
    self, EndpointIdentity, NetworkDevice, ProgressMode, count_unread, receive_buffers,
};
use crate::device::SelectInterface;
use crate::error::{Error, PmResult};
use crate::progress_lock::PollOwner;
use crate::rma::Direction;
use crate::sync::{Ordering, SingleWriterU64};
use adopt::EthernetOrphan;
use engine::EthernetEngine;
use rma_requests::RmaRequestQueue;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// The ethernet device, and the state that it adds to each endpoint.
pub(crate) struct Ethernet {
    poll_owner: PollOwner,
    thread: OnceLock<Arc<progress::ProgressThread>>,
    rma_requests: Arc<RmaRequestQueue>,
    /// The number of messages sent since the last poll.
    burst_len: SingleWriterU64,
    /// When the latest message of a burst was sent.
    last_send_at: SingleWriterU64,
}

/// The state of this process for one channel and node.
pub(crate) type EthernetEndpoint = net_common::NetworkEndpoint<Ethernet>;
/// The ethernet part of a context.
pub(crate) type EthernetContext = net_common::NetworkContext<Ethernet>;

impl NetworkDevice for Ethernet {
    const KIND: &'static str = "ethernet";
    const OPTIONS: u64 = rma::OPTIONS;
    const IS_POLL_SYSTEM_CALL: bool = true;
    const SAVE_MAGIC: u64 = u64::from_le_bytes(*b"SCPMESV\x01");
    const ATTACH_MAGIC: u64 = u64::from_le_bytes(*b"SCPMETH\x05");

    type Engine = EthernetEngine;
    /// The number of restarts of the job.
    type OpenParams = u32;
    /// A socket for each link.
    type LocalSockets = Vec<wire::WireEndpoint>;
    type Orphan = EthernetOrphan;

    fn duplicate(links: &Self::LocalSockets) -> PmResult<Self::LocalSockets> {
        links.iter().map(|link| link.try_clone().map_err(engine::to_pm_error)).collect()
    }
    fn addresses(links: &Self::LocalSockets) -> PmResult<Vec<Vec<u8>>> {
        Ok(links.iter().map(wire::WireEndpoint::address).collect())
    }
    fn describe<'a>(
        restarts: &u32,
        links: &'a Self::LocalSockets,
    ) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
        attach::describe(*restarts, links)
    }
    fn rebuild(bytes: &[u8], fds: Vec<OwnedFd>) -> PmResult<(u32, Self::LocalSockets, usize)> {
        attach::rebuild(bytes, fds)
    }

    /// Returns `NoMemory` if the kernel refuses the progress thread.
    fn open(
        restarts: &u32,
        identity: EndpointIdentity,
        links: Self::LocalSockets,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<Arc<EthernetEndpoint>> {
        let entries = receive_buffers::buffer_count(slab.geometry().mtu);
        let engine = EthernetEngine::new(identity, *restarts, links, addresses, slab.clone())?;
        let net = Ethernet {
            poll_owner: PollOwner::default(),
            thread: OnceLock::new(),
            rma_requests: engine.rma_requests.clone(),
            burst_len: SingleWriterU64::default(),
            last_send_at: SingleWriterU64::default(),
        };
        let endpoint = EthernetEndpoint::new(identity, slab, entries, engine, net)?;
        let thread = progress::register(&endpoint)?;
        let _ = endpoint.net.thread.set(thread);
        Ok(endpoint)
    }
    fn adopt(
        restarts: &u32,
        identity: EndpointIdentity,
        links: Self::LocalSockets,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<EthernetOrphan> {
        let entries = receive_buffers::buffer_count(slab.geometry().mtu);
        let engine = EthernetEngine::new(identity, *restarts, links, addresses, slab)?;
        Ok(EthernetOrphan::adopt(engine, entries))
    }

    fn max_message_len(endpoint: &EthernetEndpoint, node: u32) -> PmResult<usize> {
        endpoint.progress_lock.lock().transmitter.mtu(node).map_err(|_| Error::Io)
    }
    #[inline(always)]
    fn content(
        _: &EthernetEndpoint,
        node: u32,
        peer: &PeerSendState,
        len: usize,
    ) -> PublishedMessage {
        send::content(node, peer, len)
    }
    #[inline(always)]
    fn send(endpoint: &EthernetEndpoint, peer: &PeerSendState, message: SendRequest) {
        endpoint.send_or_queue(peer, message);
    }
    #[inline(always)]
    fn has_work(endpoint: &EthernetEndpoint) -> bool {
        !endpoint.queues.submitted.is_empty() || !endpoint.net.rma_requests.is_empty()
    }
    #[inline(always)]
    fn progress(
        endpoint: &EthernetEndpoint,
        engine: &mut EthernetEngine,
        mode: ProgressMode,
    ) -> bool {
        // A receiver that is about to sleep leaves the wires to the progress thread.
        if mode != ProgressMode::Send
            && !endpoint.is_selecting()
            && endpoint.net.poll_owner.on_app_poll()
        {
            endpoint.unwatch(engine);
        }
        net_common::Engine::progress(engine, &endpoint.queues, mode)
    }
    #[inline(always)]
    fn poll(endpoint: &EthernetEndpoint, mode: ProgressMode) {
        // While a stream is being sent, polls only make room for its next messages. Such polls do
        // not end the stream.
        if endpoint.queues.outstanding.load(Ordering::Relaxed) < send::STREAM_THRESHOLD {
            endpoint.net.burst_len.set(0);
        }
        endpoint.serve(mode);
    }
    /// Makes the progress thread watch the wires until a receiver polls without sleeping.
    fn arm_wakeup(endpoint: &EthernetEndpoint) {
        let engine = endpoint.progress_lock.lock();
        if endpoint.net.poll_owner.hand_to_thread() {
            endpoint.watch(&engine);
        }
    }
    fn pending_reads(endpoint: &EthernetEndpoint) -> usize {
        endpoint.net.rma_requests.pending(Direction::Read) as usize
    }
    fn close(endpoint: &EthernetEndpoint) {
        if endpoint.closed.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        progress::unregister(endpoint);
        endpoint.drain();
        endpoint.record().node.receiver_state.0.set_exited(crate::membarrier::issue);
        count_unread(&endpoint.slab, endpoint.local_index);
    }
}

impl EthernetEndpoint {
    fn unwatch(&self, engine: &EthernetEngine) {
        if let Some(thread) = self.net.thread.get() {
            thread.unwatch(engine);
        }
    }

    fn watch(&self, engine: &EthernetEngine) {
        if let Some(thread) = self.net.thread.get() {
            thread.watch(engine);
        }
    }
}
