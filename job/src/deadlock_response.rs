//! The job master's response to a parallel process that cannot continue (manual 3.5). It runs the
//! detector ([`crate::deadlock`]). If the detector finds a deadlock, the response reports what each
//! process waits for. It then sends SIGHUP (manual, table 3.1), and ends the parallel process after
//! a grace period.
//!
//! | phase | event | steps |
//! |---|---|---|
//! | watching | suspicion | `QueryWaits` |
//! | watching | all processes are explained | lines for the user |
//! | watching | verdict | `QueryWaits`; the job continues, because it has to receive the signal |
//! | explaining | all processes are explained, or 2 s | lines for the user, `ReadStacks` |
//! | reading | the stacks are read | SIGHUP |
//! | grace | 5 s | the end |
//!
//! A process that continues after the signal, because its handler sends a message, is also ended.

use std::time::Duration;

use score_proto::ids::JobId;
use score_proto::job_control::{ElementOrder, Placement, SwitchSeq};
use score_proto::observation::{Activity, ActivitySample, IdleSummary, SampleRound, WaitState};

use crate::cluster::MonotonicTime;
use crate::deadlock::{Detector, DetectorAction, DetectorEvent, SUSPICION_DELAY};
use crate::signal;

/// The time that a parallel process may take to inspect itself in its handler of SIGHUP
/// (sc_inspectme).
pub const SIGHUP_GRACE: Duration = Duration::from_secs(5);
/// The time that the hosts may take to report what their processes wait for.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest number of processes in a list, which has one line for each process.
const MAX_LISTED_PROCESSES: usize = 64;

/// An action for the job master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseAction {
    /// Send this to the hosts.
    Order(ElementOrder),
    /// Stop the job, and report [`DeadlockResponse::on_gang_stopped`].
    StopGang,
    /// Let the job continue.
    Release,
    /// The element is deadlocked; the list contains what each process waits for. From now on the
    /// ends of its processes are not reported.
    DeclareDeadlock(Vec<WaitState>),
    /// Show the stacks of all processes; [`DeadlockResponse::on_stacks_read`] follows.
    ReadStacks,
    /// The element may hang; the list contains what each process waits for. The element continues.
    ReportSuspicion(Vec<WaitState>),
    /// End the element.
    Kill,
}

#[derive(Debug)]
enum Phase {
    Watching,
    Explaining { waits: Vec<WaitState>, deadline: MonotonicTime },
    Reading,
    Grace(MonotonicTime),
    Over,
}

/// The response for one parallel process of the running stage.
#[derive(Debug)]
pub struct DeadlockResponse {
    nodes: u32,
    detector: Detector,
    phase: Phase,
    /// After a suspicion: the waits of the processes, until all processes have reported.
    suspected_waits: Option<Vec<WaitState>>,
}

impl DeadlockResponse {
    /// The response for a parallel process of this many nodes. No sample has been taken.
    pub fn new(nodes: u32) -> Self {
        Self {
            nodes,
            detector: Detector::new(nodes),
            phase: Phase::Watching,
            suspected_waits: None,
        }
    }

    /// Whether the element needs no processor. This holds if all of its processes wait and no
    /// message is outstanding, or if a debugger has stopped some processes and the others wait.
    /// Reports from before the job's last stop do not count. An element that is being inspected
    /// needs its processors.
    pub fn needs_no_processor(&self) -> bool {
        let is_inspecting = matches!(self.phase, Phase::Watching) && self.detector.is_suspecting();
        self.detector.is_held() || self.detector.idle_since_stop().is_some() && !is_inspecting
    }

    /// Whether the element seems to hang, but no deadlock can be proved.
    pub fn suspects_hang(&self, now: MonotonicTime) -> bool {
        matches!(self.phase, Phase::Watching) && self.detector.suspects_hang(now)
    }

    /// The job is stopped. Hosts whose processes were idle check again when the job runs again.
    pub fn on_stopped(&mut self, switch_seq: SwitchSeq, now: MonotonicTime) -> Vec<ResponseAction> {
        self.step_detector(DetectorEvent::Stopped { switch_seq }, now)
    }

