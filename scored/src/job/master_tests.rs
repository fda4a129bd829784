use super::*;
use proptest::prelude::*;
use score_proto::exit_code::EXIT_DEADLOCK;
use score_proto::job_control::Status;
use score_proto::message::{ElementSpec, HostSpec, Input, Output, StageSpec};
use score_proto::observation::{ActivitySample, IdleSummary, WaitState};

const NODES: u32 = 4;

fn job(shape: &[usize], kind: ProgramKind) -> JobMaster {
    let word = || OsBytes(b"/bin/prog".to_vec());
    let element = || ElementSpec {
        path: word(),
        args: vec![word()],
        input: Input::Default,
        output: Output::Default,
        kind,
        digest: None,
    };
    let stage = |count: &usize| StageSpec { elements: (0..*count).map(|_| element()).collect() };
    let spec = JobSpec {
        hosts: vec![HostSpec::local(NODES / 2); 2],
        stages: shape.iter().map(stage).collect(),
        environment: Vec::new(),
        directory: OsBytes(b"/".to_vec()),
        umask: 0,
        options: Vec::new(),
        statistics: false,
        reads_stdin: false,
        independent_nodes: false,
        networks: Vec::new(),
        network_sets: 0,
    };
    let hosts = ["left", "right"].map(|name| (name.to_owned(), None, NODES / 2));
    let placement = Placement::new(0, hosts);
    JobMaster::begin(JobStart { job: 7, secret: 1, spec, owner: None }, placement).0
}

fn report(job: &mut JobMaster, report: Report) -> Vec<MasterAction> {
    job.on(MasterEvent::Report(report))
}

fn started(shape: &[usize], kind: ProgramKind) -> JobMaster {
    let mut job = job(shape, kind);
    let actions = report(&mut job, Report::Ready);
    assert_eq!(
        actions[0],
        MasterAction::ToClient(ServerMessage::Accepted { job: 7, nodes: NODES, hosts: 2 })
    );
    assert_eq!(actions[1..], [MasterAction::Gang(GangRequest::Enter)]);
    assert_eq!(run(&mut job, 1), [Order::StartStage(0), ordered_run(1)].map(MasterAction::Order));
    job
}

fn run(job: &mut JobMaster, switch_seq: u64) -> Vec<MasterAction> {
    job.on(MasterEvent::Run {
        switch_seq,
        idle_check_interval_us: 9,
        until: StopCondition::OnOrder,
    })
}

fn ordered_run(switch_seq: u64) -> Order {
    Order::Run { switch_seq, idle_check_interval_us: 9, stop_condition: StopCondition::OnOrder }
}

fn leave_and_finish() -> [MasterAction; 2] {
    [MasterAction::Gang(GangRequest::Leave), MasterAction::Order(Order::Finish)]
}

fn ended(element: u32, nodes: std::ops::Range<u32>, code: u8) -> Report {
    Report::Ended { element, nodes: nodes.into(), status: Status::Exited(code) }
}

fn finished(code: u8) -> MasterAction {
    MasterAction::ToClient(ServerMessage::Finished(JobEnd {
        code,
        usage: Vec::new(),
        elapsed_ns: 5,
    }))
}

#[test]
fn stages_follow_each_other_and_the_last_code_counts() {
    let mut job = started(&[2, 1], ProgramKind::Plain);
    assert_eq!(report(&mut job, ended(0, 0..4, 0)), []);
    assert_eq!(report(&mut job, ended(1, 0..2, 0)), []);
    assert_eq!(report(&mut job, ended(1, 2..4, 0)), [MasterAction::Order(Order::Drain)]);
    assert_eq!(report(&mut job, Report::Drained), [MasterAction::Order(Order::StartStage(1))]);
    report(&mut job, ended(0, 1..4, 0));
    assert_eq!(report(&mut job, ended(0, 0..1, 6)), [MasterAction::Order(Order::Drain)]);
    assert_eq!(report(&mut job, Report::Drained), leave_and_finish());
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(6)]);
    assert_eq!(job.on(MasterEvent::FromClient(JobRequest::Kill)), []);
}

