//! Schedules polls of whether all processes are idle. A notification leads to a poll at once, but
//! not sooner than one poll interval after the last poll.

use std::time::{Duration, Instant};

use super::super::inspection::PollResult;

/// Delay of the next poll if another thread was inspecting the processes.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_micros(200);
/// Delay of the next poll if there is nothing to inspect.
const NOTHING_TO_POLL_INTERVAL: Duration = Duration::from_secs(3600);

/// See the [module](self).
#[derive(Debug)]
pub struct IdlePoll {
    /// Time of the next poll without a notification.
    pub next_poll: Instant,
    /// Whether a notification was received since the last poll.
    pub notified: bool,
    /// Earliest time of a poll after a notification.
    not_before: Instant,
    /// Whether the last poll found an idle element.
    was_idle: bool,
}

impl IdlePoll {
    /// The first poll is due at once.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { next_poll: now, notified: false, not_before: now, was_idle: false }
    }

    /// Records that a process has sent a notification.
    pub fn on_notify(&mut self) {
        (self.notified, self.next_poll) = (true, self.next_poll.min(self.not_before));
    }

    /// Handles the result of a poll. None: another thread was inspecting the processes.
    pub fn on_polled(&mut self, now: Instant, poll_interval: Duration, result: Option<PollResult>) {
        let Some(result) = result else {
            self.next_poll = now + LOCK_RETRY_INTERVAL;
            return;
        };
        (self.not_before, self.next_poll) =
            (now + poll_interval, now + result.next_poll_in.unwrap_or(NOTHING_TO_POLL_INTERVAL));
        (self.notified, self.was_idle) = (false, result.any_idle);
    }

    /// Handles a resume of the job, or a change of its poll interval. After a stop, idle processes
    /// may have work to do. They get one poll interval to become busy.
    pub fn on_resume(
        &mut self,
        now: Instant,
        poll_interval: Duration,
        was_stopped: bool,
        interval_changed: bool,
    ) {
        let earliest = now + poll_interval;
        if was_stopped {
            self.not_before = earliest;
            self.next_poll = if self.was_idle || self.notified {
                earliest
            } else {
                self.next_poll.max(earliest)
            };
        }
        if interval_changed {
            (self.not_before, self.next_poll) =
                (self.not_before.min(earliest), self.next_poll.min(earliest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_INTERVAL: Duration = Duration::from_micros(1500);
    const LONG_INTERVAL: Duration = Duration::from_secs(1);

    fn polled(now: Instant, any_idle: bool) -> IdlePoll {
        let mut idle_poll = IdlePoll::new();
        idle_poll.on_polled(
            now,
            POLL_INTERVAL,
            Some(PollResult { next_poll_in: Some(LONG_INTERVAL), any_idle }),
        );
        idle_poll
    }

    #[test]
    fn a_notification_causes_a_poll_at_least_one_interval_after_the_last_poll() {
        let now = Instant::now();
        let mut idle_poll = polled(now, false);
        assert_eq!(idle_poll.next_poll, now + LONG_INTERVAL);
        idle_poll.on_notify();
        assert!(idle_poll.notified && idle_poll.next_poll == now + POLL_INTERVAL);
        idle_poll.on_polled(now + POLL_INTERVAL, POLL_INTERVAL, None);
        assert!(
            idle_poll.notified && idle_poll.next_poll == now + POLL_INTERVAL + LOCK_RETRY_INTERVAL,
            "another thread polls"
        );
    }

    #[test]
    fn after_a_stop_only_idle_elements_are_polled_early_and_not_before_they_have_run() {
        let (now, stop_time) = (Instant::now(), 20 * POLL_INTERVAL);
        for idle in [false, true] {
            let mut idle_poll = polled(now, idle);
            idle_poll.on_resume(now + stop_time, POLL_INTERVAL, true, false);
            let due = if idle { now + stop_time + POLL_INTERVAL } else { now + LONG_INTERVAL };
            assert_eq!(idle_poll.next_poll, due);
        }
        let mut idle_poll = polled(now, false);
        idle_poll.on_resume(now + 2 * LONG_INTERVAL, POLL_INTERVAL, true, false);
        assert_eq!(
            idle_poll.next_poll,
            now + 2 * LONG_INTERVAL + POLL_INTERVAL,
            "the poll was due during the stop"
        );
    }

    #[test]
    fn a_changed_interval_takes_effect_at_once() {
        let now = Instant::now();
        let mut idle_poll = polled(now, true);
        idle_poll.on_resume(now, POLL_INTERVAL / 2, false, true);
        assert_eq!(idle_poll.next_poll, now + POLL_INTERVAL / 2);
    }
}