    /// When [`DeadlockResponse::on_tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        match &self.phase {
            Phase::Watching => self.detector.deadline(),
            Phase::Explaining { deadline, .. } | Phase::Grace(deadline) => Some(*deadline),
            Phase::Reading | Phase::Over => None,
        }
    }

    /// The combined idle report of all hosts.
    pub fn on_idle_report(
        &mut self,
        summary: IdleSummary,
        now: MonotonicTime,
    ) -> Vec<ResponseAction> {
        let stop_seq = summary.stop_seq;
        let event = match summary.activity {
            Activity::Idle if summary.is_quiescent() => DetectorEvent::AllIdle { stop_seq },
            Activity::Held => DetectorEvent::SomeHeld { stop_seq },
            Activity::Idle | Activity::Busy => DetectorEvent::SomeBusy,
        };
        self.step_detector(event, now)
    }

    /// A process is busy, although its idle flags do not show it.
    pub fn on_busy(&mut self, now: MonotonicTime) -> Vec<ResponseAction> {
        self.step_detector(DetectorEvent::SomeBusy, now)
    }

    /// An order is about to wake a process. The samples that were taken so far are no longer valid.
    pub fn on_disturbed(&mut self, now: MonotonicTime) -> Vec<ResponseAction> {
        let idle_since_stop = self.detector.idle_since_stop();
        let mut steps = self.step_detector(DetectorEvent::SomeBusy, now);
        if let Some(stop_seq) = idle_since_stop {
            steps.extend(self.step_detector(DetectorEvent::AllIdle { stop_seq }, now));
        }
        steps
    }

    /// All hosts have taken their snapshot.
    pub fn on_round_done(
        &mut self,
        round: SampleRound,
        activity: ActivitySample,
        now: MonotonicTime,
    ) -> Vec<ResponseAction> {
        self.step_detector(DetectorEvent::RoundDone { round, activity }, now)
    }

    /// The job has stopped as requested.
    pub fn on_gang_stopped(&mut self, now: MonotonicTime) -> Vec<ResponseAction> {
        self.step_detector(DetectorEvent::GangStopped, now)
    }

    /// Some hosts report what their processes wait for.
    pub fn on_explanations(&mut self, more_waits: Vec<WaitState>) -> Vec<ResponseAction> {
        // The answers to a suspicion have arrived before the answers of any later round.
        let waits = match (&mut self.phase, &mut self.suspected_waits) {
            (Phase::Explaining { waits, .. }, _) | (Phase::Watching, Some(waits)) => waits,
            _ => return Vec::new(),
        };
        let remaining = (self.nodes as usize).saturating_sub(waits.len());
        waits.extend(more_waits.into_iter().take(remaining));
        if waits.len() < self.nodes as usize {
            return Vec::new();
        }
        match self.suspected_waits.take() {
            Some(mut waits) if matches!(self.phase, Phase::Watching) => {
                waits.sort_unstable_by_key(|wait| wait.node);
                vec![ResponseAction::ReportSuspicion(waits)]
            }
            _ => self.declare_deadlock(),
        }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: MonotonicTime) -> Vec<ResponseAction> {
        match &self.phase {
            Phase::Watching => self.step_detector(DetectorEvent::Tick, now),
            Phase::Explaining { deadline, .. } if *deadline <= now => self.declare_deadlock(),
            Phase::Grace(deadline) if *deadline <= now => {
                self.phase = Phase::Over;
                vec![ResponseAction::Kill]
            }
            Phase::Explaining { .. } | Phase::Reading | Phase::Grace(_) | Phase::Over => Vec::new(),
        }
    }

    /// Passes an event to the detector. After its verdict the detector takes no further action.
    fn step_detector(&mut self, event: DetectorEvent, now: MonotonicTime) -> Vec<ResponseAction> {
        let mut steps = Vec::new();
        for action in self.detector.on(event, now) {
            match action {
                DetectorAction::TakeSnapshot { round, stopped } => {
                    steps.push(ResponseAction::Order(ElementOrder::Sample { round, stopped }));
                }
                DetectorAction::StopGang => steps.push(ResponseAction::StopGang),
                DetectorAction::Release => steps.push(ResponseAction::Release),
                DetectorAction::Suspicion => {
                    self.suspected_waits = Some(Vec::new());
                    steps.push(ResponseAction::Order(ElementOrder::QueryWaits));
                }
                DetectorAction::Verdict => {
                    self.phase =
                        Phase::Explaining { waits: Vec::new(), deadline: now + EXPLAIN_TIMEOUT };
                    steps.extend([
                        ResponseAction::Order(ElementOrder::QueryWaits),
                        ResponseAction::Release,
                    ]);
                }
            }
        }
        steps
    }

    fn declare_deadlock(&mut self) -> Vec<ResponseAction> {
        let Phase::Explaining { waits, .. } = &mut self.phase else { return Vec::new() };
        let mut waits = std::mem::take(waits);
        waits.sort_unstable_by_key(|wait| wait.node);
        self.phase = Phase::Reading;
        vec![ResponseAction::DeclareDeadlock(waits), ResponseAction::ReadStacks]
    }

    /// The stacks have been read and shown as far as possible.
    pub fn on_stacks_read(&mut self, now: MonotonicTime) -> Vec<ResponseAction> {
        if !matches!(self.phase, Phase::Reading) {
            return Vec::new();
        }
        self.phase = Phase::Grace(now + SIGHUP_GRACE);
        // No node has called sc_signal_bcast, so no node gets an answer to this number.
        let (serial, signal) = (u64::MAX, signal::SIGHUP);
        vec![ResponseAction::Order(ElementOrder::Broadcast { serial, signal })]
    }
}

