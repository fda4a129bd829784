use super::*;
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{
    DebuggerOrder, MAX_FENCE_BYTES_PER_HOST, MAX_FENCE_BYTES_PER_NODE, MAX_MODEX_BYTES,
    ProcessBlock, Status, SubsetFence, max_modex_requests, max_subset_fences,
};
use score_proto::message::MAX_IO_CHUNK;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::JobIncarnation;
use score_proto::tool_files::{ToolFilesKind, ToolFilesOrder};
use score_proto::tool_start::ToolId;

/// The node of host 0 of three hosts. The other two hosts are its children.
fn root_node() -> TreeNode {
    let hosts = (0..3).map(|host| (format!("h{host}"), None, 2));
    let tree_node = TreeNode::new(Placement::new(JobIncarnation(0), hosts));
    assert_eq!(tree_node.child_hosts().collect::<Vec<_>>(), [(1, JobHostId(1)), (2, JobHostId(2))]);
    tree_node
}

fn output(text: &str, is_partial_line: bool) -> Report {
    let bytes = text.as_bytes().to_vec();
    Report::Output(OutputReport::Text {
        host: JobHostId(0),
        stream: Stream::Stdout,
        bytes,
        is_partial_line,
    })
}

fn hosts_lost(hosts: std::ops::Range<u32>, reason: &str) -> Report {
    let (remains, reason) = (Remains::Processes, reason.to_owned());
    Report::HostsLost { code: 1, hosts, remains, reason }
}

const FIRST: ElementIndex = ElementIndex::FIRST;
const READY: Report = Report::Job(JobReport::Ready);
const DRAINED: Report = Report::Output(OutputReport::Drained);
const FINISHED: Report = Report::Job(JobReport::Finished { elapsed_ns: 1 });

fn stopped(stop: u64) -> Report {
    Report::Switch(SwitchReport::Stopped { switch_seq: SwitchSeq(stop) })
}

/// An order to a child host.
fn to_host(child_index: usize, order: Order) -> Outgoing {
    Outgoing::Child(child_index, HopOrder::Tree(order))
}

fn reports_to_parent(tree_node: &mut TreeNode) -> Vec<Report> {
    let to_parent =
        |message| if let Outgoing::Parent(report) = message { Some(report) } else { None };
    tree_node.take_outgoing().into_iter().filter_map(to_parent).collect()
}

#[test]
fn every_host_receives_its_own_index() {
    let mut tree_node = root_node();
    tree_node.announce_placement();
    let host_indices: Vec<_> = tree_node
        .take_outgoing()
        .into_iter()
        .map(|message| match message {
            Outgoing::Child(child_index, HopOrder::SetPlacement(placement)) => {
                (child_index, placement.self_host)
            }
            unexpected => panic!("{unexpected:?}"),
        })
        .collect();
    assert_eq!(host_indices, [(1, JobHostId(1)), (2, JobHostId(2))]);
}

#[test]
fn an_order_for_one_host_is_sent_to_this_host_only() {
    let mut tree_node = root_node();
    tree_node.on_order(Order::Job(JobOrder::Flushed { host: JobHostId(2), token: 5 }));
    tree_node.on_order(Order::Job(JobOrder::StdinEof));
    let first = to_host(2, Order::Job(JobOrder::Flushed { host: JobHostId(2), token: 5 }));
    assert_eq!(
        tree_node.take_outgoing(),
        [first, Outgoing::Shepherd(ShepherdOrder::Job(JobOrder::StdinEof))]
    );
}

// Promise (time-sharing): A job has stopped when every remaining host has reported it; processes
// are started only in a slice of their job.
#[test]
fn a_job_has_stopped_when_every_remaining_host_has() {
    let mut tree_node = root_node();
    let order_stop = |tree_node: &mut TreeNode, stop| {
        let switch_seq = SwitchSeq(stop);
        tree_node.on_order(Order::Switch(SwitchOrder::Stop { switch_seq }))
    };
    order_stop(&mut tree_node, 4);
    tree_node.on_report(0, stopped(4));
    tree_node.on_report(2, stopped(4));
    assert_eq!(reports_to_parent(&mut tree_node), []);
    assert_eq!(tree_node.unstopped_hosts().map(|hosts| hosts.start).collect::<Vec<_>>(), [1]);
    tree_node.close_child(1);
    assert_eq!(reports_to_parent(&mut tree_node), [stopped(4)]);
    // A late report, about an order that another order has replaced.
    order_stop(&mut tree_node, 6);
    tree_node.on_report(0, stopped(6));
    tree_node.on_order(Order::Switch(SwitchOrder::Run {
        idle_check_interval_us: 0,
        stop_condition: StopCondition::OnOrder,
    }));
    tree_node.on_report(2, stopped(6));
    assert_eq!(reports_to_parent(&mut tree_node), []);
    assert_eq!(tree_node.unstopped_hosts().count(), 0);
    order_stop(&mut tree_node, 8);
    tree_node.on_report(2, stopped(6));
    assert_eq!(tree_node.unstopped_hosts().collect::<Vec<_>>(), [0..1, 2..3]);
    for host in [0, 2] {
        tree_node.on_report(host, stopped(8));
    }
    assert_eq!(reports_to_parent(&mut tree_node), [stopped(8)]);
}

