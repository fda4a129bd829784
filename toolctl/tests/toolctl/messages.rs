//! Tests of messages of a tool to the service: settings of Control, and many messages at once.

use std::time::Duration;

use crate::support::job::{ANSWER_TIMEOUT, Job};
use score_proto::toolctl::ToolctlOrder;
use score_tools::wire::*;

fn control(job: &mut Job, watch_policy: WatchPolicy) {
    let settings = Control {
        notify_set: 1 << (libc::SIGTRAP - 1),
        signal: 0,
        start_notice: StartNotice::DynamicLoader,
        trap_mode: TrapMode::NoChange,
        watch_policy,
    };
    assert_eq!(job.send(&ToolRequest::Control(settings), &[]).0, ReturnCode::Success);
}

#[test]
fn new_threads_inherit_watchpoints_according_to_the_policy_of_the_tool_in_control() {
    let Some(mut job) = Job::attached("policy") else { return };
    let (pid, address) = (job.session.pid, job.session.address("watched"));
    control(&mut job, WatchPolicy::Propagate);
    let watchpoint = NewWatchpoint { address, length: 8, kind: WatchType::Write };
    job.update(CommandRequest::SetWatchpoint(watchpoint));
    job.session.tell("W");
    let record = job.tool.notice(ANSWER_TIMEOUT).unwrap().unwrap();
    let (_, ServiceMessage::Notify(Notice::Signal(notice))) =
        ServiceMessage::decode(&record).unwrap()
    else {
        panic!("{record:?}");
    };
    assert_eq!((notice.reason, notice.access), (SignalReason::WriteWatchpoint, address));
    assert_ne!(notice.thread, pid.cast_unsigned());
    job.update(CommandRequest::ContinueProcess(NoData {}));
    job.session.done();
    control(&mut job, WatchPolicy::NoPropagate);
    job.session.tell("W");
    // If there were a notice, the process would be suspended.
    job.session.done();
    job.end();
}

#[test]
fn a_tool_may_send_16_queries_of_64_kib_before_it_reads_an_answer() {
    let Some(mut job) = Job::attached("pipeline") else { return };
    let block = job.session.address("block");
    let query = |length| {
        let access = SpeculativeAccess::Permitted;
        let range = MemoryRange { address: block, length, access };
        Command { thread: 0, request: CommandRequest::GetMemory(range) }
    };
    // The service asks the shepherd for the time of the job. The first message waits for this test,
    // and the others wait for the first.
    let time = Command { thread: 0, request: CommandRequest::GetProcessData(NoData {}) };
    let first = [time, query(60_000)];
    let mut expected = vec![(job.tool.send(0, &ToolRequest::Query(&first)).unwrap(), 60_000)];
    for _ in 1..16 {
        let other = [query(MAX_MEMORY_LEN)];
        let sequence = job.tool.send(0, &ToolRequest::Query(&other)).unwrap();
        expected.push((sequence, MAX_MEMORY_LEN as usize));
    }
    // The service reads the messages, and sends the answers, before the tool reads.
    std::thread::sleep(Duration::from_millis(200));
    job.order(ToolctlOrder::JobTime { ns: 1 });
    std::thread::sleep(Duration::from_millis(200));
    for (sequence, len) in expected {
        let record = job.tool.receive_record(ANSWER_TIMEOUT).unwrap();
        assert!(!record.is_empty(), "the service has disconnected the tool");
        let (header, message) = ServiceMessage::decode(&record).unwrap();
        assert_eq!((header.code(), header.sequence), (Some(ReturnCode::Success), sequence));
        let ServiceMessage::QueryAck(results) = message else { panic!("{header:?}") };
        match results.last().and_then(|result| result.answer.as_ref()) {
            Some(CommandAnswer::GetMemory(memory)) => assert_eq!(memory.bytes.len(), len),
            other => panic!("{other:?}"),
        }
    }
    job.end();
}
