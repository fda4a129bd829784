//! The detector in the job master: it begins rounds and gives the verdict.

use std::time::Duration;

use score_proto::job_control::SwitchSeq;
use score_proto::observation::SampleRound;

use super::{
    ActivitySample, MAX_BACKOFF_INTERVAL, MIN_BACKOFF_INTERVAL, RECHECK_INTERVAL, SUSPICION_DELAY,
};
use crate::cluster::MonotonicTime;

/// An event of a parallel process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DetectorEvent {
    /// All hosts report that their processes are idle.
    AllIdle {
        /// The last stop before these reports.
        stop_seq: SwitchSeq,
    },
    /// A host reports that one of its processes is busy.
    SomeBusy,
    /// All hosts have taken their snapshot.
    RoundDone {
        /// The round.
        round: SampleRound,
        /// The combined sample of all processes.
        activity: ActivitySample,
    },
    /// The whole job has stopped as requested.
    GangStopped,
    /// A debugger has stopped some processes, and the others are idle.
    SomeHeld {
        /// The last stop that the reports follow.
        stop_seq: SwitchSeq,
    },
    /// The job is being stopped, or has stopped. When it runs again, hosts whose processes are idle
    /// report again.
    Stopped {
        /// The number of the stop.
        switch_seq: SwitchSeq,
    },
    /// Time has passed.
    Tick,
}

/// An action for the job master.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DetectorAction {
    /// All hosts sample their processes once.
    TakeSnapshot {
        /// The number of the round: larger by one than the last, within a suspicion.
        round: SampleRound,
        /// Whether the processes are stopped while they are sampled.
        stopped: bool,
    },
    /// Stop the job, and report `GangStopped`.
    StopGang,
    /// The job continues.
    Release,
    /// The job is deadlocked, and still stopped.
    Verdict,
    /// All processes have been idle for a long time, but the detector cannot prove that this will
    /// last. The job continues.
    Suspicion,
}

/// All processes are idle, and no message is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct QuietPeriod {
    since: MonotonicTime,
    /// Messages that have been sent so far.
    sent: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Busy,
    Round1,
    Round2,
    Round3,
    /// No change, but not every spinning process has polled: the third round is repeated.
    RecheckDelay(MonotonicTime),
    StoppingGang,
    ConfirmRound,
    Backoff(MonotonicTime),
    Deadlocked,
}

/// See the [module](super).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Detector {
    nodes: u32,
    state: State,
    /// All processes are idle, according to reports that follow this stop. None: some process is
    /// busy.
    idle_since_stop: Option<SwitchSeq>,
    /// A debugger has stopped some processes and the others are idle, according to reports that
    /// follow this stop.
    held_since_stop: Option<SwitchSeq>,
    /// The last stop of the job.
    last_stop: SwitchSeq,
    round: SampleRound,
    backoff: Duration,
    recheck_delay: Duration,
    quiet_period: Option<QuietPeriod>,
    /// A hang was suspected. The suspicion is not repeated.
    has_suspected: bool,
}

impl Detector {
    /// A detector for a parallel process of this many nodes.
    pub fn new(nodes: u32) -> Self {
        Self {
            nodes,
            state: State::Busy,
            idle_since_stop: None,
            held_since_stop: None,
            last_stop: SwitchSeq::NONE,
            round: SampleRound::default(),
            backoff: MIN_BACKOFF_INTERVAL,
            recheck_delay: RECHECK_INTERVAL,
            quiet_period: None,
            has_suspected: false,
        }
    }

    /// The stop that the idle reports follow, if all processes are idle since the last stop.
    pub fn idle_since_stop(&self) -> Option<SwitchSeq> {
        self.idle_since_stop.filter(|stop_seq| *stop_seq >= self.last_stop)
    }

    /// Whether a debugger has stopped some processes and the others are idle since the last stop.
    pub fn is_held(&self) -> bool {
        self.held_since_stop.is_some_and(|stop_seq| stop_seq >= self.last_stop)
    }

    fn is_idle(&self) -> bool {
        self.idle_since_stop().is_some()
    }

    /// Whether a deadlock was found.
    #[cfg(test)]
    pub fn is_deadlocked(&self) -> bool {
        self.state == State::Deadlocked
    }

