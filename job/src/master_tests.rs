use super::*;
use proptest::prelude::*;
use score_proto::exit_code::EXIT_DEADLOCK;
use score_proto::ids::{ElementIndex, JobHostId, JobId};
use score_proto::job_control::{ElementOrder, Remains, Status};
use score_proto::message::{
    ElementSpec, HostSpec, JobSpec, MpiStart, OsBytes, ProgramKind, StageSpec, Stream,
};
use score_proto::nodeset::NodeSet;
use score_proto::observation::{ActivitySample, IdleSummary, Metrics, SampleRound, WaitState};
use score_proto::peer_message::JobIncarnation;
use score_proto::server_message::ReportedStacks;
use score_proto::tool_command::{EventBody, MergedEvent};

const NODES: u32 = 4;
const FIRST: ElementIndex = ElementIndex::FIRST;
const SECOND: ElementIndex = ElementIndex(1);

fn job(shape: &[usize], kind: ProgramKind) -> JobMaster {
    job_of_commands(shape, kind, false)
}

fn job_of_commands(shape: &[usize], kind: ProgramKind, independent_nodes: bool) -> JobMaster {
    let word = || OsBytes(b"/bin/prog".to_vec());
    let element = || ElementSpec::new(word(), vec![word()], kind);
    let stage = |count: &usize| StageSpec { elements: (0..*count).map(|_| element()).collect() };
    let spec = JobSpec {
        hosts: vec![HostSpec::local(NODES / 2); 2],
        stages: shape.iter().map(stage).collect(),
        directory: OsBytes(b"/".to_vec()),
        independent_nodes,
        ..JobSpec::default()
    };
    let hosts = ["left", "right"].map(|name| (name.to_owned(), None, NODES / 2));
    let placement = Placement::new(JobIncarnation(0), hosts);
    JobMaster::begin(JobStart { job: JobId(7), secret: 1, spec, owner: None }, placement).0
}

/// A line for the user.
fn notice(level: Level, text: String) -> MasterAction {
    MasterAction::ToClient(JobAnswer::Notice { level, text })
}

const READY: Report = Report::Job(JobReport::Ready);
const DRAINED: Report = Report::Output(OutputReport::Drained);
const FINISHED: Report = Report::Job(JobReport::Finished { elapsed_ns: 5 });
const DRAIN: MasterAction = MasterAction::Order(Order::Job(JobOrder::Drain));

fn report(job: &mut JobMaster, report: Report) -> Vec<MasterAction> {
    job.on(MasterEvent::Report(report))
}

fn started(shape: &[usize], kind: ProgramKind) -> JobMaster {
    let mut job = job(shape, kind);
    let actions = report(&mut job, READY);
    assert_eq!(
        actions[0],
        MasterAction::ToClient(JobAnswer::Accepted { job: JobId(7), nodes: NODES, hosts: 2 })
    );
    assert_eq!(actions[1..], [MasterAction::Gang(GangRequest::Enter)]);
    assert_eq!(
        run(&mut job),
        [Order::Job(JobOrder::StartStage(0)), ordered_run()].map(MasterAction::Order)
    );
    job
}

fn run(job: &mut JobMaster) -> Vec<MasterAction> {
    job.on(MasterEvent::Run { idle_check_interval_us: 9, until: StopCondition::OnOrder })
}

fn ordered_run() -> Order {
    Order::Switch(SwitchOrder::Run {
        idle_check_interval_us: 9,
        stop_condition: StopCondition::OnOrder,
    })
}

fn leave_and_finish() -> [MasterAction; 2] {
    [MasterAction::Gang(GangRequest::Leave), MasterAction::Order(Order::Job(JobOrder::Finish))]
}

fn sampled(round: SampleRound, sample: ActivitySample) -> Report {
    ElementReport::SampleResult { round, sample }.of(FIRST)
}

fn ended(element: u32, nodes: std::ops::Range<u32>, code: u8) -> Report {
    let (nodes, status) = (nodes.into(), Status::Exited(code));
    ElementReport::Ended { nodes, status }.of(ElementIndex(element))
}

fn finished(code: u8) -> MasterAction {
    MasterAction::ToClient(JobAnswer::Finished(JobEnd { code, usage: Vec::new(), elapsed_ns: 5 }))
}

