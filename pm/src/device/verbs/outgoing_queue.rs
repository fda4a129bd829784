//! What is under way to one peer: pure. Messages and remote operations are kept, in order, until
//! the adapter says that they are done; when the queue pair was replaced, what the peer does not
//! have is posted again. Each work request of a queue pair has a number; one of several is
//! signalled, and its completion stands for all before it.

#![forbid(unsafe_code)]

mod fault_isolation;

use crate::rma::{AddrHandle, Direction};
use fault_isolation::FaultIsolation;
use std::collections::VecDeque;

/// Beyond so many under way, only each of so many is signalled.
const SIGNAL_INTERVAL: u32 = 8;

/// Messages and control messages are numbered apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageClass {
    Data = 0,
    Control = 1,
}

/// A message on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedMessage {
    pub(super) slot: u32,
    pub(super) len: u32,
    pub(super) kind: MessageClass,
    pub(super) sequence: u32,
}

/// A remote memory operation on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RdmaOperation {
    pub(super) direction: Direction,
    /// Where the bytes lie here, and the key of that memory.
    pub(super) local_memory: (u64, u32),
    pub(super) remote_handle: AddrHandle,
    pub(super) len: usize,
    /// How many bytes of it are posted, the first by which work.
    pub(super) posted_len: usize,
    pub(super) first_work: u32,
    /// Connections that broke while it was alone under way, and how many works it came to in one.
    pub(super) failure_count: u8,
    pub(super) max_works_done: u32,
}

impl RdmaOperation {
    pub(super) fn new(
        direction: Direction,
        local_memory: (u64, u32),
        remote_handle: AddrHandle,
        len: usize,
    ) -> RdmaOperation {
        RdmaOperation {
            direction,
            local_memory,
            remote_handle,
            len,
            posted_len: 0,
            first_work: 0,
            failure_count: 0,
            max_works_done: 0,
        }
    }
}

/// What waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueItem {
    Message(QueuedMessage),
    Rdma(RdmaOperation),
}

#[derive(Debug, Default)]
pub(super) struct OutgoingQueue {
    /// Each with its last work's number, once that is posted.
    items: VecDeque<(QueueItem, u32)>,
    /// Remote operations among them, and reads among these.
    rdma_count: usize,
    read_count: usize,
    /// How many of the items are posted.
    posted_count: usize,
    /// The next work's number; those before `retired` are done.
    next_work: u32,
    retired: u32,
    /// The last one that was signalled, plus one.
    signalled: u32,
    /// Only reads are signalled: what else is done here may not have come there (iWARP).
    is_confirmed_by_reads: bool,
    /// Reads under way at a time, and the works of those that are. Without bound but on iWARP: a
    /// queue pair of siw that waits for an answer to a read answers none, so that two of them may
    /// wait for each other for ever.
    max_reads: usize,
    reads_in_flight: VecDeque<u32>,
    fault_isolation: FaultIsolation,
}

/// Whether `a` comes before `b`, of numbers that wrap.
pub(super) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn is_rdma(item: &QueueItem, direction: Direction) -> bool {
    matches!(item, QueueItem::Rdma(operation) if operation.direction == direction)
}

impl OutgoingQueue {
    /// One that learns by reads what has come, and has at most so many of them under way.
    pub(super) fn confirmed_by_reads(max_reads: usize) -> OutgoingQueue {
        OutgoingQueue { is_confirmed_by_reads: true, max_reads, ..OutgoingQueue::default() }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, item: QueueItem) {
        self.rdma_count += usize::from(matches!(item, QueueItem::Rdma(_)));
        self.read_count += usize::from(is_rdma(&item, Direction::Read));
        self.items.push_back((item, 0));
    }

    #[inline(always)]
    fn remove_first(&mut self) -> Option<QueueItem> {
        let (item, _) = self.items.pop_front()?;
        Some(self.on_removed(item, 0))
    }

    fn remove(&mut self, index: usize) -> Option<QueueItem> {
        let (item, _) = self.items.remove(index)?;
        Some(self.on_removed(item, index))
    }

    #[inline(always)]
    fn on_removed(&mut self, item: QueueItem, index: usize) -> QueueItem {
        self.rdma_count -= usize::from(matches!(item, QueueItem::Rdma(_)));
        self.read_count -= usize::from(is_rdma(&item, Direction::Read));
        self.posted_count -= usize::from(index < self.posted_count);
        self.fault_isolation.on_removed(index);
        item
    }

