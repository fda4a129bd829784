//! The durations of the iterations ("turns") of the daemon's loop. A turn lasts from the return of
//! poll to the next poll. The daemon handles no new events during a turn, so a long turn is a
//! sign of an error or an attack.

use std::time::{Duration, Instant};

use score_proto::daemon_statistics::DaemonStatistics;

use crate::cluster::authorization::StatisticsPermit;

/// Turns that take longer are logged.
const LONG_TURN_LATENCY: Duration = Duration::from_millis(50);
/// The number of seconds in which the longest recent turn is searched.
const RECENT_SECONDS: usize = 60;

/// The parts of a turn, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnPhase {
    /// Events of poll, and switches between jobs of this host.
    Events,
    /// Messages of clients and of other daemons.
    Messages,
    /// Reports of shepherds.
    Reports,
    /// Signals, and children that have ended.
    Signals,
    /// Decisions about jobs.
    Jobs,
    /// Sending of messages, and the start of jobs.
    Sending,
    /// Requests to the status page.
    Page,
    /// The search for the next deadline.
    Deadlines,
}

impl TurnPhase {
    fn label(self) -> &'static str {
        match self {
            Self::Events => "events and switches",
            Self::Messages => "messages of clients and daemons",
            Self::Reports => "reports of shepherds",
            Self::Signals => "children that have ended",
            Self::Jobs => "decisions about jobs",
            Self::Sending => "messages to others and starts of jobs",
            Self::Page => "requests to the page",
            Self::Deadlines => "the next deadline",
        }
    }
}

/// Measures the current turn.
#[derive(Debug)]
pub struct TurnClock {
    created_at: Instant,
    turn_started_at: Instant,
    phase_started_at: Instant,
    longest_phase: (TurnPhase, Duration),
    /// The turns that have ended.
    times: TurnTimes,
}

impl TurnClock {
    /// A clock whose first turn starts now.
    pub fn new(now: Instant) -> Self {
        Self {
            created_at: now,
            turn_started_at: now,
            phase_started_at: now,
            longest_phase: (TurnPhase::Events, Duration::ZERO),
            times: TurnTimes::default(),
        }
    }

    /// Poll has returned.
    pub fn start_turn(&mut self, now: Instant) {
        (self.turn_started_at, self.phase_started_at) = (now, now);
        self.longest_phase = (TurnPhase::Events, Duration::ZERO);
    }

    /// A phase ends, and the next phase begins.
    pub fn end_phase(&mut self, phase: TurnPhase, now: Instant) {
        let duration = now.saturating_duration_since(self.phase_started_at);
        if duration > self.longest_phase.1 {
            self.longest_phase = (phase, duration);
        }
        self.phase_started_at = now;
    }

    /// The start of the current phase. This is the latest time that the clock has recorded.
    pub fn phase_started_at(&self) -> Instant {
        self.phase_started_at
    }

    /// The turn ends with its last phase. Returns a line for the log if the turn was long.
    pub fn end_turn(&mut self, now: Instant) -> Option<String> {
        self.end_phase(TurnPhase::Deadlines, now);
        let duration = now.saturating_duration_since(self.turn_started_at);
        self.times.record(duration, now.saturating_duration_since(self.created_at));
        let (phase, phase_duration) = self.longest_phase;
        (duration > LONG_TURN_LATENCY).then(|| {
            format!(
                "a turn of the loop took {} ms, of which {} ms: {}",
                duration.as_millis(),
                phase_duration.as_millis(),
                phase.label()
            )
        })
    }

    /// The statistics for operators.
    pub fn statistics(&self, _: &StatisticsPermit, now: Instant) -> DaemonStatistics {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let longest_recent =
            self.times.longest_recent(now.saturating_duration_since(self.created_at));
        DaemonStatistics {
            turns: self.times.count,
            longest_turn_us: micros(self.times.longest),
            longest_recent_turn_us: micros(longest_recent),
        }
    }
}

/// The durations of turns that have ended. Times count from the daemon's start.
#[derive(Debug)]
struct TurnTimes {
    count: u64,
    longest: Duration,
    /// The longest turn that ended in each of the last seconds, indexed by the second modulo the
    /// length.
    longest_by_second: [Duration; RECENT_SECONDS],
    last_second: u64,
}