#[test]
fn stages_run_in_order_and_the_last_exit_code_is_used() {
    let mut job = started(&[2, 1], ProgramKind::Plain);
    assert_eq!(report(&mut job, ended(0, 0..4, 0)), []);
    assert_eq!(report(&mut job, ended(1, 0..2, 0)), []);
    assert_eq!(report(&mut job, ended(1, 2..4, 0)), [DRAIN]);
    assert_eq!(
        report(&mut job, DRAINED),
        [MasterAction::Order(Order::Job(JobOrder::StartStage(1)))]
    );
    report(&mut job, ended(0, 1..4, 0));
    assert_eq!(report(&mut job, ended(0, 0..1, 6)), [DRAIN]);
    assert_eq!(report(&mut job, DRAINED), leave_and_finish());
    assert_eq!(report(&mut job, FINISHED), [finished(6)]);
    assert_eq!(job.on(MasterEvent::FromClient(JobRequest::Kill)), []);
}

#[test]
fn no_stage_follows_a_failed_stage() {
    let mut job = started(&[1, 1], ProgramKind::Plain);
    let reason = "gone".to_owned();
    let failed = ElementReport::NotStarted { nodes: NodeSet::one(1), code: 127, reason }.of(FIRST);
    let text = "node 1: prog: gone".to_owned();
    let end = MasterAction::Order(ElementOrder::End.to(FIRST));
    assert_eq!(report(&mut job, failed), [notice(Level::Error, text), end]);
    for nodes in [0..1, 2..4] {
        report(&mut job, ElementReport::Skipped { nodes: nodes.into() }.of(FIRST));
    }
    assert_eq!(report(&mut job, DRAINED), leave_and_finish());
    assert_eq!(report(&mut job, FINISHED), [finished(127)]);
}

#[test]
fn a_kill_before_the_start_finishes_the_job_at_once() {
    let mut job = job(&[1], ProgramKind::Plain);
    let actions = job.on(MasterEvent::FromClient(JobRequest::Kill));
    assert_eq!(
        actions,
        [Order::Job(JobOrder::Kill), Order::Job(JobOrder::Finish)].map(MasterAction::Order)
    );
    assert_eq!(report(&mut job, READY), []);
    assert_eq!(report(&mut job, FINISHED), [finished(137)]);
}

#[test]
fn a_job_that_one_host_refuses_starts_on_no_host() {
    let mut job = job(&[1], ProgramKind::Plain);
    let refusal =
        || Report::Job(JobReport::Refused { code: 2, reason: "host right: no room".to_owned() });
    assert_eq!(report(&mut job, refusal()), [MasterAction::Order(Order::Job(JobOrder::Finish))]);
    assert_eq!(report(&mut job, refusal()), []);
    let reason = "host right: no room".to_owned();
    let actions = report(&mut job, Report::Job(JobReport::Finished { elapsed_ns: 0 }));
    assert_eq!(actions, [MasterAction::ToClient(JobAnswer::Refused { reason, code: 2 })]);
}

fn hosts_lost(hosts: std::ops::Range<u32>, reason: String) -> Report {
    Report::HostsLost { code: 137, hosts, remains: Remains::Processes, reason }
}

#[test]
fn a_lost_host_ends_its_nodes_and_the_job() {
    let mut job = started(&[2], ProgramKind::Plain);
    let reason = "host right is gone".to_owned();
    let actions = report(&mut job, hosts_lost(1..2, reason.clone()));
    let end = |element| MasterAction::Order(ElementOrder::End.to(ElementIndex(element)));
    assert_eq!(actions, [notice(Level::Error, reason), end(0), end(1)]);
    report(&mut job, ended(0, 0..2, 0));
    let skipped = ElementReport::Skipped { nodes: (0..2).into() }.of(SECOND);
    assert_eq!(report(&mut job, skipped), [DRAIN]);
    assert_eq!(report(&mut job, DRAINED), leave_and_finish());
    assert_eq!(report(&mut job, FINISHED), [finished(137)]);
}

#[test]
fn each_flush_is_answered_at_the_host_that_requested_it() {
    let mut job = started(&[1], ProgramKind::Score);
    for (ours, (host, token)) in (0..).zip([(JobHostId(1), 8), (JobHostId(0), 8)]) {
        let actions = report(&mut job, Report::Output(OutputReport::Flush { host, token }));
        assert_eq!(actions, [MasterAction::ToClient(JobAnswer::Flush(ours))]);
    }
    let answer = job.on(MasterEvent::FromClient(JobRequest::Flushed(0)));
    assert_eq!(
        answer,
        [MasterAction::Order(Order::Job(JobOrder::Flushed { host: JobHostId(1), token: 8 }))]
    );
    assert_eq!(job.on(MasterEvent::FromClient(JobRequest::Flushed(0))), []);
}

