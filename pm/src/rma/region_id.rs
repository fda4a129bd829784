//! Numbers of locked regions: a slot, and a generation that says how often the slot was used, so
//! that a handle of a region that was unlocked names nothing. One set for the whole process: a
//! composite's member may have regions of its own.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SLOT_BITS: u32 = 12;
/// The most regions that a process has locked at a time.
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
/// Generations run from 1 to this, so that no number is 0.
const LAST_GENERATION: u16 = (1 << 12) - 1;

/// The number of a locked region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionId(u32);

struct RegionIdAllocator {
    /// The slot that was free for longest comes first: a stale handle would have to be kept over
    /// sixteen million locks to name something.
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
    /// NoSpace: all are taken.
    pub(crate) fn allocate() -> PmResult<RegionId> {
        let mut ids = region_ids();
        let slot = ids.free.pop_front().ok_or(Error::NoSpace)?;
        let generation = &mut ids.generations[slot as usize];
        *generation = *generation % LAST_GENERATION + 1;
        Ok(RegionId(u32::from(slot) | u32::from(*generation) << SLOT_BITS))
    }

    /// Nobody has published it any more.
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

/// The slot that a number's bits name; below [`SLOTS`] whatever they are.
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
        let mut taken = Vec::new();
        let again = loop {
            let id = RegionId::allocate().unwrap();
            taken.push(id);
            if id.slot() == first.slot() {
                break id;
            }
        };
        assert_ne!(again, first);
        assert_ne!(first.bits() >> SLOT_BITS, 0);
        assert!(taken.len() > SLOTS / 2, "{}", taken.len());
        taken.into_iter().for_each(RegionId::release);
    }
}
