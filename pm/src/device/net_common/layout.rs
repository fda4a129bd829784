//! The layout of a slab. It is computed from a few numbers in the attach message, so that a process
//! need not trust sizes in the slab itself.

#![forbid(unsafe_code)]

use super::indices::{LocalIndex, RmaSlotBase, SlotIndex};
use crate::config::{CONTROL_MTU, MAX_NODE, MIN_MTU};
use crate::error::{Error, PmResult};
use crate::segment::layout::{CacheAligned, NodeRecord};
use crate::sync::{AtomicU32, AtomicU64};
use score_pm_reliability::packet_header::{PACKET_HEADER_LEN, PacketKind};
use std::ops::Range;

/// "SCPMETH" and the version of the layout.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SCPMETH\x07");
/// The most processes that share a slab.
pub(crate) const MAX_LOCAL: usize = 1024;
/// The largest MTU of a slab.
pub(crate) const MAX_MTU: usize = 64 << 10;
/// The most control messages that wait for their process to send them. The same number of slots is
/// reserved for them.
pub(crate) const CONTROL_QUEUE_LEN: usize = 4;

/// The bytes in front of each payload that belong to its frame. A network writes its headers there.
/// The size is that of the headers of an ethernet packet over UDP.
pub(crate) const FRAME_HEADROOM: usize = PACKET_HEADER_LEN + 2;

const PAGE: usize = 4096;
/// The most bytes of one process's frames for messages. Its frames for RMA have the same limit.
const FRAME_MEMORY_BUDGET: usize = 4 << 20;
const MIN_SLOTS: usize = 64;
const MAX_SLOTS: usize = 1024;

/// The first cache lines of the header page.
#[repr(C)]
pub(crate) struct SlabHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) size: AtomicU64,
    pub(crate) nonce: [AtomicU64; 2],
    pub(crate) pad: [u64; 4],
    /// The owner increments this word when it marks a node as exited, so it has its own cache line.
    pub(crate) exited_count: AtomicU64,
}

/// A control message on its way from the owner to the process that sends it.
#[repr(C)]
pub(crate) struct ControlSlot {
    pub(crate) to: AtomicU32,
    pub(crate) len: AtomicU32,
    pub(crate) words: [AtomicU64; CONTROL_MTU / 8],
}

/// Control messages that a process must send for the owner. The owner writes `write_index`, the
/// process writes `read_index`.
#[repr(C, align(64))]
pub(crate) struct ControlQueue {
    pub(crate) write_index: CacheAligned<AtomicU64>,
    pub(crate) read_index: CacheAligned<AtomicU64>,
    pub(crate) slots: [ControlSlot; CONTROL_QUEUE_LEN],
}

/// The record of a local node.
#[repr(C)]
pub(crate) struct LocalNodeRecord {
    /// The same record as in a shmem segment, so that monitors sample both kinds of device in the
    /// same way.
    pub(crate) node: NodeRecord,
    /// The number of messages that the process has accepted, and acknowledges.
    pub(crate) accepted_count: CacheAligned<AtomicU64>,
    pub(crate) control_queue: ControlQueue,
}

/// The header of one slot. `state` is written last, and shows whether the other fields are valid.
#[repr(C, align(64))]
pub(crate) struct SendSlotHeader {
    /// 0 if the slot is free or being written. Otherwise it is a [`SendSlotState`].
    pub(crate) state: AtomicU64,
    pub(crate) to: AtomicU32,
    /// The sequence number among the packets to `to`, if it is assigned.
    pub(crate) sequence: AtomicU32,
    /// The position among the messages to `to`, if no sequence number is assigned.
    pub(crate) send_order: AtomicU32,
}

/// The state word of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendSlotState {
    pub(crate) len: usize,
    /// The kind of the packet, which must have a sequence number.
    pub(crate) kind: PacketKind,
    /// Whether remote operations that precede the message were pending when it was sent.
    pub(crate) ordered_after_rma: bool,
}

const PUBLISHED: u64 = 1 << 63;
const ORDERED_AFTER_RMA: u64 = 1 << 60;
/// The bit of a state word that marks the slot's sequence number as valid.
pub(crate) const SEQUENCE_ASSIGNED: u64 = 1 << 59;
/// The bit position of the kind. The length is in the bits below it.
const KIND_SHIFT: u32 = 32;

