//! Tests of the tools of a job, with simulated hosts.

use score_proto::file_tree::MAX_TREE_FILE;
use score_proto::ids::JobHostId;
use score_proto::job_control::{FileRequest, ProgramAnswer};
use score_proto::message::OsBytes;
use score_proto::peer_message::JobIncarnation;
use score_proto::tool_files::{ToolFilesKind, ToolFilesOrder};

use super::*;

type Steps = Vec<ToolStep>;

struct Tools {
    tools: JobTools,
    placement: Placement,
    now: MonotonicTime,
}

fn three_hosts() -> Tools {
    let hosts = ["a", "b", "c"].map(|name| (name.to_owned(), None, 2));
    let placement = Placement::new(JobIncarnation(1), hosts);
    Tools { tools: JobTools::default(), placement, now: Duration::ZERO }
}

fn start(hosts: &[&str]) -> ToolAction {
    let program = ToolProgram { path: OsBytes(b"/t".to_vec()), arguments: Vec::new() };
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    ToolAction::Start { program, hosts, files: None }
}

impl Tools {
    fn act(&mut self, session: usize, action: ToolAction) -> Steps {
        let mut out = Vec::new();
        let requester = ToolRequester::Session(SessionKey(session));
        self.tools.on_action(requester, action, Some(&self.placement), self.now, &mut out);
        out
    }

    fn report(&mut self, host: u32, tool: u32, kind: ToolEventKind) -> Steps {
        let mut out = Vec::new();
        let report = ToolReport { host: JobHostId(host), tool: ToolId(tool), kind };
        self.tools.on_report(report, &self.placement, self.now, &mut out);
        out
    }

    /// Starts a tool on all three hosts.
    fn start_everywhere(&mut self) -> ToolId {
        self.act(1, start(&[]));
        let tool = self.tools.last_id;
        for host in 0..3 {
            self.report(host, tool.0, ToolEventKind::Started);
        }
        tool
    }
}

fn answer(session: usize, answer: ToolActionAnswer) -> ToolStep {
    ToolStep::Answer(ToolRequester::Session(SessionKey(session)), answer)
}

fn refusal(steps: &Steps) -> (u8, &str) {
    let refused = steps.iter().find_map(|step| match step {
        ToolStep::Answer(_, ToolActionAnswer::Refused { code, reason }) => Some((*code, reason)),
        _ => None,
    });
    let (code, reason) = refused.unwrap_or_else(|| panic!("{steps:?}"));
    (code, reason)
}

#[test]
fn a_start_is_answered_when_the_tool_runs_on_all_hosts_that_were_asked_for() {
    let mut tools = three_hosts();
    let steps = tools.act(7, start(&["c", "a"]));
    let [ToolStep::Order(Order::Job(JobOrder::Tool(order)))] = &steps[..] else {
        panic!("{steps:?}")
    };
    assert_eq!(order.hosts, NodeSet::from_iter([0, 2]));
    assert_eq!(tools.report(2, 1, ToolEventKind::Started), []);
    assert_eq!(tools.report(1, 1, ToolEventKind::Started), [], "not asked for");
    let done = answer(7, ToolActionAnswer::Started(ToolId(1)));
    assert_eq!(tools.report(0, 1, ToolEventKind::Started), [done]);
    let (code, reason) = {
        let steps = tools.act(7, start(&["d"]));
        let (code, reason) = refusal(&steps);
        (code, reason.to_owned())
    };
    assert_eq!((code, reason.as_str()), (EXIT_REFUSED, "host d is not a host of the job"));
}

#[test]
fn a_failure_on_one_host_ends_the_tool_on_all_hosts() {
    let mut tools = three_hosts();
    tools.act(7, start(&[]));
    tools.report(0, 1, ToolEventKind::Started);
    let reason = "/t: not found".to_owned();
    let steps = tools.report(1, 1, ToolEventKind::NotStarted { code: 127, reason });
    assert_eq!(refusal(&steps), (127, "host b: /t: not found"));
    let kill = order(ToolId(1), NodeSet::from_iter([0, 2]), ToolOrderKind::Signal(9));
    assert!(steps.contains(&ToolStep::Order(kill)), "{steps:?}");
    // Further reports about the tool do not reach the user, and its number is not used again.
    assert_eq!(tools.report(2, 1, ToolEventKind::Started), []);
    tools.report(2, 1, ToolEventKind::Ended(Status::Signaled(9)));
    tools.report(0, 1, ToolEventKind::Ended(Status::Signaled(9)));
    assert!(tools.tools.tools.is_empty());
    assert_eq!(tools.start_everywhere(), ToolId(2));
}

