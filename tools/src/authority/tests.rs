use super::*;
use crate::wire::{
    Attach, CommandCode, ControlNotice, ControlReason, ReleaseNotify, SignalNotice, SignalReason,
    StartNotice, WatchPolicy,
};

const JOB: u64 = 17;
const OWNER: u32 = 1000;
const SIGUSR1: u32 = 10;
const SIGTRAP: u32 = 5;

/// An authority, and the sequence number of the last message to it.
struct Service {
    authority: Authority,
    sequence: u32,
}

#[derive(Clone, Copy)]
struct Client {
    connection: ConnectionId,
    tool: u32,
}

fn attach_body(priority: u8, tag: &[u8; 8], select: ProcessSelect) -> Attach {
    Attach { tag: *tag, priority, select }
}

/// Settings with notices of SIGTRAP and SIGUSR1.
fn settings() -> Control {
    Control {
        notify_set: 1 << (SIGTRAP - 1) | 1 << (SIGUSR1 - 1) | 1 << 8,
        signal: 0,
        start_notice: StartNotice::DynamicLoader,
        trap_mode: TrapMode::NoChange,
        watch_policy: WatchPolicy::Propagate,
    }
}

fn stop(thread: u32, signal: u32, reason: SignalReason) -> SignalNotice {
    SignalNotice {
        signal,
        thread,
        instruction: 0x400,
        access: 0,
        reason,
        execute_mode: 0,
        restart: [0; 4],
    }
}

impl Service {
    /// A service with the ranks 0 to 2.
    fn new() -> Self {
        let mut authority = Authority::new(JOB, OWNER);
        for rank in 0..3 {
            assert_eq!(authority.handle(Event::Started { rank }), []);
        }
        Self { authority, sequence: 0 }
    }

    fn connect(&mut self, number: u64, tool: u32) -> Client {
        self.connect_by(number, tool, Reach::Host)
    }

    fn connect_by(&mut self, number: u64, tool: u32, reach: Reach) -> Client {
        let connection = ConnectionId(number);
        let actions = self.authority.handle(Event::Connected { connection, uid: OWNER, reach });
        assert_eq!(actions, []);
        Client { connection, tool }
    }

    /// Sends a message. All processes can be traced. Returns the answer, if any, and the other
    /// actions.
    fn send(&mut self, client: Client, rank: u32, message: ToolMessage) -> Vec<Action> {
        self.sequence += 1;
        let header = Header::new(JOB, rank, client.tool, self.sequence);
        let connection = client.connection;
        let mut actions =
            self.authority.handle(Event::Message { connection, header, message: &message });
        if let [Action::Seize { connection, ranks }] = &actions[..] {
            let (connection, ranks) = (*connection, ranks.clone());
            actions = self.authority.handle(Event::Seized { connection, ranks, result: Ok(()) });
        }
        actions
    }

    fn attach(&mut self, client: Client, rank: u32, priority: u8, tag: &[u8; 8]) -> ReturnCode {
        let body = attach_body(priority, tag, ProcessSelect::RankInHeader);
        let (header, message) = the_answer(&self.send(client, rank, ToolMessage::Attach(body)));
        let code = header.code().unwrap();
        let expected = if code == ReturnCode::Success { vec![rank] } else { Vec::new() };
        assert_eq!(message, ServiceMessage::AttachAck(expected));
        code
    }

    fn control(&mut self, client: Client, rank: u32) -> Vec<Action> {
        self.send(client, rank, ToolMessage::Control(settings()))
    }

    fn update(&mut self, client: Client, rank: u32) -> Vec<Action> {
        self.send(client, rank, ToolMessage::Update(Vec::new()))
    }

    fn query(&mut self, client: Client, rank: u32) -> Vec<Action> {
        self.send(client, rank, ToolMessage::Query(Vec::new()))
    }

    fn detach(&mut self, client: Client, rank: u32, select: ProcessSelect) -> Vec<Action> {
        self.send(client, rank, ToolMessage::Detach(Detach { select }))
    }

    fn command(
        &mut self,
        client: Client,
        thread: u32,
        command: AuthorityCommand,
    ) -> (CommandCode, Vec<Action>) {
        self.authority.command(client.connection, 0, thread, command)
    }

    fn signal(&mut self, notice: SignalNotice) -> Vec<Action> {
        self.authority.handle(Event::Signal { rank: 0, notice })
    }