    /// Whether nothing stands before what is sent now, and less than `room` works are under way.
    #[inline(always)]
    pub(super) fn can_send_now(&self, max_in_flight: usize) -> bool {
        let is_blocked =
            self.posted_count < self.items.len() || self.read_count > 0 || self.has_suspects();
        !is_blocked && self.in_flight() < max_in_flight
    }

    /// Remote operations that are not done.
    pub(super) fn rdma_count(&self) -> usize {
        self.rdma_count
    }

    /// Whether operations that read are posted and not done: what comes after one waits for what
    /// it brings.
    pub(super) fn has_posted_read(&self) -> bool {
        let mut posted = self.items.iter().take(self.posted_count);
        self.read_count > 0 && posted.any(|(item, _)| is_rdma(item, Direction::Read))
    }

    /// Whether another read may be posted.
    pub(super) fn can_post_read(&self) -> bool {
        !self.is_confirmed_by_reads || self.reads_in_flight.len() < self.max_reads
    }

    /// Whether `to_post` is left until reads are done: the adapter is not asked to wait for them
    /// (a fence). Of soft adapters siw answers no reads meanwhile, and rdma_rxe may never go on.
    #[inline(always)]
    pub(super) fn must_wait(&self) -> bool {
        match self.next_to_post() {
            Some(item) if self.is_confirmed_by_reads && self.must_wait_isolated(item) => true,
            Some(_) if self.read_count == 0 => false,
            Some(item) if is_rdma(item, Direction::Read) => !self.can_post_read(),
            Some(_) => self.has_posted_read(),
            None => false,
        }
    }

    /// Messages and operations that are not done.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Work requests under way.
    #[inline(always)]
    pub(super) fn in_flight(&self) -> usize {
        self.next_work.wrapping_sub(self.retired) as usize
    }

    /// What is to be posted next.
    #[inline(always)]
    pub(super) fn next_to_post(&self) -> Option<&QueueItem> {
        self.items.get(self.posted_count).map(|(item, _)| item)
    }

    /// As `begin`, for one that reads.
    pub(super) fn begin_read(&mut self) -> (u32, bool) {
        let work = self.begin_work(true);
        self.reads_in_flight.push_back(work.0);
        work
    }

    /// A number for the next work, and whether it is signalled. `surely`: nothing will come that
    /// could stand for it.
    #[inline(always)]
    pub(super) fn begin_work(&mut self, must_signal: bool) -> (u32, bool) {
        let number = self.next_work;
        self.next_work = number.wrapping_add(1);
        let is_lightly_loaded = self.in_flight() <= SIGNAL_INTERVAL as usize;
        let is_due =
            is_lightly_loaded || self.next_work.wrapping_sub(self.signalled) >= SIGNAL_INTERVAL;
        let signalled = must_signal || is_due && !self.is_confirmed_by_reads;
        if signalled {
            self.signalled = self.next_work;
        }
        (number, signalled)
    }

    /// The work of this number, the latest, carries the whole, or the end, of `to_post`.
    #[inline(always)]
    pub(super) fn on_posted(&mut self, number: u32) {
        if let Some((_, work)) = self.items.get_mut(self.posted_count) {
            *work = number;
            self.posted_count += 1;
        }
    }

    /// So many bytes more of the operation that is `to_post` are posted by this work.
    pub(super) fn on_part_posted(&mut self, work: u32, len: usize) {
        let Some((QueueItem::Rdma(operation), _)) = self.items.get_mut(self.posted_count) else {
            return;
        };
        if operation.posted_len == 0 {
            operation.first_work = work;
        }
        operation.posted_len += len;
        if operation.posted_len >= operation.len {
            self.on_posted(work);
        }
    }

    /// Whether the last work is not signalled: nobody will hear of its end.
    pub(super) fn is_last_unsignalled(&self) -> bool {
        self.next_work != self.signalled && self.in_flight() > 0
    }

    /// Whether a read is due that tells what has come.
    #[inline(always)]
    pub(super) fn needs_confirming_read(&self) -> bool {
        let is_due = self.next_work.wrapping_sub(self.signalled) >= SIGNAL_INTERVAL;
        self.is_confirmed_by_reads && (is_due || self.is_isolated() && self.is_last_unsignalled())
    }