#[test]
fn a_failed_stage_is_the_last() {
    let mut job = started(&[1, 1], ProgramKind::Plain);
    let reason = "gone".to_owned();
    let failed = Report::NotStarted { element: 0, nodes: NodeSet::one(1), code: 127, reason };
    let text = "node 1: prog: gone".to_owned();
    let end = MasterAction::Order(Order::EndElement { element: 0 });
    assert_eq!(report(&mut job, failed), [notice(Level::Error, text), end]);
    for nodes in [0..1, 2..4] {
        report(&mut job, Report::Skipped { element: 0, nodes: nodes.into() });
    }
    assert_eq!(report(&mut job, Report::Drained), leave_and_finish());
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(127)]);
}

#[test]
fn a_kill_before_anything_runs_finishes_at_once() {
    let mut job = job(&[1], ProgramKind::Plain);
    let actions = job.on(MasterEvent::FromClient(JobRequest::Kill));
    assert_eq!(actions, [Order::Kill, Order::Finish].map(MasterAction::Order));
    assert_eq!(report(&mut job, Report::Ready), []);
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(137)]);
}

#[test]
fn a_job_refused_by_one_host_starts_on_none() {
    let mut job = job(&[1], ProgramKind::Plain);
    let refusal = || Report::Refused { code: 2, reason: "host right: no room".to_owned() };
    assert_eq!(report(&mut job, refusal()), [MasterAction::Order(Order::Finish)]);
    assert_eq!(report(&mut job, refusal()), []);
    let reason = "host right: no room".to_owned();
    let actions = report(&mut job, Report::Finished { elapsed_ns: 0 });
    assert_eq!(actions, [MasterAction::ToClient(ServerMessage::Refused { reason, code: 2 })]);
}

#[test]
fn a_lost_host_ends_its_nodes_and_the_job() {
    let mut job = started(&[2], ProgramKind::Plain);
    let reason = "host right is gone".to_owned();
    let hosts_lost = Report::HostsLost { code: 137, hosts: 1..2, reason: reason.clone() };
    let actions = report(&mut job, hosts_lost);
    let end = |element| MasterAction::Order(Order::EndElement { element });
    assert_eq!(actions, [notice(Level::Error, reason), end(0), end(1)]);
    report(&mut job, ended(0, 0..2, 0));
    let skipped = Report::Skipped { element: 1, nodes: (0..2).into() };
    assert_eq!(report(&mut job, skipped), [MasterAction::Order(Order::Drain)]);
    assert_eq!(report(&mut job, Report::Drained), leave_and_finish());
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(137)]);
}

#[test]
fn flushes_are_answered_where_they_came_from() {
    let mut job = started(&[1], ProgramKind::Score);
    for (ours, (host, token)) in (0..).zip([(1, 8), (0, 8)]) {
        let actions = report(&mut job, Report::Flush { host, token });
        assert_eq!(actions, [MasterAction::ToClient(ServerMessage::Flush(ours))]);
    }
    let answer = job.on(MasterEvent::FromClient(JobRequest::Flushed(0)));
    assert_eq!(answer, [MasterAction::Order(Order::Flushed { host: 1, token: 8 })]);
    assert_eq!(job.on(MasterEvent::FromClient(JobRequest::Flushed(0))), []);
}

#[test]
fn processes_are_started_in_a_slice_of_their_job_only() {
    let mut job = started(&[1, 1], ProgramKind::Plain);
    let stop = Order::Stop { switch_seq: 2, is_lasting: false };
    let stopped = job.on(MasterEvent::Stop { switch_seq: 2, lasting: false });
    assert_eq!(stopped, [MasterAction::Order(stop)]);
    let actions = report(&mut job, Report::Stopped { switch_seq: 2 });
    assert_eq!(actions, [MasterAction::Gang(GangRequest::Stopped(2))]);
    // Nodes that had ended before the stop.
    report(&mut job, ended(0, 0..4, 0));
    assert_eq!(report(&mut job, Report::Drained), []);
    assert_eq!(run(&mut job, 3), [Order::StartStage(1), ordered_run(3)].map(MasterAction::Order));
    assert_eq!(run(&mut job, 4), [MasterAction::Order(ordered_run(4))]);
}

#[test]
fn a_job_that_is_suspended_before_it_begins_waits_for_its_user() {
    let mut job = job(&[1], ProgramKind::Plain);
    assert_eq!(job.on(MasterEvent::FromClient(JobRequest::Suspend)), []);
    assert_eq!(report(&mut job, Report::Ready).len(), 1);
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
fn a_job_that_is_killed_before_its_first_slice_has_nothing_to_wait_for() {
    let mut job = job(&[2], ProgramKind::Plain);
    report(&mut job, Report::Ready);
    let actions = job.on(MasterEvent::FromClient(JobRequest::Kill));
    assert_eq!(actions[0], MasterAction::Order(Order::Kill));
    assert_eq!(actions[1..], leave_and_finish());
    assert_eq!(run(&mut job, 1), [MasterAction::Order(ordered_run(1))]);
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(137)]);
}

