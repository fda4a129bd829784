//! Sends messages. A message is written to a slot of the slab, published with one store, and
//! submitted to the engine.

// UNSAFETY: copies the message of a multicast.
#![expect(unsafe_code)]

use super::endpoint_queues::{PeerSendState, SendRequest};
use super::indices::SlotIndex;
use super::layout::SlabGeometry;
use super::receive_buffers::AlignedLine;
use super::slot_allocator::SlotAllocator;
use super::{NetworkDevice, NetworkEndpoint, ProgressMode};
use crate::debug;
use crate::device::{Endpoint, SendInterface, shorten};
use crate::error::{Error, PmResult};
use crate::sync::{Ordering, SingleWriterU64};

/// The value of `pending_slot` if there is no pending message, or if it is discarded because its
/// receiver has exited.
const DISCARD: u64 = u64::MAX - 1;
/// The value of `pending_slot` for a multicast.
const PENDING_MULTICAST: u64 = u64::MAX;

/// The most nodes of one multicast. Each node needs a slot.
const MAX_MULTICAST_NODES: usize = 1024;

pub(super) struct NetworkSender {
    slots: SlotAllocator<SlotIndex>,
    pending_slot: SingleWriterU64,
    pending_node: SingleWriterU64,
    pending_len: SingleWriterU64,
    /// The memory for the message of a multicast, or for a message that is discarded.
    staging: Box<[AlignedLine]>,
    multicast_nodes: Box<[SingleWriterU64]>,
    multicast_count: SingleWriterU64,
    last_multicast_id: SingleWriterU64,
    /// The number of slots that are promised to a multicast, and the id of that multicast.
    promised_slots: SingleWriterU64,
    promised_multicast_id: SingleWriterU64,
}

impl NetworkSender {
    pub(super) fn new(geometry: &SlabGeometry) -> NetworkSender {
        // A multicast includes each node at most once.
        let max_multicast = (geometry.nodes as usize).min(MAX_MULTICAST_NODES);
        NetworkSender {
            slots: SlotAllocator::new(geometry.first_control_slot().as_usize(), geometry.mtu),
            pending_slot: SingleWriterU64::new(DISCARD),
            pending_node: SingleWriterU64::default(),
            pending_len: SingleWriterU64::default(),
            staging: vec![AlignedLine::default(); geometry.mtu.div_ceil(size_of::<AlignedLine>())]
                .into(),
            multicast_nodes: (0..max_multicast).map(|_| SingleWriterU64::default()).collect(),
            multicast_count: SingleWriterU64::default(),
            last_multicast_id: SingleWriterU64::default(),
            promised_slots: SingleWriterU64::default(),
            promised_multicast_id: SingleWriterU64::default(),
        }
    }

    #[inline(always)]
    fn set_pending(&self, slot: Option<SlotIndex>, node: u32, len: usize) {
        self.pending_slot.set(slot.map_or(DISCARD, |slot| slot.0.into()));
        self.pending_node.set(u64::from(node));
        self.pending_len.set(len as u64);
    }
}

