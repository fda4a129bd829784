//! The queue of messages and operations to one peer. This module is pure. Items are kept, in order,
//! until the adapter reports them as done. If the queue pair was replaced, everything that the peer
//! does not have is posted again. Each work request of a queue pair has a number. Only some work
//! requests are signalled. A completion covers all work requests that precede it.

#![forbid(unsafe_code)]

use crate::device::net_common::indices::SlotIndex;
use crate::rma::{AddrHandle, Direction};
use std::collections::VecDeque;

/// If more work requests than this are in flight, only one of every `SIGNAL_INTERVAL` is signalled.
const SIGNAL_INTERVAL: u32 = 8;

/// Messages and control messages are numbered separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageClass {
    Data = 0,
    Control = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedMessage {
    pub(super) slot: SlotIndex,
    pub(super) len: u32,
    pub(super) kind: MessageClass,
    pub(super) sequence: u32,
}

/// A queued remote memory operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RdmaOperation {
    pub(super) direction: Direction,
    /// The number of the operation among the operations on this peer, once it is queued.
    pub(super) number: u64,
    /// The address of the local bytes, and the key of that memory.
    pub(super) local_memory: (u64, u32),
    pub(super) remote_handle: AddrHandle,
    pub(super) len: usize,
    /// The number of bytes that are posted. `first_work`: the number of the first work request.
    pub(super) posted_len: usize,
    pub(super) first_work: u32,
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
            number: 0,
            local_memory,
            remote_handle,
            len,
            posted_len: 0,
            first_work: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueItem {
    Message(QueuedMessage),
    Rdma(RdmaOperation),
}

#[derive(Debug, Default)]
pub(super) struct OutgoingQueue {
    /// Each item with the number of its last work request, once that is posted.
    items: VecDeque<(QueueItem, u32)>,
    /// Remote memory operations in the queue, and the reads among them.
    rdma_count: usize,
    read_count: usize,
    /// The number of posted items.
    posted_count: usize,
    /// The number of the next work request. The work requests before `retired` are done.
    next_work: u32,
    retired: u32,
    /// The number of the last signalled work request, plus one.
    signalled: u32,
}

/// Whether number `a` precedes number `b`. The numbers wrap around.
pub(super) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

fn is_rdma(item: &QueueItem, direction: Direction) -> bool {
    matches!(item, QueueItem::Rdma(operation) if operation.direction == direction)
}