/// The report of a deadlock for the user.
pub fn deadlock_report(
    job: JobId,
    name: &str,
    waits: &[WaitState],
    placement: &Placement,
) -> Vec<String> {
    let summary = format!("job {job}: deadlock: no process of {name} can continue");
    report(summary, waits, placement)
}

/// The report of a suspected hang for the user.
pub fn suspicion_report(
    job: JobId,
    name: &str,
    waits: &[WaitState],
    placement: &Placement,
) -> Vec<String> {
    let seconds = SUSPICION_DELAY.as_secs();
    let summary = format!(
        "job {job}: all processes of {name} have waited for {seconds} s, and no message is under \
         way: it may hang (SCore cannot prove this; the job continues)"
    );
    report(summary, waits, placement)
}

fn report(summary: String, waits: &[WaitState], placement: &Placement) -> Vec<String> {
    let mut lines = vec![summary];
    lines.extend(waits.iter().take(MAX_LISTED_PROCESSES).map(|wait| wait_line(wait, placement)));
    if waits.len() > MAX_LISTED_PROCESSES {
        lines.push(format!("and {} more like these", waits.len() - MAX_LISTED_PROCESSES));
    }
    lines
}

fn wait_line(wait: &WaitState, placement: &Placement) -> String {
    use score_proto::carea::WaitingFor::*;
    let host = placement.host_of(wait.node).and_then(|index| placement.hosts.get(index.index()));
    let host = host.filter(|_| placement.hosts.len() > 1);
    let host = host.map_or_else(String::new, |host| format!(" on host {}", host.name));
    let wait_description = match score_proto::carea::WaitingFor::from_code(wait.waiting_for) {
        Some(Message | Select | MpiCall) => Some("waits for a message".to_owned()),
        Some(SendBuffer) => Some("waits for room to send".to_owned()),
        Some(Barrier) => Some("waits in sc_barrier()".to_owned()),
        Some(Pmi) => Some("waits for its process manager".to_owned()),
        Some(Nothing | Flush | Sleep | Start) | None => None,
    };
    let in_mpi_call = wait.mpi_call.map(|call| format!("waits in {call}"));
    let state = match in_mpi_call.or(wait_description) {
        Some(description) => format!("{description} since {} ms", wait.idle_ms),
        None => "has ended".to_owned(),
    };
    let last_peer = |node: Option<u32>, preposition: &str| {
        node.map_or_else(String::new, |node| format!(", the last {preposition} node {node}"))
    };
    format!(
        "node {}{host} {state}; sent {}{}; received {}{}",
        wait.node,
        wait.sent,
        last_peer(wait.last_destination, "to"),
        wait.received,
        last_peer(wait.last_source, "from"),
    )
}

