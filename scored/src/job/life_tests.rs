use super::*;
use proptest::prelude::*;
use score_proto::message::{ElementSpec, HostSpec, Input, Output, StageSpec};
use score_proto::order::Status;
use score_proto::sight::{Quiet, Seen, Wait};

const NODES: u32 = 4;

fn job(shape: &[usize], kind: Kind) -> Job {
    let word = || OsBytes(b"/bin/prog".to_vec());
    let element = || ElementSpec {
        path: word(),
        args: vec![word()],
        input: Input::Default,
        output: Output::Default,
        kind,
        content: None,
    };
    let stage = |count: &usize| StageSpec { elements: (0..*count).map(|_| element()).collect() };
    let spec = JobSpec {
        hosts: vec![HostSpec::this(NODES / 2); 2],
        stages: shape.iter().map(stage).collect(),
        environment: Vec::new(),
        directory: OsBytes(b"/".to_vec()),
        umask: 0,
        options: Vec::new(),
        statistics: false,
        stdin: false,
        separate: false,
        networks: Vec::new(),
        sets: 0,
    };
    let hosts = ["left", "right"].map(|name| (name.to_owned(), None, NODES / 2));
    let placement = Placement::new(0, hosts);
    Job::begin(Begin { job: 7, secret: 1, spec, owner: None }, placement).0
}

fn report(job: &mut Job, report: Report) -> Vec<Action> {
    job.on(Event::Report(report))
}

fn started(shape: &[usize], kind: Kind) -> Job {
    let mut job = job(shape, kind);
    let actions = report(&mut job, Report::Ready);
    assert_eq!(actions[0], Action::Up(Up::Accepted { job: 7, nodes: NODES, hosts: 2 }));
    assert_eq!(actions[1..], [Action::Gang(Bid::Enter)]);
    assert_eq!(run(&mut job, 1), [Order::StartStage(0), ordered_run(1)].map(Action::Order));
    job
}

fn run(job: &mut Job, switch: u64) -> Vec<Action> {
    job.on(Event::Run { switch, pace_us: 9, until: Until::Ordered })
}

fn ordered_run(switch: u64) -> Order {
    Order::Run { switch, pace_us: 9, until: Until::Ordered }
}

fn leaves() -> [Action; 2] {
    [Action::Gang(Bid::Leave), Action::Order(Order::Finish)]
}

fn ended(element: u32, nodes: std::ops::Range<u32>, code: u8) -> Report {
    Report::Ended { element, nodes: nodes.into(), status: Status::Exited(code) }
}

fn finished(code: u8) -> Action {
    Action::Up(Up::Finished(JobEnd { code, usage: Vec::new(), elapsed_ns: 5 }))
}

#[test]
fn stages_follow_each_other_and_the_last_code_counts() {
    let mut job = started(&[2, 1], Kind::Plain);
    assert_eq!(report(&mut job, ended(0, 0..4, 0)), []);
    assert_eq!(report(&mut job, ended(1, 0..2, 0)), []);
    assert_eq!(report(&mut job, ended(1, 2..4, 0)), [Action::Order(Order::Drain)]);
    assert_eq!(report(&mut job, Report::Drained), [Action::Order(Order::StartStage(1))]);
    report(&mut job, ended(0, 1..4, 0));
    assert_eq!(report(&mut job, ended(0, 0..1, 6)), [Action::Order(Order::Drain)]);
    assert_eq!(report(&mut job, Report::Drained), leaves());
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(6)]);
    assert_eq!(job.on(Event::Down(Down::Kill)), []);
}

#[test]
fn a_failed_stage_is_the_last() {
    let mut job = started(&[1, 1], Kind::Plain);
    let why = "gone".to_owned();
    let failed = Report::NotStarted { element: 0, nodes: NodeSet::one(1), code: 127, why };
    let text = "node 1: prog: gone".to_owned();
    let end = Action::Order(Order::End { element: 0 });
    assert_eq!(report(&mut job, failed), [notice(Level::Error, text), end]);
    for nodes in [0..1, 2..4] {
        report(&mut job, Report::Skipped { element: 0, nodes: nodes.into() });
    }
    assert_eq!(report(&mut job, Report::Drained), leaves());
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(127)]);
}

#[test]
fn a_kill_before_anything_runs_finishes_at_once() {
    let mut job = job(&[1], Kind::Plain);
    let actions = job.on(Event::Down(Down::Kill));
    assert_eq!(actions, [Order::Kill, Order::Finish].map(Action::Order));
    assert_eq!(report(&mut job, Report::Ready), []);
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(137)]);
}

