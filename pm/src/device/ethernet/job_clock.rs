//! The job's running time, which all timers of a context go by: a process that is stopped (a slice
//! that others run in, ^Z, a debugger) must find its peers as it left them, not all overdue.
//!
//! PM cannot see when a process is stopped, but it can see that nobody has looked at the clock.
//! While a timer runs somebody looks at least every half second, so a longer gap was spent
//! stopped, or with nothing to wait for: it does not count.

#![forbid(unsafe_code)]

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds. Nobody who runs and waits for something looks away for so long.
const STOP_DETECTION_WINDOW_NS: u64 = 1_000_000_000;

/// Nanoseconds of running time.
pub(super) struct JobClock {
    last_reading: u64,
    /// Nanoseconds before its start and while it stood still.
    stopped_ns: u64,
}

impl JobClock {
    pub(super) fn new() -> JobClock {
        let start = monotonic_ns();
        JobClock { last_reading: start, stopped_ns: start }
    }

    #[inline(always)]
    pub(super) fn now(&mut self) -> u64 {
        self.job_time(monotonic_ns())
    }

    #[inline(always)]
    fn job_time(&mut self, time: u64) -> u64 {
        let gap = time.saturating_sub(self.last_reading);
        if gap > STOP_DETECTION_WINDOW_NS {
            self.stopped_ns += gap;
        }
        self.last_reading = time;
        time.saturating_sub(self.stopped_ns)
    }
}

/// The system's monotonic clock, in nanoseconds. Without detours: it is read twice a message.
#[inline(always)]
pub(super) fn monotonic_ns() -> u64 {
    // That clock cannot be missing.
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gap_between_clock_readings_does_not_count() {
        let mut clock = JobClock { last_reading: 7, stopped_ns: 7 };
        let reading = |ms: u64| 7 + ms * 1_000_000;
        assert_eq!(clock.job_time(reading(900)), 900_000_000);
        assert_eq!(clock.job_time(reading(60_900)), 900_000_000);
        assert_eq!(clock.job_time(reading(61_000)), 1_000_000_000);
    }
}