#[test]
fn a_fifth_tool_is_refused_with_the_numbers_of_the_four() {
    let mut tools = three_hosts();
    for _ in 0..4 {
        tools.start_everywhere();
    }
    let steps = tools.act(1, start(&[]));
    assert!(refusal(&steps).1.contains("4 tools already (1, 2, 3, 4)"), "{steps:?}");
    // A tool counts until it has ended on all hosts.
    for host in 0..3 {
        assert!(!tools.act(1, start(&[])).is_empty());
        tools.report(host, 2, ToolEventKind::Ended(Status::Exited(0)));
    }
    assert_eq!(tools.start_everywhere(), ToolId(5));
}

#[test]
fn a_signal_is_sent_to_the_hosts_on_which_the_tool_runs() {
    let mut tools = three_hosts();
    tools.start_everywhere();
    tools.report(1, 1, ToolEventKind::Ended(Status::Exited(1)));
    let signal = |tool, signal| ToolAction::Signal { tool: ToolId(tool), signal };
    let steps = tools.act(3, signal(1, 15));
    let sent = order(ToolId(1), NodeSet::from_iter([0, 2]), ToolOrderKind::Signal(15));
    assert_eq!(steps, [ToolStep::Order(sent)]);
    assert_eq!(tools.report(0, 1, ToolEventKind::Signaled), []);
    let steps = tools.act(5, signal(1, 9));
    assert!(refusal(&steps).1.contains("not done yet"), "{steps:?}");
    // The tool has ended before the signal arrived. This also counts as an answer.
    assert_eq!(tools.report(2, 1, ToolEventKind::Ended(Status::Exited(0))), []);
    let steps = tools.report(0, 1, ToolEventKind::Ended(Status::Exited(0)));
    let outcome = SignalOutcome { ended: vec![(Status::Exited(0), 2)], ..Default::default() };
    let done = answer(3, ToolActionAnswer::Signaled(outcome));
    assert_eq!(steps, [done, ToolStep::Ended(ToolId(1), Some(Status::Exited(0)))]);
    for (wrong, line) in [(signal(2, 15), "no tool 2"), (signal(1, 65), "no signal 65")] {
        let steps = tools.act(3, wrong);
        assert!(refusal(&steps).1.contains(line), "{steps:?}");
    }
}

#[test]
fn the_answer_to_a_signal_names_the_hosts_on_which_the_tool_has_ended_within_a_second() {
    let mut tools = three_hosts();
    tools.start_everywhere();
    let send = |signal| ToolAction::Signal { tool: ToolId(1), signal };
    let signaled = |session, running, ended: &[(Status, u32)], lost| {
        let outcome = SignalOutcome { running, ended: ended.to_vec(), lost };
        answer(session, ToolActionAnswer::Signaled(outcome))
    };
    let is_sent = |tools: &mut Tools| {
        (0..3).for_each(|host| assert_eq!(tools.report(host, 1, ToolEventKind::Signaled), []));
    };
    let tick = |tools: &mut Tools| {
        let mut out = Vec::new();
        tools.tools.on_tick(&tools.placement, tools.now, &mut out);
        out
    };
    // The second begins when the last host has sent the signal.
    tools.act(3, send(15));
    tools.now = Duration::from_secs(20);
    is_sent(&mut tools);
    assert_eq!(tools.tools.deadline(), Some(tools.now + END_GRACE));
    assert_eq!(tick(&mut tools), []);
    tools.now += END_GRACE;
    assert_eq!(tick(&mut tools), [signaled(3, 3, &[], 0)]);
    // A further signal ends the wait of that second, and the earlier request is answered. An end on
    // one host does not answer a request.
    tools.act(4, send(15));
    is_sent(&mut tools);
    let killed = Status::Signaled(15);
    assert_eq!(tools.report(1, 1, ToolEventKind::Ended(killed)).len(), 1, "the line for the user");
    let steps = tools.act(5, send(9));
    assert_eq!(steps[0], signaled(4, 2, &[(killed, 1)], 0));
    for host in [0, 2] {
        assert_eq!(tools.report(host, 1, ToolEventKind::Signaled), []);
    }
    let mut out = Vec::new();
    tools.tools.on_hosts_lost(2..3, &tools.placement, tools.now, &mut out);
    assert_eq!(out, []);
    // The job ends: the signal was sent nevertheless.
    tools.tools.end(&mut out);
    assert_eq!(out, [signaled(5, 1, &[], 1)]);
}