// Promise of `a_job_has_stopped_when_every_remaining_host_has`.
#[test]
fn processes_are_started_in_a_slice_of_their_job_only() {
    let mut job = started(&[1, 1], ProgramKind::Plain);
    let stop = Order::Switch(SwitchOrder::Stop { switch_seq: SwitchSeq(2) });
    let stopped = job.on(MasterEvent::Stop { switch_seq: SwitchSeq(2) });
    assert_eq!(stopped, [MasterAction::Order(stop)]);
    let actions =
        report(&mut job, Report::Switch(SwitchReport::Stopped { switch_seq: SwitchSeq(2) }));
    assert_eq!(actions, [MasterAction::Gang(GangRequest::Stopped(SwitchSeq(2)))]);
    // These nodes had ended before the stop.
    report(&mut job, ended(0, 0..4, 0));
    assert_eq!(report(&mut job, DRAINED), []);
    assert_eq!(
        run(&mut job),
        [Order::Job(JobOrder::StartStage(1)), ordered_run()].map(MasterAction::Order)
    );
    assert_eq!(run(&mut job), [MasterAction::Order(ordered_run())]);
}

#[test]
fn a_job_that_is_suspended_before_it_begins_waits_for_its_user() {
    let mut job = job(&[1], ProgramKind::Plain);
    assert_eq!(job.on(MasterEvent::FromClient(JobRequest::Suspend)), []);
    assert_eq!(report(&mut job, READY).len(), 1);
    assert_eq!(
        job.on(MasterEvent::FromClient(JobRequest::Resume)),
        [MasterAction::Gang(GangRequest::Enter)]
    );
    let hold = job.on(MasterEvent::FromClient(JobRequest::Suspend));
    assert_eq!(hold, [MasterAction::Gang(GangRequest::Hold(HoldReason::User))]);
    let resumed = job.on(MasterEvent::FromClient(JobRequest::Resume));
    assert_eq!(resumed, [MasterAction::Gang(GangRequest::Release(HoldReason::User))]);
}

#[test]
fn a_failure_while_the_hosts_finish_sets_the_code_of_a_job_without_failure() {
    for (own_code, end_code) in [(0, 9), (6, 6)] {
        let mut job = started(&[1], ProgramKind::Plain);
        report(&mut job, ended(0, 0..NODES, own_code));
        assert_eq!(report(&mut job, DRAINED), leave_and_finish());
        for code in [9, 10] {
            let reason = "no space left".to_owned();
            report(&mut job, Report::Job(JobReport::JobFailed { code, reason }));
        }
        assert_eq!(report(&mut job, FINISHED), [finished(end_code)]);
    }
}

#[test]
fn a_job_that_is_killed_before_its_first_slice_ends_without_a_wait() {
    let mut job = job(&[2], ProgramKind::Plain);
    report(&mut job, READY);
    let actions = job.on(MasterEvent::FromClient(JobRequest::Kill));
    assert_eq!(actions[0], MasterAction::Order(Order::Job(JobOrder::Kill)));
    assert_eq!(actions[1..], leave_and_finish());
    assert_eq!(run(&mut job), [MasterAction::Order(ordered_run())]);
    assert_eq!(report(&mut job, FINISHED), [finished(137)]);
}

#[test]
fn slice_requests_of_processes_reach_the_scheduler() {
    let mut job = started(&[1], ProgramKind::Score);
    let actions = report(&mut job, ElementReport::Sleep { seconds: 7 }.of(FIRST));
    assert_eq!(actions, [MasterAction::Gang(GangRequest::Sleep(7))]);
    assert_eq!(
        report(&mut job, ElementReport::Yield.of(FIRST)),
        [MasterAction::Gang(GangRequest::Yield)]
    );
    // A job must run to handle a signal, even if its output is blocked.
    let signal = job.on(MasterEvent::FromClient(JobRequest::Signal(15)));
    assert_eq!(signal[1..], [MasterAction::Gang(GangRequest::Release(HoldReason::OutputBlocked))]);
}