impl SendSlotState {
    pub(crate) fn new(len: usize, kind: PacketKind) -> SendSlotState {
        SendSlotState { len, kind, ordered_after_rma: false }
    }
    pub(crate) fn word(self) -> u64 {
        let order_flag = if self.ordered_after_rma { ORDERED_AFTER_RMA } else { 0 };
        PUBLISHED | order_flag | (self.kind as u64) << KIND_SHIFT | u64::from(self.len as u32)
    }
    /// Returns None if the slot is free or the kind is invalid. The length is not checked.
    pub(crate) fn from_word(word: u64) -> Option<SendSlotState> {
        let kind =
            PacketKind::from_byte((word >> KIND_SHIFT) as u8).filter(|kind| kind.is_numbered())?;
        let (len, ordered_after_rma) = (word as u32 as usize, word & ORDERED_AFTER_RMA != 0);
        (word & PUBLISHED != 0).then_some(SendSlotState { len, kind, ordered_after_rma })
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<SendSlotHeader>() == 64);
    assert!(std::mem::offset_of!(SlabHeader, exited_count) == 64);
    assert!(size_of::<SlabHeader>() <= PAGE);
    assert!(size_of::<LocalNodeRecord>().is_multiple_of(64));
};

/// The sizes of a slab. Each process computes all addresses from this private copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabGeometry {
    /// The number of nodes of the job.
    pub(crate) nodes: u32,
    /// The local nodes are the `local_nodes` nodes from `first_node` on.
    pub(crate) first_node: u32,
    pub(crate) local_nodes: u32,
    /// The longest message.
    pub(crate) mtu: usize,
    /// The number of slots of one process for messages. The same number of slots for RMA frames
    /// follows them.
    pub(crate) slots: usize,
    frame_stride: usize,
    exited_bitmap_offset: usize,
    pair_counters_offset: usize,
    slots_offset: usize,
    frames_offset: usize,
    pub(crate) size: usize,
}

impl SlabGeometry {
    /// Computes the layout for the nodes `local` of a job with `nodes` nodes. Returns `Invalid` if
    /// a number is out of range.
    pub(crate) fn new(nodes: u32, local: Range<u32>, mtu: usize) -> PmResult<SlabGeometry> {
        let (first_node, local_nodes) = (local.start, local.end.saturating_sub(local.start));
        let fits = (1..=MAX_NODE as u32).contains(&nodes)
            && (1..=MAX_LOCAL as u32).contains(&local_nodes)
            && local.end <= nodes
            && (MIN_MTU..=MAX_MTU).contains(&mtu);
        if !fits {
            return Err(Error::Invalid);
        }
        // Over UDP, there are no gaps between the frames of messages of the full length. A run of
        // such frames is therefore contiguous.
        let frame_stride = (FRAME_HEADROOM + mtu).next_multiple_of(64);
        let slots = 1 << (FRAME_MEMORY_BUDGET / mtu).clamp(MIN_SLOTS, MAX_SLOTS).ilog2();
        let (node_count, local_count) = (nodes as usize, local_nodes as usize);
        let exited_bitmap_offset = PAGE + local_count * size_of::<LocalNodeRecord>();
        let pair_counters_offset =
            (exited_bitmap_offset + node_count.div_ceil(64) * 8).next_multiple_of(PAGE);
        let slots_offset =
            (pair_counters_offset + local_count * node_count * 8).next_multiple_of(PAGE);
        let total_slots = local_count * slots * 2;
        let frames_offset = (slots_offset + total_slots * size_of::<SendSlotHeader>())
            .next_multiple_of(PAGE)
            + FRAME_HEADROOM.next_multiple_of(64);
        let size = (frames_offset + total_slots * frame_stride).next_multiple_of(PAGE);
        Ok(SlabGeometry {
            nodes,
            first_node,
            local_nodes,
            mtu,
            slots,
            frame_stride,
            exited_bitmap_offset,
            pair_counters_offset,
            slots_offset,
            frames_offset,
            size,
        })
    }

    /// Returns the index of `node` among the local nodes, or None if it is not local.
    pub(crate) fn local_index(&self, node: u32) -> Option<LocalIndex> {
        let index = node.checked_sub(self.first_node).filter(|&index| index < self.local_nodes);
        index.map(LocalIndex)
    }

    /// Returns the indices of all local nodes.
    pub(crate) fn local_indices(self) -> impl Iterator<Item = LocalIndex> {
        (0..self.local_nodes).map(LocalIndex)
    }

    #[inline(always)]
    pub(crate) fn record_offset(&self, local_index: LocalIndex) -> usize {
        debug_assert!(local_index.0 < self.local_nodes);
        PAGE + local_index.as_usize() * size_of::<LocalNodeRecord>()
    }

    /// Returns the offset of the word for `node` in the bitmap of exited nodes.
    pub(crate) fn exited_word_offset(&self, node: u32) -> usize {
        debug_assert!(node < self.nodes);
        self.exited_bitmap_offset + node as usize / 64 * 8
    }

    /// Returns the offset of the counter for traffic between the node at `local_index` and `peer`.
    #[inline(always)]
    pub(crate) fn pair_counter_offset(&self, local_index: LocalIndex, peer: u32) -> usize {
        debug_assert!(local_index.0 < self.local_nodes && peer < self.nodes);
        let index = local_index.as_usize() * self.nodes as usize + peer as usize;
        self.pair_counters_offset + index * 8
    }