#[test]
fn what_one_host_refuses_no_host_starts() {
    let mut job = job(&[1], Kind::Plain);
    let refusal = || Report::Refused { code: 2, reason: "host right: no room".to_owned() };
    assert_eq!(report(&mut job, refusal()), [Action::Order(Order::Finish)]);
    assert_eq!(report(&mut job, refusal()), []);
    let reason = "host right: no room".to_owned();
    let actions = report(&mut job, Report::Finished { elapsed_ns: 0 });
    assert_eq!(actions, [Action::Up(Up::Refused { reason, code: 2 })]);
}

#[test]
fn a_host_that_goes_takes_its_nodes_along_and_ends_the_job() {
    let mut job = started(&[2], Kind::Plain);
    let reason = "host right is gone".to_owned();
    let gone = Report::HostsGone { code: 137, hosts: 1..2, reason: reason.clone() };
    let actions = report(&mut job, gone);
    let end = |element| Action::Order(Order::End { element });
    assert_eq!(actions, [notice(Level::Error, reason), end(0), end(1)]);
    report(&mut job, ended(0, 0..2, 0));
    let skipped = Report::Skipped { element: 1, nodes: (0..2).into() };
    assert_eq!(report(&mut job, skipped), [Action::Order(Order::Drain)]);
    assert_eq!(report(&mut job, Report::Drained), leaves());
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(137)]);
}

#[test]
fn flushes_are_answered_where_they_came_from() {
    let mut job = started(&[1], Kind::Score);
    for (ours, (host, token)) in (0..).zip([(1, 8), (0, 8)]) {
        let actions = report(&mut job, Report::Flush { host, token });
        assert_eq!(actions, [Action::Up(Up::Flush(ours))]);
    }
    let answer = job.on(Event::Down(Down::Flushed(0)));
    assert_eq!(answer, [Action::Order(Order::Flushed { host: 1, token: 8 })]);
    assert_eq!(job.on(Event::Down(Down::Flushed(0))), []);
}

#[test]
fn processes_are_started_in_a_slice_of_their_job_only() {
    let mut job = started(&[1, 1], Kind::Plain);
    let stop = Order::Stop { switch: 2, lasting: false };
    let stopped = job.on(Event::Stop { switch: 2, lasting: false });
    assert_eq!(stopped, [Action::Order(stop)]);
    let told = report(&mut job, Report::Stopped { switch: 2 });
    assert_eq!(told, [Action::Gang(Bid::Stopped(2))]);
    // What had ended before it was stopped.
    report(&mut job, ended(0, 0..4, 0));
    assert_eq!(report(&mut job, Report::Drained), []);
    assert_eq!(run(&mut job, 3), [Order::StartStage(1), ordered_run(3)].map(Action::Order));
    assert_eq!(run(&mut job, 4), [Action::Order(ordered_run(4))]);
}

#[test]
fn a_job_that_is_suspended_before_it_begins_waits_for_its_user() {
    let mut job = job(&[1], Kind::Plain);
    assert_eq!(job.on(Event::Down(Down::Suspend)), []);
    assert_eq!(report(&mut job, Report::Ready).len(), 1);
    assert_eq!(job.on(Event::Down(Down::Resume)), [Action::Gang(Bid::Enter)]);
    let hold = job.on(Event::Down(Down::Suspend));
    assert_eq!(hold, [Action::Gang(Bid::Hold(Why::User))]);
    let go_on = job.on(Event::Down(Down::Resume));
    assert_eq!(go_on, [Action::Gang(Bid::Release(Why::User))]);
}

#[test]
fn a_job_that_is_killed_before_its_first_slice_has_nothing_to_wait_for() {
    let mut job = job(&[2], Kind::Plain);
    report(&mut job, Report::Ready);
    let actions = job.on(Event::Down(Down::Kill));
    assert_eq!(actions[0], Action::Order(Order::Kill));
    assert_eq!(actions[1..], leaves());
    assert_eq!(run(&mut job, 1), [Action::Order(ordered_run(1))]);
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(137)]);
}

#[test]
fn what_processes_say_of_their_slices_reaches_the_scheduler() {
    let mut job = started(&[1], Kind::Score);
    let told = report(&mut job, Report::Sleep { element: 0, seconds: 7 });
    assert_eq!(told, [Action::Gang(Bid::Sleep(7))]);
    assert_eq!(report(&mut job, Report::Yield { element: 0 }), [Action::Gang(Bid::Yield)]);
    // Who is to act on a signal must run, though nobody reads what it has said.
    let signal = job.on(Event::Down(Down::Signal(15)));
    assert_eq!(signal[1..], [Action::Gang(Bid::Release(Why::Output))]);
}

