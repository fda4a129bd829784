//! The job's running time, which all timers of a context use. A process may be stopped by a gang
//! switch, by ^Z or by a debugger. The time of the stop must not count, or all timers would expire
//! when the process continues.
//!
//! PM cannot detect directly that a process was stopped, but it can detect long gaps between two
//! readings of the clock. While a timer runs, the clock is read at least every half second. In a
//! gap of more than a second, the process was therefore stopped or had nothing to wait for. Such a
//! gap does not count.

#![forbid(unsafe_code)]

use nix::time::{ClockId, clock_gettime};

/// The shortest gap that does not count, in nanoseconds. A running process that waits for something
/// reads the clock more often than this.
const STOP_DETECTION_WINDOW_NS: u64 = 1_000_000_000;

/// A clock of the job's running time in nanoseconds.
pub(super) struct JobClock {
    last_reading: u64,
    /// Nanoseconds of monotonic time that do not count: the time of the clock's start, and long
    /// gaps.
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

/// Reads the system's monotonic clock, in nanoseconds. It calls clock_gettime(2) directly, because
/// the clock is read twice per message.
#[inline(always)]
pub(super) fn monotonic_ns() -> u64 {
    // CLOCK_MONOTONIC always exists.
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