#[test]
fn a_question_is_sent_to_the_host_of_its_node_and_the_answer_to_the_asking_host() {
    let mut job = started(&[1], ProgramKind::Mpi(MpiStart::Pmix));
    let asker = JobHostId(0);
    let order = |order: ElementOrder| [MasterAction::Order(order.to(FIRST))];
    for (node, host) in [(2, 1), (3, 1), (1, 0)] {
        let actions = report(&mut job, ElementReport::ModexRequest { asker, node }.of(FIRST));
        let host = JobHostId(host);
        assert_eq!(actions, order(ElementOrder::ModexRequest { host, asker, node }));
    }
    assert_eq!(report(&mut job, ElementReport::ModexRequest { asker, node: NODES }.of(FIRST)), []);
    let (node, entries) = (3, Some(vec![7]));
    let answer = ElementReport::ModexAnswer { asker, node, entries: entries.clone() };
    let actions = report(&mut job, answer.clone().of(FIRST));
    assert_eq!(actions, order(ElementOrder::ModexAnswer { asker, node, entries }));
    assert_eq!(report(&mut job, answer.of(SECOND)), [], "there is no such element");
}

fn any_event() -> impl Strategy<Value = MasterEvent> {
    let nodes = || (0..5u32, 0..5u32).prop_map(|(from, count)| NodeSet::from(from..from + count));
    let status =
        prop_oneof![any::<u8>().prop_map(Status::Exited), (1..65i32).prop_map(Status::Signaled)];
    let text = || "why".to_owned();
    let element_report = prop_oneof![
        4 => nodes().prop_map(|nodes| ElementReport::Attached { nodes, addresses: Vec::new() }),
        4 => nodes().prop_map(|nodes| ElementReport::InBarrier { nodes }),
        4 => (nodes(), 0..9_000_usize).prop_map(|(nodes, len)| {
            ElementReport::InFence { nodes, entries: vec![0; len] }
        }),
        4 => (nodes(), status).prop_map(|(nodes, status)| ElementReport::Ended { nodes, status }),
        1 => nodes().prop_map(|nodes| ElementReport::Skipped { nodes }),
        1 => nodes().prop_map(move |nodes| {
            ElementReport::NotStarted { nodes, code: 126, reason: text() }
        }),
        1 => any::<i32>().prop_map(|code| ElementReport::Exit { code }),
        1 => (0..5u32, any::<i32>()).prop_map(move |(node, signal)| {
            ElementReport::Inspect { node, signal, text: text() }
        }),
        2 => (nodes(), 1..32i32).prop_map(|(nodes, signal)| {
            ElementReport::Faulted { nodes, signal }
        }),
        1 => (0..5u32).prop_map(move |node| {
            ElementReport::ProtocolViolation { node, violation: text() }
        }),
        1 => Just(ElementReport::Failed { code: 1, reason: text() }),
    ];
    let report = prop_oneof![
        18 => (0..3u32, element_report).prop_map(|(index, report)| report.of(ElementIndex(index))),
        1 => (0..3u32, 0..3u32)
            .prop_map(move |(a, b)| hosts_lost(a..b, text())),
        1 => Just(DRAINED),
        1 => Just(READY),
        1 => Just(Report::Job(JobReport::JobFailed { code: 1, reason: text() })),
        1 => Just(Report::Job(JobReport::Refused { code: 2, reason: text() })),
    ];
    let down = prop_oneof![
        (1..65i32).prop_map(JobRequest::Signal),
        Just(JobRequest::Kill),
        Just(JobRequest::Suspend),
        Just(JobRequest::Resume),
        (0..3u64).prop_map(JobRequest::Flushed),
    ];
    let gang = prop_oneof![
        Just(MasterEvent::Run { idle_check_interval_us: 1, until: StopCondition::OnOrder }),
        any::<u64>().prop_map(|stop| MasterEvent::Stop { switch_seq: SwitchSeq(stop) }),
        Just(MasterEvent::GangStopped),
    ];
    prop_oneof![
        12 => report.prop_map(MasterEvent::Report),
        1 => down.prop_map(MasterEvent::FromClient),
        2 => gang,
    ]
}

proptest! {
    /// No sequence of events makes a job panic. After every process has ended and the hosts have
    /// carried out their orders, the job ends exactly once.
    #[test]
    fn every_job_ends_exactly_once(
        events in proptest::collection::vec(any_event(), 0..60),
        stages in proptest::collection::vec(1usize..3, 1..4),
    ) {
        let mut job = job(&stages, ProgramKind::Score);
        let mut ends = 0;
        let mut count = |actions: Vec<MasterAction>| {
            let is_end = |action: &&MasterAction| {
                matches!(
                    action,
                    MasterAction::ToClient(
                        JobAnswer::Finished(_) | JobAnswer::Refused { .. }
                    )
                )
            };
            ends += actions.iter().filter(is_end).count();
            ends
        };
        for event in events {
            count(job.on(event));
        }
        count(report(&mut job, READY));
        for _ in 0..=stages.len() {
            for element in 0..2 {
                count(report(&mut job, ended(element, 0..NODES, 0)));
            }
            count(report(&mut job, DRAINED));
        }
        count(report(&mut job, Report::Job(JobReport::Finished { elapsed_ns: 0 })));
        prop_assert_eq!(count(Vec::new()), 1);
    }
}

