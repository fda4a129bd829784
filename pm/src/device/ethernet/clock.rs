//! The job's running time, which all timers of a context go by: a process that is stopped (a slice
//! that others run in, ^Z, a debugger) must find its peers as it left them, not all overdue.
//!
//! PM cannot see when a process is stopped, but it can see that nobody has looked at the clock.
//! While a timer runs somebody looks at least every half second, so a longer gap was spent
//! stopped, or with nothing to wait for: it does not count.

#![forbid(unsafe_code)]

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds. Nobody who runs and waits for something looks away for so long.
const GAP: u64 = 1_000_000_000;

/// Nanoseconds of running time.
pub(super) struct Clock {
    last: u64,
    /// Nanoseconds before its start and while it stood still.
    stopped: u64,
}

impl Clock {
    pub(super) fn new() -> Clock {
        let start = read();
        Clock { last: start, stopped: start }
    }

    #[inline(always)]
    pub(super) fn now(&mut self) -> u64 {
        self.at(read())
    }

    #[inline(always)]
    fn at(&mut self, time: u64) -> u64 {
        let gap = time.saturating_sub(self.last);
        if gap > GAP {
            self.stopped += gap;
        }
        self.last = time;
        time.saturating_sub(self.stopped)
    }
}

/// The system's monotonic clock, in nanoseconds. Without detours: it is read twice a message.
#[inline(always)]
pub(super) fn read() -> u64 {
    // That clock cannot be missing.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let mut clock = Clock { last: 7, stopped: 7 };
        let at = |ms: u64| 7 + ms * 1_000_000;
        assert_eq!(clock.at(at(900)), 900_000_000);
        assert_eq!(clock.at(at(60_900)), 900_000_000);
        assert_eq!(clock.at(at(61_000)), 1_000_000_000);
    }
}
