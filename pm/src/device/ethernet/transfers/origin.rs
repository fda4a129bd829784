//! Own operations on one peer, in their order, and the messages that wait for them.

use super::{Chain, From, Next, Operation, Side};
use crate::device::network::lanes::Submitted;
use crate::remote::{AddrHandle, Direction};
use score_proto::remote::Frame;
use std::collections::VecDeque;

enum Step {
    Operation(Operation),
    Message(Submitted),
}

/// An operation of which the peer knows all.
struct Asked {
    number: u32,
    operation: Operation,
    /// Bytes of a read that have come.
    done: usize,
    failed: bool,
    finished: bool,
}

#[derive(Default)]
pub(super) struct Origin {
    queue: VecDeque<Step>,
    /// Bytes of the first write of the queue that are in frames; and its memory is none.
    sent: usize,
    broken: bool,
    /// What is not answered, and what is and has not been told yet.
    asked: VecDeque<Asked>,
    /// Reads among these.
    reads: usize,
    number: u32,
}

impl Origin {
    pub(super) fn begin(&mut self, operation: Operation) {
        self.queue.push_back(Step::Operation(operation));
    }

    pub(super) fn park(&mut self, message: Submitted) {
        self.queue.push_back(Step::Message(message));
    }

    pub(super) fn holds_messages(&self) -> bool {
        !self.queue.is_empty() || self.reads > 0
    }

    /// Whether a write has pieces that are not in frames.
    pub(super) fn is_writing(&self) -> bool {
        let writes = |step: &Step| {
            matches!(step, Step::Operation(Operation { direction: Direction::Write, .. }))
        };
        self.queue.iter().any(writes)
    }

    pub(super) fn next(&mut self) -> Next {
        let next = match self.queue.front() {
            None => return Next::Nothing,
            Some(Step::Message(_)) if self.reads > 0 => return Next::Nothing,
            Some(Step::Message(message)) => Next::Message(*message),
            Some(Step::Operation(operation)) => match operation.direction {
                Direction::Read => return self.ask(*operation),
                Direction::Write if self.reads > 0 => return Next::Nothing,
                Direction::Write => return self.write(*operation),
            },
        };
        self.queue.pop_front();
        next
    }

    fn ask(&mut self, operation: Operation) -> Next {
        let number = self.number;
        self.reads += 1;
        self.all_sent(false);
        let Operation { remote, len, .. } = operation;
        Next::Frame(Frame::Ask { number, handle: remote.bits(), len: len as u64 })
    }

    fn write(&mut self, operation: Operation) -> Next {
        let Operation { remote, address, len, .. } = operation;
        let (number, place) = (self.number, (remote + self.sent as u64).bits());
        if self.broken {
            self.all_sent(true);
            return Next::Frame(Frame::Piece { number, last: true, handle: place });
        }
        let (from, left) = (From::Address(address.wrapping_add(self.sent)), len - self.sent);
        Next::Chain(Chain { side: Side::Origin, from, left, number, place, goes_on: false })
    }

    /// The first operation of the queue waits for its answer from now on.
    fn all_sent(&mut self, failed: bool) {
        if let Some(Step::Operation(operation)) = self.queue.pop_front() {
            let number = self.number;
            self.asked.push_back(Asked { number, operation, done: 0, failed, finished: false });
        }
        self.number = self.number.wrapping_add(1);
        (self.sent, self.broken) = (0, false);
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        let all = |step: &Step| matches!(step, Step::Operation(of) if self.sent >= of.len);
        if self.queue.front().is_some_and(all) {
            self.all_sent(false);
        }
    }

    pub(super) fn cut(&mut self) {
        self.broken = true;
    }

    /// The operation that is answered next, if it is this one: answers keep the order.
    fn answered(&mut self, number: u32, direction: Direction) -> Option<&mut Asked> {
        let next = self.asked.iter_mut().find(|asked| !asked.finished)?;
        (next.number == number && next.operation.direction == direction).then_some(next)
    }

    /// False: that was not asked for.
    pub(super) fn written(&mut self, number: u32, failed: bool) -> bool {
        let Some(asked) = self.answered(number, Direction::Write) else { return false };
        asked.finished = true;
        asked.failed |= failed;
        true
    }

    /// Where the bytes go. None inside: nowhere. None: that was not asked for.
    pub(super) fn data(
        &mut self,
        number: u32,
        last: bool,
        failed: bool,
        offset: u64,
        bytes: usize,
    ) -> Option<Option<AddrHandle>> {
        let asked = self.answered(number, Direction::Read)?;
        let Operation { local, len, .. } = asked.operation;
        let end = asked.done.saturating_add(bytes);
        // Else it is no answer to this question, and there will be no other.
        let right = !failed && offset == asked.done as u64 && end <= len && last == (end == len);
        asked.failed |= !right;
        asked.finished = last || !right;
        let to = local + asked.done as u64;
        asked.done = end;
        Some(right.then_some(to))
    }

    pub(super) fn spoil(&mut self, number: u32) {
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.number == number) {
            asked.failed = true;
        } else if self.number == number {
            // A write of which some pieces are in frames.
            self.broken = true;
        }
    }

    /// The next operation that has ended, and whether it has failed.
    pub(super) fn ended(&mut self) -> Option<(Operation, bool)> {
        if !self.asked.front()?.finished {
            return None;
        }
        let asked = self.asked.pop_front()?;
        if asked.operation.direction == Direction::Read {
            self.reads -= 1;
        }
        Some((asked.operation, asked.failed))
    }

    /// The peer has gone: all operations. Messages go on.
    pub(super) fn give_up(&mut self) -> Vec<Operation> {
        let mut all: Vec<_> = self.asked.drain(..).map(|asked| asked.operation).collect();
        for step in std::mem::take(&mut self.queue) {
            match step {
                Step::Operation(operation) => all.push(operation),
                Step::Message(_) => self.queue.push_back(step),
            }
        }
        (self.sent, self.broken, self.reads) = (0, false, 0);
        all
    }

    pub(super) fn give_up_messages(&mut self) -> Vec<Submitted> {
        let message = |step: Step| match step {
            Step::Message(message) => Some(message),
            Step::Operation(_) => None,
        };
        let mut all = Vec::new();
        for step in std::mem::take(&mut self.queue) {
            match step {
                Step::Operation(_) => self.queue.push_back(step),
                Step::Message(_) => all.extend(message(step)),
            }
        }
        all
    }
}
