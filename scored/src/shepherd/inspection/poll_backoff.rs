//! The interval between two polls of an element without a notification (docs/dev/time-sharing.md,
//! "How often idle state is sampled").

use std::time::Duration;

/// Longest interval between two polls of an armed element. Polls are still needed, because two
/// things cause no notification: changes of the counters by PM's threads, and changes of processes
/// that have lost their socket.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval between two polls while a debugger holds processes, whose state is read from
/// /proc.
const MAX_HELD_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Only a state that has lasted for this many poll intervals is armed, because a process that
/// changes often would send notifications all the time. Other elements are polled.
const SETTLE_INTERVALS: u32 = 4;

/// Which processes send a notification at the next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifySource {
    /// The process of a busy thread, when that thread becomes idle.
    BusyThread,
    /// All processes, when an idle process becomes busy.
    AllProcesses,
    /// No process: the element must be polled.
    NoProcess,
    /// No process: a debugger holds some processes, and the others are idle.
    Debugger,
}

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct PollBackoff {
    last_source: NotifySource,
    interval: Duration,
}

impl Default for PollBackoff {
    fn default() -> Self {
        Self { last_source: NotifySource::NoProcess, interval: Duration::ZERO }
    }
}

/// How long a state must last before it is armed.
pub fn settle_time(poll_interval: Duration) -> Duration {
    poll_interval * SETTLE_INTERVALS
}

impl PollBackoff {
    /// The interval to the next poll. `changed`: the result of the last poll differs from the
    /// result before.
    pub fn next(
        &mut self,
        source: NotifySource,
        changed: bool,
        poll_interval: Duration,
    ) -> Duration {
        let (min_interval, max_interval) = match source {
            NotifySource::BusyThread => (MAX_POLL_INTERVAL, MAX_POLL_INTERVAL),
            NotifySource::AllProcesses => (settle_time(poll_interval), MAX_POLL_INTERVAL),
            NotifySource::NoProcess => (poll_interval, poll_interval),
            NotifySource::Debugger => (poll_interval, MAX_HELD_POLL_INTERVAL.max(poll_interval)),
        };
        let is_unchanged =
            source == self.last_source && !(changed && source == NotifySource::AllProcesses);
        let interval = if is_unchanged { self.interval * 2 } else { min_interval };
        (self.last_source, self.interval) = (source, interval.min(max_interval).max(min_interval));
        self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_INTERVAL: Duration = Duration::from_micros(1500);

    fn intervals(source: NotifySource, count: usize) -> Vec<u128> {
        let mut backoff = PollBackoff::default();
        (0..count).map(|_| backoff.next(source, false, POLL_INTERVAL).as_micros()).collect()
    }

    #[test]
    fn a_changing_element_is_polled_at_the_poll_interval() {
        assert_eq!(intervals(NotifySource::NoProcess, 3), [1500, 1500, 1500]);
    }

    // Promise (time-sharing): A process that computes or remains idle is polled rarely, and no
    // change of state is missed.
    #[test]
    fn an_element_with_a_busy_thread_is_polled_at_the_maximum_interval() {
        assert_eq!(intervals(NotifySource::BusyThread, 2), [1_000_000, 1_000_000]);
    }

    #[test]
    fn the_poll_interval_of_an_idle_element_grows_to_one_second() {
        let intervals = intervals(NotifySource::AllProcesses, 12);
        assert_eq!((intervals[0], intervals[1], intervals[11]), (6000, 12_000, 1_000_000));
        let mut backoff = PollBackoff::default();
        let last =
            (0..12).map(|_| backoff.next(NotifySource::AllProcesses, false, POLL_INTERVAL)).last();
        assert_eq!(last, Some(MAX_POLL_INTERVAL));
        assert_eq!(
            backoff.next(NotifySource::AllProcesses, true, POLL_INTERVAL),
            settle_time(POLL_INTERVAL),
            "a counter has changed"
        );
        assert_eq!(backoff.next(NotifySource::NoProcess, true, POLL_INTERVAL), POLL_INTERVAL);
    }
}