    /// Two tools at rank 0: a snapshot tool with authority, and a debugger.
    fn with_two_tools() -> (Self, Client, Client) {
        let mut service = Self::new();
        let snapshot = service.connect(1, 1);
        let debugger = service.connect(2, 2);
        assert_eq!(service.attach(snapshot, 0, 10, b"snapshot"), ReturnCode::Success);
        assert_eq!(service.attach(debugger, 0, 90, b"debugger"), ReturnCode::Success);
        assert_eq!(code_of(&service.control(snapshot, 0)), ReturnCode::Success);
        (service, snapshot, debugger)
    }
}

/// The first message in the actions.
fn the_answer(actions: &[Action]) -> (Header, ServiceMessage<'static>) {
    match actions.first() {
        Some(Action::Send { header, message, .. }) => (*header, message.clone()),
        other => panic!("not an answer: {other:?}"),
    }
}

fn code_of(actions: &[Action]) -> ReturnCode {
    the_answer(actions).0.code().unwrap()
}

fn execute(client: Client, rank: u32) -> Vec<Action> {
    vec![Action::Execute { connection: client.connection, rank }]
}

fn notice(client: Client, rank: u32, notice: Notice) -> Action {
    let header = Header::new(JOB, rank, client.tool, 0);
    let message = ServiceMessage::Notify(notice);
    Action::Send { connection: client.connection, header, message }
}

fn control_notice(
    client: Client,
    reason: ControlReason,
    tool: u32,
    tag: &[u8; 8],
    priority: u8,
) -> Action {
    let about = ControlNotice { tool, tag: *tag, priority, reason };
    notice(client, 0, Notice::Control(about))
}

fn signal_notice(client: Client, stop: SignalNotice) -> Action {
    notice(client, 0, Notice::Signal(stop))
}

/// The numbered steps are those of CDTI 4.5.4.
#[test]
fn the_13_steps_of_cdti_4_5_4() {
    let mut service = Service::new();
    let snapshot = service.connect(1, 1);
    let debugger = service.connect(2, 2);

    // 1. The Snapshot tool sends an Attach message with a priority 10.
    assert_eq!(service.attach(snapshot, 0, 10, b"snapshot"), ReturnCode::Success);

    // 2. It sends a Control message to request Control authority, and the request succeeds.
    let actions = service.control(snapshot, 0);
    let itself = ControlAck::new(1, *b"snapshot", 10);
    let (header, message) = the_answer(&actions);
    assert_eq!(header.code(), Some(ReturnCode::Success));
    assert_eq!(message, ServiceMessage::ControlAck(itself));

    // 3. It sends Update messages to set breakpoints.
    assert_eq!(service.update(snapshot, 0), execute(snapshot, 0));
    assert_eq!(service.update(snapshot, 0), execute(snapshot, 0));

    // 4. The Debugger tool sends an Attach message with priority 90.
    assert_eq!(service.attach(debugger, 0, 90, b"debugger"), ReturnCode::Success);

    // 5. The Debugger tool sends a Control message. The request is denied; the ControlAck message
    //    has information about the conflicting Snapshot tool.
    let actions = service.control(debugger, 0);
    let (header, message) = the_answer(&actions);
    assert_eq!(header.code(), Some(ReturnCode::ToolControlConflict));
    assert_eq!(message, ServiceMessage::ControlAck(itself));

    // 6. A Notify message to the Snapshot tool indicates that there is a conflict, with the
    //    identification and priority of the Debugger tool.
    let conflict = control_notice(snapshot, ControlReason::Conflict, 2, b"debugger", 90);
    assert_eq!(actions[1..], [conflict]);

    // 7. The Snapshot tool cleans up by Update messages. The last one contains the Release Control
    //    command, with an indicator that causes a Notify message when the Debugger tool releases.
    assert_eq!(service.update(snapshot, 0), execute(snapshot, 0));
    assert_eq!(service.update(snapshot, 0), execute(snapshot, 0));
    let release = AuthorityCommand::Release(ReleaseNotify::Yes);
    let (code, actions) = service.command(snapshot, 0, release);
    assert_eq!(code, CommandCode::Success);

    // 8. A Notify message to the Debugger tool indicates that Control authority is available.
    let available = control_notice(debugger, ControlReason::Available, 1, b"snapshot", 10);
    assert_eq!(actions, [available]);

    // 9. The Debugger tool sends a Control message. This time the request succeeds.
    let (header, message) = the_answer(&service.control(debugger, 0));
    assert_eq!(header.code(), Some(ReturnCode::Success));
    assert_eq!(message, ServiceMessage::ControlAck(ControlAck::new(2, *b"debugger", 90)));

    // 10. The Snapshot tool remains attached without Control authority.
    assert_eq!(service.query(snapshot, 0), execute(snapshot, 0));
    assert_eq!(code_of(&service.update(snapshot, 0)), ReturnCode::ToolControlRequired);

    // 11. The Debugger tool finishes and sends an Update message with the Release Control command.
    assert_eq!(service.update(debugger, 0), execute(debugger, 0));
    let release = AuthorityCommand::Release(ReleaseNotify::No);
    let (code, actions) = service.command(debugger, 0, release);
    assert_eq!(code, CommandCode::Success);

    // 12. A Notify message to the Snapshot tool indicates that Control authority is now available.
    let available = control_notice(snapshot, ControlReason::Available, 2, b"debugger", 90);
    assert_eq!(actions, [available]);

    // 13. The Snapshot tool sends a Control message and regains Control authority.
    assert_eq!(code_of(&service.control(snapshot, 0)), ReturnCode::Success);
    assert_eq!(service.update(snapshot, 0), execute(snapshot, 0));
}

