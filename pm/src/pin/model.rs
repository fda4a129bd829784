//! The regions against a naive list of everything that was ever pinned.

#![forbid(unsafe_code)]

use super::regions::{Id, Kept, Regions};
use super::span::{PAGE, Span};
use std::collections::HashSet;

/// What the list knows of a region; its registration is its place in the list.
#[derive(Clone, Debug)]
struct Known {
    span: Span,
    users: u32,
    /// May be found by others.
    found: bool,
    pinned: bool,
    /// When it was last given back.
    idle_since: u64,
}

struct World {
    regions: Regions<usize>,
    known: Vec<Known>,
    uses: Vec<(Id, usize)>,
    limit: usize,
    time: u64,
    random: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let limit = PAGE * (1 + seed as usize % 40);
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (known, uses) = (Vec::new(), Vec::new());
        World { regions: Regions::new(limit), known, uses, limit, time: 0, random }
    }

    fn random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as usize % below
    }

    fn span(&mut self) -> Span {
        let (start, len) = (self.random(24), 1 + self.random(8));
        Span::new((start + 1) * PAGE, (start + 1 + len) * PAGE).unwrap()
    }

    fn pinned(&self) -> usize {
        self.known.iter().filter(|one| one.pinned).map(|one| one.span.bytes()).sum()
    }

    /// The list's own rules, each in its plainest form.
    fn drop_unfound(&mut self) {
        for one in self.known.iter_mut().filter(|one| !one.found && one.users == 0) {
            one.pinned = false;
        }
    }

    fn make_room(&mut self, bytes: usize) {
        while self.pinned() + bytes > self.limit {
            let idle = self.known.iter_mut().filter(|one| one.pinned && one.users == 0);
            let Some(oldest) = idle.min_by_key(|one| one.idle_since) else { break };
            (oldest.found, oldest.pinned) = (false, false);
        }
    }

    fn lock(&mut self) {
        let (span, kept) = (self.span(), self.random(5) > 0);
        let covering = |one: &(usize, &Known)| one.1.found && one.1.span.contains(span);
        let all = self.known.iter().enumerate();
        let expected = all.filter(covering).max_by_key(|(_, one)| one.span.start());
        let expected = expected.map(|(number, _)| number);
        let found = self.regions.find(span).and_then(|(slot, _)| self.regions.reuse(slot));
        assert_eq!(found.map(|(_, number)| number), expected, "{span:?}");
        if let Some((id, number)) = found {
            assert!(self.known[number].pinned, "unpinned memory was found");
            self.known[number].users += 1;
            self.uses.push((id, number));
            return;
        }
        self.make_room(span.bytes());
        self.regions.make_room(span.bytes());
        let number = self.known.len();
        let how = if kept { Kept::Watched } else { Kept::Not };
        let id = self.regions.insert(span, how, number);
        for one in self.known.iter_mut().filter(|one| kept && span.contains(one.span)) {
            one.found = false;
        }
        self.known.push(Known { span, users: 1, found: kept, pinned: true, idle_since: 0 });
        self.uses.push((id, number));
        self.drop_unfound();
    }

    fn unlock(&mut self) {
        if self.uses.is_empty() {
            return;
        }
        let at = self.random(self.uses.len());
        let (id, number) = self.uses.swap_remove(at);
        self.regions.release(id).unwrap();
        self.time += 1;
        self.known[number].users -= 1;
        if self.known[number].users == 0 {
            self.known[number].idle_since = self.time;
            self.drop_unfound();
            if self.known[number].found {
                self.make_room(0);
            }
            // Whether it stayed or not: nobody has this use any more.
            let again = self.regions.release(id);
            assert!(again.is_err(), "a use was given back twice");
        }
    }

    fn change(&mut self) {
        if self.random(50) == 0 {
            self.known.iter_mut().for_each(|one| one.found = false);
            self.regions.invalidate_all();
        } else {
            let span = self.span();
            let hit = self.known.iter_mut().filter(|one| one.span.overlaps(span));
            hit.for_each(|one| one.found = false);
            self.regions.invalidate(span);
        }
        self.drop_unfound();
    }

    fn evict(&mut self) {
        let bytes = PAGE * self.random(6);
        let before = self.pinned();
        while before - self.pinned() < bytes {
            let idle = self.known.iter_mut().filter(|one| one.pinned && one.users == 0);
            let Some(oldest) = idle.min_by_key(|one| one.idle_since) else { break };
            (oldest.found, oldest.pinned) = (false, false);
        }
        assert_eq!(self.regions.evict_bytes(bytes), self.pinned() < before);
    }

    /// What was handed out for unpinning is what the list let go, each once.
    fn compare(&mut self, alive: &mut HashSet<usize>) {
        while let Some(number) = self.regions.next_unpin() {
            assert!(alive.remove(&number), "{number} was unpinned twice");
            assert_eq!(self.known[number].users, 0, "{number} was unpinned in use");
        }
        let pinned = self.known.iter().enumerate().filter(|(_, one)| one.pinned);
        let pinned: HashSet<usize> = pinned.map(|(number, _)| number).collect();
        assert_eq!(*alive, pinned);
        assert_eq!(self.regions.bytes(), self.pinned());
    }
}

#[test]
fn the_regions_do_what_a_plain_list_does() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        let mut alive = HashSet::new();
        for _ in 0..400 {
            let before = world.known.len();
            match world.random(10) {
                0..5 => world.lock(),
                5..8 => world.unlock(),
                8 => world.change(),
                _ => world.evict(),
            }
            alive.extend(before..world.known.len());
            world.compare(&mut alive);
        }
        let mut all = world.regions.take_all();
        all.sort_unstable();
        let mut rest: Vec<usize> = alive.into_iter().collect();
        rest.sort_unstable();
        assert_eq!(all, rest, "what is left at the end, seed {seed}");
    }
}

#[test]
fn a_use_that_was_given_back_is_refused() {
    let mut regions = Regions::new(PAGE);
    let span = Span::new(PAGE, 3 * PAGE).unwrap();
    let first = regions.insert(span, Kept::Own, 1);
    regions.release(first).unwrap();
    assert_eq!(regions.next_unpin(), Some(1), "more than the limit");
    assert!(regions.release(first).is_err());
    let second = regions.insert(span, Kept::Own, 2);
    assert!(regions.release(first).is_err(), "the slot is another use's");
    regions.release(second).unwrap();
}
