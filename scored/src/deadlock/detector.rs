//! The master's part: rounds, and the verdict.

use std::time::Duration;

use super::{LONGEST_PAUSE, PATIENCE, PAUSE, Seen};
use crate::cluster::Time;

/// What happens to a parallel process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// All hosts say that all of its processes there are idle.
    AllIdle,
    /// Some host says that one of them is busy.
    SomeBusy,
    /// All hosts have looked.
    Seen {
        /// In this round.
        round: u64,
        /// At all processes together.
        seen: Seen,
    },
    /// The whole job has stopped, as was asked for.
    Held,
    /// Its slice is over. When it runs again hosts whose processes are idle say so once more.
    Stopped,
    /// Time has passed.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// All hosts look at their processes, once.
    Look {
        /// Larger by one than the last, within a suspicion.
        round: u64,
        /// They are stopped: threads are looked at, too.
        stopped: bool,
    },
    /// Stop the job, and say `Held`.
    Hold,
    /// It goes on.
    Release,
    /// It is deadlocked, and still stopped.
    Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Busy,
    First,
    Second,
    Third,
    /// Nothing is amiss, but not everybody who spins has had its chance: the third round again.
    Patience(Time),
    Holding,
    Last,
    Pause(Time),
    Deadlocked,
}

/// See the [module](super).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Detector {
    nodes: u32,
    state: State,
    all_idle: bool,
    /// All were idle before a stop, and have not said so since.
    stopped: bool,
    round: u64,
    pause: Duration,
    patience: Duration,
}

impl Detector {
    /// For a parallel process of so many nodes.
    pub fn new(nodes: u32) -> Self {
        let (state, pause) = (State::Busy, PAUSE);
        let (all_idle, stopped, round) = (false, false, 0);
        Self { nodes, state, all_idle, stopped, round, pause, patience: PATIENCE }
    }

    /// Whether it was found.
    #[cfg(test)]
    pub fn is_deadlocked(&self) -> bool {
        self.state == State::Deadlocked
    }

    /// When `Tick` is wanted.
    pub fn deadline(&self) -> Option<Time> {
        match self.state {
            State::Pause(_) if self.stopped => None,
            State::Pause(until) | State::Patience(until) => Some(until),
            _ => None,
        }
    }

    /// Whether rounds are under way. The job has to run meanwhile: a stop counts as a run of all
    /// threads, so that rounds on both sides of one say that they have changed.
    pub fn suspects(&self) -> bool {
        !matches!(self.state, State::Busy | State::Pause(_) | State::Deadlocked)
    }

    /// Something happens.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        match (event, self.state) {
            (Event::AllIdle, state) => {
                (self.all_idle, self.stopped) = (true, false);
                match state {
                    State::Busy => {
                        self.pause = PAUSE;
                        self.first()
                    }
                    State::Pause(until) if until <= now => self.first(),
                    _ => Vec::new(),
                }
            }
            (Event::Stopped, state) => {
                self.stopped = self.all_idle;
                if matches!(state, State::First | State::Second | State::Third | State::Patience(_))
                {
                    self.state = State::Pause(now);
                }
                Vec::new()
            }
            (Event::SomeBusy, state) => {
                (self.all_idle, self.stopped) = (false, false);
                match state {
                    State::Deadlocked => Vec::new(),
                    _ => self.give_up(now),
                }
            }
            (Event::Seen { round, seen }, state) if round == self.round => {
                self.seen(state, seen, now)
            }
            (Event::Held, State::Holding) => {
                self.state = State::Last;
                self.look(true)
            }
            (Event::Tick, State::Pause(until)) if until <= now && !self.stopped => self.first(),
            (Event::Tick, State::Patience(until)) if until <= now => {
                self.state = State::Third;
                self.look(false)
            }
            _ => Vec::new(),
        }
    }

    fn seen(&mut self, state: State, seen: Seen, now: Time) -> Vec<Action> {
        let all = seen.nodes == self.nodes && seen.idle;
        let nothing = seen.sent == seen.received && seen.remote == 0;
        let between = all && seen.unchanged && nothing;
        match state {
            State::First if all => {
                self.state = State::Second;
                self.look(false)
            }
            State::Second if between => {
                self.state = State::Third;
                self.look(false)
            }
            State::Third if between && seen.polled => {
                self.state = State::Holding;
                vec![Action::Hold]
            }
            State::Third if between => {
                self.state = State::Patience(now + self.patience);
                self.patience = (self.patience * 2).min(LONGEST_PAUSE);
                Vec::new()
            }
            // Nobody polls while it is stopped.
            State::Last if between => {
                self.state = State::Deadlocked;
                vec![Action::Verdict]
            }
            State::First | State::Second | State::Third | State::Last => self.give_up(now),
            State::Busy
            | State::Holding
            | State::Pause(_)
            | State::Patience(_)
            | State::Deadlocked => Vec::new(),
        }
    }

    fn first(&mut self) -> Vec<Action> {
        self.state = State::First;
        self.patience = PATIENCE;
        // A gap: no host may compare this round with the last of another suspicion.
        self.round += 1;
        self.look(false)
    }

    fn look(&mut self, stopped: bool) -> Vec<Action> {
        self.round += 1;
        vec![Action::Look { round: self.round, stopped }]
    }

    fn give_up(&mut self, now: Time) -> Vec<Action> {
        let held = matches!(self.state, State::Holding | State::Last);
        self.state = if self.all_idle {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            State::Pause(now + self.pause)
        } else {
            State::Busy
        };
        if held { vec![Action::Release] } else { Vec::new() }
    }
}
