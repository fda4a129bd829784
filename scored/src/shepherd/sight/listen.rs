//! Whether all processes of an element are idle, and who is to ring when that changes.
//!
//! As long as one thread works nothing else matters: it is asked to ring when it becomes idle, and
//! nobody else is looked at. When all are idle, all are asked to ring. Both only for what has stood
//! for a while ([`super::pause`]): who goes to and fro would ring all the time.

use std::time::Duration;

use score_proto::bell;
use score_proto::sight::Quiet;

use super::Element;
use super::pause::{self, Hearing};

/// Looks until somebody is asked and nothing has changed meanwhile; then it has to be looked again.
const TRIES: usize = 4;
const BUSY: Quiet = Quiet { idle: false, ..Quiet::NOTHING };

/// Whom a wish stands in the C-Area of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Asked {
    /// Nobody.
    #[default]
    Nobody,
    /// This process.
    One(u32),
    /// All of them.
    All,
}

/// What a look has found.
enum View {
    /// All are idle. Since when the last is.
    Idle(Quiet, u64),
    /// The thread in this slot of this process works, and has for a while.
    Works(u32, usize),
    /// Somebody is not idle.
    Open,
}

impl Element {
    /// Looks, and asks somebody to ring if that is to be had.
    pub(super) fn listen(&mut self, now_ns: u64, pace: Duration) -> (Quiet, Hearing) {
        let settled = u64::try_from(pause::settled(pace).as_nanos()).unwrap_or(u64::MAX);
        let before_ns = now_ns.saturating_sub(settled);
        let mut all_asked = false;
        for _ in 0..TRIES {
            match self.view(before_ns) {
                View::Idle(quiet, _) if all_asked => return (quiet, Hearing::All),
                View::Idle(_, since_ns) if since_ns <= before_ns => {
                    self.ask(Asked::All, bell::BUSY);
                    all_asked = true;
                }
                View::Idle(quiet, _) => {
                    self.ask(Asked::Nobody, bell::NOTHING);
                    return (quiet, Hearing::Nobody);
                }
                View::Works(number, slot) => {
                    self.ask(Asked::One(number), bell::idle(slot));
                    all_asked = false;
                    if self.areas.area(number).is_some_and(|area| area.works(slot)) {
                        return (BUSY, Hearing::Worker);
                    }
                }
                View::Open => break,
            }
        }
        self.ask(Asked::Nobody, bell::NOTHING);
        (BUSY, Hearing::Nobody)
    }

    /// One look at all, or at as many as it takes to find one that works. All are idle only if
    /// there was an instant at which they were: none has been busy between its look and the last.
    fn view(&self, before_ns: u64) -> View {
        let (mut all, mut since_ns, mut open) = (Quiet::NOTHING, 0, false);
        let mut turns = 0u64;
        for number in 0..self.areas.count() {
            let is_over = self.processes.get(number as usize).is_some_and(|one| one.ended);
            let Some(area) = self.areas.area(number) else { return View::Open };
            let may_be = is_over || area.may_be_idle();
            let mut sample = if may_be { self.claim(number) } else { Default::default() };
            if !sample.idle {
                match area.worker(before_ns) {
                    Some(slot) => return View::Works(number, slot),
                    None => open = true,
                }
            } else if !open {
                turns = turns.wrapping_add(sample.turns);
                self.count(number, &mut sample);
                let (idle, sent, received) = (true, sample.sent, sample.received);
                all = all.and(Quiet { idle, sent, received, remote: sample.remote });
                since_ns = if is_over { since_ns } else { since_ns.max(area.idle_since()) };
            }
        }
        if open || self.turns() != turns { View::Open } else { View::Idle(all, since_ns) }
    }

    /// How often anybody became busy.
    fn turns(&self) -> u64 {
        (0..self.areas.count()).fold(0, |sum, number| sum.wrapping_add(self.claim(number).turns))
    }

    /// Takes the last wish back, and makes this one.
    fn ask(&mut self, whom: Asked, change: u32) {
        if self.asked != whom {
            self.wish(bell::NOTHING);
        }
        self.asked = whom;
        self.wish(change);
    }

    fn wish(&self, change: u32) {
        let numbers = match self.asked {
            Asked::Nobody => 0..0,
            Asked::One(number) => number..number + 1,
            Asked::All => 0..self.areas.count(),
        };
        numbers.filter_map(|number| self.areas.area(number)).for_each(|area| area.wish(change));
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