#[test]
fn a_connection_of_another_user_is_closed_without_a_message() {
    let mut service = Service::new();
    let connection = ConnectionId(1);
    for uid in [0, 1001] {
        let event = Event::Connected { connection, uid, reach: Reach::Host };
        assert_eq!(service.authority.handle(event), [Action::Close { connection }]);
        let message = ToolMessage::NotifyAck;
        let header = Header::new(JOB, 0, 1, 1);
        let event = Event::Message { connection, header, message: &message };
        assert_eq!(service.authority.handle(event), [Action::Close { connection }]);
    }
}

#[test]
fn an_attach_that_is_not_possible_gets_the_listed_code() {
    let mut service = Service::new();
    let tool = service.connect(1, 1);
    assert_eq!(service.attach(tool, 0, 100, b"        "), ReturnCode::ToolPriorityError);
    assert_eq!(service.attach(tool, 3, 5, b"        "), ReturnCode::ProcessIdError);
    assert_eq!(service.attach(tool, 0, 5, b"        "), ReturnCode::Success);
    assert_eq!(service.attach(tool, 0, 6, b"        "), ReturnCode::ToolIdConflict);
    // The connection already has the number 1. start_tool assigns no numbers from 2^31 on.
    let other_number = Client { tool: 2, ..tool };
    assert_eq!(service.attach(other_number, 1, 5, b"        "), ReturnCode::ToolIdError);
    let own_number = service.connect(2, FIRST_OWN_TOOL);
    assert_eq!(service.attach(own_number, 0, 6, b"        "), ReturnCode::ToolIdError);

    let same_number = service.connect(3, 1);
    assert_eq!(service.attach(same_number, 0, 6, b"        "), ReturnCode::ToolIdConflict);
    let same_priority = service.connect(4, 4);
    assert_eq!(service.attach(same_priority, 0, 5, b"        "), ReturnCode::ToolPriorityConflict);
    assert_eq!(service.attach(same_priority, 1, 5, b"        "), ReturnCode::Success);
    for (number, priority) in [(5, 0), (6, 99), (7, 50)] {
        let tool = service.connect(number, number as u32);
        assert_eq!(service.attach(tool, 0, priority, b"        "), ReturnCode::Success);
    }
    let fifth = service.connect(8, 8);
    assert_eq!(service.attach(fifth, 0, 51, b"        "), ReturnCode::ToolMaxAttachedExceeded);
    assert_eq!(service.attach(fifth, 2, 51, b"        "), ReturnCode::Success);

    let exited = service.authority.handle(Event::Exited { rank: 1, status: 0 });
    assert_eq!(exited.len(), 1);
    assert_eq!(service.attach(fifth, 1, 51, b"        "), ReturnCode::ToolProcessExiting);
}

#[test]
fn a_message_of_any_type_for_another_job_is_refused() {
    let (mut service, snapshot, _) = Service::with_two_tools();
    let header = Header::new(JOB + 1, 0, snapshot.tool, 99);
    let body = attach_body(3, b"        ", ProcessSelect::RankInHeader);
    for message in [
        ToolMessage::Attach(body),
        ToolMessage::Detach(Detach { select: ProcessSelect::RankInHeader }),
        ToolMessage::Control(settings()),
        ToolMessage::Query(Vec::new()),
        ToolMessage::Update(Vec::new()),
        ToolMessage::ShareMemory,
    ] {
        let connection = snapshot.connection;
        let event = Event::Message { connection, header, message: &message };
        let actions = service.authority.handle(event);
        assert_eq!(actions.len(), 1);
        let (answer, _) = the_answer(&actions);
        assert_eq!(answer.code(), Some(ReturnCode::JobIdError), "{message:?}");
        assert_eq!((answer.sequence, answer.job), (99, JOB + 1));
    }
}

