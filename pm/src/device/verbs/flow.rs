//! What is under way to one peer: pure. Messages and remote operations are kept, in order, until
//! the adapter says that they are done; when the queue pair was replaced, what the peer does not
//! have is posted again. Each work request of a queue pair has a number; one of several is
//! signalled, and its completion stands for all before it.

#![forbid(unsafe_code)]

mod caution;

use crate::remote::{AddrHandle, Direction};
use caution::Caution;
use std::collections::VecDeque;

/// Beyond so many under way, only each of so many is signalled.
const SELDOM: u32 = 8;

/// Messages and control messages are numbered apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data = 0,
    Control = 1,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) slot: u32,
    pub(super) len: u32,
    pub(super) kind: Kind,
    pub(super) sequence: u32,
}

/// A remote memory operation on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) direction: Direction,
    /// Where the bytes lie here, and the key of that memory.
    pub(super) here: (u64, u32),
    pub(super) there: AddrHandle,
    pub(super) len: usize,
    /// How many bytes of it are posted, the first by which work.
    pub(super) posted: usize,
    pub(super) first: u32,
    /// Connections that broke while it was alone under way, and how many works it came to in one.
    pub(super) tries: u8,
    pub(super) reached: u32,
}

impl Move {
    pub(super) fn new(
        direction: Direction,
        here: (u64, u32),
        there: AddrHandle,
        len: usize,
    ) -> Move {
        Move { direction, here, there, len, posted: 0, first: 0, tries: 0, reached: 0 }
    }
}

/// What waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Message(Outgoing),
    Move(Move),
}

#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Each with its last work's number, once that is posted.
    items: VecDeque<(Item, u32)>,
    /// Remote operations among them, and reads among these.
    moves: usize,
    reads: usize,
    /// How many of the items are posted.
    posted: usize,
    /// The next work's number; those before `retired` are done.
    next: u32,
    retired: u32,
    /// The last one that was signalled, plus one.
    signalled: u32,
    /// Only reads are signalled: what else is done here may not have come there (iWARP).
    by_reads: bool,
    /// Reads under way at a time, and the works of those that are. Without bound but on iWARP: a
    /// queue pair of siw that waits for an answer to a read answers none, so that two of them may
    /// wait for each other for ever.
    most_reads: usize,
    reading: VecDeque<u32>,
    caution: Caution,
}

/// Whether `a` comes before `b`, of numbers that wrap.
pub(super) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn is(item: &Item, direction: Direction) -> bool {
    matches!(item, Item::Move(it) if it.direction == direction)
}

impl Flow {
    /// One that learns by reads what has come, and has at most so many of them under way.
    pub(super) fn by_reads(most: usize) -> Flow {
        Flow { by_reads: true, most_reads: most, ..Flow::default() }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, item: Item) {
        self.moves += usize::from(matches!(item, Item::Move(_)));
        self.reads += usize::from(is(&item, Direction::Read));
        self.items.push_back((item, 0));
    }

    #[inline(always)]
    fn remove_first(&mut self) -> Option<Item> {
        let (item, _) = self.items.pop_front()?;
        Some(self.is_removed(item, 0))
    }

    fn remove(&mut self, at: usize) -> Option<Item> {
        let (item, _) = self.items.remove(at)?;
        Some(self.is_removed(item, at))
    }

    #[inline(always)]
    fn is_removed(&mut self, item: Item, at: usize) -> Item {
        self.moves -= usize::from(matches!(item, Item::Move(_)));
        self.reads -= usize::from(is(&item, Direction::Read));
        self.posted -= usize::from(at < self.posted);
        self.caution.is_removed(at);
        item
    }

    /// Whether nothing stands before what is sent now, and less than `room` works are under way.
    #[inline(always)]
    pub(super) fn is_free(&self, room: usize) -> bool {
        let waits = self.posted < self.items.len() || self.reads > 0 || self.is_cautious();
        !waits && self.under_way() < room
    }

    /// Remote operations that are not done.
    pub(super) fn moves(&self) -> usize {
        self.moves
    }

    /// Whether operations that read are posted and not done: what comes after one waits for what
    /// it brings.
    pub(super) fn is_fetching(&self) -> bool {
        let mut posted = self.items.iter().take(self.posted);
        self.reads > 0 && posted.any(|(item, _)| is(item, Direction::Read))
    }

    /// Whether another read may be posted.
    pub(super) fn may_read(&self) -> bool {
        !self.by_reads || self.reading.len() < self.most_reads
    }

