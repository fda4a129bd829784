//! Ids of locked regions. An id consists of a slot and a generation that counts the uses of the
//! slot, so that the handle of an unlocked region is invalid. The whole process has one set of ids,
//! because a composite's member may have regions of its own.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SLOT_BITS: u32 = 12;
/// The largest number of regions that a process can have locked at a time.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
/// The last generation. The first generation is 1, so that no id is 0.
const LAST_GENERATION: u16 = (1 << 12) - 1;

/// The id of a locked region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionId(u32);

struct RegionIdAllocator {
    /// The slot that has been free for longest comes first. A stale handle becomes valid again only
    /// after sixteen million locks.
    free: VecDeque<u16>,
    generations: Vec<u16>,
}

static REGION_IDS: Mutex<RegionIdAllocator> =
    Mutex::new(RegionIdAllocator { free: VecDeque::new(), generations: Vec::new() });

fn region_ids() -> MutexGuard<'static, RegionIdAllocator> {
    let mut ids = REGION_IDS.lock().unwrap_or_else(PoisonError::into_inner);
    if ids.generations.is_empty() {
        ids.generations = vec![0; SLOTS];
        ids.free = (0..SLOTS as u16).collect();
    }
    ids
}

impl RegionId {
    /// Allocates an id. NoSpace: all ids are in use.
    pub(crate) fn allocate() -> PmResult<RegionId> {
        let mut ids = region_ids();
        let slot = ids.free.pop_front().ok_or(Error::NoSpace)?;
        let generation = &mut ids.generations[slot as usize];
        *generation = *generation % LAST_GENERATION + 1;
        Ok(RegionId(u32::from(slot) | u32::from(*generation) << SLOT_BITS))
    }

    /// Frees the id. All devices must have withdrawn its region.
    pub(crate) fn release(self) {
        region_ids().free.push_back(self.slot() as u16);
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn slot(self) -> usize {
        slot_of(self.0)
    }
}

/// The slot of an id, from its bits; below [`SLOTS`] for any bits.
pub(super) fn slot_of(bits: u32) -> usize {
    bits as usize & (SLOTS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_slot_is_reused_last_and_under_another_generation() {
        let first = RegionId::allocate().unwrap();
        first.release();
        let mut ids = Vec::new();
        let second = loop {
            let id = RegionId::allocate().unwrap();
            ids.push(id);
            if id.slot() == first.slot() {
                break id;
            }
        };
        assert_ne!(second, first);
        assert_ne!(first.bits() >> SLOT_BITS, 0);
        assert!(ids.len() > SLOTS / 2, "{}", ids.len());
        ids.into_iter().for_each(RegionId::release);
    }
}
