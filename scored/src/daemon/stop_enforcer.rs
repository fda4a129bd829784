//! Enforces the stops of a job that its shepherd does not carry out in time. A shepherd runs as the
//! job's user, and the user can stop it with signals. The job would then keep its processors, which
//! jobs of other users need. Therefore the daemon freezes the job's cgroup itself and reports the
//! stop. When the frozen shepherd continues, it carries out the stop and the next order to run.
//!
//! [`StopEnforcer`] makes the decisions, and the job's [`HostJob`](super::host_job::HostJob)
//! carries them out. In single-user mode there is no enforcement, because there is no cgroup and
//! there are no other users.

use std::time::{Duration, Instant};

use score_proto::job_control::{
    ElementOrder, JobOrder, ShepherdOrder, StopCondition, SwitchOrder, SwitchReport, SwitchSeq,
};

/// How late the shepherd may report a stop before the daemon freezes the job.
const STOP_GRACE: Duration = Duration::from_millis(200);
/// Like [`STOP_GRACE`], after the job was frozen for the first time. The time is short because
/// freezing does not harm a job, and most running shepherds report a stop earlier.
const REPEATED_STOP_GRACE: Duration = Duration::from_micros(100);
/// How long a frozen job continues so that its shepherd can take a sample of its processes.
const SAMPLE_GRACE: Duration = Duration::from_millis(10);
/// The delay before a frozen job that has to end continues for the first time. Such a job gets no
/// further slice. Therefore it continues for [`END_WINDOW`] at intervals, so that its shepherd can
/// report the stop and end the job. Each interval is twice as long as the last one, so that a
/// shepherd that only consumes processor time gets less and less of it.
const FIRST_END_DELAY: Duration = Duration::from_millis(20);
/// The maximum of the intervals that begin with [`FIRST_END_DELAY`].
const MAX_END_DELAY: Duration = Duration::from_secs(60);
/// See [`FIRST_END_DELAY`].
const END_WINDOW: Duration = Duration::from_millis(10);
/// How long a job that cannot be frozen may hold its processors before it is killed.
const UNSTOPPED_GRACE: Duration = Duration::from_secs(5);
/// How long the shepherd may take to end a job that its user has killed.
const KILL_GRACE: Duration = Duration::from_secs(30);

/// See the [module](self).
#[derive(Debug)]
pub struct StopEnforcer {
    stop: StopState,
    shepherd: ShepherdState,
    /// Whether the next freeze of the job is its first one.
    next_freeze: Occurrence,
    /// The highest number of an ordered stop. The shepherd must not report a higher one.
    last_ordered: SwitchSeq,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopState {
    /// The job may run, or its shepherd has stopped it.
    NotDue,
    /// The shepherd has to report this stop before the deadline.
    Due { switch_seq: SwitchSeq, deadline: Instant },
    /// The daemon has frozen the job in place of this stop. If the job has to end, it continues for
    /// a short time at `next_turn`.
    Frozen { switch_seq: SwitchSeq, next_turn: Option<Instant> },
    /// The job could not be frozen. It is killed at the deadline.
    Overdue { switch_seq: SwitchSeq, deadline: Instant },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShepherdState {
    Serving,
    /// The shepherd has received the order to end the job. The next freeze lasts `next_freeze`. If
    /// the user has killed the job, the shepherd is killed at the deadline.
    Ending {
        next_freeze: Duration,
        kill_deadline: Option<Instant>,
    },
    /// The shepherd has been killed. The reason is set if it had missed a deadline.
    Killed(Option<KillReason>),
}

/// The deadline that a killed shepherd has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// The shepherd did not stop the job, and the job could not be frozen.
    NotStopped,
    /// The shepherd did not end a job that its user had killed.
    NotEnded,
}

impl KillReason {
    /// The message for the user.
    pub fn text(self) -> String {
        let cause = match self {
            Self::NotStopped => format!(
                "has not stopped the job within {} s of the end of its time slice, and this host \
                 cannot freeze the job",
                (STOP_GRACE + UNSTOPPED_GRACE).as_secs()
            ),
            Self::NotEnded => {
                format!("has not ended the killed job within {} s", KILL_GRACE.as_secs())
            }
        };
        format!("the job's shepherd {cause}: every process has been killed")
    }
}

/// The action of the daemon for an order, in addition to the action of the shepherd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderEffect {
    /// Nothing.
    None,
    /// Thaw the job.
    Thaw,
    /// Report the stop, because the job is frozen already.
    ReportStopped {
        /// The number of the stop.
        switch_seq: SwitchSeq,
    },
}

