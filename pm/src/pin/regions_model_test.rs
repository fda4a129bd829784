//! Compares the regions with a simple list of all regions that were ever pinned.

#![forbid(unsafe_code)]

use super::page_range::{PAGE, PageRange};
use super::regions::{InvalidationSource, PinnedRegions, UseId};
use std::collections::HashSet;

/// A region in the list; its registration is its index in the list.
#[derive(Clone, Debug)]
struct ModelRegion {
    span: PageRange,
    users: u32,
    /// Whether more users can find the region.
    reusable: bool,
    pinned: bool,
    /// The time of its last release.
    idle_since: u64,
}

struct ModelState {
    regions: PinnedRegions<usize>,
    expected: Vec<ModelRegion>,
    uses: Vec<(UseId, usize)>,
    limit: usize,
    time: u64,
    random: u64,
}

impl ModelState {
    fn new(seed: u64) -> ModelState {
        let limit = PAGE * (1 + seed as usize % 40);
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (expected, uses) = (Vec::new(), Vec::new());
        ModelState { regions: PinnedRegions::new(limit), expected, uses, limit, time: 0, random }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    fn span(&mut self) -> PageRange {
        let (start, len) = (self.random(24), 1 + self.random(8));
        PageRange::new((start + 1) * PAGE, (start + 1 + len) * PAGE).unwrap()
    }

    fn pinned(&self) -> usize {
        self.expected.iter().filter(|one| one.pinned).map(|one| one.span.bytes()).sum()
    }

    /// This and the following functions implement the rules of the cache on the list, each in its
    /// simplest form.
    fn unpin_unusable(&mut self) {
        for one in self.expected.iter_mut().filter(|one| !one.reusable && one.users == 0) {
            one.pinned = false;
        }
    }

    fn evict_to_fit(&mut self, bytes: usize) {
        while self.pinned() + bytes > self.limit {
            let idle = self.expected.iter_mut().filter(|one| one.pinned && one.users == 0);
            let Some(oldest) = idle.min_by_key(|one| one.idle_since) else { break };
            (oldest.reusable, oldest.pinned) = (false, false);
        }
    }

    fn lock(&mut self) {
        let (span, monitored) = (self.span(), self.random(5) > 0);
        let covering = |one: &(usize, &ModelRegion)| one.1.reusable && one.1.span.contains(span);
        let all = self.expected.iter().enumerate();
        let expected = all.filter(covering).max_by_key(|(_, one)| one.span.start());
        let expected = expected.map(|(number, _)| number);
        let found = self.regions.find(span).and_then(|(slot, _)| self.regions.reuse(slot));
        assert_eq!(found.map(|(_, number)| number), expected, "{span:?}");
        if let Some((id, number)) = found {
            assert!(self.expected[number].pinned, "unpinned memory was found");
            self.expected[number].users += 1;
            self.uses.push((id, number));
            return;
        }
        self.evict_to_fit(span.bytes());
        self.regions.evict_to_fit(span.bytes());
        let number = self.expected.len();
        let source =
            if monitored { InvalidationSource::Monitored } else { InvalidationSource::Unmonitored };
        let id = self.regions.insert(span, source, number);
        for one in self.expected.iter_mut().filter(|one| monitored && span.contains(one.span)) {
            one.reusable = false;
        }
        self.expected.push(ModelRegion {
            span,
            users: 1,
            reusable: monitored,
            pinned: true,
            idle_since: 0,
        });
        self.uses.push((id, number));
        self.unpin_unusable();
    }

    fn unlock(&mut self) {
        if self.uses.is_empty() {
            return;
        }
        let index = self.random(self.uses.len());
        let (id, number) = self.uses.swap_remove(index);
        self.regions.release(id).unwrap();
        self.time += 1;
        self.expected[number].users -= 1;
        if self.expected[number].users == 0 {
            self.expected[number].idle_since = self.time;
            self.unpin_unusable();
            if self.expected[number].reusable {
                self.evict_to_fit(0);
            }
            // The use has ended, whether or not the region was kept.
            let second = self.regions.release(id);
            assert!(second.is_err(), "a use was released twice");
        }
    }

    fn invalidate(&mut self) {
        if self.random(50) == 0 {
            self.expected.iter_mut().for_each(|one| one.reusable = false);
            self.regions.invalidate_all();
        } else {
            let span = self.span();
            let hit = self.expected.iter_mut().filter(|one| one.span.overlaps(span));
            hit.for_each(|one| one.reusable = false);
            self.regions.invalidate(span);
        }
        self.unpin_unusable();
    }

    fn evict(&mut self) {
        let bytes = PAGE * self.random(6);
        let before = self.pinned();
        while before - self.pinned() < bytes {
            let idle = self.expected.iter_mut().filter(|one| one.pinned && one.users == 0);
            let Some(oldest) = idle.min_by_key(|one| one.idle_since) else { break };
            (oldest.reusable, oldest.pinned) = (false, false);
        }
        assert_eq!(self.regions.evict_bytes(bytes), self.pinned() < before);
    }

    /// The registrations to be unpinned are those that the list has unpinned, each once.
    fn compare(&mut self, alive: &mut HashSet<usize>) {
        while let Some(number) = self.regions.next_unpin() {
            assert!(alive.remove(&number), "{number} was unpinned twice");
            assert_eq!(self.expected[number].users, 0, "{number} was unpinned in use");
        }
        let pinned = self.expected.iter().enumerate().filter(|(_, one)| one.pinned);
        let pinned: HashSet<usize> = pinned.map(|(number, _)| number).collect();
        assert_eq!(*alive, pinned);
        assert_eq!(self.regions.bytes(), self.pinned());
    }
}

// Promise (messages): The registration of memory that was unmapped, mapped again, moved or
// discarded is never used again, with many threads; regions may overlap; the least recently used
// are evicted first.
#[test]
fn the_regions_behave_as_a_plain_list() {
    for seed in 0..100 {
        let mut model = ModelState::new(seed);
        let mut alive = HashSet::new();
        for _ in 0..400 {
            let before = model.expected.len();
            match model.random(10) {
                0..5 => model.lock(),
                5..8 => model.unlock(),
                8 => model.invalidate(),
                _ => model.evict(),
            }
            alive.extend(before..model.expected.len());
            model.compare(&mut alive);
        }
        let mut all = model.regions.take_all();
        all.sort_unstable();
        let mut remaining: Vec<usize> = alive.into_iter().collect();
        remaining.sort_unstable();
        assert_eq!(all, remaining, "pinned at the end, seed {seed}");
    }
}

#[test]
fn a_use_that_was_released_is_refused() {
    let mut regions = PinnedRegions::new(PAGE);
    let span = PageRange::new(PAGE, 3 * PAGE).unwrap();
    let first = regions.insert(span, InvalidationSource::OwnMapping, 1);
    regions.release(first).unwrap();
    assert_eq!(regions.next_unpin(), Some(1), "more than the limit");
    assert!(regions.release(first).is_err());
    let second = regions.insert(span, InvalidationSource::OwnMapping, 2);
    assert!(regions.release(first).is_err(), "the slot belongs to another use");
    regions.release(second).unwrap();
}