#[test]
fn a_message_before_attach_or_of_another_tool_is_refused() {
    let (mut service, snapshot, _) = Service::with_two_tools();
    let new = service.connect(3, 3);
    assert_eq!(code_of(&service.query(new, 0)), ReturnCode::ToolIdError);
    assert_eq!(code_of(&service.control(new, 0)), ReturnCode::ToolIdError);
    assert_eq!(code_of(&service.update(new, 0)), ReturnCode::ToolIdError);
    let refused = service.send(new, 0, ToolMessage::ShareMemory);
    assert_eq!(code_of(&refused), ReturnCode::ToolIdError);
    let shared = Action::ShareMemory { connection: snapshot.connection };
    assert_eq!(service.send(snapshot, 0, ToolMessage::ShareMemory), [shared]);
    assert_eq!(service.send(new, 0, ToolMessage::NotifyAck), []);
    let other_number = Client { tool: 2, ..snapshot };
    assert_eq!(code_of(&service.update(other_number, 0)), ReturnCode::ToolIdError);
    assert_eq!(code_of(&service.query(snapshot, 7)), ReturnCode::ProcessIdError);
    assert_eq!(code_of(&service.control(snapshot, 7)), ReturnCode::ProcessIdError);
    assert_eq!(code_of(&service.query(snapshot, 1)), ReturnCode::ToolRankNotFound);
}

#[test]
fn the_socket_of_a_rank_reaches_this_rank_alone() {
    let mut service = Service::new();
    let tool = service.connect_by(1, 1, Reach::Rank(1));
    assert_eq!(service.attach(tool, 0, 5, b"        "), ReturnCode::ProcessIdError);
    let body = attach_body(5, b"        ", ProcessSelect::RanksInNode);
    let (_, message) = the_answer(&service.send(tool, 0, ToolMessage::Attach(body)));
    assert_eq!(message, ServiceMessage::AttachAck(vec![1]));
    assert_eq!(service.query(tool, 1), execute(tool, 1));
    assert_eq!(code_of(&service.query(tool, 0)), ReturnCode::ProcessIdError);
}

#[test]
fn an_attach_to_all_ranks_attaches_to_all_or_to_none() {
    let mut service = Service::new();
    let first = service.connect(1, 1);
    assert_eq!(service.attach(first, 2, 40, b"        "), ReturnCode::Success);
    let all = service.connect(2, 2);
    let attach = |priority| {
        ToolMessage::Attach(attach_body(priority, b"all     ", ProcessSelect::RanksInNode))
    };
    let (header, message) = the_answer(&service.send(all, 0, attach(40)));
    assert_eq!(header.code(), Some(ReturnCode::ToolPriorityConflict));
    assert_eq!((header.rank, message), (2, ServiceMessage::AttachAck(Vec::new())));
    // The refused Attach has changed no state, so the tool can attach with the same number.
    let (_, message) = the_answer(&service.send(all, 0, attach(41)));
    assert_eq!(message, ServiceMessage::AttachAck(vec![0, 1, 2]));
}

#[test]
fn a_process_that_ptrace_refuses_is_named_with_errno_and_no_process_is_attached() {
    let mut service = Service::new();
    let tool = service.connect(1, 1);
    let connection = tool.connection;
    let body = attach_body(5, b"        ", ProcessSelect::RanksInNode);
    let message = ToolMessage::Attach(body);
    let header = Header::new(JOB, 0, 1, 5);
    let event = || Event::Message { connection, header, message: &message };
    let seize = Action::Seize { connection, ranks: vec![0, 1, 2] };
    assert_eq!(service.authority.handle(event()), std::slice::from_ref(&seize));
    let ranks = vec![0, 1, 2];
    let reason = "process 70 is traced by process 8 (gdb)".to_owned();
    let failure = SeizeFailure { rank: 1, error_code: 1, reason: reason.clone() };
    let refused = Event::Seized { connection, ranks, result: Err(failure) };
    let actions = service.authority.handle(refused);
    let (answer, message) = the_answer(&actions);
    assert_eq!(actions.len(), 1);
    assert_eq!(answer.code(), Some(ReturnCode::RequestFailed));
    assert_eq!((answer.rank, answer.error_code, answer.sequence), (1, 1, 5));
    assert_eq!(message, ServiceMessage::AttachRefused(reason));
    // If the tool tries again, the service must again trace all processes.
    assert_eq!(service.authority.handle(event()), [seize]);
}