/// Whether something happens to a job for the first time. Only the first time is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occurrence {
    /// The first time.
    First,
    /// A later time.
    Repeated,
}

/// An action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    /// Freeze the job and report the stop.
    Freeze {
        /// The number of the stop.
        switch_seq: SwitchSeq,
        /// Whether the job is frozen for the first time.
        occurrence: Occurrence,
    },
    /// Let the frozen job continue for a short time.
    Thaw,
    /// Kill the remaining processes of a killed job, and report the stop.
    KillRemaining {
        /// The number of the stop.
        switch_seq: SwitchSeq,
    },
    /// Kill the shepherd.
    Kill(KillReason),
}

impl Enforcement {
    /// The line for the log, if the action is logged.
    pub fn log_text(self) -> Option<String> {
        match self {
            Self::Freeze { occurrence: Occurrence::First, .. } => Some(format!(
                "its shepherd has not stopped it within {} ms: it is frozen, or killed if it \
                 cannot be frozen",
                STOP_GRACE.as_millis()
            )),
            Self::Freeze { occurrence: Occurrence::Repeated, .. } | Self::Thaw => None,
            Self::KillRemaining { .. } => {
                Some("its killed shepherd has not ended: other jobs get its processors".to_owned())
            }
            Self::Kill(reason) => Some(reason.text()),
        }
    }
}

impl StopEnforcer {
    /// Creates the state of a job that runs until it is ordered to stop.
    pub fn new() -> Self {
        Self {
            stop: StopState::NotDue,
            shepherd: ShepherdState::Serving,
            next_freeze: Occurrence::First,
            last_ordered: SwitchSeq::NONE,
        }
    }

    /// How late the shepherd may report the next stop.
    fn stop_grace(&self) -> Duration {
        match (self.next_freeze, self.shepherd) {
            (Occurrence::Repeated, ShepherdState::Serving) => REPEATED_STOP_GRACE,
            _ => STOP_GRACE,
        }
    }

    /// Updates the state for an order that is about to be sent to the shepherd's switch thread.
    pub fn on_switch_order(&mut self, order: SwitchOrder, now: Instant) -> OrderEffect {
        let grace_end = now + self.stop_grace();
        if let SwitchOrder::Stop { switch_seq }
        | SwitchOrder::Run {
            stop_condition: StopCondition::After { switch_seq, .. }, ..
        } = order
        {
            self.last_ordered = self.last_ordered.max(switch_seq);
        }
        match (order, self.stop) {
            (SwitchOrder::Stop { switch_seq, .. }, StopState::Frozen { next_turn, .. }) => {
                self.stop = StopState::Frozen { switch_seq, next_turn };
                OrderEffect::ReportStopped { switch_seq }
            }
            (SwitchOrder::Stop { switch_seq, .. }, stop) => {
                self.stop = match stop {
                    StopState::Overdue { deadline, .. } => {
                        StopState::Overdue { switch_seq, deadline }
                    }
                    StopState::Due { deadline, .. } => {
                        StopState::Due { switch_seq, deadline: deadline.min(grace_end) }
                    }
                    _ => StopState::Due { switch_seq, deadline: grace_end },
                };
                OrderEffect::None
            }
            (SwitchOrder::Run { stop_condition: StopCondition::Unchanged, .. }, _) => {
                OrderEffect::None
            }
            // The scheduler lets a job continue that has not stopped in time. The deadline stays,
            // because the shepherd has to report the stop first.
            (SwitchOrder::Run { .. }, StopState::Overdue { .. }) => OrderEffect::None,
            (SwitchOrder::Run { stop_condition, .. }, _) => {
                let next = match stop_condition {
                    StopCondition::After { run_us, switch_seq } => {
                        let deadline = grace_end + Duration::from_micros(run_us.into());
                        StopState::Due { switch_seq, deadline }
                    }
                    _ => StopState::NotDue,
                };
                self.leave_frozen_for(next)
            }
        }
    }