#[test]
fn the_end_of_a_node_is_sent_to_all_hosts_while_its_element_communicates() {
    let mut job = started(&[1], ProgramKind::Score);
    let attached = |nodes: std::ops::Range<u32>| {
        ElementReport::Attached { nodes: nodes.into(), addresses: Vec::new() }.of(FIRST)
    };
    report(&mut job, attached(0..2));
    report(&mut job, attached(2..4));
    let order = ElementOrder::NodesExited { nodes: (1..2).into() }.to(FIRST);
    assert_eq!(report(&mut job, ended(0, 1..2, 0)), [MasterAction::Order(order)]);
    let rest = report(&mut job, ended(0, 0..4, 0));
    assert_eq!(rest, [DRAIN]);
}

fn gang_requests(actions: &[MasterAction]) -> Vec<GangRequest> {
    let request = |action: &MasterAction| {
        if let MasterAction::Gang(request) = action { Some(*request) } else { None }
    };
    actions.iter().filter_map(request).collect()
}

fn round_of(actions: &[MasterAction]) -> SampleRound {
    let round = |action: &MasterAction| match action {
        MasterAction::Order(Order::Element {
            order: ElementOrder::Sample { round, .. }, ..
        }) => Some(*round),
        _ => None,
    };
    actions.iter().find_map(round).unwrap_or_else(|| panic!("{actions:?}"))
}

/// All processes of element 0 are idle, as reported after this stop.
fn idle_after(stop: u64) -> Report {
    let stop_seq = SwitchSeq(stop);
    let summary = IdleSummary { stop_seq, ..IdleSummary::EMPTY };
    Report::Switch(SwitchReport::IdleSummary { element: FIRST, summary })
}

/// The job is held for the confirming round of element 0.
fn held_for_inspection(job: &mut JobMaster) -> SampleRound {
    let mut round = round_of(&report(job, idle_after(0)));
    let activity = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    for _ in 0..2 {
        round = round_of(&report(job, sampled(round, activity)));
    }
    let actions = report(job, sampled(round, activity));
    assert_eq!(gang_requests(&actions), [GangRequest::Hold(HoldReason::Inspection)]);
    report(job, Report::Switch(SwitchReport::Stopped { switch_seq: SwitchSeq(1) }));
    round_of(&job.on(MasterEvent::GangStopped))
}

/// All processes of an element are idle. During the inspection of the element, one process can
/// still continue. Returns the requests to the gang scheduler after both steps.
fn idle_without_deadlock(
    job: &mut JobMaster,
    element: u32,
) -> (Vec<GangRequest>, Vec<GangRequest>) {
    let element = ElementIndex(element);
    let quiet = IdleSummary { stop_seq: SwitchSeq(0), ..IdleSummary::EMPTY };
    let idle = report(job, Report::Switch(SwitchReport::IdleSummary { element, summary: quiet }));
    let activity = ActivitySample { node_count: NODES, idle: false, ..ActivitySample::EMPTY };
    let seen = ElementReport::SampleResult { round: round_of(&idle), sample: activity }.of(element);
    (gang_requests(&idle), gang_requests(&report(job, seen)))
}

#[test]
fn the_job_is_idle_only_when_all_its_elements_are() {
    let mut job = started(&[2], ProgramKind::Score);
    assert_eq!(idle_without_deadlock(&mut job, 0), (vec![], vec![]));
    assert_eq!(
        idle_without_deadlock(&mut job, 1),
        (vec![], vec![GangRequest::Idle]),
        "not during the inspection of the element"
    );
    let quiet = IdleSummary { sent: 1, ..IdleSummary::EMPTY };
    let quiet = SwitchReport::IdleSummary { element: SECOND, summary: quiet };
    let in_flight = report(&mut job, Report::Switch(quiet));
    assert_eq!(gang_requests(&in_flight), [GangRequest::Busy], "a message is under way");
    assert_eq!(idle_without_deadlock(&mut job, 1), (vec![], vec![GangRequest::Idle]));
}

