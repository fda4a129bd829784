//! Matching of messages and receives. Posted receives and unexpected messages are sorted by the
//! same [`Classes`]. The time of a lookup by source and tag does not depend on the number of
//! entries.
//!
//! A receive names a source or none, a tag, and tag bits to ignore. A *class* consists of the
//! receives that ignore the same bits, and of which all or none name a source; MPI libraries use
//! very few classes. Within a class, a hash table finds the oldest entry by the source and the
//! remaining tag bits. A posted receive is in the list of its class. For an arriving message, all
//! classes are searched, and the receive that was posted first is taken. An unexpected message is
//! in a list of each class. For a receive, only its own class is searched.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use slab::Slab;

use crate::operation::Selector;
use crate::slots::Slots;

/// Receives of further classes are searched one by one.
const MAX_CLASSES: usize = 8;
/// A class keeps this many empty lists, because programs reuse tags.
const MAX_EMPTY_LISTS: usize = 1024;

/// Source and tag of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) source: u32,
    pub(crate) tag: u64,
}

impl Selector {
    /// Whether a receive with this selector matches a message of this origin.
    #[inline(always)]
    pub(crate) fn accepts(&self, origin: Origin) -> bool {
        (self.tag ^ origin.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == origin.source)
    }
}

/// The key of a list in a class.
type Key = (u32, u64);

/// Hashes by multiplication and folding. The keys are node numbers, tags and addresses that
/// processes of the same job choose. Collisions would only slow down that job.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }
    #[inline(always)]
    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        // 2^64 divided by the golden ratio.
        let product = u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

/// No entry.
const NONE: u32 = u32::MAX;

/// A list: its key, and the slots of its first and last entry.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
    key: Key,
}

/// The position of an entry in the lists of a class.
#[derive(Clone, Copy, Debug)]
struct Place {
    list: u32,
    previous: u32,
    next: u32,
}

/// The properties that the receives of a class have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClassRule {
    has_source: bool,
    ignore: u64,
}

/// The class of the receives beyond [`MAX_CLASSES`]. It keeps all entries in one list.
const UNSORTED: ClassRule = ClassRule { has_source: false, ignore: u64::MAX };

impl ClassRule {
    fn of(selector: &Selector) -> Self {
        Self { has_source: selector.source.is_some(), ignore: selector.ignore }
    }

    #[inline(always)]
    fn key(&self, origin: Origin) -> Key {
        let source = if self.has_source { origin.source } else { NONE };
        (source, origin.tag & !self.ignore)
    }

    /// The key of the list of a receive.
    #[inline(always)]
    fn key_of_selector(&self, selector: &Selector) -> Key {
        let source = selector.source.unwrap_or(NONE);
        self.key(Origin { source, tag: selector.tag })
    }
}

/// The lists of one class.
#[derive(Debug)]
struct Class {
    rule: ClassRule,
    lists: Slab<List>,
    /// The numbers of the lists.
    by_key: HashMap<Key, u32, BuildHasherDefault<KeyHasher>>,
    /// The key and list of the last lookup, because most programs use few tags at a time.
    recent: Cell<Option<(Key, u32)>>,
    /// Indexed by slot.
    places: Vec<Place>,
    len: usize,
    empty_lists: usize,
}

impl Class {
    fn new(rule: ClassRule) -> Self {
        let (lists, places, by_key) = (Slab::new(), Vec::new(), HashMap::default());
        let recent = Cell::new(None);
        Self { rule, lists, by_key, recent, places, len: 0, empty_lists: 0 }
    }

    #[inline(always)]
    fn first(&self, key: Key) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let list = self.list(key)?;
        Some(self.lists.get(list as usize)?.first).filter(|slot| *slot != NONE)
    }

    #[inline(always)]
    fn list(&self, key: Key) -> Option<u32> {
        match self.recent.get() {
            Some((recent, list)) if recent == key => Some(list),
            _ => self.look_up(key),
        }
    }

    fn look_up(&self, key: Key) -> Option<u32> {
        let list = *self.by_key.get(&key)?;
        self.recent.set(Some((key, list)));
        Some(list)
    }

    fn next(&self, slot: u32) -> Option<u32> {
        Some(self.places.get(slot as usize)?.next).filter(|slot| *slot != NONE)
    }

    #[inline(always)]
    fn push(&mut self, key: Key, slot: u32) {
        let number = self.list(key).unwrap_or_else(|| self.add_list(key));
        let index = slot as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, Place { list: NONE, previous: NONE, next: NONE });
        }
        let list = &mut self.lists[number as usize];
        self.places[index] = Place { list: number, previous: list.last, next: NONE };
        match list.last {
            NONE => {
                list.first = slot;
                self.empty_lists -= 1;
            }
            last => self.places[last as usize].next = slot,
        }
        list.last = slot;
        self.len += 1;
    }

    #[cold]
    fn add_list(&mut self, key: Key) -> u32 {
        let number = self.lists.insert(List { first: NONE, last: NONE, key }) as u32;
        self.by_key.insert(key, number);
        self.empty_lists += 1;
        number
    }

    #[inline(always)]
    fn remove(&mut self, slot: u32) {
        let Place { list, previous, next } = self.places[slot as usize];
        let list = &mut self.lists[list as usize];
        match previous {
            NONE => list.first = next,
            _ => self.places[previous as usize].next = next,
        }
        match next {
            NONE => list.last = previous,
            _ => self.places[next as usize].previous = previous,
        }
        self.len -= 1;
        if list.first == NONE {
            self.empty_lists += 1;
            if self.empty_lists > MAX_EMPTY_LISTS {
                self.drop_empty_lists();
            }
        }
    }

    #[cold]
    fn drop_empty_lists(&mut self) {
        let by_key = &mut self.by_key;
        self.lists.retain(|_, list| {
            if list.first == NONE {
                by_key.remove(&list.key);
            }
            list.first != NONE
        });
        self.empty_lists = 0;
        self.recent.set(None);
    }
}