fn any_event() -> impl Strategy<Value = Event> {
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
            Report::NotStarted { element, nodes, code: 126, why: text() }
        }),
        1 => (0..3u32, any::<i32>()).prop_map(|(element, code)| Report::Exit { element, code }),
        1 => (0..3u32, any::<i32>())
            .prop_map(move |(element, signal)| Report::Inspect { element, signal, text: text() }),
        1 => (0..3u32, 0..5u32)
            .prop_map(move |(element, node)| Report::Garbage { element, node, what: text() }),
        1 => (0..3u32).prop_map(move |element| Report::Broken { element, reason: text() }),
        1 => (0..3u32, 0..3u32)
            .prop_map(move |(a, b)| Report::HostsGone { code: 1, hosts: a..b, reason: text() }),
        1 => Just(Report::Drained),
        1 => Just(Report::Ready),
        1 => Just(Report::Lost { code: 1, reason: text() }),
        1 => Just(Report::Refused { code: 2, reason: text() }),
    ];
    let down = prop_oneof![
        (1..65i32).prop_map(Down::Signal),
        Just(Down::Kill),
        Just(Down::Suspend),
        Just(Down::Resume),
        (0..3u64).prop_map(Down::Flushed),
    ];
    let gang = prop_oneof![
        any::<u64>().prop_map(|switch| Event::Run { switch, pace_us: 1, until: Until::Ordered }),
        any::<u64>().prop_map(|switch| Event::Stop { switch, lasting: false }),
        Just(Event::Held),
    ];
    prop_oneof![12 => report.prop_map(Event::Report), 1 => down.prop_map(Event::Down), 2 => gang]
}