// Promise of `a_timed_stop_that_does_not_happen_is_ordered`.
#[test]
fn the_end_of_a_stop_is_awaited_if_hosts_stop_without_an_order() {
    let mut tree_node = root_node();
    let run = |stop_condition| {
        Order::Switch(SwitchOrder::Run { idle_check_interval_us: 0, stop_condition })
    };
    tree_node.on_order(run(StopCondition::After { run_us: 500, switch_seq: SwitchSeq(4) }));
    [0, 2].into_iter().for_each(|host| tree_node.on_report(host, stopped(4)));
    // A new interval of the idle check has no effect on stops.
    tree_node.on_order(run(StopCondition::Unchanged));
    assert_eq!(reports_to_parent(&mut tree_node), []);
    tree_node.on_report(1, stopped(4));
    assert_eq!(reports_to_parent(&mut tree_node), [stopped(4)]);
    // The hosts were already about to stop when the stop was cancelled.
    tree_node.on_order(run(StopCondition::After { run_us: 500, switch_seq: SwitchSeq(7) }));
    tree_node.on_order(run(StopCondition::OnOrder));
    (0..3).for_each(|host| tree_node.on_report(host, stopped(7)));
    assert_eq!(reports_to_parent(&mut tree_node), []);
}

#[test]
fn blocked_output_is_detected() {
    let mut tree_node = root_node();
    let chunks = HOP_WINDOW as usize / MAX_IO_CHUNK;
    for _ in 0..chunks {
        tree_node.on_report(1, output(&"x".repeat(MAX_IO_CHUNK), false));
    }
    assert!(!tree_node.is_blocked());
    tree_node.on_report(1, output("x", false));
    assert!(tree_node.is_blocked());
    tree_node.on_order(Order::OutputAck(1));
    assert!(!tree_node.is_blocked());
}

#[test]
fn equal_reports_of_all_hosts_are_sent_to_the_parent_as_one() {
    let mut tree_node = root_node();
    for child_index in 0..3 {
        let first = child_index as u32 * 2;
        let nodes = NodeSet::from(first..first + 2);
        tree_node.on_report(
            child_index,
            ElementReport::Ended { nodes, status: Status::Exited(0) }.of(FIRST),
        );
    }
    let nodes = NodeSet::from(0..6);
    assert_eq!(
        reports_to_parent(&mut tree_node),
        [ElementReport::Ended { nodes, status: Status::Exited(0) }.of(FIRST)]
    );
}

// Promise of `an_idle_job_yields_each_of_its_slices_to_other_jobs`.
#[test]
fn after_a_stop_every_host_must_report_idle_again() {
    let mut tree_node = root_node();
    let idle = |sent| idle_after(0, sent);
    (0..3).for_each(|child_index| tree_node.on_report(child_index, idle(1)));
    assert_eq!(reports_to_parent(&mut tree_node), [idle(3)]);
    tree_node.on_report(1, idle(1));
    assert_eq!(reports_to_parent(&mut tree_node), [], "the parent has that report");
    // All stop by an order, then by their timers. One of them goes through another stop in between.
    for (stop_seq, first_seq) in [(2, 2), (5, 4)] {
        tree_node.on_report(0, idle_after(first_seq, 1));
        tree_node.on_report(1, idle_after(stop_seq, 1));
        assert_eq!(reports_to_parent(&mut tree_node), []);
        tree_node.on_report(0, idle_after(stop_seq, 1));
        assert_eq!(reports_to_parent(&mut tree_node), []);
        tree_node.on_report(2, idle_after(stop_seq, 1));
        assert_eq!(reports_to_parent(&mut tree_node), [idle_after(stop_seq, 3)], "once more");
    }
    tree_node.on_report(2, busy());
    assert_eq!(reports_to_parent(&mut tree_node), [busy()], "does not wait for the other hosts");
}

