//! The shmem device: processes of one host exchange messages through rings in a shared segment.
//! `docs/dev/messages.md` describes the segment's layout.

// UNSAFETY: keeps addresses inside a mapping next to the mapping that they point into.
#![expect(unsafe_code)]

pub(crate) mod config;
mod control;
pub(crate) mod open;
mod peer_memory;
mod receive;
mod rma;
mod rma_fast_path;
mod select;
mod send;
mod state;

use super::{Endpoint, EndpointHolder, SelectInterface};
use crate::config::{ContextConfig, OPT_REMOTE_READ, OPT_REMOTE_WRITE};
use crate::doorbell::DoorbellSender;
use crate::error::{Error, PmResult};
use crate::membarrier;
use crate::segment::layout::{NodeRecord, SegmentGeometry};
use crate::segment::{RingKind, Segment};
use crate::sync::{AtomicU64, Ordering};
pub(crate) use receive::{HELD_IN_SLOT, Source};
pub(crate) use send::Target;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// Remote memory access in both directions.
pub(crate) const OPTIONS: u64 = OPT_REMOTE_WRITE | OPT_REMOTE_READ;

/// The state that this process keeps for one channel and node: its ends of all rings. The state of
/// a ring is in the segment, so an endpoint may be created again at any time.
#[repr(align(128))]
pub(crate) struct ShmemEndpoint {
    channel: u32,
    self_node: u32,
    mtu: usize,
    /// This node's record in the segment.
    record: NonNull<NodeRecord>,
    /// Grows whenever a source sends to this node for the first time.
    generation: NonNull<AtomicU64>,
    /// Whether a membarrier cannot reach this process. If so, the process fences after every
    /// message.
    must_fence: bool,
    send: send::ShmemSender,
    receive: receive::ShmemReceiver,
    control: control::Control,
    select: select::ShmemSelectState,
    rma: rma::RmaState,
    doorbell: Arc<DoorbellSender>,
    segment: Arc<Segment>,
}

// SAFETY: `record` and the rings point into the segment, which the endpoint holds. Everything that
// threads share is atomic, and the rings' contents are used under the context's locks.
unsafe impl Send for ShmemEndpoint {}
// SAFETY: as above.
unsafe impl Sync for ShmemEndpoint {}