    /// Returns the number of slots of one process, of both kinds.
    #[inline(always)]
    pub(crate) fn all_slots(&self) -> usize {
        self.slots * 2
    }

    /// Returns the indices of the slots of one process for messages.
    pub(crate) fn message_slots(self) -> impl Iterator<Item = SlotIndex> {
        (0..self.slots as u32).map(SlotIndex)
    }

    /// Returns the first of the slots for messages that are reserved for control messages.
    #[inline(always)]
    pub(crate) fn first_control_slot(&self) -> SlotIndex {
        SlotIndex((self.slots - CONTROL_QUEUE_LEN) as u32)
    }

    /// Returns where the slots for RMA frames begin.
    #[inline(always)]
    pub(crate) fn rma_slot_base(&self) -> RmaSlotBase {
        RmaSlotBase(SlotIndex(self.slots as u32))
    }

    /// Returns the indices of all slots of one process.
    pub(crate) fn slot_indices(self) -> impl Iterator<Item = SlotIndex> {
        (0..self.all_slots() as u32).map(SlotIndex)
    }

    /// Whether the slab has this slot of this node.
    #[inline(always)]
    pub(crate) fn contains_slot(&self, local_index: LocalIndex, slot: SlotIndex) -> bool {
        local_index.0 < self.local_nodes && slot.as_usize() < self.all_slots()
    }

    /// Returns the position of a slot among the slots of all processes.
    #[inline(always)]
    fn slot_position(&self, local_index: LocalIndex, slot: SlotIndex) -> usize {
        debug_assert!(self.contains_slot(local_index, slot));
        local_index.as_usize() * self.all_slots() + slot.as_usize()
    }

    #[inline(always)]
    pub(crate) fn slot_offset(&self, local_index: LocalIndex, slot: SlotIndex) -> usize {
        self.slots_offset + self.slot_position(local_index, slot) * size_of::<SendSlotHeader>()
    }

    #[inline(always)]
    pub(crate) fn frame_offset(&self, local_index: LocalIndex, slot: SlotIndex) -> usize {
        self.frames_offset + self.slot_position(local_index, slot) * self.frame_stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_slab_do_not_overlap_and_are_inside_it() {
        for (nodes, first, local) in [(1, 0, 1), (2, 1, 1), (65, 3, 62), (4096, 4000, 96)] {
            for mtu in [1024, 1411, 8911, MAX_MTU] {
                let g = SlabGeometry::new(nodes, first..first + local, mtu).unwrap();
                let (first, last) = (LocalIndex(0), LocalIndex(local - 1));
                assert!(
                    g.record_offset(last) + size_of::<LocalNodeRecord>() <= g.exited_word_offset(0)
                );
                let (first_slot, last_slot) = (SlotIndex(0), g.slot_indices().last().unwrap());
                assert!(g.exited_word_offset(nodes - 1) + 8 <= g.pair_counter_offset(first, 0));
                assert!(
                    g.pair_counter_offset(last, nodes - 1) + 8 <= g.slot_offset(first, first_slot)
                );
                assert!(g.slot_offset(last, last_slot) + 64 <= g.frame_offset(first, first_slot));
                assert!(g.frame_offset(last, last_slot) + mtu <= g.size);
                assert_eq!(g.frame_offset(first, SlotIndex(1)) % 64, 0, "payloads are aligned");
                assert!(g.slots.is_power_of_two());
            }
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (nodes, first, local, mtu) in [
            (0, 0, 0, 1400),
            (2, 0, 3, 1400),
            (2, 1, 2, 1400),
            (2, u32::MAX - 2, 2, 1400),
            (2, 0, 0, 1400),
            (2, 0, 2, 1023),
            (2, 0, 2, MAX_MTU + 1),
            (MAX_NODE as u32 + 1, 0, 1, 1400),
            (4096, 0, MAX_LOCAL as u32 + 1, 1400),
        ] {
            assert_eq!(SlabGeometry::new(nodes, first..first + local, mtu), Err(Error::Invalid));
        }
    }

    #[test]
    fn a_slots_word_distinguishes_free_from_published() {
        assert_eq!(SendSlotState::from_word(0), None);
        for kind in [
            PacketKind::Data,
            PacketKind::Control,
            PacketKind::Remote,
            PacketKind::Continuation,
            PacketKind::PayloadLost,
        ] {
            let slot =
                SendSlotState { len: 1400, kind, ordered_after_rma: kind == PacketKind::Data };
            assert_eq!(SendSlotState::from_word(slot.word()), Some(slot));
            assert_eq!(SendSlotState::from_word(slot.word() | SEQUENCE_ASSIGNED), Some(slot));
        }
        let ack = SendSlotState::new(8, PacketKind::Ack).word();
        assert_eq!(SendSlotState::from_word(ack), None, "it has no sequence number");
    }
}
