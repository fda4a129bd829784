//! Where things lie in a slab. All of it follows from a few numbers that come with the attach
//! message, so that nothing in the slab itself has to be believed.

#![forbid(unsafe_code)]

use crate::config::{CONTROL_MTU, MAX_NODE, MIN_MTU};
use crate::error::{Error, Result};
use crate::segment::layout::{Line, Node};
use crate::sync::{AtomicU32, AtomicU64};
use score_proto::wire::{HEADER, Kind};

/// "SCPMETH" and the layout's version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SCPMETH\x06");
/// The most processes of one host that share a slab.
pub(crate) const MAX_LOCAL: usize = 1024;
/// The longest message that a wire may offer.
pub(crate) const MAX_MTU: usize = 64 << 10;
/// Control messages that wait for their process to send them. As many slots are kept for them.
pub(crate) const OUTBOX: usize = 4;

/// Bytes before each payload that are its frame's: a network writes there what goes before it. As
/// many as an ethernet packet over UDP has.
pub(crate) const BEFORE: usize = HEADER + 2;

const PAGE: usize = 4096;
/// What the frames of one process may take.
const BUDGET: usize = 4 << 20;
const MIN_SLOTS: usize = 64;
const MAX_SLOTS: usize = 1024;

/// The first lines of the header page.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) size: AtomicU64,
    pub(crate) nonce: [AtomicU64; 2],
    pub(crate) pad: [u64; 4],
    /// On its own line: written by the owner at any time.
    pub(crate) oversubscribed: AtomicU32,
    pub(crate) pad2: [u32; 15],
    /// On its own line: advances with every node that is marked as gone.
    pub(crate) gone: AtomicU64,
}

/// A control message on its way from the owner to the process that sends it.
#[repr(C)]
pub(crate) struct Letter {
    pub(crate) to: AtomicU32,
    pub(crate) len: AtomicU32,
    pub(crate) words: [AtomicU64; CONTROL_MTU / 8],
}

/// What the owner asks a process to send. It writes `written`, the process `read`.
#[repr(C, align(64))]
pub(crate) struct Outbox {
    pub(crate) written: Line<AtomicU64>,
    pub(crate) read: Line<AtomicU64>,
    pub(crate) letters: [Letter; OUTBOX],
}

/// A local node.
#[repr(C)]
pub(crate) struct Record {
    /// As in a shmem segment, so that both kinds of device are sampled alike.
    pub(crate) node: Node,
    /// Messages that are in the process's queue or were: it has acknowledged them.
    pub(crate) arrived: Line<AtomicU64>,
    /// As `Counters::opened`.
    pub(crate) opened: Line<AtomicU32>,
    pub(crate) outbox: Outbox,
}

/// What one slot holds. `word` is written last and says whether the rest counts.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// 0: free, or being written. Else [`Published`].
    pub(crate) word: AtomicU64,
    pub(crate) to: AtomicU32,
    /// Its number among the packets to `to`, once it has one.
    pub(crate) sequence: AtomicU32,
    /// Its place among the messages to `to`.
    pub(crate) order: AtomicU32,
}

/// A slot's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) len: usize,
    /// One that has a number.
    pub(crate) kind: Kind,
    /// It may wait for remote operations that are under way.
    pub(crate) behind: bool,
}

const PUBLISHED: u64 = 1 << 63;
const BEHIND: u64 = 1 << 60;
/// The slot's sequence number holds.
pub(crate) const NUMBERED: u64 = 1 << 59;
/// Where the kind stands; the length is below.
const KIND: u32 = 32;

impl Published {
    pub(crate) fn new(len: usize, kind: Kind) -> Published {
        Published { len, kind, behind: false }
    }
    pub(crate) fn word(self) -> u64 {
        let behind = if self.behind { BEHIND } else { 0 };
        PUBLISHED | behind | (self.kind as u64) << KIND | u64::from(self.len as u32)
    }
    /// None: free. A length that no process of ours writes is cut by the caller.
    pub(crate) fn from_word(word: u64) -> Option<Published> {
        let kind = Kind::from_byte((word >> KIND) as u8).filter(|kind| kind.is_numbered())?;
        let (len, behind) = (word as u32 as usize, word & BEHIND != 0);
        (word & PUBLISHED != 0).then_some(Published { len, kind, behind })
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == 64);
    assert!(std::mem::offset_of!(Header, oversubscribed) == 64);
    assert!(std::mem::offset_of!(Header, gone) == 128);
    assert!(size_of::<Header>() <= PAGE);
    assert!(size_of::<Record>().is_multiple_of(64));
};

/// The private copy of the sizes, used for every address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Nodes of the job.
    pub(crate) nodes: usize,
    /// The local ones: `local` nodes from `first` on.
    pub(crate) first: usize,
    pub(crate) local: usize,
    /// The longest message.
    pub(crate) mtu: usize,
    /// Slots of one process for messages. Behind them it has as many for frames of remote memory.
    pub(crate) slots: usize,
    stride: usize,
    gone_at: usize,
    pairs_at: usize,
    slots_at: usize,
    frames_at: usize,
    pub(crate) size: usize,
}

