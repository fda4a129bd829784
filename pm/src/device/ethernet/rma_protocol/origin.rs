//! The operations of this node on one peer in their order, and the messages that wait for them.

use super::{
    FragmentStream, LocalOperation, NextTransmission, OperationNumber, OperationRole, PayloadSource,
};
use crate::device::net_common::endpoint_queues::SendRequest;
use crate::rma::{AddrHandle, Direction};
use score_pm_reliability::rma_frame::Frame;
use std::collections::VecDeque;

enum QueuedItem {
    Operation(LocalOperation),
    Message(SendRequest),
}

/// An operation of which all frames were sent to the peer.
struct OutstandingOperation {
    number: OperationNumber,
    operation: LocalOperation,
    /// The number of bytes of a read that were received.
    received_len: usize,
    failed: bool,
    finished: bool,
}

#[derive(Default)]
pub(super) struct Origin {
    queue: VecDeque<QueuedItem>,
    /// The number of bytes of the first queued write that are in frames, and whether the write has
    /// failed.
    sent_len: usize,
    write_failed: bool,
    /// Operations that wait for their answer, and completed operations that were not reported yet.
    outstanding: VecDeque<OutstandingOperation>,
    /// The number of reads in `outstanding`.
    pending_reads: usize,
    next_number: OperationNumber,
}

impl Origin {
    pub(super) fn begin(&mut self, operation: LocalOperation) {
        self.queue.push_back(QueuedItem::Operation(operation));
    }

    pub(super) fn defer(&mut self, message: SendRequest) {
        self.queue.push_back(QueuedItem::Message(message));
    }

    pub(super) fn holds_messages(&self) -> bool {
        !self.queue.is_empty() || self.pending_reads > 0
    }

    /// Whether a write has fragments that are not in frames.
    pub(super) fn is_writing(&self) -> bool {
        let is_write = |item: &QueuedItem| {
            matches!(
                item,
                QueuedItem::Operation(LocalOperation { direction: Direction::Write, .. })
            )
        };
        self.queue.iter().any(is_write)
    }

    pub(super) fn next(&mut self) -> NextTransmission {
        let next = match self.queue.front() {
            None => return NextTransmission::Nothing,
            Some(QueuedItem::Message(_)) if self.pending_reads > 0 => {
                return NextTransmission::Nothing;
            }
            Some(QueuedItem::Message(message)) => NextTransmission::Message(*message),
            Some(QueuedItem::Operation(operation)) => match operation.direction {
                Direction::Read => return self.start_read(*operation),
                Direction::Write if self.pending_reads > 0 => return NextTransmission::Nothing,
                Direction::Write => return self.next_write(*operation),
            },
        };
        self.queue.pop_front();
        next
    }

    fn start_read(&mut self, operation: LocalOperation) -> NextTransmission {
        let number = self.next_number;
        self.pending_reads += 1;
        self.move_to_outstanding(false);
        let LocalOperation { remote, len, .. } = operation;
        NextTransmission::Frame(Frame::ReadRequest {
            number: number.0,
            handle: remote.bits(),
            len: len as u64,
        })
    }

    fn next_write(&mut self, operation: LocalOperation) -> NextTransmission {
        let LocalOperation { remote, address, len, .. } = operation;
        let (number, position) = (self.next_number, (remote + self.sent_len as u64).bits());
        if self.write_failed {
            self.move_to_outstanding(true);
            return NextTransmission::Frame(Frame::WriteData {
                number: number.0,
                last: true,
                handle: position,
            });
        }
        let (source, remaining) =
            (PayloadSource::Address(address.wrapping_add(self.sent_len)), len - self.sent_len);
        NextTransmission::Fragments(FragmentStream {
            side: OperationRole::Origin,
            source,
            remaining,
            number,
            position,
            is_continuation: false,
        })
    }

    /// Moves the first operation of the queue to `outstanding`.
    fn move_to_outstanding(&mut self, failed: bool) {
        if let Some(QueuedItem::Operation(operation)) = self.queue.pop_front() {
            let number = self.next_number;
            self.outstanding.push_back(OutstandingOperation {
                number,
                operation,
                received_len: 0,
                failed,
                finished: false,
            });
        }
        self.next_number = self.next_number.next();
        (self.sent_len, self.write_failed) = (0, false);
    }