fn busy() -> Report {
    Report::Switch(SwitchReport::IdleSummary { element: FIRST, summary: IdleSummary::BUSY })
}

fn idle_after(stop: u64, sent: u64) -> Report {
    let stop_seq = SwitchSeq(stop);
    let summary = IdleSummary { sent, received: sent, stop_seq, ..IdleSummary::EMPTY };
    Report::Switch(SwitchReport::IdleSummary { element: FIRST, summary })
}

#[test]
fn an_element_is_idle_when_every_host_has_reported_it() {
    let mut tree_node = root_node();
    tree_node.on_report(0, idle_after(0, 1));
    tree_node.on_report(1, idle_after(0, 2));
    assert_eq!(reports_to_parent(&mut tree_node), [busy()]);
    tree_node.on_report(2, idle_after(0, 3));
    assert_eq!(reports_to_parent(&mut tree_node), [idle_after(0, 6)]);
    tree_node.on_report(2, idle_after(0, 3));
    assert_eq!(reports_to_parent(&mut tree_node), [], "nothing has changed");
    tree_node.on_report(1, idle_after(0, 4));
    assert_eq!(reports_to_parent(&mut tree_node), [idle_after(0, 8)]);
    tree_node.on_report(0, busy());
    tree_node.on_report(1, busy());
    assert_eq!(reports_to_parent(&mut tree_node), [busy()]);
    tree_node.on_order(Order::Job(JobOrder::StartStage(1)));
    tree_node.take_outgoing();
    tree_node.on_report(0, idle_after(0, 0));
    assert_eq!(
        reports_to_parent(&mut tree_node),
        [busy()],
        "the other hosts have not reported in this stage"
    );
}

#[test]
fn a_shepherd_reports_a_fence_once_until_all_hosts_are_in_it() {
    let mut tree_node = root_node();
    let in_fence = |nodes: std::ops::Range<u32>, len| ElementReport::InFence {
        nodes: NodeSet::from(nodes),
        entries: vec![7; len],
    };
    let mut reported = |element, report: ElementReport| {
        let element = ElementIndex(element);
        let shepherd_report = ShepherdReport::Element { element, report: report.clone() };
        tree_node.on_shepherd_report(shepherd_report);
        let reports = reports_to_parent(&mut tree_node);
        assert!(reports.is_empty() || reports == [report.of(element)], "{reports:?}");
        !reports.is_empty()
    };
    let most = 2 * MAX_FENCE_BYTES_PER_NODE;
    for (nodes, len) in [(0..3, 1), (2..3, 1), (0..0, 0), (0..2, most + 1)] {
        assert!(!reported(0, in_fence(nodes.clone(), len)), "{nodes:?} {len}");
    }
    assert!(!reported(MAX_ELEMENTS as u32, in_fence(0..2, 1)));
    // One of the two nodes has ended.
    assert!(reported(0, in_fence(1..2, most)));
    assert!(!reported(0, in_fence(0..2, 1)), "it is in the fence already");
    // There is also a limit for all elements together.
    let elements = MAX_FENCE_BYTES_PER_HOST / most;
    let count = (1..100).filter(|element| reported(*element, in_fence(0..2, most))).count();
    assert_eq!(count, elements - 1);
    tree_node.on_order(ElementOrder::FenceDone.to(FIRST));
    tree_node.take_outgoing();
    let report = ShepherdReport::Element { element: FIRST, report: in_fence(0..2, most) };
    tree_node.on_shepherd_report(report.clone());
    assert_eq!(reports_to_parent(&mut tree_node).len(), 1);
    tree_node.on_order(Order::Job(JobOrder::StartStage(1)));
    tree_node.take_outgoing();
    tree_node.on_shepherd_report(report);
    assert_eq!(reports_to_parent(&mut tree_node).len(), 1);
}

