//! Finds the operation that breaks a connection, if no error names it (iWARP). Items that were in
//! flight when a connection broke are tried alone on the next connections. An operation that breaks
//! several consecutive connections is abandoned. This module is pure.

#![forbid(unsafe_code)]

use super::{OutgoingQueue, QueueItem, RdmaOperation, is_before};

/// An operation is abandoned after so many connections have broken while it was in flight alone and
/// made no progress.
const MAX_SUSPECT_FAILURES: u8 = 3;

/// The items that may have broken a connection, and the time for which operations are held.
#[derive(Debug, Default)]
pub(super) struct FaultIsolation {
    /// The number of items at the front that are tried alone.
    suspect_count: usize,
    /// The time in nanoseconds until which no operation is posted, because the other end tries its
    /// operations first. 0: not held.
    held_until_ns: u64,
}

impl FaultIsolation {
    pub(super) fn on_removed(&mut self, index: usize) {
        self.suspect_count -= usize::from(index < self.suspect_count);
    }
}

impl OutgoingQueue {
    /// Whether the next item to post may have broken a connection.
    pub(in super::super) fn has_suspects(&self) -> bool {
        self.fault_isolation.suspect_count > 0
    }

    /// Holds suspected operations until this time; 0: not held.
    pub(in super::super) fn hold_until(&mut self, until_ns: u64) {
        self.fault_isolation.held_until_ns = until_ns;
    }

    /// Releases the hold, unless a later one has replaced it.
    pub(in super::super) fn release_hold(&mut self, until_ns: u64) {
        if self.fault_isolation.held_until_ns == until_ns {
            self.fault_isolation.held_until_ns = 0;
        }
    }

    /// Whether an item is posted that must be in flight alone.
    pub(super) fn is_isolated(&self) -> bool {
        self.has_suspects() && self.posted_count > 0
    }

    pub(super) fn must_wait_isolated(&self, item: &QueueItem) -> bool {
        let is_held = self.fault_isolation.held_until_ns != 0 && matches!(item, QueueItem::Rdma(_));
        self.is_isolated() || self.has_suspects() && is_held
    }

    /// Like `fail`, if an operation in flight may be the cause. Returns the operation that is
    /// abandoned, if any. `is_entry_read_pending`: the region entry of the next operation was
    /// requested. `is_port_down`: the port is the cause.
    pub(in super::super) fn fail_and_suspect(
        &mut self,
        is_entry_read_pending: bool,
        is_port_down: bool,
    ) -> Option<RdmaOperation> {
        let is_begun = match self.next_to_post() {
            Some(QueueItem::Rdma(operation)) => is_entry_read_pending || operation.posted_len > 0,
            _ => false,
        };
        let posted_count = self.posted_count + usize::from(is_begun);
        let was_isolated = self.has_suspects() && posted_count == 1;
        let is_rdma_item = |(item, _): &(QueueItem, u32)| matches!(item, QueueItem::Rdma(_));
        let last = self.items.iter().take(posted_count).rposition(is_rdma_item);
        let suspect_count = last.map_or(0, |last| last + 1).max(self.fault_isolation.suspect_count);
        self.fault_isolation.suspect_count =
            if is_port_down { self.fault_isolation.suspect_count } else { suspect_count };
        let is_given_up = was_isolated && !is_port_down && self.count_failure();
        let given_up = if is_given_up { self.remove(0) } else { None };
        self.fail();
        match given_up? {
            QueueItem::Rdma(operation) => Some(operation),
            QueueItem::Message(_) => None,
        }
    }