#[test]
fn slice_requests_of_processes_reach_the_scheduler() {
    let mut job = started(&[1], ProgramKind::Score);
    let actions = report(&mut job, Report::Sleep { element: 0, seconds: 7 });
    assert_eq!(actions, [MasterAction::Gang(GangRequest::Sleep(7))]);
    assert_eq!(
        report(&mut job, Report::Yield { element: 0 }),
        [MasterAction::Gang(GangRequest::Yield)]
    );
    // A job that is to handle a signal must run, even if its output is not read.
    let signal = job.on(MasterEvent::FromClient(JobRequest::Signal(15)));
    assert_eq!(signal[1..], [MasterAction::Gang(GangRequest::Release(HoldReason::OutputBlocked))]);
}

fn any_event() -> impl Strategy<Value = MasterEvent> {
    let nodes = || (0..5u32, 0..5u32).prop_map(|(from, count)| NodeSet::from(from..from + count));
    let status =
        prop_oneof![any::<u8>().prop_map(Status::Exited), (1..65i32).prop_map(Status::Signaled)];
    let text = || "why".to_owned();
    let report = prop_oneof![
        4 => (0..3u32, nodes()).prop_map(|(element, nodes)| {
            Report::Attached { element, nodes, addresses: Vec::new() }
        }),
        4 => (0..3u32, nodes()).prop_map(|(element, nodes)| Report::InBarrier { element, nodes }),
        4 => (0..3u32, nodes(), status)
            .prop_map(|(element, nodes, status)| Report::Ended { element, nodes, status }),
        1 => (0..3u32, nodes()).prop_map(|(element, nodes)| Report::Skipped { element, nodes }),
        1 => (0..3u32, nodes()).prop_map(move |(element, nodes)| {
            Report::NotStarted { element, nodes, code: 126, reason: text() }
        }),
        1 => (0..3u32, any::<i32>()).prop_map(|(element, code)| Report::Exit { element, code }),
        1 => (0..3u32, any::<i32>())
            .prop_map(move |(element, signal)| Report::Inspect { element, signal, text: text() }),
        1 => (0..3u32, 0..5u32)
            .prop_map(move |(element, node)| {
                Report::ProtocolViolation { element, node, violation: text() }
            }),
        1 => (0..3u32).prop_map(move |element| Report::ElementFailed { element, reason: text() }),
        1 => (0..3u32, 0..3u32)
            .prop_map(move |(a, b)| Report::HostsLost { code: 1, hosts: a..b, reason: text() }),
        1 => Just(Report::Drained),
        1 => Just(Report::Ready),
        1 => Just(Report::JobFailed { code: 1, reason: text() }),
        1 => Just(Report::Refused { code: 2, reason: text() }),
    ];
    let down = prop_oneof![
        (1..65i32).prop_map(JobRequest::Signal),
        Just(JobRequest::Kill),
        Just(JobRequest::Suspend),
        Just(JobRequest::Resume),
        (0..3u64).prop_map(JobRequest::Flushed),
    ];
    let gang = prop_oneof![
        any::<u64>().prop_map(|switch_seq| MasterEvent::Run {
            switch_seq,
            idle_check_interval_us: 1,
            until: StopCondition::OnOrder
        }),
        any::<u64>().prop_map(|switch_seq| MasterEvent::Stop { switch_seq, lasting: false }),
        Just(MasterEvent::GangStopped),
    ];
    prop_oneof![
        12 => report.prop_map(MasterEvent::Report),
        1 => down.prop_map(MasterEvent::FromClient),
        2 => gang,
    ]
}