// Promise of `all_ranks_find_the_data_of_a_rank_without_a_fence`.
#[test]
fn questions_and_answers_of_a_shepherd_about_single_nodes_are_bounded() {
    let mut tree_node = root_node();
    let hosts = tree_node.placement().hosts.len();
    let nodes = tree_node.placement().nodes();
    let own_nodes = tree_node.placement().self_placement().unwrap().node_range();
    fn reported(tree_node: &mut TreeNode, element: u32, report: ElementReport) -> bool {
        let element = ElementIndex(element);
        tree_node.on_shepherd_report(ShepherdReport::Element { element, report: report.clone() });
        let reports = reports_to_parent(tree_node);
        assert!(reports.is_empty() || reports == [report.of(element)], "{reports:?}");
        !reports.is_empty()
    }
    let request = |asker, node| ElementReport::ModexRequest { asker: JobHostId(asker), node };
    // Wrong requests: in the name of another host, about a node of the same host, and about a node
    // that does not exist.
    let node = own_nodes.end;
    for wrong in [request(1, node), request(0, own_nodes.start), request(0, nodes)] {
        assert!(!reported(&mut tree_node, 0, wrong));
    }
    assert!(reported(&mut tree_node, 0, request(0, node)));
    assert!(!reported(&mut tree_node, 0, request(0, node)), "it is not answered yet");
    let elements = 1..MAX_ELEMENTS as u32;
    let others = elements.flat_map(|element| (node..nodes).map(move |node| (element, node)));
    let count =
        others.filter(|(element, node)| reported(&mut tree_node, *element, request(0, *node)));
    assert_eq!(count.count(), max_modex_requests(hosts) - 1);
    let entries = None;
    tree_node.on_order(ElementOrder::ModexAnswer { asker: JobHostId(0), node, entries }.to(FIRST));
    let orders = tree_node.take_outgoing();
    assert!(matches!(orders[..], [Outgoing::Shepherd(_)]), "for this host alone: {orders:?}");
    assert!(reported(&mut tree_node, 0, request(0, node)));

    let answer = |asker, len| {
        let (asker, node) = (JobHostId(asker), own_nodes.start);
        ElementReport::ModexAnswer { asker, node, entries: Some(vec![7; len]) }
    };
    assert!(!reported(&mut tree_node, 0, answer(1, 1)), "no host has asked");
    let question = |host| {
        let (host, asker) = (JobHostId(host), JobHostId(1));
        ElementOrder::ModexRequest { host, asker, node: own_nodes.start }.to(FIRST)
    };
    tree_node.on_order(question(0));
    assert!(matches!(tree_node.take_outgoing()[..], [Outgoing::Shepherd(_)]));
    for wrong in [answer(2, 1), answer(1, MAX_MODEX_BYTES + 1)] {
        assert!(!reported(&mut tree_node, 0, wrong));
    }
    assert!(!reported(&mut tree_node, 1, answer(1, 1)), "another element");
    assert!(reported(&mut tree_node, 0, answer(1, MAX_MODEX_BYTES)));
    assert!(!reported(&mut tree_node, 0, answer(1, 1)), "it is answered");
    // A question to another host does not permit an answer of this host.
    tree_node.on_order(question(1));
    assert!(matches!(tree_node.take_outgoing()[..], [Outgoing::Child(..)]));
    assert!(!reported(&mut tree_node, 0, answer(1, 1)));
}

// Promise of `several_fences_of_some_ranks_of_several_hosts_run_at_once`.
#[test]
fn fences_of_some_nodes_have_bounds_and_their_orders_go_to_the_hosts_of_these_nodes() {
    let mut tree_node = root_node();
    let fence = |members: &[u32], tag| {
        let members = members.iter().copied().collect();
        SubsetFence { members, tag }
    };
    let report = |fence: SubsetFence, nodes: &[u32], len| ElementReport::InSubsetFence {
        fence,
        nodes: nodes.iter().copied().collect(),
        entries: vec![7; len],
    };
    let mut reported = |report: ElementReport| {
        let shepherd_report = ShepherdReport::Element { element: FIRST, report: report.clone() };
        tree_node.on_shepherd_report(shepherd_report);
        let reports = reports_to_parent(&mut tree_node);
        assert!(reports.is_empty() || reports == [report.of(FIRST)], "{reports:?}");
        !reports.is_empty()
    };
    // The hosts have the nodes 0 and 1, 2 and 3, and 4 and 5.
    let first = fence(&[0, 2], 0);
    for wrong in [
        report(fence(&[0, 1, 2], 0), &[0], 0),
        report(first.clone(), &[0, 2], 0),
        report(fence(&[2, 3], 0), &[], 0),
        report(fence(&[0, 6], 0), &[0], 0),
        report(first.clone(), &[0], MAX_FENCE_BYTES_PER_NODE + 1),
    ] {
        assert!(!reported(wrong.clone()), "{wrong:?}");
    }
    let entry = report(first.clone(), &[0], MAX_FENCE_BYTES_PER_NODE);
    assert!(reported(entry.clone()));
    assert!(!reported(entry.clone()), "it is in the fence already");
    let count = (1..100).filter(|tag| reported(report(fence(&[0, 2], *tag), &[0], 0))).count();
    assert_eq!(count, max_subset_fences(2) - 1);
    tree_node.on_order(ElementOrder::SubsetFenceDone(first).to(FIRST));
    let orders = tree_node.take_outgoing();
    assert!(matches!(orders[..], [Outgoing::Shepherd(_), Outgoing::Child(1, _)]), "{orders:?}");
    tree_node.on_shepherd_report(ShepherdReport::Element { element: FIRST, report: entry });
    assert_eq!(reports_to_parent(&mut tree_node).len(), 1, "it has ended before");
}

