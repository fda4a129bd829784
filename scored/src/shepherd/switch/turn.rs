//! When it is looked next whether all processes are idle: at once when somebody rings, but not
//! sooner than a pace after the last look.

use std::time::{Duration, Instant};

use super::super::sight::Looked;

/// From a look that found somebody else looking to the next.
const LATER: Duration = Duration::from_micros(200);
/// Where there is nothing to look at.
const NEVER: Duration = Duration::from_secs(3600);

/// See the [module](self).
#[derive(Debug)]
pub struct Turn {
    /// When it is looked next, whether anybody rings or not.
    pub due: Instant,
    /// Somebody has rung since the last look.
    pub rung: bool,
    /// That all are idle is to be told also if it was before.
    pub again: bool,
    /// No sooner than that.
    rest: Instant,
    /// The last look found some idle.
    idle: bool,
}

impl Turn {
    /// It is to be looked as soon as there is something.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { due: now, rung: false, again: false, rest: now, idle: false }
    }

    /// Somebody has rung.
    pub fn rings(&mut self) {
        (self.rung, self.due) = (true, self.due.min(self.rest));
    }

    /// It was looked, unless somebody else did just then.
    pub fn looked(&mut self, now: Instant, pace: Duration, looked: Option<Looked>) {
        let Some(looked) = looked else {
            self.due = now + LATER;
            return;
        };
        (self.rest, self.due) = (now + pace, now + looked.next.unwrap_or(NEVER));
        (self.rung, self.again, self.idle) = (false, false, looked.idle);
    }

    /// The job goes on, or goes on at another pace. Whoever was idle may have something to do
    /// since: it has the time to say so.
    pub fn goes_on(&mut self, now: Instant, pace: Duration, was_stopped: bool, changed: bool) {
        let soon = now + pace;
        if was_stopped {
            (self.rest, self.again) = (soon, self.again || self.idle);
            self.due = if self.again || self.rung { soon } else { self.due.max(soon) };
        }
        if changed {
            (self.rest, self.due) = (self.rest.min(soon), self.due.min(soon));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Duration = Duration::from_micros(1500);
    const LONG: Duration = Duration::from_secs(1);

    fn looked(at: Instant, idle: bool) -> Turn {
        let mut turn = Turn::new();
        turn.looked(at, PACE, Some(Looked { next: Some(LONG), idle }));
        turn
    }

    #[test]
    fn who_rings_is_looked_at_at_once_but_no_sooner_than_a_pace_after_the_last() {
        let now = Instant::now();
        let mut turn = looked(now, false);
        assert_eq!(turn.due, now + LONG);
        turn.rings();
        assert!(turn.rung && turn.due == now + PACE);
        turn.looked(now + PACE, PACE, None);
        assert!(turn.rung && turn.due == now + PACE + LATER, "somebody else looks");
    }

    #[test]
    fn after_a_stop_only_who_was_idle_is_looked_at_and_not_before_it_has_run() {
        let (now, pause) = (Instant::now(), 20 * PACE);
        for idle in [false, true] {
            let mut turn = looked(now, idle);
            turn.goes_on(now + pause, PACE, true, false);
            let due = if idle { now + pause + PACE } else { now + LONG };
            assert_eq!((turn.due, turn.again), (due, idle));
        }
        let mut turn = looked(now, false);
        turn.goes_on(now + 2 * LONG, PACE, true, false);
        assert_eq!(turn.due, now + 2 * LONG + PACE, "it was due while it was stopped");
    }

    #[test]
    fn another_pace_counts_at_once() {
        let now = Instant::now();
        let mut turn = looked(now, true);
        turn.goes_on(now, PACE / 2, false, true);
        assert!(turn.due == now + PACE / 2 && !turn.again, "it is only told what is new");
    }
}
