//! RMA packets whose bytes are still in user memory. The wire reads the bytes from there when it
//! sends the packet. Most of these packets are acknowledged soon, and are never copied to the slab.
//!
//! In the slab, the slot of such a packet is marked as lost. An owner that adopts the slots of an
//! exited process sends this mark. `copy_back` copies the bytes to the slab before a packet is sent
//! again. It also copies them if the packet must outlive the process, and when memory is unlocked.

#![forbid(unsafe_code)]

use super::rma_protocol::{OperationNumber, OperationRole};
use super::wire::UserBytes;
use crate::device::net_common::indices::{RmaSlotBase, RmaSlotIndex, SlotIndex};
use crate::rma::AddrHandle;

/// A frame whose bytes are in user memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroCopyFrame {
    pub(super) peer: u32,
    pub(super) bytes: UserBytes,
    /// The region that must be locked while the bytes are sent. None: the bytes only have to be
    /// mapped.
    pub(super) region: Option<AddrHandle>,
    pub(super) side: OperationRole,
    pub(super) number: OperationNumber,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PayloadState {
    /// All bytes of the packet are in the slab.
    InSlab,
    /// The bytes are in user memory, and the packet was never sent.
    Unsent(ZeroCopyFrame),
    /// The bytes are in user memory, and the packet was sent once.
    Sent(ZeroCopyFrame),
    /// The bytes are no longer accessible.
    Discarded,
}

/// The threshold of `is_above_copy_back_threshold`.
const COPY_BACK_THRESHOLD: usize = 64;

/// See the module.
pub(super) struct ZeroCopyFrames {
    /// The beginning of the RMA slots.
    slot_base: RmaSlotBase,
    /// The state of each RMA slot.
    states: Box<[PayloadState]>,
    /// The number of zero-copy frames, and their slots in the order of insertion. The list may also
    /// contain slots of other frames.
    frame_count: usize,
    slots_in_send_order: Vec<SlotIndex>,
}