    /// Updates the state for an order that is about to be sent to the shepherd.
    pub fn on_order(&mut self, order: &ShepherdOrder, now: Instant) -> OrderEffect {
        match order {
            ShepherdOrder::Job(JobOrder::Kill) => match self.shepherd {
                ShepherdState::Serving | ShepherdState::Ending { kill_deadline: None, .. } => {
                    self.begin_end(Some(now + KILL_GRACE));
                    self.thaw_for_order(now + STOP_GRACE)
                }
                // Only the first kill order counts, because the user can repeat it.
                _ => OrderEffect::None,
            },
            // The job master waits for the shepherd, even while the job is stopped.
            ShepherdOrder::Job(JobOrder::Finish) => {
                if self.shepherd == ShepherdState::Serving {
                    self.begin_end(None);
                }
                self.thaw_for_order(now + STOP_GRACE)
            }
            // A user can cause many samples, so each one permits only a short time.
            ShepherdOrder::Element {
                order: ElementOrder::Sample { stopped: true, .. }, ..
            } => self.thaw_for_order(now + SAMPLE_GRACE),
            _ => OrderEffect::None,
        }
    }

    fn begin_end(&mut self, kill_deadline: Option<Instant>) {
        self.shepherd = ShepherdState::Ending { next_freeze: FIRST_END_DELAY, kill_deadline };
    }

    fn leave_frozen_for(&mut self, next: StopState) -> OrderEffect {
        match std::mem::replace(&mut self.stop, next) {
            StopState::Frozen { .. } => OrderEffect::Thaw,
            _ => OrderEffect::None,
        }
    }

    /// Thaws a frozen job for an order. The shepherd has to stop the job again before the deadline.
    fn thaw_for_order(&mut self, deadline: Instant) -> OrderEffect {
        match self.stop {
            StopState::Frozen { switch_seq, .. } => {
                self.leave_frozen_for(StopState::Due { switch_seq, deadline })
            }
            _ => OrderEffect::None,
        }
    }

    /// Whether the switch thread may send this report. A stop that was not ordered is not expected.
    pub fn is_expected(&self, report: SwitchReport) -> bool {
        match report {
            SwitchReport::Stopped { switch_seq } => switch_seq <= self.last_ordered,
            SwitchReport::IdleSummary { .. } => true,
        }
    }

    /// Records a report of the switch thread.
    pub fn on_switch_report(&mut self, report: SwitchReport) {
        if let SwitchReport::Stopped { switch_seq } = report {
            self.on_stopped(switch_seq);
        }
    }

    /// Records that the shepherd has reported this stop.
    pub fn on_stopped(&mut self, stopped_seq: SwitchSeq) {
        if let StopState::Due { switch_seq, .. } | StopState::Overdue { switch_seq, .. } = self.stop
            && stopped_seq >= switch_seq
        {
            self.stop = StopState::NotDue;
        }
    }

    /// Records that the job could not be frozen.
    pub fn on_freeze_failed(&mut self, now: Instant) {
        if let StopState::Frozen { switch_seq, .. } = self.stop {
            self.stop = StopState::Overdue { switch_seq, deadline: now + UNSTOPPED_GRACE };
        }
    }

    /// Records that the shepherd, and with it the job, has been killed.
    pub fn on_killed(&mut self) -> OrderEffect {
        if !matches!(self.shepherd, ShepherdState::Killed(_)) {
            self.shepherd = ShepherdState::Killed(None);
        }
        match self.stop {
            StopState::Frozen { .. } => self.leave_frozen_for(StopState::NotDue),
            _ => OrderEffect::None,
        }
    }

    /// The deadline that the killed shepherd has missed, if any.
    pub fn kill_reason(&self) -> Option<KillReason> {
        match self.shepherd {
            ShepherdState::Killed(reason) => reason,
            _ => None,
        }
    }