#[test]
fn a_sample_is_answered_when_all_hosts_have_and_after_their_earlier_reports() {
    let sample_result = |round, nodes| {
        let round = SampleRound(round);
        let sample =
            ActivitySample { node_count: nodes, sent: nodes.into(), ..ActivitySample::EMPTY };
        ElementReport::SampleResult { round, sample }.of(FIRST)
    };
    let mut tree_node = root_node();
    let nodes = NodeSet::one(3);
    tree_node.on_report(0, sample_result(1, 2));
    tree_node.on_report(1, sample_result(1, 2));
    tree_node.on_report(1, sample_result(1, 2));
    assert_eq!(reports_to_parent(&mut tree_node), []);
    tree_node.on_report(2, ElementReport::InBarrier { nodes: nodes.clone() }.of(FIRST));
    tree_node.on_report(2, sample_result(1, 2));
    assert_eq!(
        reports_to_parent(&mut tree_node),
        [ElementReport::InBarrier { nodes }.of(FIRST), sample_result(1, 6)]
    );
    for child_index in [0, 2] {
        tree_node.on_report(child_index, sample_result(2, 2));
    }
    tree_node.on_report(1, sample_result(3, 2));
    tree_node.on_report(0, sample_result(2, 2));
    assert_eq!(reports_to_parent(&mut tree_node), [], "an old sample is never answered");
    tree_node.on_report(0, sample_result(3, 2));
    tree_node.on_report(2, sample_result(3, 2));
    assert_eq!(reports_to_parent(&mut tree_node), [sample_result(3, 6)]);
}

#[test]
fn ready_and_drained_and_finished_wait_for_the_last_host() {
    let mut tree_node = root_node();
    for (report, order) in [
        (READY, None),
        (DRAINED, Some(Order::Job(JobOrder::Drain))),
        (DRAINED, Some(Order::Job(JobOrder::Drain))),
        (Report::Job(JobReport::Finished { elapsed_ns: 4 }), Some(Order::Job(JobOrder::Finish))),
    ] {
        order.into_iter().for_each(|order| tree_node.on_order(order));
        for child_index in [1, 0, 2] {
            assert_eq!(reports_to_parent(&mut tree_node), []);
            tree_node.on_report(child_index, report.clone());
        }
        assert_eq!(reports_to_parent(&mut tree_node), [report]);
    }
    assert!(tree_node.is_finished());
}

#[test]
fn an_unfinished_line_of_a_dead_shepherd_is_ended_and_other_output_follows() {
    let mut tree_node = root_node();
    tree_node.on_order(Order::Job(JobOrder::Drain));
    tree_node.on_report(0, output("unfinished", true));
    tree_node.on_report(1, output("other\n", false));
    assert_eq!(reports_to_parent(&mut tree_node), [output("unfinished", true)]);
    tree_node.close_child(0);
    let rest = [output("\n", false), output("other\n", false)];
    assert_eq!(reports_to_parent(&mut tree_node), rest);
}

#[test]
fn unread_output_does_not_delay_the_end_of_a_killed_job() {
    let mut tree_node = root_node();
    let window = usize::try_from(HOP_WINDOW).unwrap();
    tree_node.on_report(1, output(&"x".repeat(window), false));
    for child_index in 0..3 {
        tree_node.on_report(child_index, output("no room\n", false));
        tree_node.on_report(child_index, DRAINED);
    }
    tree_node.on_order(Order::Job(JobOrder::Drain));
    assert!(!reports_to_parent(&mut tree_node).contains(&DRAINED));
    tree_node.on_order(Order::Job(JobOrder::Kill));
    assert!(reports_to_parent(&mut tree_node).contains(&DRAINED));
}

