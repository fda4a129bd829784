use std::ops::Range;

use super::*;
use crate::report_queue::{CoalescingQueue, Mergeable};
use score_proto::ids::JobHostId;
use score_proto::job_control::{HostNetworkAddress, Status, SubsetFence, SwitchSeq};
use score_proto::message::NodeUsage;
use score_proto::nodeset::MAX_RANGES;
use score_proto::observation::{HostMetrics, IdleSummary, Metrics, NodeMetrics, WaitState};

const FIRST: ElementIndex = ElementIndex::FIRST;
const SECOND: ElementIndex = ElementIndex(1);

fn ended(node: u32, code: u8) -> Report {
    ElementReport::Ended { nodes: NodeSet::one(node), status: Status::Exited(code) }.of(FIRST)
}

fn in_barrier(node: u32) -> Report {
    ElementReport::InBarrier { nodes: NodeSet::one(node) }.of(FIRST)
}

fn usage(nodes: Range<u32>) -> JobReport {
    JobReport::Usage(nodes.map(|node| NodeUsage { node, ..NodeUsage::default() }).collect())
}

fn wait_states(nodes: Range<u32>) -> ElementReport {
    let wait_of = |node| WaitState {
        node,
        waiting_for: 0,
        idle_ms: 0,
        sent: 0,
        received: 0,
        last_destination: None,
        last_source: None,
        mpi_call: None,
    };
    ElementReport::WaitStates { waits: nodes.map(wait_of).collect() }
}

fn metrics(nodes: Range<u32>) -> JobReport {
    let host_of = |node| HostMetrics {
        host: JobHostId(node),
        name: String::new(),
        disk_kib: 0,
        disk_scale_kib: 0,
        memory_scale_kib: 0,
    };
    JobReport::Metrics(Metrics {
        hosts: nodes.clone().map(host_of).collect(),
        nodes: nodes.map(|node| NodeMetrics { node, ..NodeMetrics::default() }).collect(),
    })
}

fn processes(stage: u32, pids_of_nodes: impl Iterator<Item = (u32, Vec<u32>)>) -> Report {
    let block_of = |(first_node, pids)| ProcessBlock {
        host: JobHostId::FIRST,
        element: FIRST,
        first_node,
        pids,
    };
    Report::Job(JobReport::Processes { stage, blocks: pids_of_nodes.map(block_of).collect() })
}

/// Returns the report that both reports become, or `None` if they cannot be merged.
fn merge<R: Mergeable + Clone + PartialEq>(ours: &R, theirs: &R) -> Option<R> {
    let mut merged = ours.clone();
    let is_merged = merged.merge(theirs);
    assert!(is_merged || merged == *ours, "a report that is not merged must not change");
    is_merged.then_some(merged)
}

fn merged(reports: &[Report]) -> Vec<Report> {
    let mut queue = CoalescingQueue::new(100);
    for report in reports {
        queue.push(report.clone()).unwrap();
    }
    std::iter::from_fn(|| queue.pop()).collect()
}

#[test]
fn equal_reports_of_many_nodes_become_one() {
    let all = ElementReport::Ended { nodes: (0..3).into(), status: Status::Exited(0) }.of(FIRST);
    assert_eq!(merged(&[ended(0, 0), ended(2, 0), ended(1, 0)]), [all]);
    assert_eq!(merged(&[ended(0, 0), ended(1, 1), ended(2, 0)]).len(), 2);
}

#[test]
fn no_report_overtakes_a_report_about_the_same_node_or_the_whole_element() {
    let two = ElementReport::Ended { nodes: (0..2).into(), status: Status::Exited(0) }.of(FIRST);
    assert_eq!(merged(&[in_barrier(1), ended(0, 0), ended(1, 0)]), [in_barrier(1), two]);
    let order = [ended(0, 0), in_barrier(1), ended(1, 0)];
    assert_eq!(merged(&order), order);
    let exit = ElementReport::Exit { code: 1 }.of(FIRST);
    let order = [ended(0, 0), exit, ended(1, 0)];
    assert_eq!(merged(&order), order);
}

