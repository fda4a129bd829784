//! The pinned regions: the state of the cache. This module uses no system calls, clocks or threads.
//!
//! A region is pinned once and counts its users. As long as it is valid it is in an index by
//! address, even without users. Unused regions are evicted in the order of their last use. No
//! region in the index is inside another one, because a new region replaces the regions that it
//! covers. Therefore the order of starts is also the order of ends. Of the regions that start at or
//! below the start of a span, the last region also ends last. It is therefore the only region to
//! check.
//!
//! [`PinnedRegions::next_unpin`] returns once each registration that has to be unpinned.

#![forbid(unsafe_code)]

use super::page_range::PageRange;
use crate::error::{Error, PmResult};
use std::collections::BTreeMap;

/// No slot.
const NONE: u32 = u32::MAX;

/// One use of a region, which `release` ends. Later uses of the slot have other generations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UseId {
    slot: u32,
    generation: u32,
}

/// The source of the report that a region's memory has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidationSource {
    /// No source reports changes, so the region must not be reused.
    Unmonitored,
    /// The kernel.
    Monitored,
    /// PM, which has mapped this memory itself.
    OwnMapping,
}

struct PinnedRegion<R> {
    span: PageRange,
    source: InvalidationSource,
    /// The registration. None: the slot is free.
    registration: Option<R>,
    generation: u32,
    users: u32,
    /// Whether the region is in the index. If not, it is unpinned when its last user releases it.
    indexed: bool,
    /// Neighbours in the order of use; only of indexed regions without users.
    older: u32,
    newer: u32,
}

/// All pinned regions of one registrar.
pub struct PinnedRegions<R> {
    slots: Vec<PinnedRegion<R>>,
    free_slots: Vec<u32>,
    by_start: BTreeMap<usize, u32>,
    oldest: u32,
    newest: u32,
    bytes: usize,
    max_bytes: usize,
    pending_unpin: Vec<R>,
}

impl<R: Clone> PinnedRegions<R> {
    /// An empty set. It evicts unused regions while all regions together have more than `max_bytes`
    /// bytes.
    pub fn new(max_bytes: usize) -> PinnedRegions<R> {
        PinnedRegions {
            slots: Vec::new(),
            free_slots: Vec::new(),
            by_start: BTreeMap::new(),
            oldest: NONE,
            newest: NONE,
            bytes: 0,
            max_bytes,
            pending_unpin: Vec::new(),
        }
    }

    /// The sum of the lengths of all regions; bytes in several regions count for each.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The slot of the region that covers `span`, if there is one, as an argument of `reuse`.
    #[inline]
    pub fn find(&self, span: PageRange) -> Option<(u32, InvalidationSource)> {
        let (_, &slot) = self.by_start.range(..=span.start()).next_back()?;
        let region = &self.slots[slot as usize];
        (region.span.end() >= span.end()).then_some((slot, region.source))
    }

    /// Adds a user to the region that was just found.
    #[inline]
    pub fn reuse(&mut self, slot: u32) -> Option<(UseId, R)> {
        let region = self.slots.get_mut(slot as usize)?;
        let registration = region.registration.clone()?;
        region.users += 1;
        let id = UseId { slot, generation: region.generation };
        if region.users == 1 {
            self.unlink(slot);
        }
        Some((id, registration))
    }

    /// Evicts unused regions, the least recently used first, until `bytes` more bytes are within
    /// the limit, or until no unused region is left.
    pub fn evict_to_fit(&mut self, bytes: usize) {
        while self.bytes.saturating_add(bytes) > self.max_bytes && self.evict() {}
    }

    /// Evicts unused regions of at least `bytes` together. False: there was no unused region.
    pub fn evict_bytes(&mut self, bytes: usize) -> bool {
        let before = self.bytes;
        while before - self.bytes < bytes && self.evict() {}
        self.bytes < before
    }

    /// Evicts the least recently used region without users. False: there is none.
    fn evict(&mut self) -> bool {
        let oldest = self.oldest;
        if oldest != NONE {
            self.unindex(oldest);
        }
        oldest != NONE
    }