impl<N: NetworkDevice> SendInterface for NetworkEndpoint<N> {
    #[inline(always)]
    fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        let peer = self.peer_for_message(node, len)?;
        let sender = &self.send;
        if self.is_exited(node) {
            sender.set_pending(None, node, len);
            return Ok(self.staging());
        }
        self.ensure_slot(node, peer, 0)?;
        let slot = sender.slots.allocate().ok_or(Error::NoBuffers)?;
        sender.set_pending(Some(slot), node, len);
        Ok(self.slab.payload(self.local_index, slot))
    }

    fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        let sender = &self.send;
        if nodes.is_empty() || nodes.len() > self.nodes() {
            return Err(Error::Invalid);
        }
        if nodes.len() > sender.multicast_nodes.len() {
            return Err(Error::NoBuffers);
        }
        let multicast_id = self.next_multicast_id();
        nodes.iter().try_for_each(|&node| self.can_reserve(node, len, multicast_id))?;
        for (entry, &node) in sender.multicast_nodes.iter().zip(nodes) {
            entry.set(u64::from(node));
        }
        sender.multicast_count.set(nodes.len() as u64);
        sender.pending_slot.set(PENDING_MULTICAST);
        sender.pending_len.set(len as u64);
        Ok(self.staging())
    }

    fn truncate(&self, len: usize) -> PmResult<()> {
        shorten(&self.send.pending_len, len)
    }

    #[inline(always)]
    fn publish(&self) {
        let sender = &self.send;
        let (slot, node) = (sender.pending_slot.get(), sender.pending_node.get() as u32);
        if slot == PENDING_MULTICAST {
            return self.publish_multicast();
        }
        let len = sender.pending_len.get();
        // The message is counted before it becomes visible.
        let counters = &self.record().node.send.0;
        counters.count_sent();
        counters.record_sent(node.wrapping_add(1), len as usize);
        let Some(peer) = self.queues.peers.get(node).filter(|_| slot != DISCARD) else {
            return self.discard_message();
        };
        sender.pending_slot.set(DISCARD);
        let slot = SlotIndex(slot as u32);
        N::send(self, peer, SendRequest { slot, to: node, len: len as u32 });
    }

    fn next_multicast_id(&self) -> u64 {
        let multicast_id = self.send.last_multicast_id.get() + 1;
        self.send.last_multicast_id.set(multicast_id);
        multicast_id
    }

    fn raise_multicast_id(&self, multicast_id: u64) {
        self.send.last_multicast_id.set(self.send.last_multicast_id.get().max(multicast_id));
    }

    fn can_reserve(&self, node: u32, len: usize, multicast_id: u64) -> PmResult<()> {
        let peer = self.peer_for_message(node, len)?;
        if peer.multicast_id.get() == multicast_id {
            return Err(Error::Invalid);
        }
        peer.multicast_id.set(multicast_id);
        if self.is_exited(node) {
            return Ok(());
        }
        let sender = &self.send;
        if sender.promised_multicast_id.get() != multicast_id {
            sender.promised_multicast_id.set(multicast_id);
            sender.promised_slots.set(0);
        }
        self.ensure_slot(node, peer, sender.promised_slots.get())?;
        sender.promised_slots.set(sender.promised_slots.get() + 1);
        Ok(())
    }

    fn staging(&self) -> *mut u8 {
        self.send.staging.as_ptr().cast_mut().cast()
    }

    fn send_copy(&self, node: u32, from: *const u8, len: usize) {
        let slot = if self.is_exited(node) { None } else { self.send.slots.allocate() };
        self.send.set_pending(slot, node, len);
        if let Some(slot) = slot {
            let to = self.slab.payload(self.local_index, slot);
            // SAFETY: the slot has room for the longest message. `from` is the staging memory of a
            // context with at least this MTU.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }
        self.publish();
    }
}

impl<N: NetworkDevice> NetworkEndpoint<N> {
    /// Returns the peer, if a message of this length may be sent to it. Returns `Invalid` for a bad
    /// node or length, and `Io` if the device cannot send.
    #[inline(always)]
    fn peer_for_message(&self, node: u32, len: usize) -> PmResult<&PeerSendState> {
        let peer = self.peer(node)?;
        if (len as u64).wrapping_sub(1) >= peer.mtu.get() {
            return Err(Error::Invalid);
        }
        N::check_operational(self)?;
        Ok(peer)
    }

    /// Returns the state of another node. Looks up its longest message if it is not known yet.
    #[inline(always)]
    pub(crate) fn peer(&self, node: u32) -> PmResult<&PeerSendState> {
        self.check_peer(node)?;
        let peer = self.queues.peers.get(node).ok_or(Error::Invalid)?;
        if peer.mtu.get() == 0 {
            self.resolve_peer(node, peer)?;
        }
        Ok(peer)
    }