#[test]
fn only_reports_of_the_same_fence_of_some_nodes_are_merged() {
    let in_fence = |tag, node: u32| {
        let members = [0, 2, 4].into_iter().collect();
        let (nodes, entries) = (NodeSet::one(node), vec![node as u8]);
        let fence = SubsetFence { members, tag };
        ElementReport::InSubsetFence { fence, nodes, entries }.of(FIRST)
    };
    let merged = merged(&[in_fence(1, 0), in_fence(2, 4), in_fence(1, 2)]);
    let Report::Element { report: ElementReport::InSubsetFence { nodes, entries, .. }, .. } =
        &merged[0]
    else {
        panic!("{merged:?}");
    };
    assert_eq!((nodes.to_string().as_str(), &entries[..]), ("0, 2", &[0, 2][..]));
    assert_eq!(merged[1..], [in_fence(2, 4)]);
}

#[test]
fn usage_reports_are_merged_and_do_not_prevent_merges_of_other_reports() {
    let reports = [Report::Job(usage(0..1)), ended(0, 0), Report::Job(usage(1..2)), ended(1, 0)];
    assert_eq!(merged(&reports).len(), 2);
}

#[test]
fn reports_about_nodes_are_merged_only_if_they_are_otherwise_equal() {
    fn not_started(nodes: NodeSet, code: u8, reason: &str) -> ElementReport {
        ElementReport::NotStarted { nodes, code, reason: reason.to_owned() }
    }
    let kinds: [fn(NodeSet) -> ElementReport; 11] = [
        |nodes| ElementReport::InBarrier { nodes },
        |nodes| ElementReport::Skipped { nodes },
        |nodes| ElementReport::Ended { nodes, status: Status::Exited(1) },
        |nodes| ElementReport::Ended { nodes, status: Status::Signaled(1) },
        |nodes| ElementReport::Sent { serial: 1, nodes },
        |nodes| ElementReport::Sent { serial: 2, nodes },
        |nodes| ElementReport::Faulted { nodes, signal: 1 },
        |nodes| ElementReport::Faulted { nodes, signal: 2 },
        |nodes| not_started(nodes, 126, "Permission denied"),
        |nodes| not_started(nodes, 127, "Permission denied"),
        |nodes| not_started(nodes, 126, "Exec format error"),
    ];
    for (index, kind) in kinds.iter().enumerate() {
        for (other_index, other_kind) in kinds.iter().enumerate() {
            let (ours, theirs) = (kind((3..5).into()), other_kind(NodeSet::one(5)));
            let expected = (index == other_index).then(|| kind((3..6).into()).of(FIRST));
            assert_eq!(merge(&ours.of(FIRST), &theirs.of(FIRST)), expected);
        }
    }
}

#[test]
fn the_addresses_of_hosts_are_merged_with_their_nodes() {
    let address_of =
        |host: u8| HostNetworkAddress { host: JobHostId(host.into()), address: vec![host] };
    let attached = |nodes: Range<u32>, hosts: Range<u8>| {
        let addresses = hosts.map(address_of).collect();
        ElementReport::Attached { nodes: nodes.into(), addresses }.of(FIRST)
    };
    let merged = merge(&attached(0..4, 0..2), &attached(4..6, 2..3));
    assert_eq!(merged, Some(attached(0..6, 0..3)));
}

#[test]
fn reports_are_not_merged_if_their_nodes_have_too_many_ranges() {
    let kinds: [fn(NodeSet) -> ElementReport; 4] = [
        |nodes| ElementReport::InBarrier { nodes },
        |nodes| {
            let address = HostNetworkAddress { host: JobHostId::FIRST, address: Vec::new() };
            ElementReport::Attached { nodes, addresses: vec![address] }
        },
        |nodes| ElementReport::InFence { nodes, entries: vec![1] },
        |nodes| {
            let fence = SubsetFence { members: (0..2).into(), tag: 7 };
            ElementReport::InSubsetFence { fence, nodes, entries: vec![1] }
        },
    ];
    let most: NodeSet = (0..MAX_RANGES as u32).map(|index| 2 * index).collect();
    let mut fewer = most.clone();
    fewer.remove(0);
    for kind in kinds {
        let other = kind(NodeSet::one(0)).of(FIRST);
        assert!(merge(&kind(fewer.clone()).of(FIRST), &other).is_some());
        assert!(merge(&kind(most.clone()).of(FIRST), &other).is_none());
    }
}