    /// Adds a region that was just pinned, with one user. A region in the index can get more users,
    /// and remains there when it has none.
    pub fn insert(
        &mut self,
        span: PageRange,
        source: InvalidationSource,
        registration: R,
    ) -> UseId {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(PinnedRegion {
                span,
                source,
                registration: None,
                generation: 0,
                users: 0,
                indexed: false,
                older: NONE,
                newer: NONE,
            });
            (self.slots.len() - 1) as u32
        });
        let indexed = source != InvalidationSource::Unmonitored && self.find(span).is_none();
        if indexed {
            self.unindex_covered(span);
            self.by_start.insert(span.start(), slot);
        }
        let region = &mut self.slots[slot as usize];
        region.span = span;
        region.source = source;
        region.registration = Some(registration);
        region.users = 1;
        region.indexed = indexed;
        self.bytes += span.bytes();
        UseId { slot, generation: region.generation }
    }

    /// Removes the regions inside `span` from the index.
    fn unindex_covered(&mut self, span: PageRange) {
        while let Some((_, &slot)) = self.by_start.range(span.start()..span.end()).next() {
            if !span.contains(self.slots[slot as usize].span) {
                break;
            }
            self.unindex(slot);
        }
    }

    /// Removes a user. Invalid: there is no such use.
    pub fn release(&mut self, id: UseId) -> PmResult<()> {
        let region = self.slots.get_mut(id.slot as usize).ok_or(Error::Invalid)?;
        if region.generation != id.generation || region.users == 0 {
            return Err(Error::Invalid);
        }
        region.users -= 1;
        if region.users > 0 {
            return Ok(());
        }
        if region.indexed {
            self.link(id.slot);
            self.evict_to_fit(0);
        } else {
            self.retire(id.slot);
        }
        Ok(())
    }

    /// Removes the regions that overlap `span` from the index, because this memory has changed.
    pub fn invalidate(&mut self, span: PageRange) {
        while let Some((_, &slot)) = self.by_start.range(..span.end()).next_back() {
            if self.slots[slot as usize].span.end() <= span.start() {
                break;
            }
            self.unindex(slot);
        }
    }

    /// Removes all regions from the index, because any memory may have changed.
    pub fn invalidate_all(&mut self) {
        while let Some((_, &slot)) = self.by_start.first_key_value() {
            self.unindex(slot);
        }
    }

    /// Removes a region from the index, and unpins it if it has no users.
    fn unindex(&mut self, slot: u32) {
        let region = &mut self.slots[slot as usize];
        region.indexed = false;
        self.by_start.remove(&region.span.start());
        if region.users == 0 {
            self.unlink(slot);
            self.retire(slot);
        }
    }

    fn retire(&mut self, slot: u32) {
        let region = &mut self.slots[slot as usize];
        region.generation = region.generation.wrapping_add(1);
        self.bytes -= region.span.bytes();
        self.pending_unpin.extend(region.registration.take());
        self.free_slots.push(slot);
    }

    /// The next registration that has to be unpinned.
    pub fn next_unpin(&mut self) -> Option<R> {
        self.pending_unpin.pop()
    }

    /// Removes and returns all registrations, with or without users. Called when the registrar
    /// ends.
    pub fn take_all(&mut self) -> Vec<R> {
        self.by_start.clear();
        let in_slots = self.slots.drain(..).filter_map(|region| region.registration);
        self.pending_unpin.drain(..).chain(in_slots).collect()
    }

    /// Makes `slot` the most recently used region without users.
    fn link(&mut self, slot: u32) {
        let newest = std::mem::replace(&mut self.newest, slot);
        let region = &mut self.slots[slot as usize];
        (region.older, region.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = slot,
            other => self.slots[other as usize].newer = slot,
        }
    }

    fn unlink(&mut self, slot: u32) {
        let PinnedRegion { older, newer, .. } = self.slots[slot as usize];
        match older {
            NONE => self.oldest = newer,
            other => self.slots[other as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            other => self.slots[other as usize].older = older,
        }
    }
}