#[test]
fn a_tool_that_disconnects_during_its_attach_leaves_no_process_traced() {
    let mut service = Service::new();
    let tool = service.connect(1, 1);
    let connection = tool.connection;
    let message = ToolMessage::Attach(attach_body(5, b"        ", ProcessSelect::RanksInNode));
    let header = Header::new(JOB, 0, 1, 5);
    service.authority.handle(Event::Message { connection, header, message: &message });
    // Before the answer the tool has no access to the process.
    assert_eq!(code_of(&service.query(tool, 0)), ReturnCode::ToolRankNotFound);
    service.authority.handle(Event::Exited { rank: 1, status: 0 });
    assert_eq!(service.authority.handle(Event::Closed { connection }), []);
    let ranks = vec![0, 1, 2];
    let actions = service.authority.handle(Event::Seized { connection, ranks, result: Ok(()) });
    assert_eq!(actions, [Action::Unseize { rank: 0 }, Action::Unseize { rank: 2 }]);
}

#[test]
fn tool_id_0_asks_for_a_number_that_no_started_tool_has() {
    let mut service = Service::new();
    for number in 0..2 {
        let tool = service.connect(u64::from(number), 0);
        let body = attach_body(number as u8, b"        ", ProcessSelect::RankInHeader);
        let (header, _) = the_answer(&service.send(tool, 0, ToolMessage::Attach(body)));
        assert_eq!(header.tool, FIRST_OWN_TOOL + number);
        let named = Client { tool: header.tool, ..tool };
        assert_eq!(service.query(named, 0), execute(named, 0));
        assert_eq!(code_of(&service.query(tool, 0)), ReturnCode::ToolIdError);
        // For a further process the tool keeps its number, whether it sends 0 or this number.
        let (header, _) = the_answer(&service.send(tool, 1, ToolMessage::Attach(body)));
        assert_eq!(header.tool, named.tool);
        assert_eq!(service.attach(named, 2, number as u8, b"        "), ReturnCode::Success);
    }
}

#[test]
fn a_detach_names_the_ranks_and_asks_for_release_first() {
    let (mut service, snapshot, debugger) = Service::with_two_tools();
    assert_eq!(service.attach(snapshot, 1, 10, b"snapshot"), ReturnCode::Success);
    let all = ProcessSelect::RanksInNode;
    let actions = service.detach(snapshot, 2, all);
    assert_eq!(actions.len(), 1);
    assert_eq!(code_of(&actions), ReturnCode::ToolControlReleaseRequired);
    assert_eq!(service.query(snapshot, 1), execute(snapshot, 1));

    service.command(snapshot, 0, AuthorityCommand::Release(ReleaseNotify::No));
    let actions = service.detach(snapshot, 2, all);
    assert_eq!(the_answer(&actions).1, ServiceMessage::DetachAck(vec![0, 1]));
    // Rank 1 has no tool left. The debugger is attached to rank 0.
    assert_eq!(actions[1..], [Action::Unseize { rank: 1 }]);
    // A detach by a tool that is not attached is no error.
    let unknown = service.connect(9, 9);
    for tool in [snapshot, unknown] {
        let (header, message) = the_answer(&service.detach(tool, 0, all));
        assert_eq!(header.code(), Some(ReturnCode::Success));
        assert_eq!(message, ServiceMessage::DetachAck(Vec::new()));
    }
    let actions = service.detach(debugger, 0, ProcessSelect::RankInHeader);
    assert_eq!(actions[1..], [Action::Unseize { rank: 0 }]);
}

#[test]
fn a_second_control_request_replaces_the_settings() {
    let (mut service, snapshot, _) = Service::with_two_tools();
    let new = Control { notify_set: 0, signal: SIGUSR1, ..settings() };
    let actions = service.send(snapshot, 0, ToolMessage::Control(new));
    assert_eq!(code_of(&actions), ReturnCode::Success);
    // With a signal for the leader, all threads are suspended.
    let expected = [
        Action::Configure { rank: 0, settings: new },
        Action::Suspend { rank: 0 },
        Action::SignalLeader { rank: 0, signal: SIGUSR1 },
    ];
    assert_eq!(actions[1..], expected);
    let notice = stop(7, SIGUSR1, SignalReason::Generic);
    assert_eq!(service.signal(notice), [Action::Pass { rank: 0, notice }]);
    // The process can be continued although there was no notice.
    let (code, actions) = service.command(snapshot, 0, AuthorityCommand::Continue);
    assert_eq!(code, CommandCode::Success);
    assert_eq!(actions, [Action::Resume { rank: 0, signals: Vec::new() }]);
}

