//! The clock of the jobs that this daemon leads, and the timer of the gang scheduler. The time-outs
//! of epoll_wait(2) are too coarse for gang switches, because they are whole milliseconds.

use std::io;
use std::time::Instant;

use mio::{Registry, Token};
use score_job::cluster::MonotonicTime;

use crate::sys::timer::Timer;

/// The clock of the jobs: the time since the daemon's start.
#[derive(Debug, Clone, Copy)]
pub struct JobClock {
    origin: Instant,
}

impl JobClock {
    /// Creates a clock whose time is zero now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The current time.
    pub fn now(self) -> MonotonicTime {
        self.origin.elapsed()
    }

    /// Converts a moment to the time of this clock.
    pub fn time_of(self, moment: Instant) -> MonotonicTime {
        moment.saturating_duration_since(self.origin)
    }

    /// Converts a time of this clock to a moment.
    pub fn moment_of(self, time: MonotonicTime) -> Instant {
        self.origin + time
    }
}

/// A timer that wakes the loop at a time of the jobs' clock.
#[derive(Debug)]
pub struct SliceTimer {
    timer: Timer,
    deadline: Option<MonotonicTime>,
}

impl SliceTimer {
    /// Creates a timer that is off. `registry` reports `token` when it has expired.
    ///
    /// # Errors
    /// See timerfd_create(2) and epoll_ctl(2).
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        Ok(Self { timer: Timer::new(registry, token)?, deadline: None })
    }

    /// Sets the timer to a deadline, or turns it off.
    pub fn set(&mut self, deadline: Option<MonotonicTime>, now: MonotonicTime) {
        // A timer that has expired is set again, even if the deadline is the same.
        if deadline != self.deadline || deadline.is_some_and(|deadline| deadline <= now) {
            self.timer.set(deadline.map(|deadline| deadline.saturating_sub(now)));
            self.deadline = deadline;
        }
    }
}