    /// The time of the next call of [`StopEnforcer::enforce`].
    pub fn deadline(&self) -> Option<Instant> {
        let stop_deadline = match self.stop {
            StopState::Due { deadline, .. } | StopState::Overdue { deadline, .. } => Some(deadline),
            StopState::Frozen { next_turn, .. } => next_turn,
            StopState::NotDue => None,
        };
        let end_deadline = match self.shepherd {
            ShepherdState::Ending { kill_deadline, .. } => kill_deadline,
            _ => None,
        };
        stop_deadline.into_iter().chain(end_deadline).min()
    }

    /// The time at which a job that is frozen now continues, if it has to end.
    fn next_turn(&mut self, now: Instant) -> Option<Instant> {
        let ShepherdState::Ending { next_freeze, .. } = &mut self.shepherd else { return None };
        let turn = now + *next_freeze;
        *next_freeze = (*next_freeze * 2).min(MAX_END_DELAY);
        Some(turn)
    }

    /// Returns the action that is due now, if any.
    pub fn enforce(&mut self, now: Instant) -> Option<Enforcement> {
        if let ShepherdState::Ending { kill_deadline: Some(deadline), .. } = self.shepherd
            && deadline <= now
        {
            self.shepherd = ShepherdState::Killed(Some(KillReason::NotEnded));
            return Some(Enforcement::Kill(KillReason::NotEnded));
        }
        match (self.stop, self.shepherd) {
            (StopState::Due { switch_seq, deadline }, ShepherdState::Killed(_))
                if deadline <= now =>
            {
                self.stop = StopState::NotDue;
                Some(Enforcement::KillRemaining { switch_seq })
            }
            (StopState::Due { switch_seq, deadline }, _) if deadline <= now => {
                let next_turn = self.next_turn(now);
                self.stop = StopState::Frozen { switch_seq, next_turn };
                let occurrence = std::mem::replace(&mut self.next_freeze, Occurrence::Repeated);
                Some(Enforcement::Freeze { switch_seq, occurrence })
            }
            (StopState::Frozen { switch_seq, next_turn: Some(at) }, _) if at <= now => {
                self.stop = StopState::Due { switch_seq, deadline: now + END_WINDOW };
                Some(Enforcement::Thaw)
            }
            (StopState::Overdue { switch_seq, deadline }, _) if deadline <= now => {
                self.stop = StopState::Due { switch_seq, deadline: now + STOP_GRACE };
                self.shepherd = ShepherdState::Killed(Some(KillReason::NotStopped));
                Some(Enforcement::Kill(KillReason::NotStopped))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::ElementIndex;
    use score_proto::observation::SampleRound;

    fn stop(number: u64) -> SwitchOrder {
        SwitchOrder::Stop { switch_seq: SwitchSeq(number) }
    }

    fn run(stop_condition: StopCondition) -> SwitchOrder {
        SwitchOrder::Run { idle_check_interval_us: 0, stop_condition }
    }

    fn run_for(run_us: u32, stop: u64) -> SwitchOrder {
        run(StopCondition::After { run_us, switch_seq: SwitchSeq(stop) })
    }

    fn freeze(occurrence: Occurrence) -> Option<Enforcement> {
        Some(Enforcement::Freeze { switch_seq: SwitchSeq(5), occurrence })
    }

    const MS: Duration = Duration::from_millis(1);

    /// A job that has been frozen in place of stop 5, and the time of the freeze.
    fn frozen() -> (StopEnforcer, Instant) {
        let (mut enforcer, now) = (StopEnforcer::new(), Instant::now());
        assert_eq!(enforcer.on_switch_order(run_for(10_000, 5), now), OrderEffect::None);
        let due = now + 10 * MS + STOP_GRACE;
        assert_eq!((enforcer.deadline(), enforcer.enforce(due - MS)), (Some(due), None));
        assert_eq!(enforcer.enforce(due), freeze(Occurrence::First));
        assert_eq!(enforcer.deadline(), None);
        (enforcer, due)
    }

    #[test]
    fn a_stop_that_is_reported_in_time_is_not_enforced() {
        let (mut enforcer, now) = (StopEnforcer::new(), Instant::now());
        for (order, reported) in [(run_for(10_000, 5), 5), (stop(6), 6), (stop(7), 9)] {
            enforcer.on_switch_order(order, now);
            // The report of an earlier stop arrives late.
            enforcer.on_switch_report(SwitchReport::Stopped { switch_seq: SwitchSeq(4) });
            assert!(enforcer.deadline().is_some());
            enforcer.on_switch_report(SwitchReport::Stopped { switch_seq: SwitchSeq(reported) });
            assert_eq!(enforcer.deadline(), None);
        }
        enforcer.on_switch_order(run_for(10_000, 10), now);
        enforcer.on_switch_order(run(StopCondition::Unchanged), now);
        assert!(enforcer.deadline().is_some());
        enforcer.on_switch_order(run(StopCondition::OnOrder), now);
        assert_eq!(enforcer.deadline(), None);
    }

    #[test]
    fn a_frozen_job_continues_at_the_next_run_order_with_a_shorter_grace() {
        let (mut enforcer, now) = frozen();
        assert_eq!(enforcer.on_switch_order(run(StopCondition::Unchanged), now), OrderEffect::None);
        assert_eq!(
            enforcer.on_switch_order(stop(6), now),
            OrderEffect::ReportStopped { switch_seq: SwitchSeq(6) }
        );
        assert_eq!(enforcer.on_switch_order(run_for(10_000, 7), now), OrderEffect::Thaw);
        // The shepherd carries out the stop that it has missed.
        enforcer.on_switch_report(SwitchReport::Stopped { switch_seq: SwitchSeq(6) });
        assert_eq!(enforcer.deadline(), Some(now + 10 * MS + REPEATED_STOP_GRACE));
    }

    #[test]
    fn a_late_job_with_a_new_run_order_is_killed_unless_it_reports_the_stop() {
        for reports in [false, true] {
            let (mut enforcer, now) = frozen();
            enforcer.on_freeze_failed(now);
            for second in 1..5 {
                let at = now + second * 1000 * MS;
                assert_eq!(
                    enforcer.on_switch_order(run(StopCondition::OnOrder), at),
                    OrderEffect::None
                );
                assert_eq!(enforcer.on_switch_order(run_for(10_000, 6), at), OrderEffect::None);
            }
            if reports {
                enforcer.on_switch_report(SwitchReport::Stopped { switch_seq: SwitchSeq(5) });
            }
            let due = enforcer.enforce(now + UNSTOPPED_GRACE);
            assert_eq!(due, (!reports).then_some(Enforcement::Kill(KillReason::NotStopped)));
        }
    }

    #[test]
    fn a_stop_that_was_not_ordered_is_not_expected() {
        let (mut enforcer, now) = (StopEnforcer::new(), Instant::now());
        let stopped = |number| SwitchReport::Stopped { switch_seq: SwitchSeq(number) };
        assert!(!enforcer.is_expected(stopped(1)));
        enforcer.on_switch_order(stop(3), now);
        enforcer.on_switch_order(run_for(10, 7), now);
        enforcer.on_switch_order(run(StopCondition::OnOrder), now);
        assert!(enforcer.is_expected(stopped(3)) && enforcer.is_expected(stopped(7)));
        assert!(!enforcer.is_expected(stopped(8)) && !enforcer.is_expected(stopped(u64::MAX)));
    }

    #[test]
    fn repeated_orders_to_stop_extend_no_deadline() {
        let (mut enforcer, now) = (StopEnforcer::new(), Instant::now());
        for number in 0..5_u8 {
            enforcer.on_switch_order(stop(number.into()), now + STOP_GRACE / 5 * number.into());
        }
        assert_eq!(enforcer.deadline(), Some(now + STOP_GRACE));
        let (mut enforcer, now) = frozen();
        enforcer.on_freeze_failed(now);
        enforcer.on_switch_order(stop(9), now + MS);
        assert_eq!(enforcer.deadline(), Some(now + UNSTOPPED_GRACE));
    }

    #[test]
    fn a_job_that_cannot_be_frozen_is_killed_unless_it_stops() {
        for stops in [false, true] {
            let (mut enforcer, now) = frozen();
            enforcer.on_freeze_failed(now);
            let due = now + UNSTOPPED_GRACE;
            assert_eq!(enforcer.enforce(due - MS), None);
            if stops {
                enforcer.on_stopped(SwitchSeq(5));
            }
            assert_eq!(
                enforcer.enforce(due),
                (!stops).then_some(Enforcement::Kill(KillReason::NotStopped))
            );
            let reason = enforcer.kill_reason();
            assert_eq!(reason, (!stops).then_some(KillReason::NotStopped));
            // A process that traces the job from outside prevents it from ending.
            let remaining = enforcer.enforce(due + STOP_GRACE);
            let expected = Enforcement::KillRemaining { switch_seq: SwitchSeq(5) };
            assert_eq!(remaining, (!stops).then_some(expected));
        }
    }

    #[test]
    fn a_killed_job_is_thawed_and_has_to_end() {
        let (mut enforcer, now) = frozen();
        let kill = ShepherdOrder::Job(JobOrder::Kill);
        assert_eq!(enforcer.on_order(&kill, now), OrderEffect::Thaw);
        let due = now + STOP_GRACE;
        assert_eq!(enforcer.enforce(due), freeze(Occurrence::Repeated));
        assert_eq!(enforcer.on_order(&kill, due), OrderEffect::None);
        assert_eq!(enforcer.deadline(), Some(due + FIRST_END_DELAY));
        assert_eq!(
            enforcer.enforce(now + KILL_GRACE),
            Some(Enforcement::Kill(KillReason::NotEnded))
        );
        assert_eq!(enforcer.on_killed(), OrderEffect::Thaw);
        assert_eq!(enforcer.kill_reason(), Some(KillReason::NotEnded));
        assert_eq!((enforcer.on_killed(), enforcer.deadline()), (OrderEffect::None, None));
    }

    #[test]
    fn a_job_that_ends_is_stopped_late_and_never_frozen_for_ever() {
        let finish = ShepherdOrder::Job(JobOrder::Finish);
        let (mut enforcer, now) = frozen();
        assert_eq!(enforcer.on_order(&finish, now), OrderEffect::Thaw);
        // The job leaves its slice after the order to finish.
        assert_eq!(enforcer.on_switch_order(stop(6), now), OrderEffect::None);
        let mut at = now + STOP_GRACE;
        let mut freeze_time = FIRST_END_DELAY;
        for _ in 0..20 {
            assert_eq!((enforcer.deadline(), enforcer.enforce(at - MS)), (Some(at), None));
            let freeze =
                Enforcement::Freeze { switch_seq: SwitchSeq(6), occurrence: Occurrence::Repeated };
            assert_eq!(enforcer.enforce(at), Some(freeze));
            at += freeze_time;
            assert_eq!((enforcer.deadline(), enforcer.enforce(at - MS)), (Some(at), None));
            assert_eq!(enforcer.enforce(at), Some(Enforcement::Thaw));
            at += END_WINDOW;
            freeze_time = (freeze_time * 2).min(MAX_END_DELAY);
        }
        enforcer.on_switch_report(SwitchReport::Stopped { switch_seq: SwitchSeq(6) });
        assert_eq!((enforcer.deadline(), enforcer.enforce(at)), (None, None));
        // The user can still kill the job.
        enforcer.on_order(&ShepherdOrder::Job(JobOrder::Kill), at);
        assert_eq!(enforcer.deadline(), Some(at + KILL_GRACE));
    }

    #[test]
    fn a_frozen_job_answers_the_master() {
        let sample = ElementOrder::Sample { round: SampleRound(1), stopped: true };
        let sample = ShepherdOrder::Element { element: ElementIndex(1), order: sample };
        for (order, grace) in
            [(ShepherdOrder::Job(JobOrder::Finish), STOP_GRACE), (sample, SAMPLE_GRACE)]
        {
            let (mut enforcer, now) = frozen();
            assert_eq!(enforcer.on_order(&order, now), OrderEffect::Thaw);
            assert_eq!(enforcer.on_order(&order, now), OrderEffect::None);
            assert_eq!(enforcer.deadline(), Some(now + grace));
        }
    }
}