impl ShmemEndpoint {
    pub(crate) fn new(
        segment: Arc<Segment>,
        channel: u32,
        self_node: u32,
        doorbell: Arc<DoorbellSender>,
        owner_pid: i32,
    ) -> PmResult<ShmemEndpoint> {
        let has_membarrier = membarrier::register();
        let record = segment.node(self_node as usize);
        if !has_membarrier {
            record
                .receiver_state
                .0
                .0
                .fetch_or(crate::receiver_state::NEEDS_FENCE, Ordering::SeqCst);
        }
        let send = send::ShmemSender::new(&segment, self_node as usize);
        let receive = receive::ShmemReceiver::new(&segment, self_node as usize, &send);
        Ok(ShmemEndpoint {
            channel,
            self_node,
            mtu: segment.geometry().ring.mtu as usize,
            record: NonNull::from(record),
            generation: NonNull::from(segment.generation(self_node as usize, RingKind::Message)),
            must_fence: !has_membarrier,
            send,
            receive,
            control: control::Control::default(),
            select: select::ShmemSelectState::default(),
            rma: rma::RmaState::new(segment.geometry().nodes, owner_pid),
            doorbell,
            segment,
        })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    #[inline(always)]
    fn record(&self) -> &NodeRecord {
        // SAFETY: points into the segment that `self` holds; the record has only atomics.
        unsafe { self.record.as_ref() }
    }

    /// Clears the record of the last destination, because a later message went by another device.
    /// Called under the send lock.
    pub(crate) fn clear_last_destination(&self) {
        self.record().send.0.last_peer.store(0, Ordering::Relaxed);
    }

    /// Clears the record of the last source, because a later message came by another device. Called
    /// under the receive lock.
    pub(crate) fn clear_last_source(&self) {
        self.record().receive.0.last_peer.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    fn generation(&self) -> &AtomicU64 {
        // SAFETY: as `record`.
        unsafe { self.generation.as_ref() }
    }
}

impl Endpoint for ShmemEndpoint {
    #[inline(always)]
    fn self_node(&self) -> u32 {
        self.self_node
    }
    #[inline(always)]
    fn nodes(&self) -> usize {
        self.segment.geometry().nodes
    }
    fn size(&self) -> usize {
        self.segment.geometry().size
    }
    #[inline(always)]
    fn max_message_len(&self) -> usize {
        self.mtu
    }
    fn mtu(&self, node: u32) -> PmResult<usize> {
        if (node as usize) < self.nodes() { Ok(self.mtu) } else { Err(Error::Invalid) }
    }
}

/// The shmem part of a context.
pub(crate) struct Shmem {
    number: usize,
    geometry: SegmentGeometry,
    /// The endpoint. The holder is empty while the context is not bound.
    endpoint: EndpointHolder<ShmemEndpoint>,
    is_attached: bool,
}

impl Shmem {
    pub(crate) fn opened(number: usize, geometry: SegmentGeometry) -> Shmem {
        Shmem { number, geometry, endpoint: EndpointHolder::empty(), is_attached: false }
    }

    pub(crate) fn attached(number: usize, endpoint: ShmemEndpoint) -> Shmem {
        let geometry = *endpoint.segment().geometry();
        let mut shmem = Shmem::opened(number, geometry);
        shmem.is_attached = true;
        shmem.endpoint.install(Arc::new(endpoint));
        shmem
    }

    /// The endpoint in force. Invalid: the context is not bound.
    #[inline(always)]
    pub(crate) fn endpoint(&self) -> PmResult<&ShmemEndpoint> {
        self.endpoint.get()
    }

    /// The longest message to `node`. Invalid: no such node.
    pub(crate) fn mtu(&self, node: u32) -> PmResult<usize> {
        let is_valid = (node as usize) < self.geometry.nodes;
        if is_valid { Ok(self.geometry.ring.mtu as usize) } else { Err(Error::Invalid) }
    }

    /// Binds the context to a channel as `self_node`. Called under both locks. Busy: the context is
    /// already bound, or another context is bound to that channel and node.
    pub(crate) fn bind(
        &self,
        channels: &open::ShmemChannels,
        channel: u32,
        self_node: u32,
    ) -> PmResult<()> {
        if self.endpoint().is_ok() {
            return Err(Error::Busy);
        }
        let endpoint = channels.bind(channel, self_node)?;
        self.endpoint.install(Arc::new(endpoint));
        Ok(())
    }

    /// Unbinds the context from its channel. Called under both locks. Invalid: the context is not
    /// bound.
    pub(crate) fn unbind(&self, channels: &open::ShmemChannels) -> PmResult<()> {
        let endpoint = self.endpoint()?;
        endpoint.after_select();
        endpoint.select.close_doorbell();
        self.endpoint.clear();
        channels.unbind(endpoint.channel, endpoint.self_node);
        Ok(())
    }

    /// Leaves the segment when the process that attached the context detaches it. Called under both
    /// locks.
    pub(crate) fn leave(&self) {
        if let (true, Ok(endpoint)) = (self.is_attached, self.endpoint()) {
            open::mark_exited(endpoint.segment(), endpoint.self_node as usize);
            endpoint.select.close_doorbell();
        }
    }

    /// Closes the doorbell, because the process that attaches the context opens a doorbell of the
    /// same name.
    pub(crate) fn create_attach_fd(&self) -> PmResult<OwnedFd> {
        let endpoint = self.endpoint()?;
        let fd = open::create_attach_fd(self.number, endpoint)?;
        endpoint.after_select();
        endpoint.select.close_doorbell();
        Ok(fd)
    }

    pub(crate) fn config(&self) -> ContextConfig {
        ContextConfig {
            kind: "shmem",
            number: self.number,
            nodes: self.geometry.nodes,
            mtu: self.geometry.ring.mtu as usize,
            size: self.geometry.size,
            option: OPTIONS,
        }
    }
}

fn message_ring(segment: &Segment, from: usize, to: usize) -> crate::ring::Ring {
    segment.ring(from, to, RingKind::Message)
}
