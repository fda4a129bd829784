use super::*;
use crate::frame;
use crate::ids::{ElementIndex, JobHostId};
use crate::message::{OsBytes, Stream};
use crate::nodeset::NodeSet;
use crate::observation::IdleSummary;
use crate::tool_command::{CommandId, ToolCommand};
use crate::tool_files::{ToolFilesKind, ToolFilesOrder};
use crate::tool_start::{ToolId, ToolOrder, ToolOrderKind};

const KIB: usize = 1 << 10;

fn encoded_len<M: serde::Serialize>(message: &M) -> usize {
    frame::encode_datagram(message).unwrap().len()
}

#[test]
fn a_process_held_by_a_debugger_prevents_a_deadlock_report() {
    let idle = IdleSummary { stop_seq: SwitchSeq(1), sent: 3, ..IdleSummary::EMPTY };
    let held = idle.combine(IdleSummary { stop_seq: SwitchSeq(4), ..IdleSummary::HELD });
    assert_eq!(held.simplified(), IdleSummary { stop_seq: SwitchSeq(1), ..IdleSummary::HELD });
    assert!(held.needs_no_processor() && !held.is_quiescent());
    assert_eq!(held.combine(IdleSummary::BUSY).simplified(), IdleSummary::BUSY);
}

#[test]
fn frequent_messages_stay_short() {
    let stop = SwitchOrder::Stop { switch_seq: SwitchSeq(1) };
    let stop_condition = StopCondition::After { run_us: 1, switch_seq: SwitchSeq(1) };
    let run = SwitchOrder::Run { idle_check_interval_us: 1, stop_condition };
    for (order, len) in [(stop, 2), (run, 5)] {
        assert_eq!(encoded_len(&order), len);
        assert_eq!(encoded_len(&HopOrder::Tree(Order::Switch(order))), len + 2);
    }
    let stopped = SwitchReport::Stopped { switch_seq: SwitchSeq(1) };
    let summary = IdleSummary { stop_seq: SwitchSeq(1), ..IdleSummary::EMPTY };
    let idle = SwitchReport::IdleSummary { element: ElementIndex(0), summary };
    for (report, len) in [(stopped, 2), (idle, 7)] {
        assert_eq!(encoded_len(&report), len);
        assert_eq!(encoded_len(&HopReport::Tree(Report::Switch(report))), len + 2);
    }
    let bytes = b"line\n".to_vec();
    let text = OutputReport::Text {
        host: JobHostId(0),
        stream: Stream::Stdout,
        bytes,
        is_partial_line: false,
    };
    assert_eq!(encoded_len(&ShepherdReport::Output(text.clone())), 11);
    assert_eq!(encoded_len(&HopReport::Tree(Report::Output(text))), 12);
}

#[test]
fn the_limits_of_a_job_are_those_of_the_protocol() {
    assert_eq!(HOP_WINDOW, 1 << 20);
    assert_eq!(MAX_FENCE_BYTES_PER_NODE, 16 * KIB);
    assert_eq!(MAX_FENCE_BYTES_PER_HOST, 512 * KIB);
    assert_eq!(MAX_FENCE_BYTES, 4096 * KIB);
    assert_eq!(MAX_SUBSET_RANGES, 1 << 14);
    assert_eq!(max_subset_fences(4), 20);
    // All hosts together have at most 256 requests.
    for (hosts, requests) in [(0, 64), (1, 64), (4, 64), (8, 32), (256, 1), (1000, 1)] {
        assert_eq!(max_modex_requests(hosts), requests, "{hosts} hosts");
    }
}

#[test]
fn the_largest_block_of_processes_has_at_most_100_kib() {
    let pids = vec![u32::MAX; MAX_BLOCK_PIDS];
    let (host, element) = (JobHostId(u32::MAX), ElementIndex(u32::MAX));
    let len = encoded_len(&ProcessBlock { host, element, first_node: u32::MAX, pids });
    assert!((64 * KIB..=100 * KIB).contains(&len), "{len} bytes");
}

#[test]
fn stops_are_numbered_in_sequence() {
    let first = SwitchSeq(5);
    let mut last = first;
    last += 3;
    assert_eq!((last, first + 3), (SwitchSeq(8), SwitchSeq(8)));
    assert_eq!((last - first, first.checked_add(3)), (3, Some(last)));
    assert_eq!(SwitchSeq::MAX.checked_add(1), None);
}

#[test]
fn an_order_about_the_job_names_its_host_or_its_hosts() {
    let (tool, few) = (ToolId(1), NodeSet::from(2..4));
    let signal = ToolOrder { tool, hosts: few.clone(), kind: ToolOrderKind::Signal(15) };
    let files = ToolFilesOrder { tool, hosts: few.clone(), kind: ToolFilesKind::Complete };
    for (order, host, hosts) in [
        (JobOrder::Flushed { host: JobHostId(3), token: 9 }, Some(JobHostId(3)), None),
        (JobOrder::Stdin(vec![7]), Some(JobHostId::FIRST), None),
        (JobOrder::StdinEof, Some(JobHostId::FIRST), None),
        (JobOrder::Tool(signal), None, Some(&few)),
        (JobOrder::ToolFiles(files), None, Some(&few)),
        (JobOrder::Kill, None, None),
    ] {
        assert_eq!((order.host(), order.hosts()), (host, hosts), "{order:?}");
    }
}

#[test]
fn an_order_about_an_element_names_its_host_or_its_nodes() {
    let few = NodeSet::from(2..4);
    let (host, asker) = (JobHostId(3), JobHostId(1));
    let fence = SubsetFence { members: few.clone(), tag: 1 };
    let command =
        ToolCommand { id: CommandId(1), nodes: few.clone(), wait_ms: 0, body: Vec::new() };
    for (order, host, nodes) in [
        (ElementOrder::ModexRequest { host, asker, node: 5 }, Some(host), None),
        (ElementOrder::ModexAnswer { asker, node: 5, entries: None }, Some(asker), None),
        (
            ElementOrder::SubsetFenceEntries { fence: fence.clone(), entries: Vec::new() },
            None,
            Some(&few),
        ),
        (ElementOrder::SubsetFenceDone(fence), None, Some(&few)),
        (ElementOrder::ToolCommand(command), None, Some(&few)),
        (ElementOrder::ReleaseFaults { nodes: few.clone() }, None, Some(&few)),
        (ElementOrder::End, None, None),
    ] {
        assert_eq!((order.host(), order.nodes()), (host, nodes), "{order:?}");
    }
}

#[test]
fn an_answer_about_a_program_uses_up_at_least_one_requested_byte() {
    let hash = [7; 32];
    let chunk = |bytes: &[u8]| ProgramAnswer::Chunk { hash, offset: 0, bytes: bytes.to_vec() };
    let file = ProgramAnswer::SharedFile { hash, path: OsBytes(b"/program".to_vec()) };
    for (answer, charge) in [(chunk(b"abc"), 3), (chunk(b""), 1), (file, 1)] {
        assert_eq!((answer.hash(), answer.charge()), (&hash, charge), "{answer:?}");
    }
}
