//! A table of locked regions. A process looks up handles of its own regions in a private table, and
//! handles of its peers' regions in tables in shared memory. A reader does not trust a shared
//! table: it reads an entry once and checks it against the request. The function that copies then
//! checks the address.

#![forbid(unsafe_code)]

use super::region_id::{SLOTS, slot_of};
use super::{AddrHandle, ArenaFile, Region};
use crate::error::{Error, PmResult};
use crate::sync::{AtomicU64, Ordering, fence};

/// Bytes of a word.
pub(crate) const WORD: usize = size_of::<u64>();

/// The bit that is set in the state of an entry that describes a region.
const ENTRY_VALID: u64 = 1 << 24;

/// The arena offset of a region that is not in the arena. It is beyond every arena.
const NOT_IN_ARENA: u64 = 1 << 62;

/// An entry of the table. All zero: no region.
#[derive(Default)]
#[repr(C)]
pub(crate) struct RegionEntry {
    /// 0 if there is no region; otherwise [`ENTRY_VALID`] and the id of the region.
    state: AtomicU64,
    addr: AtomicU64,
    len: AtomicU64,
    /// The start of the region in its node's arena, or [`NOT_IN_ARENA`].
    arena_offset: AtomicU64,
}

const _: () = assert!(size_of::<RegionEntry>() == 32);

/// An entry for each slot.
pub(crate) type Table = [RegionEntry; SLOTS];

/// A table without regions.
pub(crate) fn new_table() -> Box<Table> {
    let entries: Box<[RegionEntry]> = (0..SLOTS).map(|_| RegionEntry::default()).collect();
    entries.try_into().unwrap_or_else(|_| unreachable!("there are SLOTS entries"))
}

/// The location of bytes in a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResolvedAddress {
    /// The address of the bytes in their process.
    pub(crate) addr: u64,
    /// The offset of the bytes in their node's arena.
    pub(crate) arena_offset: Option<u64>,
}

impl RegionEntry {
    /// Enters a region. Called by the only writer of this table.
    pub(crate) fn publish(&self, region: &Region, arena_offset: Option<u64>) {
        self.withdraw();
        self.addr.store(region.addr as u64, Ordering::Relaxed);
        self.len.store(region.len as u64, Ordering::Relaxed);
        self.arena_offset.store(arena_offset.unwrap_or(NOT_IN_ARENA), Ordering::Relaxed);
        // SYNC: region
        self.state.store(ENTRY_VALID | u64::from(region.id.bits()), Ordering::Release);
    }

    /// Removes the region. Called by the only writer of this table.
    pub(crate) fn withdraw(&self) {
        self.state.store(0, Ordering::Relaxed);
        // The fence precedes the write of the next region to this entry: see `read`.
        fence(Ordering::Release);
    }

    /// Whether all of the published region is in the arena.
    pub(crate) fn is_in_arena(&self) -> bool {
        self.arena_offset.load(Ordering::Relaxed) != NOT_IN_ARENA
    }

    /// Address, length and arena offset of the region with this id.
    #[inline(always)]
    fn read(&self, region_bits: u32) -> Option<[u64; 3]> {
        // SYNC: region
        let valid = ENTRY_VALID | u64::from(region_bits);
        if self.state.load(Ordering::Acquire) != valid {
            return None;
        }
        let words =
            [&self.addr, &self.len, &self.arena_offset].map(|word| word.load(Ordering::Relaxed));
        // If any of these words belongs to another region, this thread now reads the id of that
        // region.
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == valid).then_some(words)
    }
}

/// The location of the `len` bytes at `handle`. Invalid: there is no such region, or the bytes are
/// not all in it.
pub(crate) fn find(table: &Table, handle: AddrHandle, len: usize) -> PmResult<ResolvedAddress> {
    let region_bits = handle.region_bits();
    let entry = &table[slot_of(region_bits)];
    let [addr, region_len, arena_offset] = entry.read(region_bits).ok_or(Error::Invalid)?;
    let offset = handle.offset();
    if offset.checked_add(len as u64).is_none_or(|end| end > region_len) {
        return Err(Error::Invalid);
    }
    let addr = addr.checked_add(offset).ok_or(Error::Invalid)?;
    let arena_offset = Some(arena_offset).filter(|&base| base != NOT_IN_ARENA);
    let arena_offset =
        arena_offset.map(|base| base.checked_add(offset).ok_or(Error::Invalid)).transpose()?;
    Ok(ResolvedAddress { addr, arena_offset })
}

/// The offset of the word at `handle` in its node's arena. None: the word is not in the arena, or
/// `find` would fail.
#[inline(always)]
pub(crate) fn find_word(table: &Table, handle: AddrHandle) -> Option<usize> {
    let region_bits = handle.region_bits();
    let [_, region_len, arena_offset] = table[slot_of(region_bits)].read(region_bits)?;
    let offset = handle.offset();
    if offset + WORD as u64 > region_len {
        return None;
    }
    let location = arena_offset.checked_add(offset)?;
    ArenaFile::holds(location, WORD).then_some(location as usize)
}

#[cfg(test)]
mod tests {
    use super::super::RegionId;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_handle_reaches_its_region_and_not_a_byte_more() {
        let table = new_table();
        let id = RegionId::allocate().unwrap();
        let region = Region { id, addr: 0x1000, len: 100 };
        table[id.slot()].publish(&region, Some(64));
        let handle = AddrHandle::new(id);
        let resolved = |addr, arena| Ok(ResolvedAddress { addr, arena_offset: Some(arena) });
        assert_eq!(find(&table, handle, 100), resolved(0x1000, 64));
        assert_eq!(find(&table, handle + 99, 1), resolved(0x1063, 163));
        for (offset, len) in [(0, 101), (1, 100), (100, 1), (1 << 39, 1), (0, usize::MAX)] {
            assert_eq!(find(&table, handle + offset, len), Err(Error::Invalid), "{offset} {len}");
        }
        let words = [0, 92, 93, 1 << 39].map(|offset| find_word(&table, handle + offset));
        assert_eq!(words, [Some(64), Some(156), None, None]);
        table[id.slot()].publish(&region, None);
        assert_eq!(
            find(&table, handle, 100),
            Ok(ResolvedAddress { addr: 0x1000, arena_offset: None })
        );
        assert_eq!(find_word(&table, handle), None);
        table[id.slot()].withdraw();
        assert_eq!(find(&table, handle, 1), Err(Error::Invalid));
        assert_eq!(find_word(&table, handle), None);
        id.release();
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
            let region_bits = state as u32 & 0xff_ffff;
            let entry = &table[slot_of(region_bits)];
            entry.state.store(ENTRY_VALID | u64::from(region_bits), Ordering::Relaxed);
            entry.addr.store(addr, Ordering::Relaxed);
            entry.len.store(len, Ordering::Relaxed);
            entry.arena_offset.store(arena, Ordering::Relaxed);
            let handle_bits = u64::from(region_bits) << 40 | offset & 0xff_ffff_ffff;
            let handle = AddrHandle::from_bits(handle_bits);
            if let Ok(resolved) = find(&table, handle, 8) {
                prop_assert!(resolved.addr >= addr && handle.offset() + 8 <= len);
            }
            let word_offset = find_word(&table, handle);
            prop_assert!(word_offset.is_none_or(|offset| ArenaFile::holds(offset as u64, 8)));
        }
    }
}