impl Default for TurnTimes {
    fn default() -> Self {
        Self {
            count: 0,
            longest: Duration::ZERO,
            longest_by_second: [Duration::ZERO; RECENT_SECONDS],
            last_second: 0,
        }
    }
}

impl TurnTimes {
    /// A turn of this duration ends now. Turns are recorded in the order of their ends.
    fn record(&mut self, duration: Duration, now: Duration) {
        let second = now.as_secs();
        if second > self.last_second {
            let oldest_skipped = second.saturating_sub(RECENT_SECONDS as u64 - 1);
            for skipped in oldest_skipped.max(self.last_second + 1)..=second {
                self.longest_by_second[slot(skipped)] = Duration::ZERO;
            }
            self.last_second = second;
        }
        let longest_of_second = &mut self.longest_by_second[slot(second)];
        *longest_of_second = duration.max(*longest_of_second);
        self.longest = duration.max(self.longest);
        self.count += 1;
    }

    /// The longest turn that ended in the last minute, in whole seconds of the daemon's time.
    fn longest_recent(&self, now: Duration) -> Duration {
        let oldest = now.as_secs().saturating_sub(RECENT_SECONDS as u64 - 1);
        let kept_since = self.last_second.saturating_sub(RECENT_SECONDS as u64 - 1);
        let seconds = oldest.max(kept_since)..=self.last_second;
        seconds.map(|second| self.longest_by_second[slot(second)]).max().unwrap_or_default()
    }
}

fn slot(second: u64) -> usize {
    (second % RECENT_SECONDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::authorization::{Requester, authorize_statistics};

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_longest_turn_is_kept_and_the_recent_maximum_expires_after_a_minute() {
        let mut times = TurnTimes::default();
        assert_eq!((times.longest, times.longest_recent(ms(7))), (ms(0), ms(0)));
        times.record(ms(30), ms(1_500));
        times.record(ms(10), ms(1_600));
        times.record(ms(20), ms(31_000));
        assert_eq!(times.longest_recent(ms(31_000)), ms(30));
        assert_eq!(times.longest_recent(ms(60_999)), ms(30));
        assert_eq!(times.longest_recent(ms(61_000)), ms(20));
        // Nothing has been recorded for a long time.
        assert_eq!(times.longest_recent(ms(90_999)), ms(20));
        assert_eq!(times.longest_recent(ms(91_000)), ms(0));
        times.record(ms(1), ms(500_000));
        assert_eq!(times.longest_recent(ms(500_000)), ms(1));
        assert_eq!((times.longest, times.count), (ms(30), 4));
    }

    #[test]
    fn a_gap_of_almost_a_minute_keeps_the_seconds_that_are_still_recent() {
        let mut times = TurnTimes::default();
        (0..200).for_each(|second| times.record(ms(second), ms(second * 1_000)));
        times.record(ms(1), ms(258_999));
        assert_eq!(times.longest_recent(ms(258_999)), ms(199));
        times.record(ms(1), ms(259_000));
        assert_eq!(times.longest_recent(ms(259_000)), ms(1));
    }

    #[test]
    fn a_long_turn_is_reported_with_its_longest_phase() {
        let start = Instant::now();
        let mut clock = TurnClock::new(start);
        clock.start_turn(start + ms(1_000));
        clock.end_phase(TurnPhase::Messages, start + ms(1_010));
        clock.end_phase(TurnPhase::Signals, start + ms(1_050));
        assert_eq!(clock.phase_started_at(), start + ms(1_050));
        let line = clock.end_turn(start + ms(1_060)).unwrap();
        let expected = "a turn of the loop took 60 ms, of which 40 ms: children that have ended";
        assert_eq!(line, expected);
        clock.start_turn(start + ms(2_000));
        assert_eq!(clock.end_turn(start + ms(2_050)), None);
        let expected =
            DaemonStatistics { turns: 2, longest_turn_us: 60_000, longest_recent_turn_us: 50_000 };
        let root = Requester { uid: 0, is_operator: true };
        let permit = authorize_statistics(root).unwrap();
        assert_eq!(clock.statistics(&permit, start + ms(61_000)), expected);
    }
}
