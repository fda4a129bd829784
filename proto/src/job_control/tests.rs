use super::*;
use crate::frame;
use crate::ids::{ElementIndex, JobHostId};
use crate::message::Stream;
use crate::observation::IdleSummary;

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