    pub(super) fn on_bytes_sent(&mut self, bytes: usize) {
        self.sent_len += bytes;
        let is_fully_sent = |item: &QueuedItem| {
            matches!(item, QueuedItem::Operation(operation)
                if self.sent_len >= operation.len)
        };
        if self.queue.front().is_some_and(is_fully_sent) {
            self.move_to_outstanding(false);
        }
    }

    pub(super) fn abort_write(&mut self) {
        self.write_failed = true;
    }

    /// Returns the operation whose answer is next, if its number and direction match. The peer
    /// answers in the order of the operations.
    fn expect_answer(
        &mut self,
        number: OperationNumber,
        direction: Direction,
    ) -> Option<&mut OutstandingOperation> {
        let next = self.outstanding.iter_mut().find(|entry| !entry.finished)?;
        (next.number == number && next.operation.direction == direction).then_some(next)
    }

    /// Handles the answer to a write. Returns false if it was not requested.
    pub(super) fn on_written(&mut self, number: OperationNumber, failed: bool) -> bool {
        let Some(entry) = self.expect_answer(number, Direction::Write) else { return false };
        entry.finished = true;
        entry.failed |= failed;
        true
    }

    /// Handles the answer to a read, and returns the location for its bytes. Returns `Some(None)`
    /// if the bytes must be discarded, and None if they were not requested.
    pub(super) fn on_data(
        &mut self,
        number: OperationNumber,
        last: bool,
        failed: bool,
        offset: u64,
        bytes: usize,
    ) -> Option<Option<AddrHandle>> {
        let entry = self.expect_answer(number, Direction::Read)?;
        let LocalOperation { local, len, .. } = entry.operation;
        let end = entry.received_len.saturating_add(bytes);
        // An invalid answer ends the operation, because no other answer will follow.
        let is_valid =
            !failed && offset == entry.received_len as u64 && end <= len && last == (end == len);
        entry.failed |= !is_valid;
        entry.finished = last || !is_valid;
        let to = local + entry.received_len as u64;
        entry.received_len = end;
        Some(is_valid.then_some(to))
    }

    pub(super) fn fail_operation(&mut self, number: OperationNumber) {
        if let Some(entry) = self.outstanding.iter_mut().find(|entry| entry.number == number) {
            entry.failed = true;
        } else if self.next_number == number {
            // This is a write of which only some fragments are in frames.
            self.write_failed = true;
        }
    }

    /// Removes and returns the next completed operation, and whether it has failed.
    pub(super) fn next_completed(&mut self) -> Option<(LocalOperation, bool)> {
        if !self.outstanding.front()?.finished {
            return None;
        }
        let entry = self.outstanding.pop_front()?;
        if entry.operation.direction == Direction::Read {
            self.pending_reads -= 1;
        }
        Some((entry.operation, entry.failed))
    }

    /// Removes and returns all operations, because the peer has exited. Messages stay in the queue.
    pub(super) fn abort_operations(&mut self) -> Vec<LocalOperation> {
        let mut operations: Vec<_> =
            self.outstanding.drain(..).map(|entry| entry.operation).collect();
        for item in std::mem::take(&mut self.queue) {
            match item {
                QueuedItem::Operation(operation) => operations.push(operation),
                QueuedItem::Message(_) => self.queue.push_back(item),
            }
        }
        (self.sent_len, self.write_failed, self.pending_reads) = (0, false, 0);
        operations
    }

    pub(super) fn drop_deferred(&mut self) -> Vec<SendRequest> {
        let message = |item: QueuedItem| match item {
            QueuedItem::Message(message) => Some(message),
            QueuedItem::Operation(_) => None,
        };
        let mut messages = Vec::new();
        for item in std::mem::take(&mut self.queue) {
            match item {
                QueuedItem::Operation(_) => self.queue.push_back(item),
                QueuedItem::Message(_) => messages.extend(message(item)),
            }
        }
        messages
    }
}
