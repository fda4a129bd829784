//! One heap of timers for all peers. Deadlines change with almost every packet, but the heap does
//! not. When an entry reaches the front and its deadline has moved, the entry is inserted again. If
//! an earlier entry has replaced it, the entry is removed. Therefore a message costs only one
//! comparison for each timer.

use crate::NO_DEADLINE;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The timers of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The sender waits for an acknowledgement of sent packets, or for a window that opens.
    Retransmit = 0,
    /// The receiver waits for a message that can carry an acknowledgement.
    Acknowledge = 1,
    /// The next probe of the links that are suspect or down is due.
    Probe = 2,
}

/// All timers of a peer.
pub(super) const TIMERS: [Timer; 3] = [Timer::Retransmit, Timer::Acknowledge, Timer::Probe];

/// The deadline, and the peer and the timer in one number.
type Entry = Reverse<(u64, u64)>;

#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Entry>,
}

fn unpack(Reverse((deadline, key)): Entry) -> (u64, u32, Timer) {
    (deadline, (key >> 2) as u32, TIMERS[(key & 3) as usize % TIMERS.len()])
}

impl Timers {
    pub(super) fn push(&mut self, deadline: u64, index: u32, timer: Timer) {
        self.heap.push(Reverse((deadline, u64::from(index) << 2 | timer as u64)));
    }

    #[inline]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.heap.peek().is_some_and(|Reverse((deadline, _))| *deadline <= now)
    }

    pub(super) fn pop(&mut self) -> Option<(u64, u32, Timer)> {
        self.heap.pop().map(unpack)
    }

    /// The earliest valid deadline. `deadline_of` returns the true deadline of an entry, and
    /// records that the timer is armed for it. `deadline_of` returns `NO_DEADLINE` if the timer is
    /// not set, or if another entry for it is earlier.
    pub(super) fn next(
        &mut self,
        mut deadline_of: impl FnMut(u32, Timer, u64) -> u64,
    ) -> Option<u64> {
        while let Some(entry) = self.heap.peek() {
            let (armed_deadline, index, timer) = unpack(*entry);
            let deadline = deadline_of(index, timer, armed_deadline);
            if deadline <= armed_deadline {
                return Some(armed_deadline);
            }
            self.heap.pop();
            if deadline != NO_DEADLINE {
                self.push(deadline, index, timer);
            }
        }
        None
    }

    /// The number of entries, including obsolete ones.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_timer_comes_first_with_its_peer() {
        let mut timers = Timers::default();
        assert!(!timers.is_due(u64::MAX));
        let entries =
            [(30, 5, Timer::Probe), (10, u32::MAX, Timer::Retransmit), (20, 0, Timer::Acknowledge)];
        entries
            .into_iter()
            .for_each(|(deadline, index, timer)| timers.push(deadline, index, timer));
        assert_eq!(timers.len(), 3);
        assert!(timers.is_due(10) && !timers.is_due(9));
        for expected in [entries[1], entries[2], entries[0]] {
            assert_eq!(timers.pop(), Some(expected));
        }
        assert_eq!((timers.pop(), timers.len()), (None, 0));
    }

    #[test]
    fn an_entry_whose_deadline_has_moved_is_inserted_again_or_removed() {
        let mut timers = Timers::default();
        for (deadline, index) in [(10, 1), (20, 2), (30, 3)] {
            timers.push(deadline, index, Timer::Acknowledge);
        }
        // The timer of peer 1 has moved to 25, and that of peer 2 is not set.
        let deadline_of = |index, _, armed| match (index, armed) {
            (1, _) => 25,
            (2, _) => NO_DEADLINE,
            _ => armed,
        };
        assert_eq!(timers.next(deadline_of), Some(25));
        assert_eq!(timers.len(), 2);
        assert_eq!(timers.pop(), Some((25, 1, Timer::Acknowledge)));
        assert_eq!(timers.next(|_, _, _| NO_DEADLINE), None);
        assert_eq!(timers.len(), 0);
    }
}