#[test]
fn a_job_that_was_stopped_is_idle_when_its_hosts_report_idle_again() {
    let mut job = started(&[1], ProgramKind::Score);
    assert_eq!(idle_without_deadlock(&mut job, 0).1, [GangRequest::Idle]);
    let stopped = job.on(MasterEvent::Stop { switch_seq: SwitchSeq(7) });
    assert_eq!(gang_requests(&stopped), [GangRequest::Busy]);
    assert_eq!(gang_requests(&run(&mut job)), []);
    assert_eq!(gang_requests(&report(&mut job, idle_after(0))), [], "sent before the stop");
    assert_eq!(gang_requests(&report(&mut job, idle_after(7))), [GangRequest::Idle]);
    // The job stops by its timer.
    let stopped =
        report(&mut job, Report::Switch(SwitchReport::Stopped { switch_seq: SwitchSeq(9) }));
    assert_eq!(gang_requests(&stopped), [GangRequest::Stopped(SwitchSeq(9)), GangRequest::Busy]);
    assert_eq!(gang_requests(&run(&mut job)), []);
    assert_eq!(gang_requests(&report(&mut job, idle_after(9))), [GangRequest::Idle]);
}

#[test]
fn an_inspection_cut_short_by_a_slice_end_is_repeated_in_the_next() {
    let mut job = started(&[1], ProgramKind::Score);
    let round = round_of(&report(&mut job, idle_after(0)));
    let stopped =
        report(&mut job, Report::Switch(SwitchReport::Stopped { switch_seq: SwitchSeq(9) }));
    assert_eq!(gang_requests(&stopped), [GangRequest::Stopped(SwitchSeq(9))]);
    let activity = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    assert_eq!(report(&mut job, sampled(round, activity)), [], "an earlier slice");
    run(&mut job);
    assert!(round_of(&report(&mut job, idle_after(9))) > round);
}

/// The report of the event that each process of an element waits for.
fn all_waits() -> ElementReport {
    let wait = |node| WaitState {
        node,
        waiting_for: 1,
        idle_ms: 1,
        sent: 0,
        received: 0,
        last_destination: None,
        last_source: None,
        mpi_call: None,
    };
    ElementReport::WaitStates { waits: (0..NODES).map(wait).collect() }
}

#[test]
fn a_deadlock_is_reported_and_the_job_continues_to_receive_its_signal() {
    let mut job = started(&[1], ProgramKind::Score);
    let round = held_for_inspection(&mut job);
    let activity = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    let actions = report(&mut job, sampled(round, activity));
    assert_eq!(gang_requests(&actions), [GangRequest::Release(HoldReason::Inspection)]);
    let actions = report(&mut job, all_waits().of(FIRST));
    assert_eq!(actions.len(), 3 + NODES as usize, "{actions:?}");
    let Some(MasterAction::Order(Order::Element {
        order: ElementOrder::ToolCommand(command), ..
    })) = actions.get(1 + NODES as usize)
    else {
        panic!("{actions:?}")
    };
    let ranks = command.nodes.clone();
    let lost = MergedEvent { command: command.id, ranks, body: EventBody::Lost };
    let actions = report(&mut job, ElementReport::ToolEvent(lost).of(FIRST));
    assert!(matches!(
        &actions[..],
        [
            MasterAction::ToClient(JobAnswer::Stacks(ReportedStacks::Part(_))),
            MasterAction::ToClient(JobAnswer::Stacks(ReportedStacks::End { .. })),
            MasterAction::Order(Order::Element { order: ElementOrder::Broadcast { .. }, .. }),
        ]
    ));
    let nodes = (0..NODES).into();
    let status = Status::Signaled(signal::SIGHUP);
    assert_eq!(
        report(&mut job, ElementReport::Ended { nodes, status }.of(FIRST)),
        [DRAIN],
        "expected after SIGHUP"
    );
    report(&mut job, DRAINED);
    assert_eq!(report(&mut job, FINISHED), [finished(EXIT_DEADLOCK)]);
}

