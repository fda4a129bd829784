//! The free slots of a sender. Slots are allocated from groups of adjacent slots, beginning with
//! the lowest group that is completely free. Adjacent slots that are sent one after the other are
//! one contiguous part for the kernel. Groups preserve this even if losses free slots in another
//! order. A sender also uses only about as many frames as it has in flight, so that the frames stay
//! in the cache.

#![forbid(unsafe_code)]

use crate::sync::SingleWriterU64;
use std::marker::PhantomData;

/// The approximate size in bytes of the frames of a group, which is the size of one datagram.
const SLOT_GROUP_LEN: usize = 64 << 10;

/// Allocates and frees slots, whose indices have the type `I`. Only the thread that holds the send
/// lock or the progress lock uses it.
pub(crate) struct SlotAllocator<I> {
    /// If bit i of group g is set, slot `g * group_size + i` is free.
    groups: Box<[SingleWriterU64]>,
    /// The number of slots of a group, which is a power of two, and its exponent.
    group_size: u64,
    group_shift: u32,
    /// The next slot to allocate from the current group.
    next_slot: SingleWriterU64,
    free_count: SingleWriterU64,
    index_type: PhantomData<I>,
}

impl<I: From<u32> + Into<u32>> SlotAllocator<I> {
    /// Makes an allocator of `count` free slots, with frames for messages of up to `mtu` bytes.
    pub(crate) fn new(count: usize, mtu: usize) -> SlotAllocator<I> {
        let group_size = (SLOT_GROUP_LEN / mtu.max(1)).next_power_of_two().clamp(4, 64) as u64;
        let groups = (0..count as u64).step_by(group_size as usize);
        let groups = groups
            .map(|first| SingleWriterU64::new(low_bits(group_size.min(count as u64 - first))));
        SlotAllocator {
            groups: groups.collect(),
            group_size,
            group_shift: group_size.ilog2(),
            next_slot: SingleWriterU64::default(),
            free_count: SingleWriterU64::new(count as u64),
            index_type: PhantomData,
        }
    }

    /// Returns the number of free slots.
    #[inline(always)]
    pub(crate) fn len(&self) -> u64 {
        self.free_count.get()
    }

    #[inline(always)]
    pub(crate) fn release(&self, slot: I) {
        let slot = u64::from(slot.into());
        let Some(group) = self.groups.get((slot >> self.group_shift) as usize) else { return };
        group.set(group.get() | 1 << (slot & (self.group_size - 1)));
        self.free_count.set(self.free_count.get() + 1);
    }

    /// Allocates a free slot, or returns None if there is none.
    #[inline(always)]
    pub(crate) fn allocate(&self) -> Option<I> {
        let next_slot = self.next_slot.get();
        let mut group_index = next_slot >> self.group_shift;
        let bit_offset = next_slot & (self.group_size - 1);
        let rest = self.groups.get(group_index as usize)?.get() & (u64::MAX << bit_offset);
        let mut bits = rest;
        if bits == 0 {
            group_index = self.find_free_group()?;
            bits = self.groups[group_index as usize].get();
        }
        let bit = u64::from(bits.trailing_zeros());
        let group = &self.groups[group_index as usize];
        group.set(group.get() & !(1 << bit));
        self.free_count.set(self.free_count.get() - 1);
        // If this was the last slot of the group, its bit is now clear, so that the next call
        // selects another group.
        let last = bit + 1 == self.group_size;
        self.next_slot.set(if last {
            group_index * self.group_size + bit
        } else {
            group_index * self.group_size + bit + 1
        });
        Some(I::from((group_index * self.group_size + bit) as u32))
    }

    /// Returns the lowest group that is completely free, or else the lowest that is partly free.
    fn find_free_group(&self) -> Option<u64> {
        let full_group = low_bits(self.group_size);
        let find = |is_wanted: &dyn Fn(u64) -> bool| {
            self.groups.iter().position(|group| is_wanted(group.get()))
        };
        find(&|bits| bits == full_group)
            .or_else(|| find(&|bits| bits != 0))
            .map(|group| group as u64)
    }
}

/// Returns a mask of the lowest `count` bits.
fn low_bits(count: u64) -> u64 {
    u64::MAX >> (64 - count.clamp(1, 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_is_handed_out_once_and_again_when_it_is_free() {
        for (count, mtu) in [(1020, 1406), (124, 8894), (28, 60_000), (4, 1406)] {
            let slots = SlotAllocator::new(count, mtu);
            let mut all: Vec<u32> = (0..count).map(|_| slots.allocate().unwrap()).collect();
            assert_eq!((slots.allocate(), slots.len()), (None, 0));
            all.iter().rev().for_each(|slot| slots.release(*slot));
            assert_eq!(slots.len(), count as u64);
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..count as u32), "{all:?}");
        }
    }

    #[test]
    fn neighbours_follow_each_other_again_after_they_were_freed_in_any_order() {
        let slots = SlotAllocator::new(1020, 1406);
        let mut in_use: Vec<u32> = (0..200).map(|_| slots.allocate().unwrap()).collect();
        let (mut last, mut breaks) = (in_use[199], 0);
        for round in 0..20_000 {
            // One slot in ten is freed late.
            let slot = in_use.remove(if round % 10 == 0 { 100 } else { 0 });
            slots.release(slot);
            let slot = slots.allocate().unwrap();
            breaks += u32::from(slot != last + 1);
            (last, in_use) = (slot, [&in_use[..], &[slot]].concat());
        }
        assert!(breaks < 20_000 / 50, "{breaks} breaks");
        assert!(in_use.iter().all(|slot| *slot < 512), "few frames are in use: {in_use:?}");
    }
}