impl OutgoingQueue {
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
        item
    }

    /// Whether a new message need not wait for a read or for an item that is not posted, and fewer
    /// than `max_in_flight` work requests are in flight.
    #[inline(always)]
    pub(super) fn can_send_now(&self, max_in_flight: usize) -> bool {
        let is_blocked = self.posted_count < self.items.len() || self.read_count > 0;
        !is_blocked && self.in_flight() < max_in_flight
    }

    /// The number of remote memory operations that are not done.
    pub(super) fn rdma_count(&self) -> usize {
        self.rdma_count
    }

    /// Whether reads are posted and not done. Items after a read wait for its data.
    pub(super) fn has_posted_read(&self) -> bool {
        let mut posted = self.items.iter().take(self.posted_count);
        self.read_count > 0 && posted.any(|(item, _)| is_rdma(item, Direction::Read))
    }

    /// Whether `next_to_post` must wait until reads are done. The queue does not use a fence of the
    /// adapter, because rdma_rxe may never continue after a fence.
    #[inline(always)]
    pub(super) fn must_wait(&self) -> bool {
        match self.next_to_post() {
            Some(_) if self.read_count == 0 => false,
            Some(item) => !is_rdma(item, Direction::Read) && self.has_posted_read(),
            None => false,
        }
    }

    /// The number of messages and operations that are not done.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The number of work requests in flight.
    #[inline(always)]
    pub(super) fn in_flight(&self) -> usize {
        self.next_work.wrapping_sub(self.retired) as usize
    }

    /// The item to be posted next.
    #[inline(always)]
    pub(super) fn next_to_post(&self) -> Option<&QueueItem> {
        self.items.get(self.posted_count).map(|(item, _)| item)
    }

    /// Returns a number for the next work request, and whether it is signalled. `must_signal`: it
    /// is signalled in any case.
    #[inline(always)]
    pub(super) fn begin_work(&mut self, must_signal: bool) -> (u32, bool) {
        let number = self.next_work;
        self.next_work = number.wrapping_add(1);
        let is_lightly_loaded = self.in_flight() <= SIGNAL_INTERVAL as usize;
        let is_due =
            is_lightly_loaded || self.next_work.wrapping_sub(self.signalled) >= SIGNAL_INTERVAL;
        let signalled = must_signal || is_due;
        if signalled {
            self.signalled = self.next_work;
        }
        (number, signalled)
    }

    /// Records that `number`, the latest work request, carries the whole or the end of
    /// `next_to_post`.
    #[inline(always)]
    pub(super) fn on_posted(&mut self, number: u32) {
        if let Some((_, work)) = self.items.get_mut(self.posted_count) {
            *work = number;
            self.posted_count += 1;
        }
    }

    /// Records that work request `work` posts `len` more bytes of the operation that is
    /// `next_to_post`.
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

    /// Whether the last work request is not signalled, so that its completion will not be reported.
    pub(super) fn is_last_unsignalled(&self) -> bool {
        self.next_work != self.signalled && self.in_flight() > 0
    }

    /// Records that this work request and all that precede it are done, and returns their number.
    /// If it is not in flight, nothing changes.
    #[inline(always)]
    pub(super) fn complete_up_to(&mut self, work: u32) -> usize {
        let count = work.wrapping_sub(self.retired).wrapping_add(1) as usize;
        let is_known = (1..=self.in_flight()).contains(&count);
        if is_known {
            self.retired = work.wrapping_add(1);
        }
        if is_known { count } else { 0 }
    }

    /// Removes the first item if it is done.
    #[inline(always)]
    pub(super) fn pop_done(&mut self) -> Option<QueueItem> {
        let &(_, work) = self.items.front()?;
        if self.posted_count == 0 || !is_before(work, self.retired) {
            return None;
        }
        self.remove_first()
    }

    /// Called when the queue pair and its work requests no longer exist. All items have to be
    /// posted again.
    pub(super) fn fail(&mut self) {
        self.posted_count = 0;
        self.retired = self.next_work;
        self.signalled = self.next_work;
        for (item, _) in &mut self.items {
            if let QueueItem::Rdma(operation) = item {
                operation.posted_len = 0;
            }
        }
    }

    /// Removes the operation that is `next_to_post`, because it was refused.
    pub(super) fn remove_refused(&mut self) -> Option<RdmaOperation> {
        let &(QueueItem::Rdma(operation), _) = self.items.get(self.posted_count)? else {
            return None;
        };
        self.remove(self.posted_count).map(|_| operation)
    }

    /// Removes the operation of work request `work`, before `fail`.
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

    /// Removes the first item if the peer has received it. The peer expects the numbers `expected`
    /// next. It has all earlier messages, and all writes that precede the last of these.
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

    /// Removes the first item in any state, because the peer has exited.
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
            slot: SlotIndex(sequence),
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
        let mut queue = OutgoingQueue::default();
        queue.push(operation(Direction::Write, 10));
        queue.push(message(0));
        for _ in 0..2 {
            for _ in 0..2 {
                assert!(matches!(queue.next_to_post(), Some(QueueItem::Rdma(_))));
                let (work, _) = queue.begin_work(false);
                queue.on_part_posted(work, 5);
            }
            let (last, _) = queue.begin_work(false);
            queue.on_posted(last);
            queue.complete_up_to(last.wrapping_sub(2));
            assert_eq!(queue.pop_done(), None, "half of it is done");
            queue.fail();
        }
        assert_eq!(queue.pop_received([0, 0]), None);
        assert!(
            matches!(queue.pop_received([1, 0]), Some(QueueItem::Rdma(_))),
            "it precedes message 0"
        );
        assert_eq!((queue.pop_received([1, 0]).map(sequence_of), queue.len()), (Some(0), 0));
        queue.push(operation(Direction::Read, 10));
        queue.push(message(1));
        assert_eq!(queue.read_count, 1);
        assert_eq!(
            queue.pop_received([2, 0]).map(sequence_of),
            Some(1),
            "the data of a read may be lost"
        );
        assert_eq!((queue.pop_received([2, 0]), queue.rdma_count()), (None, 1));
    }

    #[test]
    fn a_refused_operation_does_not_affect_other_operations() {
        let mut queue = OutgoingQueue::default();
        queue.push(message(0));
        queue.push(operation(Direction::Write, 8));
        queue.push(operation(Direction::Read, 8));
        queue.push(message(1));
        let (first, _) = queue.begin_work(false);
        queue.on_posted(first);
        let (whole, _) = queue.begin_work(false);
        queue.on_part_posted(whole, 8);
        let (first_half, _) = queue.begin_work(false);
        queue.on_part_posted(first_half, 4);
        assert_eq!(queue.remove_failed(first), None, "a message is not removed");
        assert_eq!(
            queue.remove_failed(first_half).map(|operation| operation.direction),
            Some(Direction::Read)
        );
        assert_eq!(
            queue.remove_failed(whole).map(|operation| operation.direction),
            Some(Direction::Write)
        );
        queue.fail();
        assert_eq!((queue.pop_first().map(sequence_of), queue.rdma_count()), (Some(0), 0));
        assert_eq!(queue.pop_first().map(sequence_of), Some(1));
        queue.push(operation(Direction::Read, 8));
        assert!(
            queue.remove_refused().is_some()
                && queue.remove_refused().is_none()
                && queue.len() == 0
        );
        assert!(queue.read_count == 0 && !queue.has_posted_read());
    }

    #[test]
    fn a_message_after_a_read_waits_for_its_completion_and_other_reads_do_not() {
        let mut queue = OutgoingQueue::default();
        for _ in 0..20 {
            queue.push(operation(Direction::Read, 8));
        }
        queue.push(message(0));
        let works: Vec<u32> = (0..20)
            .map(|_| {
                assert!(!queue.must_wait());
                let (work, _) = queue.begin_work(true);
                queue.on_part_posted(work, 8);
                work
            })
            .collect();
        for work in works {
            assert!(queue.must_wait());
            queue.complete_up_to(work);
            assert!(queue.pop_done().is_some());
        }
        assert!(!queue.must_wait());
    }

    #[test]
    fn a_new_message_waits_for_reads_and_for_queued_messages() {
        let mut queue = OutgoingQueue::default();
        queue.push(message(0));
        queue.push(operation(Direction::Read, 8));
        queue.push(message(1));
        assert!(!queue.must_wait() && !queue.has_posted_read(), "the message precedes the read");
        let (first, _) = queue.begin_work(false);
        queue.on_posted(first);
        let (read, is_signalled) = queue.begin_work(true);
        queue.on_part_posted(read, 8);
        assert!(is_signalled && queue.must_wait() && queue.has_posted_read());
        assert!(!queue.can_send_now(100), "a new message waits for the read");
        queue.complete_up_to(read);
        assert_eq!(std::iter::from_fn(|| queue.pop_done()).count(), 2);
        assert!(!queue.must_wait() && !queue.has_posted_read());
        assert!(!queue.can_send_now(1), "a queued message precedes it");
        assert_eq!(queue.pop_first().map(sequence_of), Some(1));
        assert!(queue.can_send_now(1) && !queue.can_send_now(0));
    }

    fn post_all(queue: &mut OutgoingQueue, signalled: &mut Vec<u32>) {
        while queue.next_to_post().is_some() {
            let (number, is_signalled) = queue.begin_work(false);
            queue.on_posted(number);
            signalled.extend(is_signalled.then_some(number));
        }
    }

    #[test]
    fn the_first_and_every_eighth_work_request_are_signalled() {
        let mut queue = OutgoingQueue::default();
        let mut signalled = Vec::new();
        (0..40).for_each(|i| queue.push(message(i)));
        post_all(&mut queue, &mut signalled);
        assert_eq!(signalled, [0, 1, 2, 3, 4, 5, 6, 7, 15, 23, 31, 39]);
        assert!(!queue.is_last_unsignalled());
        queue.complete_up_to(15);
        let done: Vec<u32> = std::iter::from_fn(|| queue.pop_done()).map(sequence_of).collect();
        assert_eq!(done, (0..16).collect::<Vec<_>>());
        queue.push(message(40));
        post_all(&mut queue, &mut signalled);
        assert!(queue.is_last_unsignalled());
        let (probe, is_signalled) = queue.begin_work(true);
        assert!(is_signalled && !queue.is_last_unsignalled());
        queue.complete_up_to(probe);
        assert_eq!((std::iter::from_fn(|| queue.pop_done()).count(), queue.len()), (25, 0));
        queue.complete_up_to(1_000_000);
        assert_eq!(queue.in_flight(), 0);
    }

    proptest! {
        /// Queue pairs fail at any time, and completions are lost with them. A peer that accepts
        /// each number once, in order, still has every message once.
        #[test]
        fn messages_arrive_once_and_in_order_over_failures(
            steps in prop::collection::vec((0..4u8, 0..40u32), 1..80), start in any::<u32>()
        ) {
            let mut queue = OutgoingQueue::default();
            let (mut pushed, mut expected) = (start, start);
            let mut posted: VecDeque<(u32, u32, bool)> = VecDeque::new();
            let mut got = 0u32;
            let mut acknowledged = 0u32;
            let difference = |steps: u32, pushed: u32| steps.wrapping_sub(pushed);
            for (step, count) in steps {
                match step {
                    0 => (0..count).for_each(|_| {
                        queue.push(message(pushed));
                        pushed = pushed.wrapping_add(1);
                    }),
                    1 => while let Some(&next) = queue.next_to_post() {
                        let (work, is_signalled) = queue.begin_work(false);
                        queue.on_posted(work);
                        posted.push_back((work, sequence_of(next), is_signalled));
                    },
                    2 => for _ in 0..count {
                        let Some((work, sequence, is_signalled)) = posted.pop_front() else {
                            break;
                        };
                        if sequence == expected {
                            expected = expected.wrapping_add(1);
                            got += 1;
                        } else {
                            prop_assert!(is_before(sequence, expected), "a gap");
                        }
                        if is_signalled && count % 3 > 0 {
                            let in_flight_before = queue.in_flight();
                            let completed_count = queue.complete_up_to(work);
                            prop_assert_eq!(in_flight_before - completed_count, queue.in_flight());
                            prop_assert_eq!(queue.complete_up_to(work), 0, "once");
                            while let Some(done) = queue.pop_done() {
                                let next_sequence = start.wrapping_add(acknowledged);
                                prop_assert_eq!(sequence_of(done), next_sequence);
                                acknowledged += 1;
                            }
                        }
                    },
                    _ => {
                        posted.clear();
                        queue.fail();
                        // An old hello reports a lower number.
                        let stale_expected = expected.wrapping_sub((count % 3).min(got));
                        while let Some(received) = queue.pop_received([stale_expected, 0]) {
                            let next_sequence = start.wrapping_add(acknowledged);
                            prop_assert_eq!(sequence_of(received), next_sequence);
                            acknowledged += 1;
                        }
                    }
                }
            }
            prop_assert!(acknowledged <= got);
            prop_assert_eq!(queue.len() as u32, difference(pushed, start) - acknowledged);
        }
    }
}