#[test]
fn control_with_features_that_x86_64_lacks_or_an_invalid_signal_is_refused() {
    let mut service = Service::new();
    let tool = service.connect(1, 1);
    assert_eq!(service.attach(tool, 0, 10, b"snapshot"), ReturnCode::Success);
    for (settings, error_code) in [
        (Control { trap_mode: TrapMode::OnAccess, ..settings() }, errno::EOPNOTSUPP),
        (Control { signal: 65, ..settings() }, errno::EINVAL),
    ] {
        let (header, message) = the_answer(&service.send(tool, 0, ToolMessage::Control(settings)));
        assert_eq!(header.code(), Some(ReturnCode::RequestFailed));
        assert_eq!(header.error_code, error_code);
        assert_eq!(message, ServiceMessage::ControlAck(ControlAck::nobody()));
    }
    assert_eq!(code_of(&service.update(tool, 0)), ReturnCode::ToolControlRequired);
}

#[test]
fn only_the_refused_tool_of_highest_priority_is_notified() {
    let (mut service, snapshot, debugger) = Service::with_two_tools();
    let profiler = service.connect(3, 3);
    assert_eq!(service.attach(profiler, 0, 50, b"profiler"), ReturnCode::Success);
    assert_eq!(service.control(profiler, 0).len(), 2);
    assert_eq!(service.control(debugger, 0).len(), 2);
    // The debugger requests authority again. The controller is already notified.
    assert_eq!(service.control(debugger, 0).len(), 1);
    let release = AuthorityCommand::Release(ReleaseNotify::No);
    let (_, actions) = service.command(snapshot, 0, release);
    let available = |to| control_notice(to, ControlReason::Available, 1, b"snapshot", 10);
    assert_eq!(actions, [available(debugger)]);
    // The notice does not grant authority. Another tool may be faster, and is notified of the
    // debugger.
    assert_eq!(code_of(&service.control(snapshot, 0)), ReturnCode::Success);
    let actions = service.control(debugger, 0);
    assert_eq!(code_of(&actions), ReturnCode::ToolControlConflict);
    let conflict = control_notice(snapshot, ControlReason::Conflict, 2, b"debugger", 90);
    assert_eq!(actions[1..], [conflict]);
    // Tools that have left are not notified.
    service.detach(debugger, 0, ProcessSelect::RankInHeader);
    let (_, actions) = service.command(snapshot, 0, release);
    assert_eq!(actions, [available(profiler)]);
}

#[test]
fn if_the_notified_tool_disconnects_the_next_tool_is_notified() {
    let (mut service, snapshot, debugger) = Service::with_two_tools();
    service.control(debugger, 0);
    let release = AuthorityCommand::Release(ReleaseNotify::Yes);
    let (_, actions) = service.command(snapshot, 0, release);
    assert_eq!(actions.len(), 1);
    let closed = Event::Closed { connection: debugger.connection };
    let available = control_notice(snapshot, ControlReason::Available, 2, b"debugger", 90);
    assert_eq!(service.authority.handle(closed), [available]);
}