#[cfg(test)]
mod tests {
    use score_proto::mpi_call::{MpiCall, MpiCallRecord};
    use score_proto::peer_message::JobIncarnation;

    use super::*;

    const T0: MonotonicTime = MonotonicTime::from_secs(100);

    fn idle_report() -> IdleSummary {
        IdleSummary {
            activity: Activity::Idle,
            sent: 3,
            received: 3,
            outstanding_rma: 0,
            stop_seq: SwitchSeq(0),
        }
    }

    fn activity() -> ActivitySample {
        ActivitySample { node_count: 2, sent: 3, received: 3, ..ActivitySample::EMPTY }
    }

    fn round_and_stopped(steps: &[ResponseAction]) -> (SampleRound, bool) {
        let [ResponseAction::Order(ElementOrder::Sample { round, stopped })] = steps else {
            panic!("{steps:?}")
        };
        (*round, *stopped)
    }

    /// A response whose job is stopped for the confirming round. Returns the number of the round.
    fn stopped_response() -> (DeadlockResponse, SampleRound) {
        let mut response = DeadlockResponse::new(2);
        let (mut round, _) = round_and_stopped(&response.on_idle_report(idle_report(), T0));
        for _ in 0..2 {
            (round, _) = round_and_stopped(&response.on_round_done(round, activity(), T0));
        }
        assert_eq!(response.on_round_done(round, activity(), T0), [ResponseAction::StopGang]);
        let (round, stopped) = round_and_stopped(&response.on_gang_stopped(T0));
        assert!(stopped);
        (response, round)
    }

    fn wait(node: u32) -> WaitState {
        WaitState {
            node,
            waiting_for: 1,
            idle_ms: 20,
            sent: 3,
            received: 4,
            last_destination: Some(1),
            last_source: None,
            mpi_call: None,
        }
    }

    // Promise of `a_deadlock_is_found_on_every_network`.
    #[test]
    fn a_deadlock_is_explained_then_signalled_then_ended() {
        let (mut response, round) = stopped_response();
        let steps = response.on_round_done(round, activity(), T0);
        assert_eq!(
            steps,
            [ResponseAction::Order(ElementOrder::QueryWaits), ResponseAction::Release]
        );
        assert_eq!(response.on_explanations(vec![wait(1)]), []);
        let [ResponseAction::DeclareDeadlock(waits), ResponseAction::ReadStacks] =
            &response.on_explanations(vec![wait(0)])[..]
        else {
            panic!("{response:?}")
        };
        assert_eq!((waits[0].node, waits[1].node), (0, 1));
        assert_eq!((response.on_tick(T0), response.deadline()), (Vec::new(), None));
        let [ResponseAction::Order(ElementOrder::Broadcast { signal: signal::SIGHUP, .. })] =
            &response.on_stacks_read(T0)[..]
        else {
            panic!("{response:?}")
        };
        assert_eq!(response.on_stacks_read(T0), []);
        assert_eq!(response.on_tick(T0), []);
        assert_eq!(response.deadline(), Some(T0 + SIGHUP_GRACE));
        assert_eq!(
            response.on_idle_report(IdleSummary { activity: Activity::Busy, ..idle_report() }, T0),
            [],
            "after the verdict"
        );
        assert_eq!(response.on_tick(T0 + SIGHUP_GRACE), [ResponseAction::Kill]);
        assert_eq!((response.on_tick(T0 + SIGHUP_GRACE), response.deadline()), (Vec::new(), None));
    }

    #[test]
    fn a_process_woken_by_an_order_is_not_deadlocked() {
        let (mut response, round) = stopped_response();
        let steps = response.on_disturbed(T0);
        assert_eq!(steps[0], ResponseAction::Release);
        let (next, stopped) = round_and_stopped(&steps[1..]);
        assert!(next > round && !stopped);
        assert_eq!(response.on_round_done(round, activity(), T0), [], "an earlier round");
    }

    #[test]
    fn a_host_that_does_not_explain_is_not_waited_for() {
        let (mut response, round) = stopped_response();
        response.on_round_done(round, activity(), T0);
        response.on_explanations(vec![wait(0)]);
        assert_eq!(response.on_tick(T0 + EXPLAIN_TIMEOUT).len(), 2);
    }