    /// When the next `Tick` is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        match self.state {
            State::Backoff(_) if !self.is_idle() => None,
            State::Backoff(deadline) | State::RecheckDelay(deadline) => Some(deadline),
            _ => None,
        }
    }

    /// Whether rounds are in progress. The job has to run during the rounds: a stop counts as a run
    /// of all threads, so the rounds before and after it differ.
    pub fn is_suspecting(&self) -> bool {
        !matches!(self.state, State::Busy | State::Backoff(_) | State::Deadlocked)
    }

    /// Handles an event.
    pub fn on(&mut self, event: DetectorEvent, now: MonotonicTime) -> Vec<DetectorAction> {
        match (event, self.state) {
            (DetectorEvent::AllIdle { stop_seq }, state) => {
                (self.idle_since_stop, self.held_since_stop) = (Some(stop_seq), None);
                match state {
                    _ if !self.is_idle() => Vec::new(),
                    State::Busy => {
                        self.backoff = MIN_BACKOFF_INTERVAL;
                        self.start_round1()
                    }
                    State::Backoff(deadline) if deadline <= now => self.start_round1(),
                    _ => Vec::new(),
                }
            }
            (DetectorEvent::Stopped { switch_seq }, state) => {
                self.last_stop = self.last_stop.max(switch_seq);
                if matches!(
                    state,
                    State::Round1 | State::Round2 | State::Round3 | State::RecheckDelay(_)
                ) {
                    self.state = State::Backoff(now);
                }
                Vec::new()
            }
            // A process that a debugger has stopped can continue at any time, so it counts as busy
            // here.
            (DetectorEvent::SomeBusy | DetectorEvent::SomeHeld { .. }, state) => {
                self.idle_since_stop = None;
                self.held_since_stop = match event {
                    DetectorEvent::SomeHeld { stop_seq } => Some(stop_seq),
                    _ => None,
                };
                self.quiet_period = None;
                match state {
                    State::Deadlocked => Vec::new(),
                    _ => self.back_off(now),
                }
            }
            (DetectorEvent::RoundDone { round, activity }, state) if round == self.round => {
                self.on_round_done(state, activity, now)
            }
            (DetectorEvent::GangStopped, State::StoppingGang) => {
                self.state = State::ConfirmRound;
                self.take_snapshot(true)
            }
            (DetectorEvent::Tick, State::Backoff(deadline))
                if deadline <= now && self.is_idle() =>
            {
                self.start_round1()
            }
            (DetectorEvent::Tick, State::RecheckDelay(deadline)) if deadline <= now => {
                self.state = State::Round3;
                self.take_snapshot(false)
            }
            _ => Vec::new(),
        }
    }

    fn on_round_done(
        &mut self,
        state: State,
        activity: ActivitySample,
        now: MonotonicTime,
    ) -> Vec<DetectorAction> {
        let all_idle = activity.node_count == self.nodes && activity.idle;
        let no_message_in_flight =
            activity.sent == activity.received && activity.outstanding_rma == 0;
        let all_still_idle = all_idle && activity.unchanged && no_message_in_flight;
        match state {
            State::Round1 if all_idle => {
                self.state = State::Round2;
                let mut actions = self.take_snapshot(false);
                if no_message_in_flight && self.is_hang_suspected(activity.sent, now) {
                    actions.push(DetectorAction::Suspicion);
                }
                actions
            }
            State::Round2 if all_still_idle => {
                self.state = State::Round3;
                self.take_snapshot(false)
            }
            State::Round3 if all_still_idle && activity.all_spinners_polled => {
                self.state = State::StoppingGang;
                vec![DetectorAction::StopGang]
            }
            State::Round3 if all_still_idle => {
                self.state = State::RecheckDelay(now + self.recheck_delay);
                self.recheck_delay = (self.recheck_delay * 2).min(MAX_BACKOFF_INTERVAL);
                Vec::new()
            }
            // Stopped processes do not poll, so polls are not checked.
            State::ConfirmRound if all_still_idle => {
                self.state = State::Deadlocked;
                vec![DetectorAction::Verdict]
            }
            State::Round1 | State::Round2 | State::Round3 | State::ConfirmRound => {
                self.back_off(now)
            }
            State::Busy
            | State::StoppingGang
            | State::Backoff(_)
            | State::RecheckDelay(_)
            | State::Deadlocked => Vec::new(),
        }
    }

    /// Whether all processes have been idle, with nothing sent, long enough to suspect a hang.
    pub fn suspects_hang(&self, now: MonotonicTime) -> bool {
        self.quiet_period.is_some_and(|period| now >= period.since + SUSPICION_DELAY)
    }

    /// Whether a hang is suspected now for the first time. All processes are idle and have sent
    /// this many messages, all of which have been received.
    fn is_hang_suspected(&mut self, sent: u64, now: MonotonicTime) -> bool {
        match self.quiet_period {
            Some(period) if period.sent == sent => {
                self.suspects_hang(now) && !std::mem::replace(&mut self.has_suspected, true)
            }
            _ => {
                self.quiet_period = Some(QuietPeriod { since: now, sent });
                false
            }
        }
    }

    fn start_round1(&mut self) -> Vec<DetectorAction> {
        self.state = State::Round1;
        self.recheck_delay = RECHECK_INTERVAL;
        // Leaves a gap in the numbers, so that no host compares this round with the last round of
        // an earlier suspicion.
        self.round = self.round.next();
        self.take_snapshot(false)
    }

    fn take_snapshot(&mut self, stopped: bool) -> Vec<DetectorAction> {
        self.round = self.round.next();
        vec![DetectorAction::TakeSnapshot { round: self.round, stopped }]
    }

    fn back_off(&mut self, now: MonotonicTime) -> Vec<DetectorAction> {
        let was_stopped = matches!(self.state, State::StoppingGang | State::ConfirmRound);
        self.state = if self.idle_since_stop.is_some() {
            self.backoff = (self.backoff * 2).min(MAX_BACKOFF_INTERVAL);
            State::Backoff(now + self.backoff)
        } else {
            State::Busy
        };
        if was_stopped { vec![DetectorAction::Release] } else { Vec::new() }
    }
}