#[test]
fn a_death_of_a_signal_is_reported_with_number_and_host() {
    let mut tools = three_hosts();
    tools.start_everywhere();
    let steps = tools.report(1, 1, ToolEventKind::Ended(Status::Signaled(9)));
    let line = "tool 1 (/t) on b was ended by SIGKILL".to_owned();
    assert_eq!(steps, [ToolStep::Notice(Level::Warning, line)]);
    assert_eq!(tools.report(0, 1, ToolEventKind::Ended(Status::Exited(3))), []);
    let steps = tools.report(2, 1, ToolEventKind::Output(b"out".to_vec()));
    assert_eq!(steps, [ToolStep::Output("tool 1 on c: out".to_owned())]);
}

#[test]
fn hosts_that_are_lost_or_silent_are_not_waited_for() {
    let mut tools = three_hosts();
    tools.act(7, start(&[]));
    let mut out = Vec::new();
    tools.tools.on_hosts_lost(1..3, &tools.placement, tools.now, &mut out);
    assert_eq!(refusal(&out), (EXIT_FAILED, "host b is lost"));
    tools.act(8, start(&["b"]));
    let due = tools.tools.deadline().unwrap();
    let mut out = Vec::new();
    tools.tools.on_tick(&tools.placement, due - Duration::from_millis(1), &mut out);
    assert_eq!(out, []);
    tools.tools.on_tick(&tools.placement, due, &mut out);
    assert_eq!(refusal(&out), (EXIT_FAILED, "host b has not answered in 30 s"));
    assert_eq!(tools.tools.deadline(), None);
    // The job ends while a requester waits.
    tools.act(9, start(&["c"]));
    let mut out = Vec::new();
    tools.tools.end(&mut out);
    assert_eq!(refusal(&out), (EXIT_FAILED, "the job has ended"));
}

#[test]
fn the_number_of_hosts_named_for_a_tool_is_bounded() {
    let placement = Placement::new(JobIncarnation(1), [("a".to_owned(), None, 1)]);
    let names = vec!["a".to_owned(); MAX_TOOL_HOSTS];
    assert_eq!(hosts_of_names(&placement, &names), Ok(NodeSet::one(0)));
    let error = hosts_of_names(&placement, &[names, vec!["a".to_owned()]].concat()).unwrap_err();
    assert!(error.contains("names of hosts"), "{error}");
}

const CONTENT: FileDigest = FileDigest { hash: [7; 32], size: 1000 };

/// A request to start a tool with files.
fn start_with_files(hosts: &[&str], content: FileDigest) -> ToolAction {
    let ToolAction::Start { program, hosts, .. } = start(hosts) else { unreachable!() };
    ToolAction::Start { program, hosts, files: Some(content) }
}

fn file_request(length: u64) -> FileRequest {
    FileRequest { hash: CONTENT.hash, offset: 0, length }
}

fn chunk(length: usize) -> ProgramAnswer {
    ProgramAnswer::Chunk { hash: CONTENT.hash, offset: 0, bytes: vec![1; length] }
}

fn files_order(tool: u32, hosts: &[u32], kind: ToolFilesKind) -> ToolStep {
    let (tool, hosts) = (ToolId(tool), hosts.iter().copied().collect());
    ToolStep::Order(Order::Job(JobOrder::ToolFiles(ToolFilesOrder { tool, hosts, kind })))
}

impl Tools {
    fn request_bytes(&mut self, request: FileRequest) -> Steps {
        let mut out = Vec::new();
        self.tools.on_file_request(request, self.now, &mut out);
        out
    }

    fn send_bytes(&mut self, session: usize, answer: ProgramAnswer) -> Steps {
        let mut out = Vec::new();
        self.tools.on_file_chunk(SessionKey(session), answer, self.now, &mut out);
        out
    }

