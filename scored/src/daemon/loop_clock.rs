//! Measures the turns of the daemon's loop: how much of a turn is the work for requests of users,
//! and how much is overhead that the users of the requests share.

use std::time::{Duration, Instant};

use score_job::host::turn_times::{TurnClock, TurnPhase};

/// The daemon works at most for this time for one user in a turn of the loop. The first value is
/// the normal limit. If the overhead of a turn is longer, because there are very many sessions, the
/// limit is the overhead, up to the second value.
const USER_TURN_WINDOW_RANGE: [Duration; 2] =
    [Duration::from_micros(200), Duration::from_millis(2)];

/// Additional charge for each turn in which messages arrived. The messages have woken the daemon
/// and interrupted another process. The daemon's own clock does not measure most of this cost.
const WAKE_UP_LATENCY: Duration = Duration::from_micros(20);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct LoopClock {
    /// The time that requests of sessions have taken in this turn of the loop.
    request_time: Duration,
    /// The time that everything else took in the last turn.
    overhead: Duration,
    /// Records the phases of turns, in multi-user mode.
    phases: Option<TurnClock>,
}

impl LoopClock {
    /// Begins to record the phases of turns.
    pub fn record_phases(&mut self) {
        self.phases = Some(TurnClock::new(Instant::now()));
    }

    /// The phases, if the daemon records them.
    pub fn phases(&self) -> Option<&TurnClock> {
        self.phases.as_ref()
    }

    /// The current time, or the last recorded time. The latter saves a clock read on the path of
    /// gang switches.
    pub fn recent_time(&self) -> Instant {
        self.phases.as_ref().map_or_else(Instant::now, TurnClock::phase_started_at)
    }

    /// Records the start of a turn: the wait for events has ended.
    pub fn start_turn(&mut self) {
        self.phases.iter_mut().for_each(|phases| phases.start_turn(Instant::now()));
    }

    /// Records the end of a phase of the turn.
    pub fn end_phase(&mut self, phase: TurnPhase) {
        self.phases.iter_mut().for_each(|phases| phases.end_phase(phase, Instant::now()));
    }

    /// Records the end of a turn. Returns a line for the log if the turn was long.
    pub fn end_turn(&mut self) -> Option<String> {
        self.phases.as_mut()?.end_turn(Instant::now())
    }

    /// Records the time that requests of sessions have taken in this turn.
    pub fn set_request_time(&mut self, request_time: Duration) {
        self.request_time = request_time;
    }

    /// Records the time of a turn in which requests may have been handled.
    pub fn set_turn_time(&mut self, turn_time: Duration) {
        self.overhead = turn_time.saturating_sub(self.request_time);
    }

    /// The time that the daemon works for one user in a turn.
    pub fn user_window(&self) -> Duration {
        let [min_window, max_window] = USER_TURN_WINDOW_RANGE;
        self.overhead.clamp(min_window, max_window)
    }

    /// The part of a turn's overhead that each of `user_count` users is charged with, because their
    /// messages were handled in the turn. The part of the overhead that is due to very many
    /// sessions is not charged, because the sessions may belong to other users.
    pub fn overhead_share(&self, user_count: usize) -> Duration {
        let charged = self.overhead.min(USER_TURN_WINDOW_RANGE[0]) + WAKE_UP_LATENCY;
        charged.checked_div(u32::try_from(user_count).unwrap_or(u32::MAX)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_share_the_overhead_of_a_turn_but_not_the_time_of_their_requests() {
        let us = Duration::from_micros;
        let mut clock = LoopClock::default();
        assert_eq!(clock.user_window(), us(200));
        clock.set_request_time(us(500));
        clock.set_turn_time(us(600));
        assert_eq!((clock.user_window(), clock.overhead_share(2)), (us(200), us(60)));
        clock.set_turn_time(us(1500));
        assert_eq!((clock.user_window(), clock.overhead_share(1)), (us(1000), us(220)));
        clock.set_turn_time(us(9000));
        assert_eq!((clock.user_window(), clock.overhead_share(0)), (us(2000), us(0)));
    }
}