#[test]
fn a_report_of_stacks_that_a_stage_has_not_completed_does_not_affect_the_next_stage() {
    let mut job = started(&[1, 1], ProgramKind::Score);
    let round = held_for_inspection(&mut job);
    let sample = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    report(&mut job, sampled(round, sample));
    report(&mut job, all_waits().of(FIRST));
    report(&mut job, ElementReport::Exit { code: 0 }.of(FIRST));
    assert_eq!(report(&mut job, ended(0, 0..NODES, 0)), [DRAIN]);
    let next = report(&mut job, DRAINED);
    assert_eq!(next.last(), Some(&MasterAction::Order(Order::Job(JobOrder::StartStage(1)))));
    // The user has not seen the stacks of this stage.
    let fault = ElementReport::Faulted { nodes: (0..NODES).into(), signal: 11 };
    let actions = report(&mut job, fault.of(FIRST));
    let Some(MasterAction::Order(Order::Element { order, .. })) = actions.first() else {
        panic!("{actions:?}")
    };
    assert!(matches!(order, ElementOrder::ToolCommand(_)), "{order:?}");
}

#[test]
fn a_deadlocked_job_is_ended_if_it_does_not_exit_after_the_signal() {
    let mut job = started(&[1], ProgramKind::Score);
    let now = MonotonicTime::from_secs(100);
    job.set_time(now);
    assert_eq!(job.deadline(), None);
    let round = held_for_inspection(&mut job);
    let activity = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    report(&mut job, sampled(round, activity));
    let explained_at = job.deadline().unwrap();
    assert!(explained_at > now);
    job.set_time(explained_at);
    assert!(!job.on(MasterEvent::Tick).is_empty(), "no host explains what its processes wait for");
    let read_at = job.deadline().unwrap();
    job.set_time(read_at);
    assert!(!job.on(MasterEvent::Tick).is_empty(), "no host reads their stacks");
    let ends_at = read_at + crate::deadlock_response::SIGHUP_GRACE;
    assert_eq!(job.deadline(), Some(ends_at));
    job.set_time(ends_at);
    let end = MasterAction::Order(ElementOrder::End.to(FIRST));
    assert_eq!(job.on(MasterEvent::Tick), [end]);
    assert_eq!(report(&mut job, ended(0, 0..NODES, 0)), [DRAIN]);
    assert_eq!(job.deadline(), None);
}

#[test]
fn a_broken_pipe_is_an_ordinary_end_for_all_programs_of_a_pipeline_but_the_last() {
    let mut job = started(&[2], ProgramKind::Plain);
    let broken_pipe = |element| {
        let status = Status::Signaled(signal::SIGPIPE);
        ElementReport::Ended { nodes: (0..NODES).into(), status }.of(ElementIndex(element))
    };
    assert_eq!(report(&mut job, broken_pipe(0)), []);
    let text = "node 0 of prog was killed by SIGPIPE".to_owned();
    let actions = report(&mut job, broken_pipe(1));
    assert_eq!(actions[0], notice(Level::Error, text));
    report(&mut job, DRAINED);
    let code = exit_code::of_signal(signal::SIGPIPE);
    assert_eq!(report(&mut job, FINISHED), [finished(code)]);
}

#[test]
fn an_element_that_ends_during_inspection_releases_the_job() {
    let mut job = started(&[2], ProgramKind::Score);
    held_for_inspection(&mut job);
    let nodes = (0..NODES).into();
    let status = Status::Signaled(signal::SIGKILL);
    let actions = report(&mut job, ElementReport::Ended { nodes, status }.of(FIRST));
    assert_eq!(gang_requests(&actions), [GangRequest::Release(HoldReason::Inspection)]);
}

#[test]
fn scrun_sends_no_more_of_a_program_than_the_hosts_have_requested() {
    let mut job = job(&[1], ProgramKind::Plain);
    let (hash, offset) = ([7; 32], 0);
    let chunk = |len| JobRequest::FileChunk { hash, offset, bytes: vec![1; len] };
    assert_eq!(job.on(MasterEvent::FromClient(chunk(1))), []);
    let request = Report::FileRequest(FileRequest { hash, offset, length: 100 });
    let message = JobAnswer::FileRequest { hash, offset, length: 100 };
    assert_eq!(report(&mut job, request), [MasterAction::ToClient(message)]);
    let order = Order::Program(ProgramAnswer::Chunk { hash, offset, bytes: vec![1; 70] });
    assert_eq!(job.on(MasterEvent::FromClient(chunk(70))), [MasterAction::Order(order)]);
    assert_eq!(job.on(MasterEvent::FromClient(chunk(31))), []);
}