    /// This work is done, and all before it; answers how many. A number of no work under way
    /// changes nothing.
    #[inline(always)]
    pub(super) fn complete_up_to(&mut self, work: u32) -> usize {
        let count = work.wrapping_sub(self.retired).wrapping_add(1) as usize;
        let is_known = (1..=self.in_flight()).contains(&count);
        if is_known {
            self.retired = work.wrapping_add(1);
            while self.reads_in_flight.front().is_some_and(|&read| is_before(read, self.retired)) {
                self.reads_in_flight.pop_front();
            }
        }
        if is_known { count } else { 0 }
    }

    /// What is done.
    #[inline(always)]
    pub(super) fn pop_done(&mut self) -> Option<QueueItem> {
        let &(_, work) = self.items.front()?;
        if self.posted_count == 0 || !is_before(work, self.retired) {
            return None;
        }
        self.remove_first()
    }

    /// The queue pair is gone, and all work with it.
    pub(super) fn fail(&mut self) {
        self.posted_count = 0;
        self.retired = self.next_work;
        self.signalled = self.next_work;
        self.reads_in_flight.clear();
        for (item, _) in &mut self.items {
            if let QueueItem::Rdma(operation) = item {
                operation.posted_len = 0;
            }
        }
    }

    /// Takes the operation out that `to_post` answers: it cannot be.
    pub(super) fn remove_refused(&mut self) -> Option<RdmaOperation> {
        let &(QueueItem::Rdma(operation), _) = self.items.get(self.posted_count)? else {
            return None;
        };
        self.remove(self.posted_count).map(|_| operation)
    }

    /// Takes the operation out that work `number` was for, before `fail`.
    pub(super) fn remove_failed(&mut self, work: u32) -> Option<RdmaOperation> {
        let is_carried_by = |index: usize, operation: &RdmaOperation, last_work: u32| {
            let is_begun = operation.posted_len > 0 && !is_before(work, operation.first_work);
            is_begun && (index >= self.posted_count || !is_before(last_work, work))
        };
        let mut candidates = self.items.iter().take(self.posted_count + 1).enumerate();
        let found = candidates.find_map(|(index, (item, last_work))| match item {
            QueueItem::Rdma(operation) if is_carried_by(index, operation, *last_work) => {
                Some((index, *operation))
            }
            _ => None,
        });
        let (index, operation) = found?;
        self.remove(index).map(|_| operation)
    }

    /// What is done, as the peer expects these numbers next: messages that it has, and writes
    /// before the last of these.
    pub(super) fn pop_received(&mut self, expected: [u32; 2]) -> Option<QueueItem> {
        let is_received = |item: &QueueItem| match item {
            QueueItem::Message(message) => {
                is_before(message.sequence, expected[message.kind as usize])
            }
            QueueItem::Rdma(_) => false,
        };
        let last = self.items.iter().rposition(|(item, _)| is_received(item))?;
        let mut received = self.items.iter().take(last + 1);
        let index =
            received.position(|(item, _)| is_received(item) || is_rdma(item, Direction::Write))?;
        self.remove(index)
    }