#[test]
fn notices_of_signals_are_sent_one_after_the_other() {
    let (mut service, snapshot, debugger) = Service::with_two_tools();
    let first = stop(100, SIGTRAP, SignalReason::Breakpoint);
    let second = stop(101, SIGUSR1, SignalReason::Generic);
    let suspend = Action::Suspend { rank: 0 };
    assert_eq!(service.signal(first), [suspend, signal_notice(snapshot, first)]);
    assert_eq!(service.signal(second), []);
    assert_eq!(service.authority.default_thread(0), Some(100));

    // Only the thread of the notice can be continued, and only by the tool with authority.
    let go_on = AuthorityCommand::Continue;
    assert_eq!(service.command(snapshot, 101, go_on), (CommandCode::ThreadInvalid, vec![]));
    assert_eq!(service.command(debugger, 100, go_on), (CommandCode::ProcessExiting, vec![]));
    let release = AuthorityCommand::Release(ReleaseNotify::No);
    assert_eq!(service.command(snapshot, 0, release), (CommandCode::PendingNotify, vec![]));

    let (code, actions) = service.command(snapshot, 100, go_on);
    assert_eq!((code, actions), (CommandCode::Success, vec![signal_notice(snapshot, second)]));
    assert!(service.authority.is_suspended(0));
    // The last signal that was set takes effect.
    for signal in [SIGTRAP, SIGUSR1] {
        let set = AuthorityCommand::SetContinuationSignal(signal);
        assert_eq!(service.command(snapshot, 0, set), (CommandCode::Success, vec![]));
    }
    let unknown = AuthorityCommand::SetContinuationSignal(1);
    assert_eq!(service.command(snapshot, 102, unknown).0, CommandCode::ThreadInvalid);
    let resume = Action::Resume { rank: 0, signals: vec![(101, SIGUSR1)] };
    assert_eq!(service.command(snapshot, 0, go_on), (CommandCode::Success, vec![resume]));
    assert_eq!(service.command(snapshot, 0, go_on).0, CommandCode::ThreadInvalid);
}

#[test]
fn a_second_report_of_a_thread_replaces_its_notice() {
    let (mut service, snapshot, _) = Service::with_two_tools();
    service.signal(stop(100, SIGUSR1, SignalReason::Generic));
    service.signal(stop(101, SIGUSR1, SignalReason::Generic));
    let later = stop(101, SIGTRAP, SignalReason::Breakpoint);
    service.signal(later);
    let go_on = AuthorityCommand::Continue;
    assert_eq!(service.command(snapshot, 0, go_on).1, [signal_notice(snapshot, later)]);
    let resume = Action::Resume { rank: 0, signals: Vec::new() };
    assert_eq!(service.command(snapshot, 0, go_on).1, [resume]);
}

#[test]
fn signals_that_no_tool_has_requested_are_delivered_to_the_program() {
    let (mut service, snapshot, _) = Service::with_two_tools();
    let pass = |notice| vec![Action::Pass { rank: 0, notice }];
    for signal in [0, 1, 9, 64, 65, u32::MAX] {
        let notice = stop(100, signal, SignalReason::Generic);
        assert_eq!(service.signal(notice), pass(notice), "{signal}");
    }
    let release = AuthorityCommand::Release(ReleaseNotify::No);
    service.command(snapshot, 0, release);
    let notice = stop(100, SIGUSR1, SignalReason::Generic);
    assert_eq!(service.signal(notice), pass(notice));
    let event = Event::Signal { rank: 9, notice };
    assert_eq!(service.authority.handle(event), [Action::Pass { rank: 9, notice }]);
}

#[test]
fn a_step_moves_one_thread_and_ends_with_a_notice() {
    let (mut service, snapshot, _) = Service::with_two_tools();
    let at = stop(100, SIGUSR1, SignalReason::Generic);
    service.signal(at);
    service.command(snapshot, 0, AuthorityCommand::SetContinuationSignal(SIGUSR1));
    let step = |signal| Action::Step { rank: 0, thread: 100, signal };
    let (code, actions) = service.command(snapshot, 0, AuthorityCommand::Step);
    assert_eq!((code, actions), (CommandCode::Success, vec![step(SIGUSR1)]));
    let done = stop(100, SIGTRAP, SignalReason::StepCompleted);
    assert_eq!(service.signal(done), [signal_notice(snapshot, done)]);
    let (code, actions) = service.command(snapshot, 100, AuthorityCommand::Step);
    assert_eq!((code, actions), (CommandCode::Success, vec![step(0)]));
    service.signal(done);

    // If another notice is pending, the step is not done, and that notice is sent.
    let other = stop(101, SIGUSR1, SignalReason::Generic);
    assert_eq!(service.signal(other), []);
    let (code, actions) = service.command(snapshot, 100, AuthorityCommand::Step);
    let expected = vec![signal_notice(snapshot, other)];
    assert_eq!((code, actions), (CommandCode::PendingNotify, expected));
}

#[test]
fn release_control_continues_the_process() {
    let (mut service, snapshot, debugger) = Service::with_two_tools();
    service.control(debugger, 0);
    service.signal(stop(100, SIGUSR1, SignalReason::Generic));
    service.command(snapshot, 100, AuthorityCommand::SetContinuationSignal(SIGUSR1));
    let release = AuthorityCommand::Release(ReleaseNotify::No);
    let (code, actions) = service.command(snapshot, 0, release);
    let resume = Action::Resume { rank: 0, signals: vec![(100, SIGUSR1)] };
    let available = control_notice(debugger, ControlReason::Available, 1, b"snapshot", 10);
    assert_eq!((code, actions), (CommandCode::Success, vec![resume, available]));
    assert_eq!(code_of(&service.update(snapshot, 0)), ReturnCode::ToolControlRequired);
}