/// The classes of the entries that wait for their counterpart.
#[derive(Debug)]
struct Classes {
    classes: Vec<Class>,
    /// Earlier entries have lower numbers.
    next_sequence: u64,
}

impl Classes {
    fn new() -> Self {
        Self { classes: Vec::new(), next_sequence: 0 }
    }

    #[inline(always)]
    fn next_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    /// The index of the class with this rule, if it exists.
    #[inline(always)]
    fn class_index(&self, rule: ClassRule) -> Option<usize> {
        self.classes.iter().position(|class| class.rule == rule)
    }

    /// The index of the class for a selector: its own class, or the unsorted one. Also returns
    /// whether the class is new.
    #[inline(always)]
    fn class_for(&mut self, selector: &Selector) -> (usize, bool) {
        let own = ClassRule::of(selector);
        match self.class_index(own) {
            Some(index) => (index, false),
            None => self.other_class_for(own),
        }
    }

    #[inline(never)]
    fn other_class_for(&mut self, own: ClassRule) -> (usize, bool) {
        let rule = if self.classes.len() + 1 < MAX_CLASSES { own } else { UNSORTED };
        if let Some(index) = self.class_index(rule) {
            return (index, false);
        }
        self.classes.push(Class::new(rule));
        (self.classes.len() - 1, true)
    }
}

/// Receives that wait for messages.
#[derive(Debug)]
pub(crate) struct PostedReceives<T> {
    entries: Slots<PostedEntry<T>>,
    classes: Classes,
    cancels: CancelIndex,
}

/// Finds receives by context, for a sequence of cancels. Posting and matching do not maintain this
/// index. It is built only if nothing was posted since the previous cancel. A program that
/// alternately posts and cancels therefore does not cause a rebuild for each cancel.
#[derive(Debug, Default)]
struct CancelIndex {
    /// The value of [`Classes::next_sequence`] at the last cancel.
    next_sequence: u64,
    contexts: Contexts,
}

#[derive(Debug, Default)]
enum Contexts {
    /// The index is not built.
    #[default]
    Unknown,
    /// Several receives share a context, so that contexts identify no receive.
    Shared,
    /// The slot and sequence number of each receive, by context. Receives that have matched since
    /// are still included.
    Own(HashMap<usize, (u32, u64), BuildHasherDefault<KeyHasher>>),
}

#[derive(Debug)]
struct PostedEntry<T> {
    sequence: u64,
    selector: Selector,
    /// The index of its class.
    class: usize,
    value: T,
}

