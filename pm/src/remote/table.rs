//! A table of locked regions: the process's own, by which it looks up its handles, and the one in
//! shared memory by which its peers do. Whoever reads a shared one believes nothing: an entry is
//! read once, and what it says is checked against what is wanted; where the bytes lie is then
//! checked by who copies.

#![forbid(unsafe_code)]

use super::number::{SLOTS, slot_of};
use super::{AddrHandle, ArenaFile, Region};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering, fence};

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();

/// Set in the state of an entry that names a region.
const USED: u64 = 1 << 24;

/// The place of what does not lie in the arena: beyond every part.
const ELSEWHERE: u64 = 1 << 62;

/// A slot of the table. All zero: no region.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Entry {
    /// 0, or [`USED`] and the number.
    state: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
    /// Where the region begins in its node's part of the arena, or [`ELSEWHERE`].
    arena: AtomicU64,
}

const _: () = assert!(size_of::<Entry>() == 32);

/// An entry for each slot.
pub(crate) type Table = [Entry; SLOTS];

/// Without regions.
pub(crate) fn new_table() -> Box<Table> {
    let entries: Box<[Entry]> = (0..SLOTS).map(|_| Entry::default()).collect();
    entries.try_into().unwrap_or_else(|_| unreachable!("they are as many"))
}

/// Where bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// In the address space of their process.
    pub(crate) addr: u64,
    /// In their node's part of the arena.
    pub(crate) arena: Option<u64>,
}

impl Entry {
    /// By the only one who writes this table.
    pub(crate) fn publish(&self, region: &Region, arena: Option<u64>) {
        self.withdraw();
        self.addr.store(region.addr as u64, Ordering::Relaxed);
        self.len.store(region.len as u64, Ordering::Relaxed);
        self.arena.store(arena.unwrap_or(ELSEWHERE), Ordering::Relaxed);
        // SYNC: region
        self.state.store(USED | u64::from(region.number.bits()), Ordering::Release);
    }

    /// The same.
    pub(crate) fn withdraw(&self) {
        self.state.store(0, Ordering::Relaxed);
        // Before whatever is written here next: see `read`.
        fence(Ordering::Release);
    }

    /// Whether all of its region lies in the arena. It is published.
    pub(crate) fn is_in_arena(&self) -> bool {
        self.arena.load(Ordering::Relaxed) != ELSEWHERE
    }

    /// Address, length and arena of the region of this number.
    #[inline(always)]
    fn read(&self, number: u32) -> Option<[u64; 3]> {
        // SYNC: region
        let used = USED | u64::from(number);
        if self.state.load(Ordering::Acquire) != used {
            return None;
        }
        let words = [&self.addr, &self.len, &self.arena].map(|word| word.load(Ordering::Relaxed));
        // If any of these is another region's, then its number is seen now.
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == used).then_some(words)
    }
}

/// Where the `len` bytes at `handle` lie. Invalid: no such region, or not in it.
pub(crate) fn find(table: &Table, handle: AddrHandle, len: usize) -> Result<Place> {
    let number = handle.number();
    let entry = &table[slot_of(number)];
    let [addr, region, arena] = entry.read(number).ok_or(Error::Invalid)?;
    let offset = handle.offset();
    if offset.checked_add(len as u64).is_none_or(|end| end > region) {
        return Err(Error::Invalid);
    }
    let addr = addr.checked_add(offset).ok_or(Error::Invalid)?;
    let arena = Some(arena).filter(|&at| at != ELSEWHERE);
    let arena = arena.map(|at| at.checked_add(offset).ok_or(Error::Invalid)).transpose()?;
    Ok(Place { addr, arena })
}

/// The same for a word in the arena: where it lies in its node's part, if all of it lies there.
/// None, if not, and for whatever `find` refuses.
#[inline(always)]
pub(crate) fn find_word(table: &Table, handle: AddrHandle) -> Option<usize> {
    let number = handle.number();
    let [_, region, arena] = table[slot_of(number)].read(number)?;
    let offset = handle.offset();
    if offset + WORD as u64 > region {
        return None;
    }
    let at = arena.checked_add(offset)?;
    ArenaFile::holds(at, WORD).then_some(at as usize)
}

#[cfg(test)]
mod tests {
    use super::super::Number;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_handle_reaches_its_region_and_not_a_byte_more() {
        let table = new_table();
        let number = Number::take().unwrap();
        let region = Region { number, addr: 0x1000, len: 100 };
        table[number.slot()].publish(&region, Some(64));
        let handle = AddrHandle::new(number);
        let at = |addr, arena| Ok(Place { addr, arena: Some(arena) });
        assert_eq!(find(&table, handle, 100), at(0x1000, 64));
        assert_eq!(find(&table, handle + 99, 1), at(0x1063, 163));
        for (offset, len) in [(0, 101), (1, 100), (100, 1), (1 << 39, 1), (0, usize::MAX)] {
            assert_eq!(find(&table, handle + offset, len), Err(Error::Invalid), "{offset} {len}");
        }
        let words = [0, 92, 93, 1 << 39].map(|offset| find_word(&table, handle + offset));
        assert_eq!(words, [Some(64), Some(156), None, None]);
        table[number.slot()].publish(&region, None);
        assert_eq!(find(&table, handle, 100), Ok(Place { addr: 0x1000, arena: None }));
        assert_eq!(find_word(&table, handle), None);
        table[number.slot()].withdraw();
        assert_eq!(find(&table, handle, 1), Err(Error::Invalid));
        assert_eq!(find_word(&table, handle), None);
        number.give_back();
    }

    proptest! {
        #[test]
        fn no_handle_of_garbage_is_found_in_an_empty_table(bits: u64, len in 0usize..4096) {
            let handle = AddrHandle::from_bits(bits);
            prop_assert_eq!(find(&new_table(), handle, len), Err(Error::Invalid));
            prop_assert_eq!(find_word(&new_table(), handle), None);
        }

        #[test]
        fn no_words_of_a_peer_overflow(state: u64, addr: u64, len: u64, arena: u64, offset: u64) {
            let table = new_table();
            let number = state as u32 & 0xff_ffff;
            let entry = &table[slot_of(number)];
            entry.state.store(USED | u64::from(number), Ordering::Relaxed);
            entry.addr.store(addr, Ordering::Relaxed);
            entry.len.store(len, Ordering::Relaxed);
            entry.arena.store(arena, Ordering::Relaxed);
            let handle = AddrHandle::from_bits(u64::from(number) << 40 | offset & 0xff_ffff_ffff);
            if let Ok(place) = find(&table, handle, 8) {
                prop_assert!(place.addr >= addr && handle.offset() + 8 <= len);
            }
            prop_assert!(find_word(&table, handle).is_none_or(|at| ArenaFile::holds(at as u64, 8)));
        }
    }
}