    /// Looks up the length of the longest message to a peer. Returns `Io` if the peer cannot be
    /// reached.
    #[cold]
    fn resolve_peer(&self, node: u32, peer: &PeerSendState) -> PmResult<()> {
        peer.mtu.set(N::max_message_len(self, node)?.min(self.mtu) as u64);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn is_exited(&self, node: u32) -> bool {
        self.slab.exited_count().load(Ordering::Relaxed) != 0 && self.slab.is_exited(node)
    }

    /// Returns `NoBuffers` if there is no slot for one more message to this peer, after
    /// `promised_slots` others.
    #[inline(always)]
    fn ensure_slot(&self, node: u32, peer: &PeerSendState, promised_slots: u64) -> PmResult<()> {
        if self.has_slot(node, peer, promised_slots) {
            return Ok(());
        }
        self.poll_for_slot(node, peer, promised_slots)
    }

    /// Polls, because received acknowledgements free slots, and checks again.
    #[cold]
    fn poll_for_slot(&self, node: u32, peer: &PeerSendState, promised_slots: u64) -> PmResult<()> {
        N::poll(self, ProgressMode::All);
        if self.has_slot(node, peer, promised_slots) {
            return Ok(());
        }
        Err(N::check_operational(self).err().unwrap_or(Error::NoBuffers))
    }

    /// Whether this peer may use a slot. No peer may use more slots than are free, so that peers
    /// that do not read cannot stop messages to other peers.
    #[inline(always)]
    fn has_slot(&self, node: u32, peer: &PeerSendState, promised_slots: u64) -> bool {
        self.collect_freed_slots();
        let left = self.send.slots.len().saturating_sub(promised_slots);
        peer.outstanding() < left && N::may_send(self, node, peer)
    }

    /// Frees the slots of messages that were acknowledged or dropped.
    #[inline(always)]
    pub(in crate::device) fn collect_freed_slots(&self) {
        while let Some(slot) = self.queues.freed.pop() {
            self.send.slots.release(slot);
        }
    }

    /// Publishes a message, and queues it for the engine.
    #[inline(always)]
    pub(in crate::device) fn hand_over(&self, peer: &PeerSendState, message: SendRequest) {
        self.publish_slot(peer, message);
        // The queue has room for all slots, so it is never full.
        self.queues.submitted.push(message);
    }

    /// Publishes a message without queueing it.
    #[inline(always)]
    pub(in crate::device) fn publish_slot(&self, peer: &PeerSendState, message: SendRequest) {
        let SendRequest { slot, to, len } = message;
        let content = N::content(self, to, peer, len as usize);
        self.slab.publish(self.local_index, slot, content);
        peer.count_sent();
    }

    #[cold]
    fn publish_multicast(&self) {
        let sender = &self.send;
        let len = (sender.pending_len.get() as usize).min(self.mtu);
        let count = (sender.multicast_count.get() as usize).min(sender.multicast_nodes.len());
        for node in &sender.multicast_nodes[..count] {
            self.send_copy(node.get() as u32, self.staging(), len);
        }
    }

    /// Drops a message to an exited node. The sender counts the message as received.
    #[cold]
    fn discard_message(&self) {
        self.send.pending_slot.set(DISCARD);
        self.record().node.send.0.dropped.fetch_add(1, Ordering::Release);
        debug::log(debug::WARNING, || {
            format!("{}: a message to a node that has exited is dropped", N::KIND)
        });
    }

    /// Frees a reserved slot without sending its message. Called with the send lock held.
    pub(super) fn discard_reserved(&self) {
        let slot = self.send.pending_slot.get();
        self.send.pending_slot.set(DISCARD);
        if slot != DISCARD && slot != PENDING_MULTICAST {
            self.send.slots.release(SlotIndex(slot as u32));
        }
    }
}