    /// Counts a failure of the first operation. True: the operation has to be abandoned.
    fn count_failure(&mut self) -> bool {
        let retired = self.retired;
        let Some((QueueItem::Rdma(operation), _)) = self.items.front_mut() else { return false };
        let is_begun = operation.posted_len > 0 && is_before(operation.first_work, retired);
        let works_done = if is_begun { retired.wrapping_sub(operation.first_work) } else { 0 };
        if works_done > operation.max_works_done {
            (operation.max_works_done, operation.failure_count) = (works_done, 0);
        }
        operation.failure_count += 1;
        operation.failure_count >= MAX_SUSPECT_FAILURES
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MessageClass, QueuedMessage};
    use super::*;
    use crate::rma::{AddrHandle, Direction};
    use proptest::prelude::*;

    const LEN: usize = 10;

    fn message(sequence: u32) -> QueueItem {
        QueueItem::Message(QueuedMessage { slot: 0, len: 1, kind: MessageClass::Data, sequence })
    }

    /// The local address identifies the operation.
    fn operation(direction: Direction, id: u32) -> QueueItem {
        QueueItem::Rdma(RdmaOperation::new(
            direction,
            (id.into(), 0),
            AddrHandle::from_bits(1),
            LEN,
        ))
    }

    fn id_of(item: QueueItem) -> u32 {
        match item {
            QueueItem::Message(message) => message.sequence,
            QueueItem::Rdma(operation) => operation.local_memory.0 as u32,
        }
    }

    /// A work request in flight, its item, and whether it is signalled.
    type Posted = (u32, Option<u32>, bool);

    /// Like `VerbsEngine::transmit`.
    fn post(queue: &mut OutgoingQueue, posted: &mut Vec<Posted>) {
        while let Some(&item) = queue.next_to_post().filter(|_| !queue.must_wait()) {
            let is_read =
                matches!(item, QueueItem::Rdma(rdma) if rdma.direction == Direction::Read);
            let (work, is_signalled) =
                if is_read { queue.begin_read() } else { queue.begin_work(false) };
            match item {
                QueueItem::Message(_) => queue.on_posted(work),
                QueueItem::Rdma(_) => queue.on_part_posted(work, LEN),
            }
            posted.push((work, Some(id_of(item)), is_signalled));
            if queue.needs_confirming_read() && queue.can_post_read() {
                posted.push((queue.begin_read().0, None, true));
            }
        }
        if queue.is_last_unsignalled() && queue.can_post_read() {
            posted.push((queue.begin_read().0, None, true));
        }
    }

    /// One connection, which breaks at the first work request of an item in `bad_ids`. Returns the
    /// items that are done, and whether the connection is intact.
    fn connect(queue: &mut OutgoingQueue, bad_ids: &[u32]) -> (Vec<u32>, bool) {
        let (mut posted, mut done) = (Vec::new(), Vec::new());
        loop {
            post(queue, &mut posted);
            if posted.is_empty() {
                return (done, true);
            }
            let (work, id, is_signalled) = posted.remove(0);
            if id.is_some_and(|item| bad_ids.contains(&item)) {
                return (done, false);
            }
            if is_signalled {
                queue.complete_up_to(work);
                done.extend(std::iter::from_fn(|| queue.pop_done()).map(id_of));
            }
        }
    }

    #[test]
    fn an_operation_with_which_each_connection_breaks_is_given_up_and_no_other() {
        let mut queue = OutgoingQueue::confirmed_by_reads(2);
        queue.push(message(0));
        queue.push(operation(Direction::Write, 1));
        queue.push(operation(Direction::Write, 2));
        queue.push(operation(Direction::Read, 3));
        queue.push(message(4));
        let (mut done, mut given_up, mut connections) = (Vec::new(), Vec::new(), 0);
        loop {
            connections += 1;
            let (more, is_intact) = connect(&mut queue, &[2]);
            done.extend(more);
            if is_intact {
                break;
            }
            let given_up_now = queue.fail_and_suspect(false, false);
            given_up.extend(given_up_now.map(|operation| (operation.local_memory.0, connections)));
        }
        assert_eq!(
            (done, given_up),
            (vec![0, 1, 3, 4], vec![(2, 1 + u32::from(MAX_SUSPECT_FAILURES))])
        );
        assert!(!queue.has_suspects() && queue.rdma_count() == 0, "no suspect is left");
    }

