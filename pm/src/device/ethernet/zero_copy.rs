//! Packets of remote memory whose bytes are still where their user has them: the wire takes them
//! there when they go out. Most are acknowledged soon after, and were never copied to the slab.
//!
//! The slab says that such a packet is lost: whoever adopts the slots of a dead process sends that.
//! What has to go out again, or may not be lost with the process, is brought home before
//! (`copy_back`), and so is all when memory is unlocked.

#![forbid(unsafe_code)]

use super::rma_protocol::OperationRole;
use super::wire::UserBytes;
use crate::rma::AddrHandle;

/// A frame whose bytes are away.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroCopyFrame {
    pub(super) peer: u32,
    pub(super) bytes: UserBytes,
    /// They may be sent as long as they are locked. None: as long as they are there.
    pub(super) region: Option<AddrHandle>,
    pub(super) side: OperationRole,
    pub(super) number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PayloadState {
    /// The slab has all of it.
    InSlab,
    /// It was never sent.
    Unsent(ZeroCopyFrame),
    /// It was, once.
    Sent(ZeroCopyFrame),
    /// There are no bytes any more.
    Discarded,
}

/// Frames that are many.
const COPY_BACK_THRESHOLD: usize = 64;

/// See the module.
pub(super) struct ZeroCopyFrames {
    /// The first slot of remote memory.
    first_slot: usize,
    states: Box<[PayloadState]>,
    /// How many frames are away, and their slots in the order of going. Others may be among these.
    frame_count: usize,
    slots_in_send_order: Vec<u32>,
}

impl ZeroCopyFrames {
    /// For slots from `first` on, so many of them.
    pub(super) fn new(first_slot: usize, slot_count: usize) -> ZeroCopyFrames {
        ZeroCopyFrames {
            first_slot,
            states: vec![PayloadState::InSlab; slot_count].into(),
            frame_count: 0,
            slots_in_send_order: Vec::new(),
        }
    }

    /// Whether no frame is away.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frame_count == 0
    }

    /// Whether they are so many that it costs less to look which have arrived than to bring all
    /// home.
    #[inline]
    pub(super) fn is_above_copy_back_threshold(&self) -> bool {
        self.frame_count > COPY_BACK_THRESHOLD
    }

    fn index(&self, slot: u32) -> Option<usize> {
        (slot as usize).checked_sub(self.first_slot).filter(|index| *index < self.states.len())
    }

    #[inline]
    pub(super) fn state(&self, slot: u32) -> &PayloadState {
        self.index(slot).map_or(&PayloadState::InSlab, |index| &self.states[index])
    }

    /// The frame of `slot`, if it is away.
    pub(super) fn frame(&self, slot: u32) -> Option<ZeroCopyFrame> {
        match *self.state(slot) {
            PayloadState::Unsent(frame) | PayloadState::Sent(frame) => Some(frame),
            PayloadState::InSlab | PayloadState::Discarded => None,
        }
    }

    fn set(&mut self, slot: u32, state: PayloadState) {
        self.frame_count -= usize::from(self.frame(slot).is_some());
        if let Some(index) = self.index(slot) {
            self.states[index] = state;
        }
        self.frame_count += usize::from(self.frame(slot).is_some());
    }

    /// The bytes of `slot` are away from now on.
    pub(super) fn insert(&mut self, slot: u32, frame: ZeroCopyFrame) {
        if self.slots_in_send_order.len() > 2 * self.states.len() {
            let mut slots = std::mem::take(&mut self.slots_in_send_order);
            slots.retain(|slot| self.frame(*slot).is_some());
            self.slots_in_send_order = slots;
        }
        self.slots_in_send_order.push(slot);
        self.set(slot, PayloadState::Unsent(frame));
    }

    /// The kernel has taken the packet: if it has to go out again, it does from the slab.
    pub(super) fn on_sent(&mut self, slot: u32) {
        if let PayloadState::Unsent(frame) = *self.state(slot) {
            self.set(slot, PayloadState::Sent(frame));
        }
    }

    /// The slab has what `slot` has to say.
    #[inline]
    pub(super) fn set_in_slab(&mut self, slot: u32) {
        if !matches!(self.state(slot), PayloadState::InSlab) {
            self.set(slot, PayloadState::InSlab);
            if self.frame_count == 0 {
                self.slots_in_send_order.clear();
            }
        }
    }

    /// There are none.
    pub(super) fn discard(&mut self, slot: u32) {
        self.set(slot, PayloadState::Discarded);
    }

    /// The slots whose frames are away, in the order of going: own writes to `peer`, or all.
    pub(super) fn slots(&self, peer: Option<u32>) -> Vec<u32> {
        let is_write_to =
            |frame: ZeroCopyFrame, to| frame.side == OperationRole::Origin && frame.peer == to;
        let is_selected = |frame| peer.is_none_or(|peer| is_write_to(frame, peer));
        let is_zero_copy = |slot: &u32| self.frame(*slot).is_some_and(is_selected);
        self.slots_in_send_order.iter().copied().filter(is_zero_copy).collect()
    }

    /// How many of these, from the first on, lie one behind the other.
    pub(super) fn contiguous_count(&self, slots: &[u32]) -> usize {
        let is_contiguous = |pair: &[u32]| {
            let (Some(one), Some(other)) = (self.frame(pair[0]), self.frame(pair[1])) else {
                return false;
            };
            (one.peer, one.side, one.number, one.bytes.addr + one.bytes.len)
                == (other.peer, other.side, other.number, other.bytes.addr)
        };
        1 + slots.windows(2).take_while(|pair| is_contiguous(pair)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(peer: u32, addr: usize) -> ZeroCopyFrame {
        let bytes = UserBytes { addr, len: 10 };
        ZeroCopyFrame { peer, bytes, region: None, side: OperationRole::Origin, number: 1 }
    }

    #[test]
    fn a_zero_copy_frame_is_listed_until_it_is_in_the_slab_or_discarded() {
        let mut frames = ZeroCopyFrames::new(100, 8);
        frames.set_in_slab(3);
        assert!(frames.is_empty() && frames.frame(3).is_none(), "a slot of messages");
        frames.insert(104, frame(7, 10));
        frames.insert(101, frame(7, 20));
        frames.insert(102, frame(8, 30));
        frames.insert(103, frame(7, 40));
        assert_eq!(frames.slots(Some(7)), [104, 101, 103]);
        assert_eq!(frames.slots(None), [104, 101, 102, 103]);
        assert_eq!(frames.contiguous_count(&frames.slots(Some(7))), 2, "a gap behind the second");
        frames.on_sent(101);
        assert!(matches!(frames.state(101), PayloadState::Sent(_)));
        frames.discard(101);
        frames.set_in_slab(104);
        assert!(matches!(
            (frames.state(101), frames.state(104)),
            (PayloadState::Discarded, PayloadState::InSlab)
        ));
        assert_eq!(frames.slots(Some(7)), [103]);
        [101, 102, 103].into_iter().for_each(|slot| frames.set_in_slab(slot));
        assert!(frames.is_empty() && frames.slots(None).is_empty());
    }

    #[test]
    fn the_slot_list_does_not_grow_with_frames_that_were_copied_back() {
        let mut frames = ZeroCopyFrames::new(0, 4);
        frames.insert(3, frame(1, 0));
        for round in 0..1000 {
            frames.insert(round % 3, frame(1, 0));
            frames.set_in_slab(round % 3);
        }
        assert!(frames.slots_in_send_order.len() <= 9, "{}", frames.slots_in_send_order.len());
        assert_eq!(frames.slots(None), [3]);
    }
}