#[test]
fn the_death_of_a_tool_in_control_undoes_its_changes_to_the_process() {
    let (mut service, snapshot, debugger) = Service::with_two_tools();
    service.control(debugger, 0);
    // The tool has continued from the first notice and has got the second. Two are queued.
    service.signal(stop(100, SIGUSR1, SignalReason::Generic));
    service.signal(stop(101, SIGUSR1, SignalReason::Generic));
    service.signal(stop(102, SIGTRAP, SignalReason::Breakpoint));
    service.signal(stop(103, SIGTRAP, SignalReason::Generic));
    service.command(snapshot, 100, AuthorityCommand::Continue);
    let actions = service.authority.handle(Event::Closed { connection: snapshot.connection });
    let expected = [
        Action::Undo { rank: 0, tool: 1 },
        Action::Resume { rank: 0, signals: vec![(101, SIGUSR1), (103, SIGTRAP)] },
        control_notice(debugger, ControlReason::Available, 1, b"snapshot", 10),
    ];
    assert_eq!(actions, expected);
    let closed = Event::Closed { connection: debugger.connection };
    assert_eq!(service.authority.handle(closed), [Action::Unseize { rank: 0 }]);
}

#[test]
fn an_exit_is_reported_to_all_tools_and_later_requests_are_refused() {
    let (mut service, snapshot, debugger) = Service::with_two_tools();
    service.control(debugger, 0);
    service.signal(stop(100, SIGUSR1, SignalReason::Generic));
    let exit = |client| notice(client, 0, Notice::Exit(ExitNotice { status: 256 }));
    let actions = service.authority.handle(Event::Exited { rank: 0, status: 256 });
    // The tool of highest priority comes first. The refused tool gets no notice of availability.
    assert_eq!(actions, [exit(debugger), exit(snapshot)]);
    assert_eq!(service.authority.handle(Event::Exited { rank: 0, status: 0 }), []);
    assert_eq!(code_of(&service.query(snapshot, 0)), ReturnCode::ToolProcessExiting);
    assert_eq!(code_of(&service.update(snapshot, 0)), ReturnCode::ToolProcessExiting);
    assert_eq!(code_of(&service.control(debugger, 0)), ReturnCode::ToolProcessExiting);
    let (code, actions) = service.command(snapshot, 0, AuthorityCommand::Continue);
    assert_eq!((code, actions), (CommandCode::ProcessExiting, vec![]));
    assert_eq!(service.authority.controller(0), None);
    // A process of the next stage has the same rank.
    service.authority.handle(Event::Started { rank: 0 });
    assert_eq!(service.attach(snapshot, 0, 10, b"snapshot"), ReturnCode::Success);
}

#[test]
fn the_end_of_a_thread_completes_its_notices() {
    let (mut service, snapshot, _) = Service::with_two_tools();
    service.signal(stop(100, SIGUSR1, SignalReason::Generic));
    let second = stop(101, SIGUSR1, SignalReason::Generic);
    service.signal(second);
    service.signal(stop(102, SIGUSR1, SignalReason::Generic));
    let ended = |thread| Event::ThreadExited { rank: 0, thread };
    assert_eq!(service.authority.handle(ended(102)), []);
    assert_eq!(service.authority.handle(ended(100)), [signal_notice(snapshot, second)]);
    assert_eq!(service.authority.handle(ended(101)), []);
    assert_eq!(service.authority.default_thread(0), None);
    let (code, actions) = service.command(snapshot, 0, AuthorityCommand::Continue);
    assert_eq!(code, CommandCode::Success);
    assert_eq!(actions, [Action::Resume { rank: 0, signals: Vec::new() }]);
}

#[test]
fn a_failed_command_prevents_later_commands_for_the_same_thread() {
    let mut failed = FailedThreads::default();
    failed.record(5, CommandCode::Success);
    assert_eq!(failed.check(5), Ok(()));
    failed.record(5, CommandCode::AddressError);
    assert_eq!(failed.check(5), Err(CommandCode::PreviousCommandFailed));
    assert_eq!(failed.check(6), Ok(()));
}