    /// Whether `to_post` is left until reads are done: the adapter is not asked to wait for them
    /// (a fence). Of soft adapters siw answers no reads meanwhile, and rdma_rxe may never go on.
    #[inline(always)]
    pub(super) fn must_wait(&self) -> bool {
        match self.to_post() {
            Some(item) if self.by_reads && self.waits_alone(item) => true,
            Some(_) if self.reads == 0 => false,
            Some(item) if is(item, Direction::Read) => !self.may_read(),
            Some(_) => self.is_fetching(),
            None => false,
        }
    }

    /// Messages and operations that are not done.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Work requests under way.
    #[inline(always)]
    pub(super) fn under_way(&self) -> usize {
        self.next.wrapping_sub(self.retired) as usize
    }

    /// What is to be posted next.
    #[inline(always)]
    pub(super) fn to_post(&self) -> Option<&Item> {
        self.items.get(self.posted).map(|(item, _)| item)
    }

    /// As `begin`, for one that reads.
    pub(super) fn begin_read(&mut self) -> (u32, bool) {
        let begun = self.begin(true);
        self.reading.push_back(begun.0);
        begun
    }

    /// A number for the next work, and whether it is signalled. `surely`: nothing will come that
    /// could stand for it.
    #[inline(always)]
    pub(super) fn begin(&mut self, surely: bool) -> (u32, bool) {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let few = self.under_way() <= SELDOM as usize;
        let often = few || self.next.wrapping_sub(self.signalled) >= SELDOM;
        let signalled = surely || often && !self.by_reads;
        if signalled {
            self.signalled = self.next;
        }
        (number, signalled)
    }

    /// The work of this number, the latest, carries the whole, or the end, of `to_post`.
    #[inline(always)]
    pub(super) fn is_posted(&mut self, number: u32) {
        if let Some((_, work)) = self.items.get_mut(self.posted) {
            *work = number;
            self.posted += 1;
        }
    }

    /// So many bytes more of the operation that is `to_post` are posted by this work.
    pub(super) fn is_begun(&mut self, number: u32, bytes: usize) {
        let Some((Item::Move(it), _)) = self.items.get_mut(self.posted) else { return };
        if it.posted == 0 {
            it.first = number;
        }
        it.posted += bytes;
        if it.posted >= it.len {
            self.is_posted(number);
        }
    }

    /// Whether the last work is not signalled: nobody will hear of its end.
    pub(super) fn is_silent(&self) -> bool {
        self.next != self.signalled && self.under_way() > 0
    }

    /// Whether a read is due that tells what has come.
    #[inline(always)]
    pub(super) fn wants_read(&self) -> bool {
        let often = self.next.wrapping_sub(self.signalled) >= SELDOM;
        self.by_reads && (often || self.is_alone() && self.is_silent())
    }

    /// This work is done, and all before it; answers how many. A number of no work under way
    /// changes nothing.
    #[inline(always)]
    pub(super) fn done(&mut self, number: u32) -> usize {
        let count = number.wrapping_sub(self.retired).wrapping_add(1) as usize;
        let is_known = (1..=self.under_way()).contains(&count);
        if is_known {
            self.retired = number.wrapping_add(1);
            while self.reading.front().is_some_and(|&read| is_before(read, self.retired)) {
                self.reading.pop_front();
            }
        }
        if is_known { count } else { 0 }
    }

    /// What is done.
    #[inline(always)]
    pub(super) fn pop_done(&mut self) -> Option<Item> {
        let &(_, work) = self.items.front()?;
        if self.posted == 0 || !is_before(work, self.retired) {
            return None;
        }
        self.remove_first()
    }

    /// The queue pair is gone, and all work with it.
    pub(super) fn fail(&mut self) {
        self.posted = 0;
        self.retired = self.next;
        self.signalled = self.next;
        self.reading.clear();
        for (item, _) in &mut self.items {
            if let Item::Move(it) = item {
                it.posted = 0;
            }
        }
    }

    /// Takes the operation out that `to_post` answers: it cannot be.
    pub(super) fn refuse(&mut self) -> Option<Move> {
        let &(Item::Move(it), _) = self.items.get(self.posted)? else { return None };
        self.remove(self.posted).map(|_| it)
    }

    /// Takes the operation out that work `number` was for, before `fail`.
    pub(super) fn take_failed(&mut self, number: u32) -> Option<Move> {
        let is_it = |at: usize, it: &Move, last: u32| {
            let begun = it.posted > 0 && !is_before(number, it.first);
            begun && (at >= self.posted || !is_before(last, number))
        };
        let mut all = self.items.iter().take(self.posted + 1).enumerate();
        let found = all.find_map(|(at, (item, last))| match item {
            Item::Move(it) if is_it(at, it, *last) => Some((at, *it)),
            _ => None,
        });
        let (at, it) = found?;
        self.remove(at).map(|_| it)
    }