proptest! {
    /// No sequence of events makes a job panic. Once every process has ended and the hosts carry
    /// out their orders, the job ends exactly once.
    #[test]
    fn every_job_comes_to_one_end(
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
                        ServerMessage::Finished(_) | ServerMessage::Refused { .. }
                    )
                )
            };
            ends += actions.iter().filter(is_end).count();
            ends
        };
        for event in events {
            count(job.on(event));
        }
        count(report(&mut job, Report::Ready));
        for _ in 0..=stages.len() {
            for element in 0..2 {
                count(report(&mut job, ended(element, 0..NODES, 0)));
            }
            count(report(&mut job, Report::Drained));
        }
        count(report(&mut job, Report::Finished { elapsed_ns: 0 }));
        prop_assert_eq!(count(Vec::new()), 1);
    }
}

#[test]
fn the_end_of_a_node_is_sent_to_all_hosts_while_its_element_communicates() {
    let mut job = started(&[1], ProgramKind::Score);
    let attached = |nodes: std::ops::Range<u32>| Report::Attached {
        element: 0,
        nodes: nodes.into(),
        addresses: Vec::new(),
    };
    report(&mut job, attached(0..2));
    report(&mut job, attached(2..4));
    let order = Order::NodesExited { element: 0, nodes: (1..2).into() };
    assert_eq!(report(&mut job, ended(0, 1..2, 0)), [MasterAction::Order(order)]);
    let rest = report(&mut job, ended(0, 0..4, 0));
    assert_eq!(rest, [MasterAction::Order(Order::Drain)]);
}

fn gang_requests(actions: &[MasterAction]) -> Vec<GangRequest> {
    let request = |action: &MasterAction| {
        if let MasterAction::Gang(request) = action { Some(*request) } else { None }
    };
    actions.iter().filter_map(request).collect()
}

fn round_of(actions: &[MasterAction]) -> u64 {
    let round = |action: &MasterAction| match action {
        MasterAction::Order(Order::Sample { round, .. }) => Some(*round),
        _ => None,
    };
    actions.iter().find_map(round).unwrap_or_else(|| panic!("{actions:?}"))
}

/// The job is held for the confirming round of element 0.
fn held_for_inspection(job: &mut JobMaster) -> u64 {
    let quiet = IdleSummary { idle: true, ..IdleSummary::EMPTY };
    let mut round = round_of(&report(job, Report::IdleSummary { element: 0, summary: quiet }));
    let activity = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    for _ in 0..2 {
        round =
            round_of(&report(job, Report::SampleResult { element: 0, round, sample: activity }));
    }
    let actions = report(job, Report::SampleResult { element: 0, round, sample: activity });
    assert_eq!(gang_requests(&actions), [GangRequest::Hold(HoldReason::Inspection)]);
    report(job, Report::Stopped { switch_seq: 1 });
    round_of(&job.on(MasterEvent::GangStopped))
}

/// All processes of an element are idle. It is inspected, and one of them can still continue.
/// Returns the requests to the gang scheduler after both steps.
fn idle_without_deadlock(
    job: &mut JobMaster,
    element: u32,
) -> (Vec<GangRequest>, Vec<GangRequest>) {
    let quiet = IdleSummary { idle: true, ..IdleSummary::EMPTY };
    let idle = report(job, Report::IdleSummary { element, summary: quiet });
    let activity = ActivitySample { node_count: NODES, idle: false, ..ActivitySample::EMPTY };
    let seen = Report::SampleResult { element, round: round_of(&idle), sample: activity };
    (gang_requests(&idle), gang_requests(&report(job, seen)))
}

#[test]
fn the_job_is_idle_only_when_all_its_elements_are() {
    let mut job = started(&[2], ProgramKind::Score);
    assert_eq!(idle_without_deadlock(&mut job, 0), (vec![], vec![]));
    assert_eq!(
        idle_without_deadlock(&mut job, 1),
        (vec![], vec![GangRequest::Idle]),
        "not while it is looked at"
    );
    let quiet = IdleSummary { idle: true, sent: 1, ..IdleSummary::EMPTY };
    let in_flight = report(&mut job, Report::IdleSummary { element: 1, summary: quiet });
    assert_eq!(gang_requests(&in_flight), [GangRequest::Busy], "a message is under way");
    assert_eq!(idle_without_deadlock(&mut job, 1), (vec![], vec![GangRequest::Idle]));
}

