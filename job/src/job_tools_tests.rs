//! Tests of the tools of a job, with simulated hosts.

use score_proto::ids::JobHostId;
use score_proto::message::OsBytes;
use score_proto::peer_message::JobIncarnation;

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
    ToolAction::Start { program, hosts: hosts.iter().map(|host| (*host).to_owned()).collect() }
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
    // The tool has ended before the signal arrived. This counts as an answer too.
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
    // A further signal does not wait for the end of that second, and one end is no answer.
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