#[test]
fn hosts_learn_the_period_of_metrics_when_they_are_ready_and_when_it_changes() {
    let subscribe = |period_ms| MasterEvent::FromClient(JobRequest::SubscribeMetrics(period_ms));
    let order =
        |period_ms| MasterAction::Order(Order::Job(JobOrder::SubscribeMetrics { period_ms }));
    let mut job = job(&[1], ProgramKind::Plain);
    assert_eq!(job.on(subscribe(500)), [], "the hosts prepare");
    assert_eq!(report(&mut job, READY)[1], order(500));
    assert_eq!(report(&mut job, READY), [], "they are ready once");
    assert_eq!(job.on(MasterEvent::SubscribeMetrics(Subscriber::Page, 200)), [order(200)]);
    assert_eq!(job.on(subscribe(300)), []);
    let metrics = || Metrics { hosts: Vec::new(), nodes: Vec::new() };
    let mut measured = || report(&mut job, Report::Job(JobReport::Metrics(metrics())));
    let (to_scrun, to_others) =
        (MasterAction::ToClient(JobAnswer::Metrics(metrics())), MasterAction::Metrics(metrics()));
    assert_eq!(measured(), [to_scrun, to_others.clone()]);
    assert_eq!(job.on(subscribe(0)), []);
    let mut measured = || report(&mut job, Report::Job(JobReport::Metrics(metrics())));
    assert_eq!(measured(), [to_others]);
    assert_eq!(job.on(MasterEvent::SubscribeMetrics(Subscriber::Page, 0)), [order(0)]);
    assert_eq!(report(&mut job, Report::Job(JobReport::Metrics(metrics()))), []);
}

#[test]
fn input_of_scrun_reaches_the_hosts_and_their_output_reaches_scrun() {
    let mut job = started(&[1], ProgramKind::Plain);
    let orders = [
        (JobRequest::Stdin(vec![1]), Order::Job(JobOrder::Stdin(vec![1]))),
        (JobRequest::StdinEof, Order::Job(JobOrder::StdinEof)),
        (JobRequest::OutputAck(9), Order::OutputAck(9)),
        (
            JobRequest::OutputClosed(Stream::Stdout),
            Order::Job(JobOrder::OutputClosed(Stream::Stdout)),
        ),
    ];
    for (request, order) in orders {
        assert_eq!(job.on(MasterEvent::FromClient(request)), [MasterAction::Order(order)]);
    }
    let text = || "low on space".to_owned();
    let answers = [
        (JobReport::StdinWindow(7), JobAnswer::StdinWindow(7)),
        (JobReport::StdinClosed, JobAnswer::StdinClosed),
        (
            JobReport::Notice { level: Level::Info, text: text() },
            JobAnswer::Notice { level: Level::Info, text: text() },
        ),
    ];
    for (job_report, answer) in answers {
        assert_eq!(report(&mut job, Report::Job(job_report)), [MasterAction::ToClient(answer)]);
    }
    // The process ends because the output is closed, so nothing is reported.
    let status = Status::Signaled(signal::SIGPIPE);
    let broken_pipe = ElementReport::Ended { nodes: (0..1).into(), status }.of(FIRST);
    assert_eq!(report(&mut job, broken_pipe), [MasterAction::Order(ElementOrder::End.to(FIRST))]);
}

#[test]
fn a_violation_names_its_program_and_ends_the_job() {
    let mut job = started(&[2], ProgramKind::Plain);
    let violation = "it claims to be another node".to_owned();
    let violation = ElementReport::ProtocolViolation { node: 3, violation }.of(SECOND);
    let actions = report(&mut job, violation);
    let text = "node 3 of prog: it claims to be another node; the job is ended".to_owned();
    let end = |element| MasterAction::Order(ElementOrder::End.to(ElementIndex(element)));
    assert_eq!(actions, [notice(Level::Error, text), end(0), end(1)]);
    // The stage has no such element.
    assert_eq!(report(&mut job, ended(2, 0..NODES, 0)), []);
}

#[test]
fn independent_commands_outlive_a_host_and_the_job_has_its_code() {
    let mut job = job_of_commands(&[1], ProgramKind::Plain, true);
    report(&mut job, READY);
    run(&mut job);
    assert_eq!(report(&mut job, ended(0, 0..1, 3)), [], "other commands go on");
    let reason = "host right is gone".to_owned();
    let lost = hosts_lost(1..2, reason.clone());
    assert_eq!(report(&mut job, lost), [notice(Level::Error, reason)]);
    assert_eq!(report(&mut job, ended(0, 1..2, 0)), [DRAIN]);
    assert_eq!(report(&mut job, DRAINED), leave_and_finish());
    assert_eq!(report(&mut job, FINISHED), [finished(137)]);
}