impl ZeroCopyFrames {
    /// Makes the states of `slot_count` slots from `slot_base` on.
    pub(super) fn new(slot_base: RmaSlotBase, slot_count: usize) -> ZeroCopyFrames {
        ZeroCopyFrames {
            slot_base,
            states: vec![PayloadState::InSlab; slot_count].into(),
            frame_count: 0,
            slots_in_send_order: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frame_count == 0
    }

    /// Whether there are so many zero-copy frames that checking for acknowledgements first is
    /// cheaper than copying all of them back.
    #[inline]
    pub(super) fn is_above_copy_back_threshold(&self) -> bool {
        self.frame_count > COPY_BACK_THRESHOLD
    }

    fn index(&self, slot: SlotIndex) -> Option<usize> {
        let index = self.slot_base.rma_slot(slot).map(RmaSlotIndex::as_usize);
        index.filter(|index| *index < self.states.len())
    }

    #[inline]
    pub(super) fn state(&self, slot: SlotIndex) -> &PayloadState {
        self.index(slot).map_or(&PayloadState::InSlab, |index| &self.states[index])
    }

    /// Returns the frame of `slot`, if its bytes are in user memory.
    pub(super) fn frame(&self, slot: SlotIndex) -> Option<ZeroCopyFrame> {
        match *self.state(slot) {
            PayloadState::Unsent(frame) | PayloadState::Sent(frame) => Some(frame),
            PayloadState::InSlab | PayloadState::Discarded => None,
        }
    }

    fn set(&mut self, slot: SlotIndex, state: PayloadState) {
        self.frame_count -= usize::from(self.frame(slot).is_some());
        if let Some(index) = self.index(slot) {
            self.states[index] = state;
        }
        self.frame_count += usize::from(self.frame(slot).is_some());
    }

    /// Marks the bytes of `slot` as being in user memory.
    pub(super) fn insert(&mut self, slot: SlotIndex, frame: ZeroCopyFrame) {
        if self.slots_in_send_order.len() > 2 * self.states.len() {
            let mut slots = std::mem::take(&mut self.slots_in_send_order);
            slots.retain(|slot| self.frame(*slot).is_some());
            self.slots_in_send_order = slots;
        }
        self.slots_in_send_order.push(slot);
        self.set(slot, PayloadState::Unsent(frame));
    }

    /// Notes that the kernel has accepted the packet. If the packet must be sent again, it is sent
    /// from the slab.
    pub(super) fn on_sent(&mut self, slot: SlotIndex) {
        if let PayloadState::Unsent(frame) = *self.state(slot) {
            self.set(slot, PayloadState::Sent(frame));
        }
    }

    /// Notes that the bytes of `slot` are in the slab, or that the slot is free.
    #[inline]
    pub(super) fn set_in_slab(&mut self, slot: SlotIndex) {
        if !matches!(self.state(slot), PayloadState::InSlab) {
            self.set(slot, PayloadState::InSlab);
            if self.frame_count == 0 {
                self.slots_in_send_order.clear();
            }
        }
    }

    /// Notes that the bytes of `slot` are no longer accessible.
    pub(super) fn discard(&mut self, slot: SlotIndex) {
        self.set(slot, PayloadState::Discarded);
    }

    /// Returns the slots of zero-copy frames in the order of insertion. `peer` limits them to the
    /// slots of this node's writes to `peer`.
    pub(super) fn slots(&self, peer: Option<u32>) -> Vec<SlotIndex> {
        let is_write_to =
            |frame: ZeroCopyFrame, to| frame.side == OperationRole::Origin && frame.peer == to;
        let is_selected = |frame| peer.is_none_or(|peer| is_write_to(frame, peer));
        let is_zero_copy = |slot: &SlotIndex| self.frame(*slot).is_some_and(is_selected);
        self.slots_in_send_order.iter().copied().filter(is_zero_copy).collect()
    }

    /// Returns how many of these frames, counted from the first one, are contiguous in user memory.
    pub(super) fn contiguous_count(&self, slots: &[SlotIndex]) -> usize {
        let is_contiguous = |pair: &[SlotIndex]| {
            let (Some(first), Some(second)) = (self.frame(pair[0]), self.frame(pair[1])) else {
                return false;
            };
            (first.peer, first.side, first.number, first.bytes.addr + first.bytes.len)
                == (second.peer, second.side, second.number, second.bytes.addr)
        };
        1 + slots.windows(2).take_while(|pair| is_contiguous(pair)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(peer: u32, addr: usize) -> ZeroCopyFrame {
        let bytes = UserBytes { addr, len: 10 };
        let (side, number) = (OperationRole::Origin, OperationNumber(1));
        ZeroCopyFrame { peer, bytes, region: None, side, number }
    }

    #[test]
    fn a_zero_copy_frame_is_listed_until_it_is_in_the_slab_or_discarded() {
        let mut frames = ZeroCopyFrames::new(RmaSlotBase(SlotIndex(100)), 8);
        frames.set_in_slab(SlotIndex(3));
        assert!(frames.is_empty() && frames.frame(SlotIndex(3)).is_none(), "a slot of messages");
        frames.insert(SlotIndex(104), frame(7, 10));
        frames.insert(SlotIndex(101), frame(7, 20));
        frames.insert(SlotIndex(102), frame(8, 30));
        frames.insert(SlotIndex(103), frame(7, 40));
        assert_eq!(frames.slots(Some(7)), [104, 101, 103].map(SlotIndex));
        assert_eq!(frames.slots(None), [104, 101, 102, 103].map(SlotIndex));
        assert_eq!(frames.contiguous_count(&frames.slots(Some(7))), 2, "a gap after the second");
        frames.on_sent(SlotIndex(101));
        assert!(matches!(frames.state(SlotIndex(101)), PayloadState::Sent(_)));
        frames.discard(SlotIndex(101));
        frames.set_in_slab(SlotIndex(104));
        assert!(matches!(
            (frames.state(SlotIndex(101)), frames.state(SlotIndex(104))),
            (PayloadState::Discarded, PayloadState::InSlab)
        ));
        assert_eq!(frames.slots(Some(7)), [SlotIndex(103)]);
        [101, 102, 103].into_iter().for_each(|slot| frames.set_in_slab(SlotIndex(slot)));
        assert!(frames.is_empty() && frames.slots(None).is_empty());
    }

    #[test]
    fn the_slot_list_does_not_grow_with_frames_that_were_copied_back() {
        let mut frames = ZeroCopyFrames::new(RmaSlotBase(SlotIndex(0)), 4);
        frames.insert(SlotIndex(3), frame(1, 0));
        for round in 0..1000 {
            frames.insert(SlotIndex(round % 3), frame(1, 0));
            frames.set_in_slab(SlotIndex(round % 3));
        }
        assert!(frames.slots_in_send_order.len() <= 9, "{}", frames.slots_in_send_order.len());
        assert_eq!(frames.slots(None), [SlotIndex(3)]);
    }
}