    /// What is done, as the peer expects these numbers next: messages that it has, and writes
    /// before the last of these.
    pub(super) fn pop_known(&mut self, expected: [u32; 2]) -> Option<Item> {
        let known = |item: &Item| match item {
            Item::Message(it) => is_before(it.sequence, expected[it.kind as usize]),
            Item::Move(_) => false,
        };
        let last = self.items.iter().rposition(|(item, _)| known(item))?;
        let mut before = self.items.iter().take(last + 1);
        let at = before.position(|(item, _)| known(item) || is(item, Direction::Write))?;
        self.remove(at)
    }

    /// Anything: the peer has gone.
    pub(super) fn pop_any(&mut self) -> Option<Item> {
        self.remove(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(sequence: u32) -> Item {
        Item::Message(Outgoing { slot: sequence, len: 1, kind: Kind::Data, sequence })
    }

    fn number(item: Item) -> u32 {
        match item {
            Item::Message(it) => it.sequence,
            Item::Move(_) => panic!("an operation"),
        }
    }

    fn operation(direction: Direction, len: usize) -> Item {
        Item::Move(Move::new(direction, (0, 0), AddrHandle::from_bits(1), len))
    }

    #[test]
    fn an_operation_is_done_with_its_last_piece_and_begun_anew_after_a_failure() {
        let mut flow = Flow::default();
        flow.push(operation(Direction::Write, 10));
        flow.push(message(0));
        for _ in 0..2 {
            for _ in 0..2 {
                assert!(matches!(flow.to_post(), Some(Item::Move(_))));
                let (work, _) = flow.begin(false);
                flow.is_begun(work, 5);
            }
            let (last, _) = flow.begin(false);
            flow.is_posted(last);
            flow.done(last.wrapping_sub(2));
            assert_eq!(flow.pop_done(), None, "half of it");
            flow.fail();
        }
        assert_eq!(flow.pop_known([0, 0]), None);
        assert!(matches!(flow.pop_known([1, 0]), Some(Item::Move(_))), "it came before");
        assert_eq!((flow.pop_known([1, 0]).map(number), flow.len()), (Some(0), 0));
        flow.push(operation(Direction::Read, 10));
        flow.push(message(1));
        assert_eq!(flow.reads, 1);
        assert_eq!(flow.pop_known([2, 0]).map(number), Some(1), "what a read brings may be lost");
        assert_eq!((flow.pop_known([2, 0]), flow.moves()), (None, 1));
    }

    #[test]
    fn an_operation_that_is_refused_leaves_the_others() {
        let mut flow = Flow::default();
        flow.push(message(0));
        flow.push(operation(Direction::Write, 8));
        flow.push(operation(Direction::Read, 8));
        flow.push(message(1));
        let (first, _) = flow.begin(false);
        flow.is_posted(first);
        let (whole, _) = flow.begin(false);
        flow.is_begun(whole, 8);
        let (half, _) = flow.begin(false);
        flow.is_begun(half, 4);
        assert_eq!(flow.take_failed(first), None, "that is a message");
        assert_eq!(flow.take_failed(half).map(|it| it.direction), Some(Direction::Read));
        assert_eq!(flow.take_failed(whole).map(|it| it.direction), Some(Direction::Write));
        flow.fail();
        assert_eq!((flow.pop_any().map(number), flow.moves()), (Some(0), 0));
        assert_eq!(flow.pop_any().map(number), Some(1));
        flow.push(operation(Direction::Read, 8));
        assert!(flow.refuse().is_some() && flow.refuse().is_none() && flow.len() == 0);
        assert!(flow.reads == 0 && !flow.is_fetching());
    }

    #[test]
    fn what_comes_after_a_read_waits_until_it_is_here_and_other_reads_do_not() {
        let mut flow = Flow::default();
        for _ in 0..20 {
            flow.push(operation(Direction::Read, 8));
        }
        flow.push(message(0));
        let works: Vec<u32> = (0..20)
            .map(|_| {
                assert!(!flow.must_wait());
                let (work, _) = flow.begin_read();
                flow.is_begun(work, 8);
                work
            })
            .collect();
        for work in works {
            assert!(flow.must_wait());
            flow.done(work);
            assert!(flow.pop_done().is_some());
        }
        assert!(!flow.must_wait());
    }

    #[test]
    fn on_iwarp_few_reads_are_under_way_and_what_comes_after_one_waits_until_it_is_here() {
        let mut flow = Flow::by_reads(2);
        flow.push(message(0));
        for _ in 0..3 {
            flow.push(operation(Direction::Read, 8));
        }
        flow.push(message(1));
        assert!(!flow.must_wait() && !flow.is_fetching(), "the reads come after it");
        let (first, _) = flow.begin(false);
        flow.is_posted(first);
        let mut works = Vec::new();
        for _ in 0..2 {
            assert!(!flow.must_wait());
            let (work, told) = flow.begin_read();
            flow.is_begun(work, 8);
            assert!(told);
            works.push(work);
        }
        assert!(flow.must_wait() && flow.is_fetching() && !flow.may_read());
        assert!(!flow.is_free(100), "what is sent now comes after them");
        flow.done(works[0]);
        assert_eq!(std::iter::from_fn(|| flow.pop_done()).count(), 2);
        assert!(!flow.must_wait() && flow.may_read());
        let (last, _) = flow.begin_read();
        flow.is_begun(last, 8);
        flow.done(works[1]);
        assert!(flow.pop_done().is_some() && flow.may_read() && flow.must_wait());
        flow.done(last);
        assert!(flow.pop_done().is_some() && !flow.must_wait() && !flow.is_fetching());
        assert!(!flow.is_free(1), "a message goes first");
        assert_eq!(flow.pop_any().map(number), Some(1));
        assert!(flow.is_free(1) && !flow.is_free(0));
        let (work, _) = flow.begin_read();
        flow.fail();
        assert!(flow.reading.is_empty(), "{work} went with its queue pair");
    }

    fn post_all(flow: &mut Flow, signalled: &mut Vec<u32>) {
        while flow.to_post().is_some() {
            let (number, told) = flow.begin(false);
            flow.is_posted(number);
            signalled.extend(told.then_some(number));
        }
    }

    #[test]
    fn few_are_signalled_each_and_a_completion_stands_for_all_before() {
        let mut flow = Flow::default();
        let mut signalled = Vec::new();
        (0..40).for_each(|i| flow.push(message(i)));
        post_all(&mut flow, &mut signalled);
        assert_eq!(signalled, [0, 1, 2, 3, 4, 5, 6, 7, 15, 23, 31, 39]);
        assert!(!flow.is_silent());
        flow.done(15);
        let done: Vec<u32> = std::iter::from_fn(|| flow.pop_done()).map(number).collect();
        assert_eq!(done, (0..16).collect::<Vec<_>>());
        flow.push(message(40));
        post_all(&mut flow, &mut signalled);
        assert!(flow.is_silent());
        let (probe, told) = flow.begin(true);
        assert!(told && !flow.is_silent());
        flow.done(probe);
        assert_eq!((std::iter::from_fn(|| flow.pop_done()).count(), flow.len()), (25, 0));
        flow.done(1_000_000);
        assert_eq!(flow.under_way(), 0);
    }

    proptest! {
        /// A peer that takes each number once, in order, over queue pairs that fail at any time,
        /// with completions that are lost with them, has every message once.
        #[test]
        fn messages_arrive_once_and_in_order_over_failures(
            steps in prop::collection::vec((0..4u8, 0..40u32), 1..80), start in any::<u32>()
        ) {
            let mut flow = Flow::default();
            let (mut pushed, mut expected) = (start, start);
            let mut wire: VecDeque<(u32, u32, bool)> = VecDeque::new();
            let mut got = 0u32;
            let mut acknowledged = 0u32;
            let total = |steps: u32, pushed: u32| steps.wrapping_sub(pushed);
            for (what, count) in steps {
                match what {
                    0 => (0..count).for_each(|_| {
                        flow.push(message(pushed));
                        pushed = pushed.wrapping_add(1);
                    }),
                    1 => while let Some(&next) = flow.to_post() {
                        let (work, told) = flow.begin(false);
                        flow.is_posted(work);
                        wire.push_back((work, number(next), told));
                    },
                    2 => for _ in 0..count {
                        let Some((work, sequence, told)) = wire.pop_front() else { break };
                        if sequence == expected {
                            expected = expected.wrapping_add(1);
                            got += 1;
                        } else {
                            prop_assert!(is_before(sequence, expected), "a gap");
                        }
                        if told && count % 3 > 0 {
                            let before = flow.under_way();
                            prop_assert_eq!(before - flow.done(work), flow.under_way());
                            prop_assert_eq!(flow.done(work), 0, "once");
                            while let Some(done) = flow.pop_done() {
                                prop_assert_eq!(number(done), start.wrapping_add(acknowledged));
                                acknowledged += 1;
                            }
                        }
                    },
                    _ => {
                        wire.clear();
                        flow.fail();
                        // It may hear an old hello, which says less.
                        let heard = expected.wrapping_sub((count % 3).min(got));
                        while let Some(known) = flow.pop_known([heard, 0]) {
                            prop_assert_eq!(number(known), start.wrapping_add(acknowledged));
                            acknowledged += 1;
                        }
                    }
                }
            }
            prop_assert!(acknowledged <= got);
            prop_assert_eq!(flow.len() as u32, total(pushed, start) - acknowledged);
        }
    }
}