#[test]
fn a_job_that_was_stopped_is_idle_when_its_hosts_report_idle_again() {
    let mut job = started(&[1], ProgramKind::Score);
    let quiet = IdleSummary { idle: true, ..IdleSummary::EMPTY };
    let idle = Report::IdleSummary { element: 0, summary: quiet };
    assert_eq!(idle_without_deadlock(&mut job, 0).1, [GangRequest::Idle]);
    let stopped = job.on(MasterEvent::Stop { switch_seq: 7, lasting: false });
    assert_eq!(gang_requests(&stopped), [GangRequest::Busy]);
    assert_eq!(gang_requests(&run(&mut job, 8)), []);
    assert_eq!(gang_requests(&report(&mut job, idle.clone())), [GangRequest::Idle]);
    // The job stops by its timer.
    let stopped = report(&mut job, Report::Stopped { switch_seq: 9 });
    assert_eq!(gang_requests(&stopped), [GangRequest::Stopped(9), GangRequest::Busy]);
    assert_eq!(gang_requests(&run(&mut job, 10)), []);
    assert_eq!(gang_requests(&report(&mut job, idle)), [GangRequest::Idle]);
}

#[test]
fn an_inspection_cut_short_by_a_slice_end_is_repeated_in_the_next() {
    let mut job = started(&[1], ProgramKind::Score);
    let quiet = IdleSummary { idle: true, ..IdleSummary::EMPTY };
    let idle = Report::IdleSummary { element: 0, summary: quiet };
    let round = round_of(&report(&mut job, idle.clone()));
    let stopped = report(&mut job, Report::Stopped { switch_seq: 9 });
    assert_eq!(gang_requests(&stopped), [GangRequest::Stopped(9)]);
    let activity = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    assert_eq!(
        report(&mut job, Report::SampleResult { element: 0, round, sample: activity }),
        [],
        "of before"
    );
    run(&mut job, 10);
    assert!(round_of(&report(&mut job, idle)) > round);
}

#[test]
fn a_deadlock_is_reported_and_the_job_continues_to_receive_its_signal() {
    let mut job = started(&[1], ProgramKind::Score);
    let round = held_for_inspection(&mut job);
    let activity = ActivitySample { node_count: NODES, ..ActivitySample::EMPTY };
    let actions = report(&mut job, Report::SampleResult { element: 0, round, sample: activity });
    assert_eq!(gang_requests(&actions), [GangRequest::Release(HoldReason::Inspection)]);
    let wait = |node| WaitState {
        node,
        waiting_for: 1,
        idle_ms: 1,
        sent: 0,
        received: 0,
        last_destination: None,
        last_source: None,
    };
    let waits = (0..NODES).map(wait).collect();
    let actions = report(&mut job, Report::WaitStates { element: 0, waits });
    assert_eq!(actions.len(), 2 + NODES as usize, "{actions:?}");
    assert!(matches!(actions.last(), Some(MasterAction::Order(Order::Broadcast { .. }))));
    let nodes = (0..NODES).into();
    let status = Status::Signaled(libc::SIGHUP);
    assert_eq!(
        report(&mut job, Report::Ended { element: 0, nodes, status }),
        [MasterAction::Order(Order::Drain)],
        "expected after SIGHUP"
    );
    report(&mut job, Report::Drained);
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(EXIT_DEADLOCK)]);
}

#[test]
fn an_element_that_ends_during_inspection_releases_the_job() {
    let mut job = started(&[2], ProgramKind::Score);
    held_for_inspection(&mut job);
    let nodes = (0..NODES).into();
    let status = Status::Signaled(libc::SIGKILL);
    let actions = report(&mut job, Report::Ended { element: 0, nodes, status });
    assert_eq!(gang_requests(&actions), [GangRequest::Release(HoldReason::Inspection)]);
}

#[test]
fn scrun_sends_no_more_of_a_program_than_the_hosts_have_requested() {
    let mut job = job(&[1], ProgramKind::Plain);
    let (hash, offset) = ([7; 32], 0);
    let chunk = |len| JobRequest::FileChunk { hash, offset, bytes: vec![1; len] };
    assert_eq!(job.on(MasterEvent::FromClient(chunk(1))), []);
    let request = Report::FileRequest { hash, offset, length: 100 };
    let message = ServerMessage::FileRequest { hash, offset, length: 100 };
    assert_eq!(report(&mut job, request), [MasterAction::ToClient(message)]);
    let order = Order::FileChunk { hash, offset, bytes: vec![1; 70] };
    assert_eq!(job.on(MasterEvent::FromClient(chunk(70))), [MasterAction::Order(order)]);
    assert_eq!(job.on(MasterEvent::FromClient(chunk(31))), []);
}