    #[test]
    fn an_operation_whose_region_entry_breaks_connections_is_given_up_as_well() {
        let mut queue = OutgoingQueue::confirmed_by_reads(2);
        queue.push(operation(Direction::Write, 7));
        for _ in 0..MAX_SUSPECT_FAILURES {
            let _ = queue.begin_read();
            assert_eq!(queue.fail_and_suspect(true, false), None);
        }
        assert!(
            queue
                .fail_and_suspect(true, false)
                .is_some_and(|operation| operation.local_memory.0 == 7)
        );
    }

    #[test]
    fn repeated_port_failures_and_an_operation_that_progresses_are_not_given_up() {
        let mut queue = OutgoingQueue::confirmed_by_reads(2);
        let remote_handle = AddrHandle::from_bits(1);
        queue.push(QueueItem::Rdma(RdmaOperation::new(
            Direction::Write,
            (0, 0),
            remote_handle,
            1000,
        )));
        for failure in 0..40 {
            let (work, _) = queue.begin_work(false);
            queue.on_part_posted(work, 1);
            assert_eq!(
                queue.fail_and_suspect(false, failure % 10 != 0 || failure == 0),
                None,
                "{failure}"
            );
        }
        for works in 1..40 {
            for _ in 0..works {
                let (work, _) = queue.begin_read();
                queue.on_part_posted(work, 1);
                queue.complete_up_to(work);
            }
            assert_eq!(queue.fail_and_suspect(false, false), None, "{works}");
        }
    }

    #[test]
    fn a_held_queue_posts_messages_but_no_suspected_operation_before_its_time() {
        let mut queue = OutgoingQueue::confirmed_by_reads(2);
        queue.push(message(0));
        queue.push(operation(Direction::Write, 1));
        post(&mut queue, &mut Vec::new());
        assert_eq!(queue.fail_and_suspect(false, false), None);
        queue.hold_until(5);
        assert_eq!(connect(&mut queue, &[]).0, [0]);
        queue.release_hold(4);
        assert!(queue.must_wait());
        queue.release_hold(5);
        assert_eq!(connect(&mut queue, &[]).0, [1]);
        queue.hold_until(6);
        queue.push(operation(Direction::Write, 2));
        assert!(!queue.must_wait(), "it is not suspected");
    }

    proptest! {
        #[test]
        fn every_bad_operation_is_given_up_and_all_others_are_done_in_order(
            kinds in prop::collection::vec((0..3u8, 0..4u8), 1..40)
        ) {
            let mut queue = OutgoingQueue::confirmed_by_reads(2);
            let is_bad = |&(kind, quarter): &(u8, u8)| kind > 0 && quarter == 0;
            let mut bad = Vec::new();
            for (id, kind) in (0..).zip(&kinds) {
                queue.push(match kind.0 {
                    0 => message(id),
                    1 => operation(Direction::Write, id),
                    _ => operation(Direction::Read, id),
                });
                bad.extend(is_bad(kind).then_some(id));
            }
            let (mut done, mut given_up) = (Vec::new(), Vec::new());
            for _ in 0..=bad.len() * (usize::from(MAX_SUSPECT_FAILURES) + 1) {
                let (more, is_intact) = connect(&mut queue, &bad);
                done.extend(more);
                if is_intact {
                    break;
                }
                let given_up_now = queue.fail_and_suspect(false, false);
                given_up.extend(given_up_now.map(|rdma| rdma.local_memory.0 as u32));
            }
            prop_assert_eq!(queue.len(), 0, "the queue is empty in time");
            prop_assert_eq!(&given_up, &bad);
            let good: Vec<u32> = (0..kinds.len() as u32).filter(|id| !bad.contains(id)).collect();
            prop_assert_eq!(done, good);
        }
    }
}