    fn tick(&mut self) -> Steps {
        let mut out = Vec::new();
        self.tools.on_tick(&self.placement, self.now, &mut out);
        out
    }
}

#[test]
fn a_tool_with_files_starts_when_all_of_its_hosts_have_them() {
    let mut tools = three_hosts();
    let steps = tools.act(7, start_with_files(&["c", "a"], CONTENT));
    assert_eq!(steps, [files_order(1, &[0, 2], ToolFilesKind::Fetch(CONTENT))]);
    // Requests of the first host go to the session that has the files, and the bytes go back.
    let request = file_request(100);
    let asked = ToolStep::RequestFile(SessionKey(7), request);
    assert_eq!(tools.request_bytes(request), [asked]);
    assert_eq!(tools.send_bytes(7, chunk(60)), [ToolStep::Order(Order::Program(chunk(60)))]);
    assert_eq!(tools.send_bytes(7, chunk(41)), [], "more than was requested");
    assert_eq!(tools.send_bytes(7, chunk(40)), [ToolStep::Order(Order::Program(chunk(40)))]);
    // Host b only passes the files on.
    for host in [0, 1, 0] {
        assert_eq!(tools.report(host, 1, ToolEventKind::FilesReady), []);
        assert_eq!(tools.report(host, 1, ToolEventKind::Started), []);
    }
    let ToolAction::Start { program, .. } = start(&[]) else { unreachable!() };
    let hosts = NodeSet::from_iter([0, 2]);
    let start = order(ToolId(1), hosts, ToolOrderKind::Start { program, has_files: true });
    let complete = files_order(1, &[0, 2], ToolFilesKind::Complete);
    tools.now = Duration::from_secs(500);
    let steps = tools.report(2, 1, ToolEventKind::FilesReady);
    assert_eq!(steps, [complete, ToolStep::Order(start)]);
    // The hosts have the usual time to start the tool from now on.
    assert_eq!(tools.tools.deadline(), Some(tools.now + HOST_TIMEOUT));
    assert_eq!(tools.report(0, 1, ToolEventKind::FilesReady), []);
    assert_eq!(tools.report(0, 1, ToolEventKind::Started), []);
    let done = answer(7, ToolActionAnswer::Started(ToolId(1)));
    assert_eq!(tools.report(2, 1, ToolEventKind::Started), [done]);
    // The end of start_tool does not end the tool.
    let mut out = Vec::new();
    tools.tools.on_session_ended(SessionKey(7), &mut out);
    assert_eq!(out, []);
}

#[test]
fn a_transfer_that_cannot_be_completed_is_cancelled_on_all_hosts() {
    let cancel = files_order(1, &[0, 1, 2], ToolFilesKind::Cancel);
    type Cause = fn(&mut Tools) -> Steps;
    let causes: [(Cause, &str); 5] = [
        (
            |tools| {
                let reason = "no space".to_owned();
                tools.report(1, 1, ToolEventKind::NotStarted { code: 1, reason })
            },
            "host b: no space",
        ),
        (
            |tools| {
                let mut out = Vec::new();
                tools.tools.on_session_ended(SessionKey(8), &mut out);
                assert_eq!(out, [], "another session");
                tools.tools.on_session_ended(SessionKey(7), &mut out);
                out
            },
            "start_tool has ended before",
        ),
        (
            |tools| {
                tools.request_bytes(file_request(100));
                tools.now += Duration::from_secs(29);
                tools.send_bytes(7, chunk(99));
                tools.now += Duration::from_secs(29);
                assert_eq!(tools.tick(), []);
                tools.now += Duration::from_secs(1);
                tools.tick()
            },
            "has sent no bytes of the files for 30 s",
        ),
        (
            |tools| {
                let mut out = Vec::new();
                tools.tools.on_hosts_lost(2..3, &tools.placement, tools.now, &mut out);
                out
            },
            "host c is lost",
        ),
        (
            |tools| {
                let mut out = Vec::new();
                tools.tools.end(&mut out);
                // The files are removed with the job.
                out.push(files_order(1, &[0, 1, 2], ToolFilesKind::Cancel));
                out
            },
            "the job has ended",
        ),
    ];
    for (cause, line) in causes {
        let mut tools = three_hosts();
        tools.act(7, start_with_files(&[], CONTENT));
        tools.report(0, 1, ToolEventKind::FilesReady);
        let steps = cause(&mut tools);
        assert_eq!(refusal(&steps).0, EXIT_FAILED);
        assert!(refusal(&steps).1.contains(line), "{steps:?}");
        assert!(steps.contains(&cancel) && steps.len() == 2, "{steps:?}");
        assert!(tools.tools.transfer.is_none() && tools.tools.deadline().is_none());
        // Late reports and bytes have no effect, and the next transfer can begin.
        for host in 0..3 {
            assert_eq!(tools.report(host, 1, ToolEventKind::FilesReady), []);
        }
        assert_eq!(tools.request_bytes(file_request(1)), []);
        if line != "the job has ended" {
            let fetch = files_order(2, &[1], ToolFilesKind::Fetch(CONTENT));
            assert_eq!(tools.act(9, start_with_files(&["b"], CONTENT)), [fetch]);
        }
    }
}