impl Geometry {
    /// Invalid: a number is out of range.
    pub(crate) fn new(nodes: usize, first: usize, local: usize, mtu: usize) -> Result<Geometry> {
        let fits = (1..=MAX_NODE).contains(&nodes)
            && (1..=MAX_LOCAL.min(nodes)).contains(&local)
            && first <= nodes - local
            && (MIN_MTU..=MAX_MTU).contains(&mtu);
        if !fits {
            return Err(Error::Invalid);
        }
        // With the longest message a frame has no gap to the next one, over UDP: a run of frames
        // is one piece.
        let stride = (BEFORE + mtu).next_multiple_of(64);
        let slots = 1 << (BUDGET / mtu).clamp(MIN_SLOTS, MAX_SLOTS).ilog2();
        let gone_at = PAGE + local * size_of::<Record>();
        let pairs_at = (gone_at + nodes.div_ceil(64) * 8).next_multiple_of(PAGE);
        let slots_at = (pairs_at + local * nodes * 8).next_multiple_of(PAGE);
        let all = local * slots * 2;
        let frames_at = (slots_at + all * size_of::<Slot>()).next_multiple_of(PAGE)
            + BEFORE.next_multiple_of(64);
        let size = (frames_at + all * stride).next_multiple_of(PAGE);
        Ok(Geometry {
            nodes,
            first,
            local,
            mtu,
            slots,
            stride,
            gone_at,
            pairs_at,
            slots_at,
            frames_at,
            size,
        })
    }

    /// Which of the local nodes `node` is.
    pub(crate) fn place(&self, node: usize) -> Option<usize> {
        node.checked_sub(self.first).filter(|&place| place < self.local)
    }

    #[inline(always)]
    pub(crate) fn record_at(&self, place: usize) -> usize {
        debug_assert!(place < self.local);
        PAGE + place * size_of::<Record>()
    }

    /// The word of the bitmap of nodes that have gone in which `node` is.
    pub(crate) fn gone_at(&self, node: usize) -> usize {
        debug_assert!(node < self.nodes);
        self.gone_at + node / 64 * 8
    }

    /// What the local node `place` counts of its traffic with `peer`.
    #[inline(always)]
    pub(crate) fn pair_at(&self, place: usize, peer: usize) -> usize {
        debug_assert!(place < self.local && peer < self.nodes);
        self.pairs_at + (place * self.nodes + peer) * 8
    }

    /// Slots of one process, of both kinds.
    #[inline(always)]
    pub(crate) fn all_slots(&self) -> usize {
        self.slots * 2
    }

    #[inline(always)]
    pub(crate) fn slot_at(&self, place: usize, slot: usize) -> usize {
        debug_assert!(place < self.local && slot < self.all_slots());
        self.slots_at + (place * self.all_slots() + slot) * size_of::<Slot>()
    }

    #[inline(always)]
    pub(crate) fn frame_at(&self, place: usize, slot: usize) -> usize {
        debug_assert!(place < self.local && slot < self.all_slots());
        self.frames_at + (place * self.all_slots() + slot) * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_lies_behind_the_one_before_and_inside_the_slab() {
        for (nodes, first, local) in [(1, 0, 1), (2, 1, 1), (65, 3, 62), (4096, 4000, 96)] {
            for mtu in [1024, 1411, 8911, MAX_MTU] {
                let g = Geometry::new(nodes, first, local, mtu).unwrap();
                assert!(g.record_at(local - 1) + size_of::<Record>() <= g.gone_at(0));
                let last = g.all_slots() - 1;
                assert!(g.gone_at(nodes - 1) + 8 <= g.pair_at(0, 0));
                assert!(g.pair_at(local - 1, nodes - 1) + 8 <= g.slot_at(0, 0));
                assert!(g.slot_at(local - 1, last) + 64 <= g.frame_at(0, 0));
                assert!(g.frame_at(local - 1, last) + mtu <= g.size);
                assert_eq!(g.frame_at(0, 1) % 64, 0, "payloads are aligned");
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
            (2, usize::MAX, 2, 1400),
            (2, 0, 0, 1400),
            (2, 0, 2, 1023),
            (2, 0, 2, MAX_MTU + 1),
            (MAX_NODE + 1, 0, 1, 1400),
            (4096, 0, MAX_LOCAL + 1, 1400),
        ] {
            assert_eq!(Geometry::new(nodes, first, local, mtu), Err(Error::Invalid));
        }
    }

    #[test]
    fn a_slots_word_tells_free_from_published() {
        assert_eq!(Published::from_word(0), None);
        for kind in [Kind::Data, Kind::Control, Kind::Remote, Kind::More, Kind::Lost] {
            let slot = Published { len: 1400, kind, behind: kind == Kind::Data };
            assert_eq!(Published::from_word(slot.word()), Some(slot));
            assert_eq!(Published::from_word(slot.word() | NUMBERED), Some(slot));
        }
        let ack = Published::new(8, Kind::Ack).word();
        assert_eq!(Published::from_word(ack), None, "nothing that has a number");
    }
}
