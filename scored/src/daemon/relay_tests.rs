use super::*;
use score_proto::message::{CHUNK, Stream};
use score_proto::nodeset::NodeSet;
use score_proto::order::Status;

/// Host 0 of three: two hosts below.
fn root() -> Relay {
    let hosts = (0..3).map(|host| (format!("h{host}"), None, 2));
    let relay = Relay::new(Placement::new(0, hosts));
    assert_eq!(relay.below().collect::<Vec<_>>(), [(1, 1), (2, 2)]);
    relay
}

fn output(text: &str, unfinished: bool) -> Report {
    let bytes = text.as_bytes().to_vec();
    Report::Output { host: 0, stream: Stream::Stdout, bytes, unfinished }
}

fn ups(relay: &mut Relay) -> Vec<Report> {
    let up = |out| if let Out::Up(report) = out { Some(report) } else { None };
    relay.take().into_iter().filter_map(up).collect()
}

#[test]
fn every_host_is_told_which_one_it_is() {
    let mut relay = root();
    let placement = relay.placement().clone();
    relay.ordered(Order::Place(placement));
    let owns: Vec<_> = relay
        .take()
        .into_iter()
        .map(|out| match out {
            Out::Down(source, Order::Place(placement)) => (source, placement.own),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(owns, [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn what_is_for_one_host_goes_there_only() {
    let mut relay = root();
    relay.ordered(Order::Flushed { host: 2, token: 5 });
    relay.ordered(Order::StdinEof);
    let first = Out::Down(2, Order::Flushed { host: 2, token: 5 });
    assert_eq!(relay.take(), [first, Out::Down(SHEPHERD, Order::StdinEof)]);
}

#[test]
fn a_job_has_stopped_when_every_host_that_is_left_has() {
    let mut relay = root();
    let stop = |relay: &mut Relay, switch| relay.ordered(Order::Stop { switch, lasting: false });
    stop(&mut relay, 4);
    relay.reported(0, Report::Stopped { switch: 4 });
    relay.reported(2, Report::Stopped { switch: 4 });
    assert_eq!(ups(&mut relay), []);
    assert_eq!(relay.moving().map(|hosts| hosts.start).collect::<Vec<_>>(), [1]);
    relay.gone(1);
    assert_eq!(ups(&mut relay), [Report::Stopped { switch: 4 }]);
    // Late, and of an order that another has followed.
    stop(&mut relay, 6);
    relay.reported(0, Report::Stopped { switch: 6 });
    relay.ordered(Order::Run { switch: 7, pace_us: 0, until: Until::Ordered });
    relay.reported(2, Report::Stopped { switch: 6 });
    assert_eq!(ups(&mut relay), []);
    assert_eq!(relay.moving().count(), 0);
    stop(&mut relay, 8);
    relay.reported(2, Report::Stopped { switch: 6 });
    assert_eq!(relay.moving().collect::<Vec<_>>(), [0..1, 2..3]);
    for host in [0, 2] {
        relay.reported(host, Report::Stopped { switch: 8 });
    }
    assert_eq!(ups(&mut relay), [Report::Stopped { switch: 8 }]);
}

#[test]
fn hosts_that_stop_by_themselves_are_waited_for_without_an_order() {
    let mut relay = root();
    let run = |switch, until| Order::Run { switch, pace_us: 0, until };
    relay.ordered(run(3, Until::Passed { us: 500, switch: 4 }));
    [0, 2].into_iter().for_each(|host| relay.reported(host, Report::Stopped { switch: 4 }));
    // A new pace changes nothing.
    relay.ordered(run(5, Until::Same));
    assert_eq!(ups(&mut relay), []);
    relay.reported(1, Report::Stopped { switch: 4 });
    assert_eq!(ups(&mut relay), [Report::Stopped { switch: 4 }]);
    // It was about to stop when that was called off.
    relay.ordered(run(6, Until::Passed { us: 500, switch: 7 }));
    relay.ordered(run(8, Until::Ordered));
    (0..3).for_each(|host| relay.reported(host, Report::Stopped { switch: 7 }));
    assert_eq!(ups(&mut relay), []);
}

#[test]
fn blocked_output_is_seen() {
    let mut relay = root();
    let chunks = HOP_WINDOW as usize / CHUNK;
    for _ in 0..chunks {
        relay.reported(1, output(&"x".repeat(CHUNK), false));
    }
    assert!(!relay.is_blocked());
    relay.reported(1, output("x", false));
    assert!(relay.is_blocked());
    relay.ordered(Order::OutputTaken(1));
    assert!(!relay.is_blocked());
}

#[test]
fn equal_reports_of_all_hosts_go_up_as_one() {
    let mut relay = root();
    for source in 0..3 {
        let first = source as u32 * 2;
        let nodes = NodeSet::from(first..first + 2);
        relay.reported(source, Report::Ended { element: 0, nodes, status: Status::Exited(0) });
    }
    let nodes = NodeSet::from(0..6);
    assert_eq!(ups(&mut relay), [Report::Ended { element: 0, nodes, status: Status::Exited(0) }]);
}

#[test]
fn after_a_stop_all_hosts_have_to_be_idle_anew() {
    let mut relay = root();
    let run = |switch, until| Order::Run { switch, pace_us: 1500, until };
    (0..3).for_each(|source| relay.reported(source, quiet(true, 1)));
    assert_eq!(ups(&mut relay), [quiet(true, 3)]);
    relay.ordered(run(1, Until::Same));
    relay.reported(1, quiet(true, 1));
    assert_eq!(ups(&mut relay), [], "that is known");
    // By an order, then by themselves.
    relay.ordered(Order::Stop { switch: 2, lasting: false });
    relay.ordered(run(3, Until::Passed { us: 500, switch: 4 }));
    relay.reported(0, quiet(true, 1));
    relay.reported(1, quiet(true, 1));
    assert_eq!(ups(&mut relay), []);
    relay.reported(2, quiet(true, 1));
    assert_eq!(ups(&mut relay), [quiet(true, 3)], "once more");
    (0..3).for_each(|host| relay.reported(host, Report::Stopped { switch: 4 }));
    assert_eq!(ups(&mut relay), [Report::Stopped { switch: 4 }]);
    relay.ordered(run(5, Until::Ordered));
    (0..3).for_each(|source| relay.reported(source, quiet(true, 1)));
    assert_eq!(ups(&mut relay), [quiet(true, 3)], "once more");
    relay.ordered(Order::Stop { switch: 6, lasting: false });
    relay.ordered(run(7, Until::Ordered));
    relay.reported(2, quiet(false, 0));
    assert_eq!(ups(&mut relay), [quiet(false, 0)], "who works need not wait for the others");
}

fn quiet(idle: bool, sent: u64) -> Report {
    Report::Quiet { element: 0, quiet: Quiet { idle, sent, received: sent, remote: 0 } }
}

#[test]
fn all_are_idle_when_every_host_has_said_so() {
    let mut relay = root();
    relay.reported(0, quiet(true, 1));
    relay.reported(1, quiet(true, 2));
    assert_eq!(ups(&mut relay), [quiet(false, 0)]);
    relay.reported(2, quiet(true, 3));
    assert_eq!(ups(&mut relay), [quiet(true, 6)]);
    relay.reported(2, quiet(true, 3));
    assert_eq!(ups(&mut relay), [], "nothing has changed");
    relay.reported(1, quiet(true, 4));
    assert_eq!(ups(&mut relay), [quiet(true, 8)]);
    relay.reported(0, quiet(false, 0));
    relay.reported(1, quiet(false, 0));
    assert_eq!(ups(&mut relay), [quiet(false, 0)]);
    relay.ordered(Order::StartStage(1));
    relay.take();
    relay.reported(0, quiet(true, 0));
    assert_eq!(ups(&mut relay), [quiet(false, 0)], "the others have said nothing in this stage");
}

#[test]
fn a_look_is_answered_when_all_hosts_have_and_behind_what_they_said_before() {
    let seen = |round, nodes| {
        let seen = Seen { nodes, sent: nodes.into(), ..Seen::NOTHING };
        Report::Seen { element: 0, round, seen }
    };
    let mut relay = root();
    let nodes = NodeSet::one(3);
    relay.reported(0, seen(1, 2));
    relay.reported(1, seen(1, 2));
    relay.reported(1, seen(1, 2));
    assert_eq!(ups(&mut relay), []);
    relay.reported(2, Report::InBarrier { element: 0, nodes: nodes.clone() });
    relay.reported(2, seen(1, 2));
    assert_eq!(ups(&mut relay), [Report::InBarrier { element: 0, nodes }, seen(1, 6)]);
    for source in [0, 2] {
        relay.reported(source, seen(2, 2));
    }
    relay.reported(1, seen(3, 2));
    relay.reported(0, seen(2, 2));
    assert_eq!(ups(&mut relay), [], "an old look is never answered");
    relay.reported(0, seen(3, 2));
    relay.reported(2, seen(3, 2));
    assert_eq!(ups(&mut relay), [seen(3, 6)]);
}

#[test]
fn ready_and_drained_and_finished_wait_for_the_last_host() {
    let mut relay = root();
    for (report, order) in [
        (Report::Ready, None),
        (Report::Drained, Some(Order::Drain)),
        (Report::Drained, Some(Order::Drain)),
        (Report::Finished { elapsed_ns: 4 }, Some(Order::Finish)),
    ] {
        order.into_iter().for_each(|order| relay.ordered(order));
        for source in [1, 0, 2] {
            assert_eq!(ups(&mut relay), []);
            relay.reported(source, report.clone());
        }
        assert_eq!(ups(&mut relay), [report]);
    }
    assert!(relay.is_finished());
}

#[test]
fn a_line_that_goes_on_is_not_cut_by_another_host() {
    let mut relay = root();
    relay.reported(1, output("a long", true));
    relay.reported(2, output("other\n", false));
    relay.reported(1, output(" line\n", false));
    let all = [output("a long", true), output(" line\n", false), output("other\n", false)];
    assert_eq!(ups(&mut relay), all);
    relay.reported(1, output("cut", true));
    relay.reported(2, output("next\n", false));
    assert_eq!(ups(&mut relay), [output("cut", true)]);
    relay.lost(1, 1, "gone".to_owned());
    let gone = Report::HostsGone { code: 1, hosts: 1..2, reason: "gone".to_owned() };
    assert_eq!(ups(&mut relay), [gone, output("next\n", false)]);
}

#[test]
fn output_moves_as_far_as_the_next_hop_has_taken_it_and_other_reports_do_not_wait() {
    let mut relay = root();
    let chunk = || Report::Output {
        host: 0,
        stream: Stream::Stdout,
        bytes: vec![b'\n'; CHUNK],
        unfinished: false,
    };
    let window = HOP_WINDOW as usize / CHUNK;
    for _ in 0..window + 2 {
        relay.reported(1, chunk());
    }
    relay.reported(1, Report::Flush { host: 1, token: 9 });
    relay.reported(1, Report::Exit { element: 0, code: 1 });
    let outs = relay.take();
    assert_eq!(outs.iter().filter(|out| **out == Out::Up(chunk())).count(), window);
    assert!(outs.contains(&Out::Up(Report::Exit { element: 0, code: 1 })));
    assert!(outs.contains(&Out::Down(1, Order::OutputTaken(HOP_WINDOW))));
    assert_eq!(outs.len(), window + 2);
    relay.ordered(Order::OutputTaken(2 * CHUNK as u64));
    let flush = Report::Flush { host: 1, token: 9 };
    assert_eq!(ups(&mut relay), [chunk(), chunk(), flush]);
}

#[test]
fn a_killed_job_does_not_wait_for_its_reader() {
    let mut relay = root();
    relay.credit = 0;
    relay.reported(0, output("never read\n", false));
    relay.ordered(Order::Kill);
    relay.ordered(Order::Drain);
    (0..3).for_each(|source| relay.reported(source, Report::Drained));
    assert_eq!(ups(&mut relay), [Report::Drained]);
    relay.ordered(Order::Finish);
    (0..3).for_each(|source| relay.reported(source, Report::Finished { elapsed_ns: 1 }));
    assert_eq!(ups(&mut relay), [Report::Finished { elapsed_ns: 1 }]);
}

#[test]
fn a_job_ends_also_when_hosts_are_gone() {
    let mut relay = root();
    relay.ordered(Order::Drain);
    relay.reported(0, Report::Drained);
    relay.reported(1, Report::Drained);
    relay.take();
    relay.lost(2, 1, "silent".to_owned());
    let reason = "silent".to_owned();
    let gone = Report::HostsGone { code: 1, hosts: 2..3, reason };
    assert_eq!(ups(&mut relay), [gone, Report::Drained]);
    relay.ordered(Order::Finish);
    relay.reported(0, Report::Finished { elapsed_ns: 1 });
    relay.gone(1);
    assert_eq!(ups(&mut relay), [Report::Finished { elapsed_ns: 1 }]);
}