// Promise of `no_line_of_four_hosts_is_lost_or_split`.
#[test]
fn an_unfinished_line_is_not_split_by_output_of_another_host() {
    let mut tree_node = root_node();
    tree_node.on_report(1, output("a long", true));
    tree_node.on_report(2, output("other\n", false));
    tree_node.on_report(1, output(" line\n", false));
    let all = [output("a long", true), output(" line\n", false), output("other\n", false)];
    assert_eq!(reports_to_parent(&mut tree_node), all);
    tree_node.on_report(1, output("cut", true));
    tree_node.on_report(2, output("next\n", false));
    assert_eq!(reports_to_parent(&mut tree_node), [output("cut", true)]);
    tree_node.on_child_lost(1, 1, "gone".to_owned());
    let lost_report = hosts_lost(1..2, "gone");
    let ends = [lost_report, output("\n", false), output("next\n", false)];
    assert_eq!(reports_to_parent(&mut tree_node), ends);
}

// Promise of `no_line_of_four_hosts_is_lost_or_split`.
#[test]
fn output_uses_the_credit_of_the_next_hop_and_does_not_delay_other_reports() {
    let mut tree_node = root_node();
    let chunk = || {
        Report::Output(OutputReport::Text {
            host: JobHostId(0),
            stream: Stream::Stdout,
            bytes: vec![b'\n'; MAX_IO_CHUNK],
            is_partial_line: false,
        })
    };
    let window = HOP_WINDOW as usize / MAX_IO_CHUNK;
    for _ in 0..window + 2 {
        tree_node.on_report(1, chunk());
    }
    tree_node.on_report(1, Report::Output(OutputReport::Flush { host: JobHostId(1), token: 9 }));
    tree_node.on_report(1, ElementReport::Exit { code: 1 }.of(FIRST));
    let outgoing = tree_node.take_outgoing();
    assert_eq!(
        outgoing.iter().filter(|message| **message == Outgoing::Parent(chunk())).count(),
        window
    );
    assert!(outgoing.contains(&Outgoing::Parent(ElementReport::Exit { code: 1 }.of(FIRST))));
    assert!(outgoing.contains(&to_host(1, Order::OutputAck(HOP_WINDOW))));
    assert_eq!(outgoing.len(), window + 2);
    tree_node.on_order(Order::OutputAck(2 * MAX_IO_CHUNK as u64));
    let flush = Report::Output(OutputReport::Flush { host: JobHostId(1), token: 9 });
    assert_eq!(reports_to_parent(&mut tree_node), [chunk(), chunk(), flush]);
}

#[test]
fn a_killed_job_does_not_wait_for_its_reader() {
    let mut tree_node = root_node();
    tree_node.credit = 0;
    tree_node.on_report(0, output("never read\n", false));
    tree_node.on_order(Order::Job(JobOrder::Kill));
    tree_node.on_order(Order::Job(JobOrder::Drain));
    (0..3).for_each(|child_index| tree_node.on_report(child_index, DRAINED));
    assert_eq!(reports_to_parent(&mut tree_node), [DRAINED]);
    tree_node.on_order(Order::Job(JobOrder::Finish));
    (0..3).for_each(|child_index| tree_node.on_report(child_index, FINISHED));
    assert_eq!(reports_to_parent(&mut tree_node), [FINISHED]);
}

#[test]
fn a_job_ends_even_when_hosts_are_lost() {
    let mut tree_node = root_node();
    tree_node.on_order(Order::Job(JobOrder::Drain));
    tree_node.on_report(0, DRAINED);
    tree_node.on_report(1, DRAINED);
    tree_node.take_outgoing();
    tree_node.on_child_lost(2, 1, "silent".to_owned());
    assert_eq!(reports_to_parent(&mut tree_node), [hosts_lost(2..3, "silent"), DRAINED]);
    tree_node.on_order(Order::Job(JobOrder::Finish));
    tree_node.on_report(0, FINISHED);
    tree_node.close_child(1);
    assert_eq!(reports_to_parent(&mut tree_node), [FINISHED]);
}

