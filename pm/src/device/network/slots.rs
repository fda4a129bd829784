//! The free slots of a sender. They are handed out in groups of neighbours, the lowest whole group
//! first: neighbours that are sent one after the other are one piece to the kernel, also after
//! losses have freed them in another order, and a sender keeps to as few frames as it has on the
//! way, which the cache holds.

#![forbid(unsafe_code)]

use crate::sync::Local;

/// Bytes of a group's frames, about: what one datagram takes.
const GROUP: usize = 64 << 10;

/// By the holder of the send lock.
pub(crate) struct Slots {
    /// Bit i of group g: slot `g * size + i` is free.
    groups: Box<[Local]>,
    /// A power of two, and which.
    size: u64,
    shift: u32,
    /// The next slot that may be handed out from the group in use.
    next: Local,
    free: Local,
}

impl Slots {
    /// `count` slots, all free, with frames for messages of up to `mtu` bytes.
    pub(crate) fn new(count: usize, mtu: usize) -> Slots {
        let size = (GROUP / mtu.max(1)).next_power_of_two().clamp(4, 64) as u64;
        let groups = (0..count as u64).step_by(size as usize);
        let groups = groups.map(|first| Local::new(lowest(size.min(count as u64 - first))));
        Slots {
            groups: groups.collect(),
            size,
            shift: size.ilog2(),
            next: Local::default(),
            free: Local::new(count as u64),
        }
    }

    /// How many are free.
    #[inline(always)]
    pub(crate) fn len(&self) -> u64 {
        self.free.get()
    }

    /// A slot that was handed out is free again.
    #[inline(always)]
    pub(crate) fn give(&self, slot: u64) {
        let Some(group) = self.groups.get((slot >> self.shift) as usize) else { return };
        group.set(group.get() | 1 << (slot & (self.size - 1)));
        self.free.set(self.free.get() + 1);
    }

    /// A free slot.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<u64> {
        let next = self.next.get();
        let mut number = next >> self.shift;
        let inside = next & (self.size - 1);
        let behind = self.groups.get(number as usize)?.get() & (u64::MAX << inside);
        let mut bits = behind;
        if bits == 0 {
            number = self.another()?;
            bits = self.groups[number as usize].get();
        }
        let bit = u64::from(bits.trailing_zeros());
        let group = &self.groups[number as usize];
        group.set(group.get() & !(1 << bit));
        self.free.set(self.free.get() - 1);
        // Behind the last one of a group nothing is left: the next call looks for another.
        let last = bit + 1 == self.size;
        self.next.set(if last { number * self.size + bit } else { number * self.size + bit + 1 });
        Some(number * self.size + bit)
    }

    /// The lowest group that is free as a whole, or else in part.
    fn another(&self) -> Option<u64> {
        let whole = lowest(self.size);
        let find =
            |wanted: &dyn Fn(u64) -> bool| self.groups.iter().position(|group| wanted(group.get()));
        find(&|bits| bits == whole).or_else(|| find(&|bits| bits != 0)).map(|group| group as u64)
    }
}

/// So many bits.
fn lowest(count: u64) -> u64 {
    u64::MAX >> (64 - count.clamp(1, 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_is_handed_out_once_and_again_when_it_is_free() {
        for (count, mtu) in [(1020, 1406), (124, 8894), (28, 60_000), (4, 1406)] {
            let slots = Slots::new(count, mtu);
            let mut all: Vec<u64> = (0..count).map(|_| slots.take().unwrap()).collect();
            assert_eq!((slots.take(), slots.len()), (None, 0));
            all.iter().rev().for_each(|slot| slots.give(*slot));
            assert_eq!(slots.len(), count as u64);
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..count as u64), "{all:?}");
        }
    }

    #[test]
    fn neighbours_follow_each_other_again_after_they_were_freed_in_any_order() {
        let slots = Slots::new(1020, 1406);
        let mut away: Vec<u64> = (0..200).map(|_| slots.take().unwrap()).collect();
        let (mut last, mut breaks) = (away[199], 0);
        for turn in 0..20_000 {
            // One of ten is freed late.
            let slot = away.remove(if turn % 10 == 0 { 100 } else { 0 });
            slots.give(slot);
            let slot = slots.take().unwrap();
            breaks += u32::from(slot != last + 1);
            (last, away) = (slot, [&away[..], &[slot]].concat());
        }
        assert!(breaks < 20_000 / 50, "{breaks} breaks");
        assert!(away.iter().all(|slot| *slot < 512), "few frames are in use: {away:?}");
    }
}