proptest! {
    /// Whatever comes in whatever order, a job never panics; and once every process has ended and
    /// the hosts do what they are told, it comes to one end.
    #[test]
    fn every_job_comes_to_one_end(
        events in proptest::collection::vec(any_event(), 0..60),
        stages in proptest::collection::vec(1usize..3, 1..4),
    ) {
        let mut job = job(&stages, Kind::Score);
        let mut ends = 0;
        let mut count = |actions: Vec<Action>| {
            let is_end = |action: &&Action| {
                matches!(action, Action::Up(Up::Finished(_) | Up::Refused { .. }))
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
fn a_node_that_has_ended_is_told_to_all_hosts_while_others_of_its_element_communicate() {
    let mut job = started(&[1], Kind::Score);
    let attached = |nodes: std::ops::Range<u32>| Report::Attached {
        element: 0,
        nodes: nodes.into(),
        addresses: Vec::new(),
    };
    report(&mut job, attached(0..2));
    report(&mut job, attached(2..4));
    let gone = Order::Gone { element: 0, nodes: (1..2).into() };
    assert_eq!(report(&mut job, ended(0, 1..2, 0)), [Action::Order(gone)]);
    let rest = report(&mut job, ended(0, 0..4, 0));
    assert_eq!(rest, [Action::Order(Order::Drain)]);
}

fn actions_of_the_gang(actions: &[Action]) -> Vec<Bid> {
    let bid = |action: &Action| if let Action::Gang(bid) = action { Some(*bid) } else { None };
    actions.iter().filter_map(bid).collect()
}

fn look(actions: &[Action]) -> u64 {
    let round = |action: &Action| match action {
        Action::Order(Order::Look { round, .. }) => Some(*round),
        _ => None,
    };
    actions.iter().find_map(round).unwrap_or_else(|| panic!("{actions:?}"))
}

/// Element 0 stands still for its last look.
fn held_for_a_look(job: &mut Job) -> u64 {
    let quiet = Quiet { idle: true, ..Quiet::NOTHING };
    let mut round = look(&report(job, Report::Quiet { element: 0, quiet }));
    let seen = Seen { nodes: NODES, ..Seen::NOTHING };
    for _ in 0..2 {
        round = look(&report(job, Report::Seen { element: 0, round, seen }));
    }
    let actions = report(job, Report::Seen { element: 0, round, seen });
    assert_eq!(actions_of_the_gang(&actions), [Bid::Hold(Why::Check)]);
    report(job, Report::Stopped { switch: 1 });
    look(&job.on(Event::Held))
}

/// All processes of an element are idle; it is looked at, and somebody may still go on. What the
/// gang scheduler hears of both.
fn idle_and_alive(job: &mut Job, element: u32) -> (Vec<Bid>, Vec<Bid>) {
    let quiet = Quiet { idle: true, ..Quiet::NOTHING };
    let idle = report(job, Report::Quiet { element, quiet });
    let seen = Seen { nodes: NODES, idle: false, ..Seen::NOTHING };
    let seen = Report::Seen { element, round: look(&idle), seen };
    (actions_of_the_gang(&idle), actions_of_the_gang(&report(job, seen)))
}

#[test]
fn all_elements_together_have_nothing_to_do_or_not() {
    let mut job = started(&[2], Kind::Score);
    assert_eq!(idle_and_alive(&mut job, 0), (vec![], vec![]));
    assert_eq!(idle_and_alive(&mut job, 1), (vec![], vec![Bid::Idle]), "not while it is looked at");
    let quiet = Quiet { idle: true, sent: 1, ..Quiet::NOTHING };
    let under_way = report(&mut job, Report::Quiet { element: 1, quiet });
    assert_eq!(actions_of_the_gang(&under_way), [Bid::Busy], "a message is under way");
    assert_eq!(idle_and_alive(&mut job, 1), (vec![], vec![Bid::Idle]));
}

#[test]
fn a_job_that_was_stopped_is_idle_when_its_hosts_have_looked_anew() {
    let mut job = started(&[1], Kind::Score);
    let quiet = Quiet { idle: true, ..Quiet::NOTHING };
    let idle = Report::Quiet { element: 0, quiet };
    assert_eq!(idle_and_alive(&mut job, 0).1, [Bid::Idle]);
    let stopped = job.on(Event::Stop { switch: 7, lasting: false });
    assert_eq!(actions_of_the_gang(&stopped), [Bid::Busy]);
    assert_eq!(actions_of_the_gang(&run(&mut job, 8)), []);
    assert_eq!(actions_of_the_gang(&report(&mut job, idle.clone())), [Bid::Idle]);
    // By itself.
    let stopped = report(&mut job, Report::Stopped { switch: 9 });
    assert_eq!(actions_of_the_gang(&stopped), [Bid::Stopped(9), Bid::Busy]);
    assert_eq!(actions_of_the_gang(&run(&mut job, 10)), []);
    assert_eq!(actions_of_the_gang(&report(&mut job, idle)), [Bid::Idle]);
}

#[test]
fn a_slice_that_ends_during_a_look_has_it_looked_again_in_the_next() {
    let mut job = started(&[1], Kind::Score);
    let quiet = Quiet { idle: true, ..Quiet::NOTHING };
    let idle = Report::Quiet { element: 0, quiet };
    let round = look(&report(&mut job, idle.clone()));
    let stopped = report(&mut job, Report::Stopped { switch: 9 });
    assert_eq!(actions_of_the_gang(&stopped), [Bid::Stopped(9)]);
    let seen = Seen { nodes: NODES, ..Seen::NOTHING };
    assert_eq!(report(&mut job, Report::Seen { element: 0, round, seen }), [], "of before");
    run(&mut job, 10);
    assert!(look(&report(&mut job, idle)) > round);
}

#[test]
fn a_deadlock_is_told_and_the_job_goes_on_to_hear_its_signal() {
    let mut job = started(&[1], Kind::Score);
    let round = held_for_a_look(&mut job);
    let seen = Seen { nodes: NODES, ..Seen::NOTHING };
    let actions = report(&mut job, Report::Seen { element: 0, round, seen });
    assert_eq!(actions_of_the_gang(&actions), [Bid::Release(Why::Check)]);
    let wait = |node| Wait {
        node,
        waiting: 1,
        idle_ms: 1,
        sent: 0,
        received: 0,
        last_to: None,
        last_from: None,
    };
    let waits = (0..NODES).map(wait).collect();
    let actions = report(&mut job, Report::Waits { element: 0, waits });
    assert_eq!(actions.len(), 2 + NODES as usize, "{actions:?}");
    assert!(matches!(actions.last(), Some(Action::Order(Order::Broadcast { .. }))));
    let nodes = (0..NODES).into();
    let status = Status::Signaled(libc::SIGHUP);
    assert_eq!(
        report(&mut job, Report::Ended { element: 0, nodes, status }),
        [Action::Order(Order::Drain)],
        "they were told to"
    );
    report(&mut job, Report::Drained);
    assert_eq!(report(&mut job, Report::Finished { elapsed_ns: 5 }), [finished(hang::CODE)]);
}

#[test]
fn who_ends_while_it_is_looked_at_does_not_keep_the_others_standing() {
    let mut job = started(&[2], Kind::Score);
    held_for_a_look(&mut job);
    let nodes = (0..NODES).into();
    let status = Status::Signaled(libc::SIGKILL);
    let actions = report(&mut job, Report::Ended { element: 0, nodes, status });
    assert_eq!(actions_of_the_gang(&actions), [Bid::Release(Why::Check)]);
}
