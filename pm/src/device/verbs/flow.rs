//! What is under way to one peer: pure. Messages are kept, in order, until the adapter says that
//! they are in the peer's memory; when the queue pair was replaced, those that the peer does not
//! have are posted again. Each work request of a queue pair has a number; one of several is
//! signalled, and its completion stands for all before it.

#![forbid(unsafe_code)]

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

#[derive(Debug, Default)]
pub(super) struct Flow {
    messages: VecDeque<(Outgoing, u32)>,
    /// How many of them are posted, with their work's number.
    posted: usize,
    /// The next work's number; those before `retired` are done.
    next: u32,
    retired: u32,
    /// The last one that was signalled, plus one.
    signalled: u32,
}

/// Whether `a` comes before `b`, of numbers that wrap.
pub(super) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Flow {
    pub(super) fn push(&mut self, message: Outgoing) {
        self.messages.push_back((message, 0));
    }

    /// Messages that are not acknowledged.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Work requests under way.
    pub(super) fn under_way(&self) -> usize {
        self.next.wrapping_sub(self.retired) as usize
    }

    /// The next message to post.
    pub(super) fn to_post(&self) -> Option<Outgoing> {
        self.messages.get(self.posted).map(|(message, _)| *message)
    }

    /// A number for the next work, and whether it is signalled. `last`: nothing will come that
    /// could stand for it.
    pub(super) fn begin(&mut self, last: bool) -> (u32, bool) {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let few = self.under_way() <= SELDOM as usize;
        let signalled = last || few || self.next.wrapping_sub(self.signalled) >= SELDOM;
        if signalled {
            self.signalled = self.next;
        }
        (number, signalled)
    }

    /// The work of this number, the latest, carries `to_post`'s message.
    pub(super) fn is_posted(&mut self, number: u32) {
        if let Some((_, work)) = self.messages.get_mut(self.posted) {
            *work = number;
            self.posted += 1;
        }
    }

    /// Whether the last work is not signalled: nobody will hear of its end.
    pub(super) fn is_silent(&self) -> bool {
        self.next != self.signalled && self.under_way() > 0
    }

    /// This work is done, and all before it. A number of no work under way changes nothing.
    pub(super) fn done(&mut self, number: u32) {
        if number.wrapping_sub(self.retired) < self.next.wrapping_sub(self.retired) {
            self.retired = number.wrapping_add(1);
        }
    }

    /// A message that is acknowledged.
    pub(super) fn pop_done(&mut self) -> Option<Outgoing> {
        let &(message, work) = self.messages.front()?;
        if self.posted == 0 || !is_before(work, self.retired) {
            return None;
        }
        self.posted -= 1;
        self.messages.pop_front();
        Some(message)
    }

    /// The queue pair is gone, and all work with it.
    pub(super) fn fail(&mut self) {
        self.posted = 0;
        self.retired = self.next;
        self.signalled = self.next;
    }

    /// A message that the peer has: it expects these numbers next.
    pub(super) fn pop_known(&mut self, expected: [u32; 2]) -> Option<Outgoing> {
        let known =
            |message: &Outgoing| is_before(message.sequence, expected[message.kind as usize]);
        let at = self.messages.iter().position(|(message, _)| known(message))?;
        self.messages.remove(at).map(|(message, _)| message)
    }

    /// Any message: the peer has gone.
    pub(super) fn pop_any(&mut self) -> Option<Outgoing> {
        self.posted = self.posted.saturating_sub(1);
        self.messages.pop_front().map(|(message, _)| message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(sequence: u32) -> Outgoing {
        Outgoing { slot: sequence, len: 1, kind: Kind::Data, sequence }
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
        let done: Vec<u32> = std::iter::from_fn(|| flow.pop_done()).map(|m| m.sequence).collect();
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
                    1 => while let Some(next) = flow.to_post() {
                        let (number, told) = flow.begin(false);
                        flow.is_posted(number);
                        wire.push_back((number, next.sequence, told));
                    },
                    2 => for _ in 0..count {
                        let Some((number, sequence, told)) = wire.pop_front() else { break };
                        if sequence == expected {
                            expected = expected.wrapping_add(1);
                            got += 1;
                        } else {
                            prop_assert!(is_before(sequence, expected), "a gap");
                        }
                        if told && count % 3 > 0 {
                            flow.done(number);
                            while let Some(done) = flow.pop_done() {
                                prop_assert_eq!(done.sequence, start.wrapping_add(acknowledged));
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
                            prop_assert_eq!(known.sequence, start.wrapping_add(acknowledged));
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
