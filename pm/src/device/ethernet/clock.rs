//! The job's running time, which all timers of a context go by: a process that is stopped (a slice
//! that others run in, ^Z, a debugger) must find its peers as it left them, not all overdue.
//!
//! PM cannot see when a process is stopped, but it can see that nobody has looked at the clock.
//! While a timer runs somebody looks at least every half second, so a longer gap was spent
//! stopped, or with nothing to wait for: it does not count.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// Nobody who runs and waits for something looks away for so long.
const GAP: Duration = Duration::from_secs(1);

/// Nanoseconds of running time.
pub(super) struct Clock {
    start: Instant,
    last: Duration,
    stopped: Duration,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock { start: Instant::now(), last: Duration::ZERO, stopped: Duration::ZERO }
    }

    #[inline(always)]
    pub(super) fn now(&mut self) -> u64 {
        self.at(self.start.elapsed())
    }

    #[inline(always)]
    fn at(&mut self, elapsed: Duration) -> u64 {
        let gap = elapsed.saturating_sub(self.last);
        if gap > GAP {
            self.stopped += gap;
        }
        self.last = elapsed;
        elapsed.saturating_sub(self.stopped).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let mut clock = Clock::new();
        let ms = |n| Duration::from_millis(n);
        assert_eq!(clock.at(ms(900)), 900_000_000);
        assert_eq!(clock.at(ms(60_900)), 900_000_000);
        assert_eq!(clock.at(ms(61_000)), 1_000_000_000);
    }
}
