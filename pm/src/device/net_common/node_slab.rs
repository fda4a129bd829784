//! The part of a slab that belongs to one local node: its slots, its record and its counters. An
//! engine reaches the slab by this type only, so that it cannot write to the part of another node.

#![forbid(unsafe_code)]

use super::indices::{LocalIndex, SlotIndex};
use super::layout::{ControlQueue, LocalNodeRecord, SendSlotState, SlabGeometry};
use super::slab::{PublishedMessage, SequenceNumber, Slab};
use crate::error::{Error, PmResult};
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// See the module.
pub(crate) struct NodeSlab {
    slab: Arc<Slab>,
    self_node: u32,
    local_index: LocalIndex,
    /// The count of exited nodes that the engine has read last.
    exited_seen: u64,
}

impl NodeSlab {
    /// Returns `Invalid` if the slab has no part for this node.
    pub(crate) fn new(slab: Arc<Slab>, self_node: u32) -> PmResult<NodeSlab> {
        let local_index = slab.geometry().local_index(self_node);
        let local_index = local_index.ok_or(Error::Invalid)?;
        Ok(NodeSlab { slab, self_node, local_index, exited_seen: 0 })
    }

    /// The whole slab.
    pub(crate) fn slab(&self) -> &Arc<Slab> {
        &self.slab
    }

    #[inline(always)]
    pub(crate) fn geometry(&self) -> &SlabGeometry {
        self.slab.geometry()
    }

    #[inline(always)]
    pub(crate) fn record(&self) -> &LocalNodeRecord {
        self.slab.record(self.local_index)
    }

    /// The control messages that the owner has queued for this process.
    #[inline(always)]
    pub(crate) fn control_queue(&self) -> &ControlQueue {
        &self.record().control_queue
    }

    /// Returns the offset of a slot's payload in the slab.
    #[inline(always)]
    pub(crate) fn payload_offset(&self, slot: SlotIndex) -> usize {
        self.slab.payload_offset(self.local_index, slot)
    }

    /// Returns the address of a slot's payload.
    #[inline(always)]
    pub(crate) fn payload(&self, slot: SlotIndex) -> *mut u8 {
        self.slab.payload(self.local_index, slot)
    }

    /// Writes a short message to a slot's frame.
    pub(crate) fn write(&self, slot: SlotIndex, message: &[u8]) {
        self.slab.write(self.local_index, slot, message);
    }

    /// Publishes the message in the slot's frame.
    #[inline(always)]
    pub(crate) fn publish(&self, slot: SlotIndex, content: PublishedMessage) {
        self.slab.publish(self.local_index, slot, content);
    }

    /// Stores the sequence number of a published message.
    #[inline(always)]
    pub(crate) fn set_sequence(&self, slot: SlotIndex, sequence: SequenceNumber) {
        self.slab.set_sequence(self.local_index, slot, sequence);
    }

    /// Replaces the state of a published slot that has its sequence number.
    pub(crate) fn replace(&self, slot: SlotIndex, published: SendSlotState) {
        self.slab.replace(self.local_index, slot, published);
    }

    /// Frees the slot. Called when its message was acknowledged or dropped.
    #[inline(always)]
    pub(crate) fn free(&self, slot: SlotIndex) {
        self.slab.free(self.local_index, slot);
    }

    /// Returns the published message in a slot, or None if the slot is free.
    pub(crate) fn content(&self, slot: SlotIndex) -> Option<PublishedMessage> {
        self.slab.content(self.local_index, slot)
    }

    /// For ethernet: the sequence number of the next packet to `to`.
    #[inline(always)]
    pub(crate) fn next_sequence(&self, to: u32) -> &AtomicU64 {
        self.slab.next_sequence(self.local_index, to)
    }

    /// For verbs: the number of messages from `source` that this process has accepted.
    #[inline(always)]
    pub(crate) fn accepted_from(&self, source: u32) -> &AtomicU64 {
        self.slab.accepted(self.local_index, source)
    }

    /// For verbs: the number of this node's messages that the process of `node` has accepted. None:
    /// `node` is on another host.
    pub(crate) fn accepted_by(&self, node: u32) -> Option<&AtomicU64> {
        let peer_index = self.geometry().local_index(node)?;
        Some(self.slab.accepted(peer_index, self.self_node))
    }

    /// Counts a message that this process has accepted.
    #[inline(always)]
    pub(crate) fn count_accepted(&self) {
        let accepted_count = &self.record().accepted_count.0;
        let count = accepted_count.load(Ordering::Relaxed).wrapping_add(1);
        accepted_count.store(count, Ordering::Release);
    }

    /// Counts dropped messages. Messages to an exited node count as received for their sender.
    #[cold]
    pub(crate) fn count_dropped(&self, count: u64) {
        self.record().node.send.0.dropped.fetch_add(count, Ordering::Release);
    }

    /// Whether the owner has marked further nodes as exited since [`NodeSlab::note_exits`].
    #[inline(always)]
    pub(crate) fn has_new_exits(&self) -> bool {
        self.slab.exited_count().load(Ordering::Relaxed) != self.exited_seen
    }

    /// Notes that the caller reads the marks of all nodes after this call.
    pub(crate) fn note_exits(&mut self) {
        self.exited_seen = self.slab.exited_count().load(Ordering::Acquire);
    }

    /// Whether the owner has marked `node` as exited.
    #[inline(always)]
    pub(crate) fn is_exited(&self, node: u32) -> bool {
        self.slab.is_exited(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_pm_reliability::PacketKind;

    #[test]
    fn a_node_has_its_own_part_of_the_slab_and_a_node_of_another_host_has_none() {
        let slab = Arc::new(Slab::create(SlabGeometry::new(6, 2..5, 1400).unwrap()).unwrap());
        let [mut first, second] = [2, 4].map(|node| NodeSlab::new(slab.clone(), node).unwrap());
        assert!(NodeSlab::new(slab.clone(), 5).is_err());
        let published = SendSlotState::new(9, PacketKind::Data);
        let sequence = Some(SequenceNumber(7));
        let content = PublishedMessage { to: 5, order: 0, sequence, published };
        let slot = SlotIndex(3);
        first.publish(slot, content);
        assert_eq!((first.content(slot), second.content(slot)), (Some(content), None));
        assert_eq!(slab.content(LocalIndex(0), slot), Some(content));
        second.accepted_from(2).store(8, Ordering::Relaxed);
        assert_eq!(first.accepted_by(4).unwrap().load(Ordering::Relaxed), 8);
        assert!(first.accepted_by(5).is_none());
        slab.set_exited(5);
        assert!(first.has_new_exits() && second.has_new_exits() && first.is_exited(5));
        first.note_exits();
        assert!(!first.has_new_exits() && second.has_new_exits());
    }
}