#[test]
fn programs_are_sent_from_the_parent_to_the_shepherd_and_on_to_child_hosts() {
    let (hash, bytes) = ([7; 32], vec![1; 100]);
    let request = |length| FileRequest { hash, offset: 5, length };
    let chunk = || ProgramAnswer::Chunk { hash, offset: 5, bytes: bytes.clone() };
    let to_parent = |length| Outgoing::Parent(Report::FileRequest(request(length)));
    let mut tree_node = root_node();
    tree_node.on_shepherd_report(ShepherdReport::FileRequest(request(100)));
    assert_eq!(tree_node.take_outgoing(), [to_parent(100)]);
    tree_node.on_report(2, Report::FileRequest(request(150)));
    let order = ShepherdOrder::SendFile { child: 2, request: request(150) };
    assert_eq!(tree_node.take_outgoing(), [Outgoing::Shepherd(order)]);
    tree_node.on_order(Order::Program(chunk()));
    let to_shepherd = Outgoing::Shepherd(ShepherdOrder::Program(chunk()));
    assert_eq!(tree_node.take_outgoing(), [to_shepherd]);
    // The answer must not exceed the request, and must go to a child that has one.
    let answer = |child| ShepherdReport::Program { child, answer: chunk() };
    for child in [1, 0, 3, u32::MAX] {
        tree_node.on_shepherd_report(answer(child));
        assert_eq!(tree_node.take_outgoing(), [], "{child}");
    }
    tree_node.on_shepherd_report(answer(2));
    tree_node.on_shepherd_report(answer(2));
    assert_eq!(tree_node.take_outgoing(), [to_host(2, Order::Program(chunk()))]);
    // The node above the first host forwards requests and answers.
    let hosts = (0..3).map(|host| (format!("h{host}"), None, 2));
    let mut tree_node = TreeNode::at_master(Placement::new(JobIncarnation(0), hosts));
    tree_node.on_report(1, Report::FileRequest(request(100)));
    assert_eq!(tree_node.take_outgoing(), [to_parent(100)]);
    tree_node.on_order(Order::Program(chunk()));
    assert_eq!(tree_node.take_outgoing(), [to_host(1, Order::Program(chunk()))]);
}

#[test]
fn an_order_about_files_of_a_tool_also_reaches_the_hosts_above_those_of_the_tool() {
    let order = |host| {
        let (tool, hosts, kind) = (ToolId(1), NodeSet::one(host), ToolFilesKind::Complete);
        JobOrder::ToolFiles(ToolFilesOrder { tool, hosts, kind })
    };
    let mut tree_node = root_node();
    for host in [0, 2] {
        tree_node.on_order(Order::Job(order(host)));
        let mut expected = vec![Outgoing::Shepherd(ShepherdOrder::Job(order(host)))];
        expected.extend((host == 2).then(|| to_host(2, Order::Job(order(host)))));
        assert_eq!(tree_node.take_outgoing(), expected);
    }
}

#[test]
fn every_host_reports_through_its_own_place_in_the_tree() {
    let hosts = || (0..40).map(|host| (format!("h{host}"), None, 2));
    let mut child_hosts = Vec::new();
    for host in 0..40 {
        let placement = Placement::new(JobIncarnation(0), hosts());
        let node = TreeNode::new(Placement { self_host: JobHostId(host), ..placement });
        assert_eq!((node.hosts(0), node.hosts(99)), (host..host + 1, 0..0));
        let mut next = host + 1;
        for (index, JobHostId(first)) in node.child_hosts() {
            assert_eq!((first, node.hosts(index).start), (next, next));
            next = node.hosts(index).end;
            child_hosts.push(first);
        }
    }
    child_hosts.sort_unstable();
    assert_eq!(child_hosts, (1..40).collect::<Vec<_>>(), "each host but the first has a parent");
}

#[test]
fn a_rotation_considers_only_the_processes_of_its_own_host() {
    let mut tree_node = root_node();
    assert!(!tree_node.is_idle());
    tree_node.on_report(1, idle_after(0, 1));
    assert!(!tree_node.is_idle());
    tree_node.on_report(0, idle_after(0, 1));
    assert!(tree_node.is_idle());
    tree_node.on_report(0, busy());
    assert!(!tree_node.is_idle());
}

#[test]
fn a_stop_does_not_wait_for_a_host_that_has_finished() {
    let mut tree_node = root_node();
    tree_node.on_order(Order::Job(JobOrder::Finish));
    tree_node.on_report(1, FINISHED);
    tree_node.on_order(Order::Switch(SwitchOrder::Stop { switch_seq: SwitchSeq(3) }));
    assert_eq!(tree_node.unstopped_hosts().collect::<Vec<_>>(), [0..1, 2..3]);
    [0, 2].into_iter().for_each(|host| tree_node.on_report(host, stopped(3)));
    assert_eq!(reports_to_parent(&mut tree_node), [stopped(3)]);
}

