//! One heap of timers for all peers. Deadlines move with almost every packet, the heap does not:
//! an entry whose deadline has moved on is put back when it comes to the front, and one that a
//! nearer entry has replaced is forgotten then. So a message costs a comparison.

use super::NO_DEADLINE;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a peer can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// An acknowledgement of what has been sent, or a window to open.
    Retransmit = 0,
    /// A message for an acknowledgement to ride on.
    Acknowledge = 1,
    /// A dead link to come back.
    Probe = 2,
}

/// All kinds.
pub(super) const TIMERS: [Timer; 3] = [Timer::Retransmit, Timer::Acknowledge, Timer::Probe];

/// Time, and peer and kind in one number.
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

    /// The earliest deadline that holds. `deadline_of` answers the true deadline of an entry, and
    /// remembers that it is armed for it; NEVER: there is none, or another entry is nearer.
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

    /// Entries, forgotten ones included.
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}