impl<T> PostedReceives<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Slots::new(), classes: Classes::new(), cancels: CancelIndex::default() }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == 0
    }

    /// Adds a receive after all others. Returns its slot.
    #[inline(always)]
    pub(crate) fn post(&mut self, selector: Selector, value: T) -> u32 {
        let (index, _) = self.classes.class_for(&selector);
        let sequence = self.classes.next_sequence();
        let slot = self.entries.add(PostedEntry { sequence, selector, class: index, value });
        let class = &mut self.classes.classes[index];
        class.push(class.rule.key_of_selector(&selector), slot);
        slot
    }

    /// The first posted receive that matches a message of this origin.
    #[inline(always)]
    pub(crate) fn find(&self, origin: Origin) -> Option<u32> {
        let mut first: Option<(u64, u32)> = None;
        for class in &self.classes.classes {
            let mut candidate = class.first(class.rule.key(origin));
            while let Some((slot, entry)) =
                candidate.and_then(|it| Some((it, self.entries.get(it)?)))
            {
                if first.is_some_and(|(sequence, _)| sequence < entry.sequence) {
                    break;
                }
                if entry.selector.accepts(origin) {
                    first = Some((entry.sequence, slot));
                    break;
                }
                candidate = class.next(slot);
            }
        }
        first.map(|(_, slot)| slot)
    }

    #[inline(always)]
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.entries.get(slot).map(|entry| &entry.value)
    }

    /// Removes a receive after `take` has moved the needed values out of it.
    #[inline(always)]
    pub(crate) fn remove<R>(&mut self, slot: u32, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        let take = |entry: &mut PostedEntry<T>| (entry.class, take(&mut entry.value));
        let (class, taken) = self.entries.remove(slot, take)?;
        self.classes.classes[class].remove(slot);
        Some(taken)
    }

    /// The first receive with this context, for a cancel.
    #[cold]
    pub(crate) fn find_by_context(
        &mut self,
        context: usize,
        context_of: impl Fn(&T) -> usize,
    ) -> Option<u32> {
        let Self { entries, classes: Classes { next_sequence, .. }, cancels: index } = self;
        if index.next_sequence != *next_sequence {
            let contexts = Contexts::Unknown;
            *index = CancelIndex { next_sequence: *next_sequence, contexts };
        } else if matches!(index.contexts, Contexts::Unknown) {
            let place = |(slot, entry): (u32, &PostedEntry<T>)| {
                (context_of(&entry.value), (slot, entry.sequence))
            };
            let slots: HashMap<_, _, _> = entries.iter().map(place).collect();
            let is_own = slots.len() == entries.len();
            index.contexts = if is_own { Contexts::Own(slots) } else { Contexts::Shared };
        }
        if let Contexts::Own(slots) = &index.contexts {
            let (slot, sequence) = *slots.get(&context)?;
            let entry = entries.get(slot)?;
            return (entry.sequence == sequence).then_some(slot);
        }
        let has_context = |entry: &PostedEntry<T>| context_of(&entry.value) == context;
        let found = entries.iter().filter(|(_, entry)| has_context(entry));
        found.min_by_key(|(_, entry)| entry.sequence).map(|(slot, _)| slot)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Messages that no receive was posted for.
#[derive(Debug)]
pub(crate) struct UnexpectedMessages<T> {
    entries: Slab<UnexpectedEntry<T>>,
    classes: Classes,
}

#[derive(Debug)]
struct UnexpectedEntry<T> {
    sequence: u64,
    origin: Origin,
    value: T,
}

impl<T> UnexpectedMessages<T> {
    pub(crate) fn new() -> Self {
        Self { entries: Slab::new(), classes: Classes::new() }
    }

    /// Adds a message after all others.
    pub(crate) fn add(&mut self, origin: Origin, value: T) {
        let sequence = self.classes.next_sequence();
        // The slot fits into 32 bits, because 2^32 entries would take at least 96 GiB.
        let slot = self.entries.insert(UnexpectedEntry { sequence, origin, value }) as u32;
        for class in &mut self.classes.classes {
            class.push(class.rule.key(origin), slot);
        }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first message that a receive with this selector matches.
    pub(crate) fn find(&mut self, selector: &Selector) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let (index, is_new) = self.classes.class_for(selector);
        if is_new {
            self.fill_class(index);
        }
        let class = &self.classes.classes[index];
        let mut candidate = class.first(class.rule.key_of_selector(selector));
        while let Some(slot) = candidate {
            if selector.accepts(self.entries[slot as usize].origin) {
                return Some(slot);
            }
            candidate = class.next(slot);
        }
        None
    }

    /// Adds the unexpected messages to a new class.
    #[cold]
    fn fill_class(&mut self, index: usize) {
        let mut slots: Vec<(u64, u32, Origin)> = self
            .entries
            .iter()
            .map(|(slot, entry)| (entry.sequence, slot as u32, entry.origin))
            .collect();
        slots.sort_unstable_by_key(|(sequence, ..)| *sequence);
        let class = &mut self.classes.classes[index];
        for (_, slot, origin) in slots {
            class.push(class.rule.key(origin), slot);
        }
    }

    pub(crate) fn get(&self, slot: u32) -> Option<(Origin, &T)> {
        let entry = self.entries.get(slot as usize)?;
        Some((entry.origin, &entry.value))
    }

    /// Removes a message.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<(Origin, T)> {
        let entry = self.entries.try_remove(slot as usize)?;
        for class in &mut self.classes.classes {
            class.remove(slot);
        }
        Some((entry.origin, entry.value))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A plain list that follows the rule of MPI (MPI 5.0, 3.5).
    #[derive(Default)]
    struct PlainModel {
        posted: Vec<(Selector, usize)>,
        unexpected: Vec<(Origin, usize)>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Post(Selector),
        Arrive(Origin),
        Cancel(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let ignore = prop_oneof![Just(0), Just(1), Just(2), Just(3), Just(u64::MAX), 0..16u64];
        let selector = (prop::option::of(0..3u32), 0..4u64, ignore)
            .prop_map(|(source, tag, ignore)| Selector { source, tag, ignore });
        let origin = (0..3u32, 0..4u64).prop_map(|(source, tag)| Origin { source, tag });
        prop_oneof![
            4 => selector.prop_map(Step::Post),
            4 => origin.prop_map(Step::Arrive),
            3 => (0..120usize).prop_map(Step::Cancel),
        ]
    }

    proptest! {
        #[test]
        fn messages_and_receives_are_matched_as_in_a_plain_list(
            steps in prop::collection::vec(step(), 0..120),
            context_count in 1..150usize
        ) {
            // Receives have contexts of their own, or share contexts.
            let context_of = |number: &usize| *number % context_count;
            let mut model = PlainModel::default();
            let (mut posted, mut unexpected) = (PostedReceives::new(), UnexpectedMessages::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Post(selector) => {
                        let is_taken = |(origin, _): &(Origin, usize)| selector.accepts(*origin);
                        let expected = model.unexpected.iter().position(is_taken);
                        let expected = expected.map(|index| model.unexpected.remove(index).1);
                        let found = unexpected.find(&selector);
                        let found = found.and_then(|slot| unexpected.remove(slot));
                        prop_assert_eq!(found.map(|(_, value)| value), expected);
                        if expected.is_none() {
                            model.posted.push((selector, number));
                            posted.post(selector, number);
                        }
                    }
                    Step::Arrive(origin) => {
                        let expected =
                            model.posted.iter().position(|(selector, _)| selector.accepts(origin));
                        let expected = expected.map(|index| model.posted.remove(index).1);
                        let found = posted.find(origin);
                        let found = found.and_then(|slot| posted.remove(slot, |it| *it));
                        prop_assert_eq!(found, expected);
                        if expected.is_none() {
                            model.unexpected.push((origin, number));
                            unexpected.add(origin, number);
                        }
                    }
                    Step::Cancel(context) => {
                        let has_context =
                            |(_, number): &(Selector, usize)| context_of(number) == context;
                        let expected = model.posted.iter().position(has_context);
                        let expected = expected.map(|index| model.posted.remove(index).1);
                        let slot = posted.find_by_context(context, context_of);
                        let removed = slot.and_then(|slot| posted.remove(slot, |it| *it));
                        prop_assert_eq!(removed, expected);
                    }
                }
                prop_assert_eq!(posted.len(), model.posted.len());
                prop_assert_eq!(unexpected.len(), model.unexpected.len());
            }
        }
    }

    #[test]
    fn a_series_of_cancels_examines_each_receive_at_most_twice() {
        const COUNT: usize = 1000;
        let looks = Cell::new(0);
        let context_of = |context: &usize| {
            looks.set(looks.get() + 1);
            *context
        };
        let mut posted = PostedReceives::new();
        for context in 0..COUNT {
            posted.post(Selector { source: None, tag: context as u64, ignore: 0 }, context);
        }
        for context in (0..COUNT).rev() {
            let slot = posted.find_by_context(context, context_of).unwrap();
            assert_eq!(posted.remove(slot, |it| *it), Some(context));
            assert_eq!(posted.find_by_context(context, context_of), None, "it is cancelled");
        }
        assert!(looks.get() <= 2 * COUNT, "{}", looks.get());
        // A reused slot does not count as the receive that had this slot before.
        posted.post(Selector { source: None, tag: 0, ignore: 0 }, COUNT);
        assert_eq!(posted.find_by_context(0, context_of), None);
        assert!(posted.find_by_context(COUNT, context_of).is_some());
    }

    #[test]
    fn the_number_of_empty_lists_is_bounded() {
        let mut posted = PostedReceives::new();
        for tag in 0..10 * MAX_EMPTY_LISTS as u64 {
            let slot = posted.post(Selector { source: Some(1), tag, ignore: 0 }, ());
            assert_eq!(posted.find(Origin { source: 1, tag }), Some(slot));
            posted.remove(slot, |_| ()).unwrap();
        }
        assert!(posted.classes.classes[0].lists.len() <= MAX_EMPTY_LISTS + 1);
    }

    #[test]
    fn the_last_message_of_many_is_found_at_once() {
        let mut unexpected = UnexpectedMessages::new();
        for tag in 0..100_000 {
            unexpected.add(Origin { source: 0, tag }, tag);
        }
        for tag in (0..100_000).rev() {
            let selector = Selector { source: Some(0), tag, ignore: 0 };
            let slot = unexpected.find(&selector).unwrap();
            assert_eq!(unexpected.remove(slot).unwrap().1, tag);
        }
    }
}