#[test]
fn a_host_is_lost_once_and_not_after_it_has_finished() {
    let mut tree_node = root_node();
    tree_node.on_order(Order::Job(JobOrder::Finish));
    tree_node.on_report(2, FINISHED);
    for child_index in [1, 1, 2, 9] {
        tree_node.on_child_lost(child_index, 1, "cut".to_owned());
    }
    assert_eq!(reports_to_parent(&mut tree_node), [hosts_lost(1..2, "cut")]);
    // No order is sent to a lost host.
    tree_node.on_order(Order::Job(JobOrder::StdinEof));
    let expected = [Outgoing::Shepherd(ShepherdOrder::Job(JobOrder::StdinEof))];
    assert_eq!(tree_node.take_outgoing(), expected);
    tree_node.on_report(0, Report::Job(JobReport::Finished { elapsed_ns: 7 }));
    let finished = Report::Job(JobReport::Finished { elapsed_ns: 7 });
    assert_eq!(reports_to_parent(&mut tree_node), [finished], "the longest time");
    tree_node.on_order(Order::Job(JobOrder::Finish));
    assert_eq!(reports_to_parent(&mut tree_node), [], "it was reported");
    assert!(tree_node.is_finished());
}

#[test]
fn output_of_hosts_alternates_and_its_end_follows_all_output() {
    let mut tree_node = root_node();
    tree_node.credit = 0;
    tree_node.on_order(Order::Job(JobOrder::Finish));
    for child_index in [2, 0, 1] {
        let line = format!("{child_index}\n");
        (0..2).for_each(|_| tree_node.on_report(child_index, output(&line, false)));
        tree_node.on_report(child_index, FINISHED);
    }
    assert_eq!(reports_to_parent(&mut tree_node), []);
    tree_node.on_order(Order::OutputAck(7));
    let sent = reports_to_parent(&mut tree_node);
    let firsts: std::collections::BTreeSet<_> =
        sent.iter().map(|report| format!("{report:?}")).collect();
    assert_eq!((sent.len(), firsts.len()), (3, 3), "one line of each: {sent:?}");
    tree_node.on_order(Order::OutputAck(5));
    let rest = reports_to_parent(&mut tree_node);
    assert_eq!((rest.len(), rest.last()), (4, Some(&FINISHED)));
}

#[test]
fn reports_of_elements_beyond_the_limit_are_dropped() {
    let mut tree_node = root_node();
    for element in [MAX_ELEMENTS as u32 - 1, MAX_ELEMENTS as u32, u32::MAX] {
        let sample = ActivitySample { node_count: 2, ..ActivitySample::EMPTY };
        let result =
            ElementReport::SampleResult { round: SampleRound(1), sample }.of(ElementIndex(element));
        (0..3).for_each(|child_index| tree_node.on_report(child_index, result.clone()));
        let is_known = element < MAX_ELEMENTS as u32;
        assert_eq!(reports_to_parent(&mut tree_node).len(), usize::from(is_known), "{element}");
    }
}

#[test]
fn a_shepherd_lists_only_its_own_processes_and_only_on_request() {
    let mut tree_node = root_node();
    let list = |first_node, pids: &[u32]| {
        let host = JobHostId(0);
        let block = ProcessBlock { host, element: FIRST, first_node, pids: pids.to_vec() };
        JobReport::Processes { stage: 0, blocks: vec![block] }
    };
    let listed = |tree_node: &mut TreeNode, report: &JobReport| {
        tree_node.on_shepherd_report(ShepherdReport::Job(report.clone()));
        reports_to_parent(tree_node) == [Report::Job(report.clone())]
    };
    let own = list(0, &[5, 6]);
    assert!(!listed(&mut tree_node, &own), "no list is requested");
    tree_node.on_order(Order::Job(JobOrder::Debugger(DebuggerOrder::HoldStage)));
    tree_node.on_order(Order::Job(JobOrder::StartStage(0)));
    for wrong in [list(1, &[5, 6]), list(2, &[5]), list(u32::MAX, &[5]), list(0, &[])] {
        assert!(!listed(&mut tree_node, &wrong), "{wrong:?}");
    }
    assert!(listed(&mut tree_node, &own));
    // The host may list its processes once for each possible parallel process.
    let more = (0..2 * MAX_ELEMENTS).filter(|_| listed(&mut tree_node, &own)).count();
    assert_eq!(more, MAX_ELEMENTS - 1);
}