    /// Anything: the peer has gone.
    pub(super) fn pop_first(&mut self) -> Option<QueueItem> {
        self.remove(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(sequence: u32) -> QueueItem {
        QueueItem::Message(QueuedMessage {
            slot: sequence,
            len: 1,
            kind: MessageClass::Data,
            sequence,
        })
    }

    fn sequence_of(item: QueueItem) -> u32 {
        match item {
            QueueItem::Message(message) => message.sequence,
            QueueItem::Rdma(_) => panic!("an operation"),
        }
    }

    fn operation(direction: Direction, len: usize) -> QueueItem {
        QueueItem::Rdma(RdmaOperation::new(direction, (0, 0), AddrHandle::from_bits(1), len))
    }

    #[test]
    fn an_operation_is_done_with_its_last_work_and_restarted_after_a_failure() {
        let mut flow = OutgoingQueue::default();
        flow.push(operation(Direction::Write, 10));
        flow.push(message(0));
        for _ in 0..2 {
            for _ in 0..2 {
                assert!(matches!(flow.next_to_post(), Some(QueueItem::Rdma(_))));
                let (work, _) = flow.begin_work(false);
                flow.on_part_posted(work, 5);
            }
            let (last, _) = flow.begin_work(false);
            flow.on_posted(last);
            flow.complete_up_to(last.wrapping_sub(2));
            assert_eq!(flow.pop_done(), None, "half of it");
            flow.fail();
        }
        assert_eq!(flow.pop_received([0, 0]), None);
        assert!(matches!(flow.pop_received([1, 0]), Some(QueueItem::Rdma(_))), "it came before");
        assert_eq!((flow.pop_received([1, 0]).map(sequence_of), flow.len()), (Some(0), 0));
        flow.push(operation(Direction::Read, 10));
        flow.push(message(1));
        assert_eq!(flow.read_count, 1);
        assert_eq!(
            flow.pop_received([2, 0]).map(sequence_of),
            Some(1),
            "what a read brings may be lost"
        );
        assert_eq!((flow.pop_received([2, 0]), flow.rdma_count()), (None, 1));
    }

    #[test]
    fn an_operation_that_is_refused_leaves_the_others() {
        let mut flow = OutgoingQueue::default();
        flow.push(message(0));
        flow.push(operation(Direction::Write, 8));
        flow.push(operation(Direction::Read, 8));
        flow.push(message(1));
        let (first, _) = flow.begin_work(false);
        flow.on_posted(first);
        let (whole, _) = flow.begin_work(false);
        flow.on_part_posted(whole, 8);
        let (first_half, _) = flow.begin_work(false);
        flow.on_part_posted(first_half, 4);
        assert_eq!(flow.remove_failed(first), None, "that is a message");
        assert_eq!(flow.remove_failed(first_half).map(|it| it.direction), Some(Direction::Read));
        assert_eq!(flow.remove_failed(whole).map(|it| it.direction), Some(Direction::Write));
        flow.fail();
        assert_eq!((flow.pop_first().map(sequence_of), flow.rdma_count()), (Some(0), 0));
        assert_eq!(flow.pop_first().map(sequence_of), Some(1));
        flow.push(operation(Direction::Read, 8));
        assert!(
            flow.remove_refused().is_some() && flow.remove_refused().is_none() && flow.len() == 0
        );
        assert!(flow.read_count == 0 && !flow.has_posted_read());
    }

    #[test]
    fn a_message_after_a_read_waits_for_its_completion_and_other_reads_do_not() {
        let mut flow = OutgoingQueue::default();
        for _ in 0..20 {
            flow.push(operation(Direction::Read, 8));
        }
        flow.push(message(0));
        let works: Vec<u32> = (0..20)
            .map(|_| {
                assert!(!flow.must_wait());
                let (work, _) = flow.begin_read();
                flow.on_part_posted(work, 8);
                work
            })
            .collect();
        for work in works {
            assert!(flow.must_wait());
            flow.complete_up_to(work);
            assert!(flow.pop_done().is_some());
        }
        assert!(!flow.must_wait());
    }

    #[test]
    fn on_iwarp_few_reads_are_in_flight_and_a_message_after_one_waits_for_it() {
        let mut flow = OutgoingQueue::confirmed_by_reads(2);
        flow.push(message(0));
        for _ in 0..3 {
            flow.push(operation(Direction::Read, 8));
        }
        flow.push(message(1));
        assert!(!flow.must_wait() && !flow.has_posted_read(), "the reads come after it");
        let (first, _) = flow.begin_work(false);
        flow.on_posted(first);
        let mut works = Vec::new();
        for _ in 0..2 {
            assert!(!flow.must_wait());
            let (work, is_signalled) = flow.begin_read();
            flow.on_part_posted(work, 8);
            assert!(is_signalled);
            works.push(work);
        }
        assert!(flow.must_wait() && flow.has_posted_read() && !flow.can_post_read());
        assert!(!flow.can_send_now(100), "what is sent now comes after them");
        flow.complete_up_to(works[0]);
        assert_eq!(std::iter::from_fn(|| flow.pop_done()).count(), 2);
        assert!(!flow.must_wait() && flow.can_post_read());
        let (last, _) = flow.begin_read();
        flow.on_part_posted(last, 8);
        flow.complete_up_to(works[1]);
        assert!(flow.pop_done().is_some() && flow.can_post_read() && flow.must_wait());
        flow.complete_up_to(last);
        assert!(flow.pop_done().is_some() && !flow.must_wait() && !flow.has_posted_read());
        assert!(!flow.can_send_now(1), "a message goes first");
        assert_eq!(flow.pop_first().map(sequence_of), Some(1));
        assert!(flow.can_send_now(1) && !flow.can_send_now(0));
        let (work, _) = flow.begin_read();
        flow.fail();
        assert!(flow.reads_in_flight.is_empty(), "{work} went with its queue pair");
    }

    fn post_all(flow: &mut OutgoingQueue, signalled: &mut Vec<u32>) {
        while flow.next_to_post().is_some() {
            let (number, is_signalled) = flow.begin_work(false);
            flow.on_posted(number);
            signalled.extend(is_signalled.then_some(number));
        }
    }

    #[test]
    fn each_of_a_few_works_is_signalled_and_a_completion_covers_all_before_it() {
        let mut flow = OutgoingQueue::default();
        let mut signalled = Vec::new();
        (0..40).for_each(|i| flow.push(message(i)));
        post_all(&mut flow, &mut signalled);
        assert_eq!(signalled, [0, 1, 2, 3, 4, 5, 6, 7, 15, 23, 31, 39]);
        assert!(!flow.is_last_unsignalled());
        flow.complete_up_to(15);
        let done: Vec<u32> = std::iter::from_fn(|| flow.pop_done()).map(sequence_of).collect();
        assert_eq!(done, (0..16).collect::<Vec<_>>());
        flow.push(message(40));
        post_all(&mut flow, &mut signalled);
        assert!(flow.is_last_unsignalled());
        let (probe, is_signalled) = flow.begin_work(true);
        assert!(is_signalled && !flow.is_last_unsignalled());
        flow.complete_up_to(probe);
        assert_eq!((std::iter::from_fn(|| flow.pop_done()).count(), flow.len()), (25, 0));
        flow.complete_up_to(1_000_000);
        assert_eq!(flow.in_flight(), 0);
    }

    proptest! {
        /// A peer that takes each number once, in order, over queue pairs that fail at any time,
        /// with completions that are lost with them, has every message once.
        #[test]
        fn messages_arrive_once_and_in_order_over_failures(
            steps in prop::collection::vec((0..4u8, 0..40u32), 1..80), start in any::<u32>()
        ) {
            let mut flow = OutgoingQueue::default();
            let (mut pushed, mut expected) = (start, start);
            let mut posted: VecDeque<(u32, u32, bool)> = VecDeque::new();
            let mut got = 0u32;
            let mut acknowledged = 0u32;
            let difference = |steps: u32, pushed: u32| steps.wrapping_sub(pushed);
            for (step, count) in steps {
                match step {
                    0 => (0..count).for_each(|_| {
                        flow.push(message(pushed));
                        pushed = pushed.wrapping_add(1);
                    }),
                    1 => while let Some(&next) = flow.next_to_post() {
                        let (work, is_signalled) = flow.begin_work(false);
                        flow.on_posted(work);
                        posted.push_back((work, sequence_of(next), is_signalled));
                    },
                    2 => for _ in 0..count {
                        let Some((work, sequence, is_signalled)) = posted.pop_front() else { break };
                        if sequence == expected {
                            expected = expected.wrapping_add(1);
                            got += 1;
                        } else {
                            prop_assert!(is_before(sequence, expected), "a gap");
                        }
                        if is_signalled && count % 3 > 0 {
                            let in_flight_before = flow.in_flight();
                            prop_assert_eq!(in_flight_before - flow.complete_up_to(work), flow.in_flight());
                            prop_assert_eq!(flow.complete_up_to(work), 0, "once");
                            while let Some(done) = flow.pop_done() {
                                prop_assert_eq!(sequence_of(done), start.wrapping_add(acknowledged));
                                acknowledged += 1;
                            }
                        }
                    },
                    _ => {
                        posted.clear();
                        flow.fail();
                        // It may hear an old hello, which says less.
                        let heard_expected = expected.wrapping_sub((count % 3).min(got));
                        while let Some(received) = flow.pop_received([heard_expected, 0]) {
                            prop_assert_eq!(sequence_of(received), start.wrapping_add(acknowledged));
                            acknowledged += 1;
                        }
                    }
                }
            }
            prop_assert!(acknowledged <= got);
            prop_assert_eq!(flow.len() as u32, difference(pushed, start) - acknowledged);
        }
    }
}