    #[test]
    fn a_process_stopped_by_a_debugger_needs_no_processor_and_is_no_deadlock() {
        let mut response = DeadlockResponse::new(2);
        let held = |stop_seq| IdleSummary { stop_seq: SwitchSeq(stop_seq), ..IdleSummary::HELD };
        assert_eq!(response.on_idle_report(held(0), T0), [], "no samples are taken");
        assert!(response.needs_no_processor());
        // The debugger may have let the process continue while the job was stopped.
        let _ = response.on_stopped(SwitchSeq(1), T0);
        assert!(!response.needs_no_processor());
        let _ = response.on_idle_report(held(1), T0);
        assert!(response.needs_no_processor());
        let busy = IdleSummary { activity: Activity::Busy, ..idle_report() };
        let _ = response.on_idle_report(busy, T0);
        assert!(!response.needs_no_processor());
        assert_eq!(response.deadline(), None);
    }

    #[test]
    fn a_suspicion_is_reported_with_all_explanations_and_has_no_other_effect() {
        let mut response = DeadlockResponse::new(2);
        let mut now = T0;
        let mut steps = response.on_idle_report(idle_report(), now);
        while !steps.contains(&ResponseAction::Order(ElementOrder::QueryWaits)) {
            let Some(ResponseAction::Order(ElementOrder::Sample { round, .. })) = steps.first()
            else {
                now = response.deadline().unwrap();
                steps = response.on_tick(now);
                continue;
            };
            // No deadlock can be proved.
            let activity = ActivitySample { unchanged: false, ..activity() };
            steps = response.on_round_done(*round, activity, now);
        }
        assert!(now >= T0 + SUSPICION_DELAY);
        assert!(response.suspects_hang(now) && !response.suspects_hang(now - SUSPICION_DELAY));
        assert_eq!(response.on_explanations(vec![wait(1)]), []);
        let steps = response.on_explanations(vec![wait(0)]);
        assert_eq!(steps, [ResponseAction::ReportSuspicion(vec![wait(0), wait(1)])]);
        assert_eq!(response.on_explanations(vec![wait(0)]), []);
        let busy = IdleSummary { activity: Activity::Busy, ..idle_report() };
        let _ = response.on_idle_report(busy, now);
        assert!(!response.suspects_hang(now + SUSPICION_DELAY), "the element continues");
        let placement = Placement::new(JobIncarnation(0), [("h0".to_owned(), None, 2)]);
        let lines = suspicion_report(JobId(7), "a.out", &[wait(0)], &placement);
        assert!(lines[0].contains("have waited for 30 s") && lines[0].contains("cannot prove"));
        assert!(lines[1].starts_with("node 0 waits for a message since 20 ms"), "{}", lines[1]);
    }

    #[test]
    fn every_process_is_reported_up_to_a_limit() {
        let hosts = ["h0", "h1"].map(|host| (host.to_owned(), None, 50));
        let placement = Placement::new(JobIncarnation(0), hosts);
        let mut waits: Vec<WaitState> = (0..100).map(wait).collect();
        waits[1].waiting_for = 3;
        let call = MpiCall::MPI_Recv as u32;
        waits[2].mpi_call = Some(MpiCallRecord { call, arguments: [0, 7, 0x4400_0000, 0] });
        let lines = deadlock_report(JobId(7), "a.out", &waits, &placement);
        assert_eq!(lines[0], "job 7: deadlock: no process of a.out can continue");
        assert_eq!(
            lines[1],
            "node 0 on host h0 waits for a message since 20 ms; \
             sent 3, the last to node 1; received 4"
        );
        assert!(lines[2].contains("waits in sc_barrier()"), "{}", lines[2]);
        let in_call = "waits in MPI_Recv(source 0, tag 7, MPI_COMM_WORLD) since 20 ms";
        assert!(lines[3].contains(in_call), "{}", lines[3]);
        assert_eq!(lines.len(), 66);
        assert_eq!(lines[65], "and 36 more like these");
        let lines = deadlock_report(JobId(7), "a.out", &waits[..64], &placement);
        assert_eq!(lines.len(), 65, "none is left out");
    }
}