#[test]
fn entries_of_fences_are_merged_up_to_their_limit() {
    let kinds: [fn(NodeSet, Vec<u8>) -> ElementReport; 2] = [
        |nodes, entries| ElementReport::InFence { nodes, entries },
        |nodes, entries| {
            let fence = SubsetFence { members: (0..2).into(), tag: 7 };
            ElementReport::InSubsetFence { fence, nodes, entries }
        },
    ];
    for kind in kinds {
        let ours = |len| kind(NodeSet::one(0), vec![1; len]).of(FIRST);
        let theirs = kind(NodeSet::one(1), vec![2]).of(FIRST);
        let mut entries = vec![1; MAX_MERGED_FENCE_BYTES - 1];
        entries.push(2);
        let both = kind((0..2).into(), entries).of(FIRST);
        assert!(merge(&ours(MAX_MERGED_FENCE_BYTES - 1), &theirs) == Some(both));
        assert!(merge(&ours(MAX_MERGED_FENCE_BYTES), &theirs).is_none());
    }
}

#[test]
fn lists_of_processes_are_merged_up_to_their_limit() {
    const MAX_COUNT: u32 = MAX_USAGES as u32;
    let kinds: [fn(Range<u32>) -> Report; 4] = [
        |nodes| Report::Job(usage(nodes)),
        |nodes| Report::Job(metrics(nodes)),
        |nodes| processes(0, nodes.map(|node| (node, vec![1]))),
        |nodes| wait_states(nodes).of(FIRST),
    ];
    for kind in kinds {
        let last = kind(MAX_COUNT - 1..MAX_COUNT);
        assert!(merge(&kind(0..MAX_COUNT - 1), &last) == Some(kind(0..MAX_COUNT)));
        assert!(merge(&kind(0..MAX_COUNT), &last).is_none());
    }
}

#[test]
fn process_ids_of_one_stage_are_merged_up_to_their_limit() {
    let of_pids = |stage, count| processes(stage, [(0, vec![1; count])].into_iter());
    let one = of_pids(0, 1);
    assert!(merge(&of_pids(0, MAX_BLOCK_PIDS - 1), &one).is_some());
    assert!(merge(&of_pids(0, MAX_BLOCK_PIDS), &one).is_none());
    assert_eq!(merge(&of_pids(1, 1), &one), None);
}

#[test]
fn yields_and_equal_times_of_sleep_are_merged() {
    let slept = |seconds| ElementReport::Sleep { seconds }.of(FIRST);
    let yielded = ElementReport::Yield.of(FIRST);
    assert_eq!(merge(&yielded, &yielded), Some(yielded.clone()));
    assert_eq!(merge(&slept(3), &slept(3)), Some(slept(3)));
    assert_eq!(merge(&slept(3), &slept(4)), None);
    assert_eq!(merge(&slept(3), &yielded), None);
}

#[test]
fn a_newer_idle_summary_replaces_that_of_the_same_element() {
    let summary = |element, summary| Report::Switch(SwitchReport::IdleSummary { element, summary });
    let newer = summary(FIRST, IdleSummary::BUSY);
    assert_eq!(merge(&summary(FIRST, IdleSummary::EMPTY), &newer), Some(newer.clone()));
    assert_eq!(merge(&summary(SECOND, IdleSummary::EMPTY), &newer), None);
    let stopped = Report::Switch(SwitchReport::Stopped { switch_seq: SwitchSeq(1) });
    assert_eq!(merge(&stopped, &stopped), None);
}

#[test]
fn reports_of_a_shepherd_are_merged_and_ordered_as_those_of_hosts() {
    let in_barrier = |element, nodes: Range<u32>| {
        let report = ElementReport::InBarrier { nodes: nodes.into() };
        ShepherdReport::Element { element, report }
    };
    let of_job = ShepherdReport::Job;
    let first = in_barrier(FIRST, 0..2);
    assert_eq!(merge(&first, &in_barrier(FIRST, 2..3)), Some(in_barrier(FIRST, 0..3)));
    assert_eq!(merge(&first, &in_barrier(SECOND, 2..3)), None);
    assert_eq!(merge(&first, &of_job(usage(0..1))), None);
    assert_eq!(merge(&of_job(usage(0..1)), &of_job(usage(1..2))), Some(of_job(usage(0..2))));
    for (other, expected) in [
        (in_barrier(FIRST, 1..3), true),
        (in_barrier(FIRST, 2..3), false),
        (in_barrier(SECOND, 1..3), false),
        (of_job(usage(0..1)), false),
        (of_job(JobReport::Ready), true),
    ] {
        assert_eq!(first.concerns(&other), expected, "{other:?}");
    }
}