#[test]
fn the_hosts_may_unpack_for_any_time_after_start_tool_has_sent_all_bytes() {
    let mut tools = three_hosts();
    tools.act(7, start_with_files(&[], CONTENT));
    assert_eq!(tools.tools.deadline(), None);
    tools.request_bytes(file_request(100));
    tools.now += Duration::from_secs(10);
    // A further request does not extend the time.
    tools.request_bytes(file_request(100));
    assert_eq!(tools.tools.deadline(), Some(Duration::from_secs(30)));
    tools.send_bytes(7, chunk(200));
    assert_eq!(tools.tools.deadline(), None);
}

#[test]
fn a_job_has_one_transfer_at_a_time_and_it_counts_as_a_tool() {
    let mut tools = three_hosts();
    (0..3).for_each(|_| _ = tools.start_everywhere());
    tools.act(7, start_with_files(&["a"], CONTENT));
    for action in [start_with_files(&["b"], CONTENT), start(&["b"])] {
        let steps = tools.act(8, action);
        assert!(refusal(&steps).1.contains("4 tools already (1, 2, 3, 4)"), "{steps:?}");
    }
    let signal = ToolAction::Signal { tool: ToolId(4), signal: 15 };
    assert!(refusal(&tools.act(8, signal)).1.contains("not done yet"));
    (0..3).for_each(|host| {
        tools.report(host, 1, ToolEventKind::Ended(Status::Exited(0)));
    });
    let steps = tools.act(8, start_with_files(&["b"], CONTENT));
    let line = "the files of tool 4 are still being sent; try again later";
    assert_eq!(refusal(&steps), (EXIT_REFUSED, line));
    // A tool without files does not wait.
    assert!(matches!(tools.act(8, start(&["b"]))[..], [ToolStep::Order(_)]));
}

#[test]
fn only_the_session_of_start_tool_sends_files_within_the_limits() {
    let mut tools = three_hosts();
    let refused = |steps: Steps, line: &str| {
        assert_eq!(refusal(&steps).0, EXIT_REFUSED);
        assert!(refusal(&steps).1.contains(line), "{steps:?}");
    };
    for (size, line) in [(7, "not an archive"), (MAX_TREE_FILE + 1, "more than 4128 MB")] {
        let content = FileDigest { size, ..CONTENT };
        refused(tools.act(7, start_with_files(&[], content)), line);
    }
    let mut out = Vec::new();
    let action = start_with_files(&[], CONTENT);
    let placement = Some(&tools.placement);
    tools.tools.on_action(ToolRequester::Scrun, action, placement, tools.now, &mut out);
    refused(out, "only start_tool can send files");
    refused(tools.send_bytes(7, chunk(1)), "sends no files");
    tools.act(7, start_with_files(&[], CONTENT));
    refused(tools.send_bytes(8, chunk(1)), "sends no files");
    // Requests of a hostile host, and bytes of another file.
    let other = FileRequest { hash: [8; 32], ..file_request(1) };
    for request in [other, file_request(0), file_request(u64::MAX), file_request((2 << 20) + 1)] {
        assert_eq!(tools.request_bytes(request), []);
    }
    tools.request_bytes(file_request(2 << 20));
    assert_eq!(tools.request_bytes(file_request(1)), []);
    let other = ProgramAnswer::Chunk { hash: [8; 32], offset: 0, bytes: vec![1] };
    assert_eq!(tools.send_bytes(7, other), []);
}
