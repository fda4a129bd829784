//! A simulation: tools, including hostile ones, send arbitrary messages to three processes in an
//! order that a seed determines. A model, which consists of plain lists, determines each expected
//! answer and notice.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{ModelProcess, ModelTool};
use super::*;
use crate::wire::{
    Attach, CommandCode, ControlReason, ReleaseNotify, SignalNotice, SignalReason, StartNotice,
    WatchPolicy,
};

const JOB: u64 = 7;
const OWNER: u32 = 1000;
const RANKS: u32 = 3;
const THREADS: u32 = 3;
const STEPS: u32 = 400;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed >> 33) % u64::from(limit)) as u32
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// The expected notices: connection, rank, the tool that the notice is about, and the reason.
type ControlNotices = Vec<(ConnectionId, u32, u32, ControlReason)>;

struct Simulation {
    random: Random,
    authority: Authority,
    processes: Vec<ModelProcess>,
    /// The number of the tool of each open connection, which it gets with its first Attach.
    connections: BTreeMap<ConnectionId, Option<u32>>,
    next_connection: u64,
    sequence: u32,
    expected: ControlNotices,
    /// How often each event has happened. A simulation without such events would test nothing.
    counts: BTreeMap<&'static str, u32>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut authority = Authority::new(JOB, OWNER);
        for rank in 0..RANKS {
            authority.handle(Event::Started { rank });
        }
        Self {
            random: Random(seed),
            authority,
            processes: (0..RANKS).map(|_| ModelProcess::default()).collect(),
            connections: BTreeMap::new(),
            next_connection: 0,
            sequence: 0,
            expected: Vec::new(),
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, event: &'static str) {
        *self.counts.entry(event).or_default() += 1;
    }

    fn run(mut self) -> BTreeMap<&'static str, u32> {
        for _ in 0..STEPS {
            match self.random.below(100) {
                0..6 => self.connect(),
                6..8 => self.close(),
                8..9 if self.random.chance(30) => self.exit_or_start(),
                9..30 => self.signal(),
                30..34 => self.thread_exit(),
                34..44 => self.attach(),
                44..48 => self.detach(),
                48..62 => self.control(),
                62..66 => self.query(),
                66..68 => self.nonsense(),
                _ => self.update(),
            }
            self.check();
        }
        // All tools leave. Afterwards no thread is stopped.
        while !self.connections.is_empty() {
            self.close();
            self.check();
        }
        for (rank, process) in self.processes.iter().enumerate() {
            assert!(!process.is_suspended && process.standing.is_empty(), "rank {rank}");
        }
        self.counts
    }

    fn rank(&mut self) -> u32 {
        self.random.below(RANKS)
    }

    fn any_connection(&mut self) -> Option<ConnectionId> {
        let number = self.random.below(self.connections.len().max(1) as u32) as usize;
        self.connections.keys().nth(number).copied()
    }

    fn connect(&mut self) {
        if self.connections.len() < 6 {
            let connection = ConnectionId(self.next_connection);
            self.next_connection += 1;
            let reach = Reach::Host;
            self.authority.handle(Event::Connected { connection, uid: OWNER, reach });
            self.connections.insert(connection, None);
        }
    }

    /// Sends a message with the tool number that the tool should use. Returns the actions.
    fn send(&mut self, connection: ConnectionId, rank: u32, message: ToolMessage) -> Vec<Action> {
        let tool = self.connections[&connection].unwrap_or(0);
        self.send_as(connection, tool, rank, message)
    }

    fn send_as(
        &mut self,
        connection: ConnectionId,
        tool: u32,
        rank: u32,
        message: ToolMessage,
    ) -> Vec<Action> {
        self.sequence += 1;
        let header = Header::new(JOB, rank, tool, self.sequence);
        self.authority.handle(Event::Message { connection, header, message: &message })
    }

    /// Checks the answer, which is the first action.
    fn answer(&self, connection: ConnectionId, actions: &[Action]) -> (Header, ReturnCode) {
        match actions.first() {
            Some(Action::Send { connection: to, header, message }) => {
                assert_eq!((*to, header.sequence), (connection, self.sequence), "{message:?}");
                (*header, header.code().unwrap())
            }
            other => panic!("no answer but {other:?}"),
        }
    }

    fn attach(&mut self) {
        let Some(connection) = self.any_connection() else { return };
        let rank = self.rank();
        // Few priorities, so that they conflict, and some invalid ones.
        let priority = [1, 20, 40, 60, 80, 99, 100][self.random.below(7) as usize];
        let has_number = self.connections[&connection].is_some();
        let asked = match self.random.below(4) {
            0 => 1 + self.random.below(5),
            1 if !has_number => FIRST_OWN_TOOL + self.random.below(3),
            _ => self.connections[&connection].unwrap_or(0),
        };
        let select = if self.random.chance(30) {
            ProcessSelect::RanksInNode
        } else {
            ProcessSelect::RankInHeader
        };
        let body = Attach { tag: [priority; 8], priority, select };
        let mut actions = self.send_as(connection, asked, rank, ToolMessage::Attach(body));
        let mut result = Ok(());
        if let Some(Action::Seize { ranks, .. }) = actions.first().cloned() {
            assert!(ranks.iter().all(|rank| self.processes[*rank as usize].tools.is_empty()));
            if self.random.chance(10) {
                let reason = "it is traced".to_owned();
                result = Err(SeizeFailure { rank: ranks[0], error_code: 1, reason });
            }
            let result = result.clone();
            actions = self.authority.handle(Event::Seized { connection, ranks, result });
        }
        let ranks: Vec<u32> = match select {
            ProcessSelect::RankInHeader => vec![rank],
            ProcessSelect::RanksInNode => {
                (0..RANKS).filter(|rank| !self.processes[*rank as usize].has_exited).collect()
            }
        };
        let expected = self.attach_codes(connection, asked, priority, &ranks, result.is_err());
        let (header, code) = self.answer(connection, &actions);
        assert!(expected.contains(&code), "{code:?} is none of {expected:?}");
        assert_eq!(actions.len(), 1);
        if code == ReturnCode::Success {
            self.count("attached");
            let Action::Send { message, .. } = &actions[0] else { unreachable!("an answer") };
            assert_eq!(*message, ServiceMessage::AttachAck(ranks.clone()));
            for rank in ranks {
                let tool = header.tool;
                self.processes[rank as usize].tools.push(ModelTool { connection, tool, priority });
            }
            self.connections.insert(connection, Some(header.tool));
        } else if code == ReturnCode::RequestFailed {
            self.connections.insert(connection, Some(header.tool));
        } else {
            self.count("attach refused");
        }
    }

    /// The possible error codes of an Attach, one for each of its errors.
    fn attach_codes(
        &self,
        connection: ConnectionId,
        asked: u32,
        priority: u8,
        ranks: &[u32],
        is_untraceable: bool,
    ) -> BTreeSet<ReturnCode> {
        let mut codes = BTreeSet::new();
        let own = self.connections[&connection];
        let is_own = match own {
            Some(own) => asked == own || asked == 0,
            None => asked < FIRST_OWN_TOOL,
        };
        if !is_own {
            codes.insert(ReturnCode::ToolIdError);
        }
        if priority > 99 {
            codes.insert(ReturnCode::ToolPriorityError);
        }
        if ranks.is_empty() {
            codes.insert(ReturnCode::ToolProcessExiting);
        }
        for rank in ranks {
            let process = &self.processes[*rank as usize];
            if process.has_exited {
                codes.insert(ReturnCode::ToolProcessExiting);
            }
            if process.tools.len() == 4 {
                codes.insert(ReturnCode::ToolMaxAttachedExceeded);
            }
            let is_same = |tool: &ModelTool| tool.connection == connection || tool.tool == asked;
            if process.tools.iter().any(is_same) {
                codes.insert(ReturnCode::ToolIdConflict);
            }
            if process.tools.iter().any(|tool| tool.priority == priority) {
                codes.insert(ReturnCode::ToolPriorityConflict);
            }
        }
        match (codes.is_empty(), is_untraceable) {
            (true, true) => BTreeSet::from([ReturnCode::RequestFailed]),
            (true, false) => BTreeSet::from([ReturnCode::Success]),
            (false, _) => codes,
        }
    }

    /// Whether this tool may send messages to this process; otherwise the expected error code.
    fn permission(&self, connection: ConnectionId, rank: u32) -> Result<(), ReturnCode> {
        let process = &self.processes[rank as usize];
        if self.connections[&connection].is_none() {
            Err(ReturnCode::ToolIdError)
        } else if process.has_exited {
            Err(ReturnCode::ToolProcessExiting)
        } else if process.tool(connection).is_none() {
            Err(ReturnCode::ToolRankNotFound)
        } else {
            Ok(())
        }
    }

    fn control(&mut self) {
        let Some(connection) = self.any_connection() else { return };
        let rank = self.rank();
        let signal = if self.random.chance(20) { 10 } else { 0 };
        let settings = Control {
            notify_set: [u64::MAX, 1 << 9, 0][self.random.below(3) as usize],
            signal,
            start_notice: StartNotice::DynamicLoader,
            trap_mode: TrapMode::AfterAccess,
            watch_policy: WatchPolicy::Propagate,
        };
        let actions = self.send(connection, rank, ToolMessage::Control(settings));
        let (_, code) = self.answer(connection, &actions);
        if let Err(expected) = self.permission(connection, rank) {
            assert_eq!((code, actions.len()), (expected, 1));
            return;
        }
        let process = &mut self.processes[rank as usize];
        match process.controller {
            Some(other) if other != connection => {
                assert_eq!(code, ReturnCode::ToolControlConflict);
                process.refused.insert(connection);
                if process.announced.insert(connection) {
                    let asker = process.tool(connection).unwrap().tool;
                    self.expected.push((other, rank, asker, ControlReason::Conflict));
                }
                self.count("control refused");
            }
            before => {
                assert_eq!(code, ReturnCode::Success);
                if before.is_none() {
                    process.announced.clear();
                }
                process.controller = Some(connection);
                process.notify_set = settings.notify_set;
                process.refused.remove(&connection);
                process.yielded.remove(&connection);
                process.offered = None;
                process.is_suspended |= signal != 0;
                self.count("control given");
            }
        }
        self.take(&actions[1..]);
    }

    fn query(&mut self) {
        let Some(connection) = self.any_connection() else { return };
        let rank = self.rank();
        let actions = self.send(connection, rank, ToolMessage::Query(Vec::new()));
        match self.permission(connection, rank) {
            Ok(()) => assert_eq!(actions, [Action::Execute { connection, rank }]),
            Err(code) => assert_eq!(self.answer(connection, &actions).1, code),
        }
    }

    fn update(&mut self) {
        let Some(mut connection) = self.any_connection() else { return };
        let rank = self.rank();
        if self.random.chance(70) {
            connection = self.processes[rank as usize].controller.unwrap_or(connection);
        }
        let actions = self.send(connection, rank, ToolMessage::Update(Vec::new()));
        let is_controller = self.processes[rank as usize].controller == Some(connection);
        match self.permission(connection, rank) {
            Ok(()) if is_controller => {
                assert_eq!(actions, [Action::Execute { connection, rank }]);
                self.command(connection, rank);
            }
            Ok(()) => {
                let (_, code) = self.answer(connection, &actions);
                assert_eq!(code, ReturnCode::ToolControlRequired);
            }
            Err(code) => assert_eq!(self.answer(connection, &actions).1, code),
        }
    }

    fn command(&mut self, connection: ConnectionId, rank: u32) {
        let thread = if self.random.chance(60) { 0 } else { 1 + self.random.below(THREADS) };
        let notify = if self.random.chance(50) { ReleaseNotify::Yes } else { ReleaseNotify::No };
        let command = match self.random.below(5) {
            0 => AuthorityCommand::SetContinuationSignal(self.random.below(65)),
            1 => AuthorityCommand::Step,
            2 => AuthorityCommand::Release(notify),
            3 => AuthorityCommand::Suspend,
            _ => AuthorityCommand::Continue,
        };
        let (code, actions) = self.authority.command(connection, rank, thread, command);
        let process = &mut self.processes[rank as usize];
        let pending = process.standing.iter().any(|thread| Some(*thread) != process.unsatisfied);
        match command {
            AuthorityCommand::SetContinuationSignal(_) => assert_eq!(actions, []),
            AuthorityCommand::Continue => {
                let is_target = thread == 0 || process.unsatisfied == Some(thread);
                if process.is_suspended && is_target {
                    assert_eq!(code, CommandCode::Success);
                    assert_eq!(actions.len(), 1);
                    assert_eq!(matches!(actions[0], Action::Resume { .. }), !pending);
                    if let Some(thread) = process.unsatisfied.take() {
                        process.standing.remove(&thread);
                    }
                } else {
                    assert_eq!((code, actions.len()), (CommandCode::ThreadInvalid, 0));
                }
            }
            AuthorityCommand::Step => {
                let is_stepped = actions.iter().any(|one| matches!(one, Action::Step { .. }));
                assert_eq!(is_stepped, !pending);
                assert_eq!(code == CommandCode::Success, !pending);
                if let Some(thread) = process.unsatisfied.take() {
                    process.standing.remove(&thread);
                }
                process.is_suspended = true;
            }
            AuthorityCommand::Suspend => {
                let is_new = matches!(actions[..], [Action::Suspend { .. }]);
                assert_eq!((code, is_new), (CommandCode::Success, !process.is_suspended));
                process.is_suspended = true;
            }
            AuthorityCommand::Release(_) if pending => {
                assert_eq!((code, actions.len()), (CommandCode::PendingNotify, 0));
            }
            AuthorityCommand::Release(_) => {
                assert_eq!(code, CommandCode::Success);
                self.free(connection, rank);
                if notify == ReleaseNotify::Yes {
                    self.processes[rank as usize].yielded.insert(connection);
                }
                self.count("released");
            }
        }
        self.take(&actions);
    }

    /// Notes that authority becomes free.
    fn free(&mut self, by: ConnectionId, rank: u32) {
        let process = &mut self.processes[rank as usize];
        process.controller = None;
        process.announced.clear();
        self.offer(by, rank);
    }

    fn offer(&mut self, by: ConnectionId, rank: u32) {
        let process = &mut self.processes[rank as usize];
        let by = process.tool(by).unwrap().tool;
        process.offered = process.favoured();
        if let Some(connection) = process.offered {
            process.refused.remove(&connection);
            process.yielded.remove(&connection);
            self.expected.push((connection, rank, by, ControlReason::Available));
            self.count("offered");
        }
    }

    /// Removes a tool without authority from a process.
    fn leave(&mut self, connection: ConnectionId, rank: u32) {
        let process = &mut self.processes[rank as usize];
        if process.tool(connection).is_none() {
            return;
        }
        process.refused.remove(&connection);
        process.yielded.remove(&connection);
        if process.offered == Some(connection) {
            self.offer(connection, rank);
        }
        self.processes[rank as usize].forget(connection);
    }

    fn detach(&mut self) {
        let Some(connection) = self.any_connection() else { return };
        let rank = self.rank();
        let all = self.random.chance(30);
        let select = if all { ProcessSelect::RanksInNode } else { ProcessSelect::RankInHeader };
        let actions = self.send(connection, rank, ToolMessage::Detach(Detach { select }));
        let (_, code) = self.answer(connection, &actions);
        let ranks: Vec<u32> = (0..RANKS)
            .filter(|one| all || *one == rank)
            .filter(|one| self.processes[*one as usize].tool(connection).is_some())
            .collect();
        let is_controller =
            |rank: &u32| self.processes[*rank as usize].controller == Some(connection);
        if ranks.iter().any(is_controller) {
            assert_eq!((code, actions.len()), (ReturnCode::ToolControlReleaseRequired, 1));
            return;
        }
        assert_eq!(code, ReturnCode::Success);
        let Action::Send { message, .. } = &actions[0] else { unreachable!("an answer") };
        assert_eq!(*message, ServiceMessage::DetachAck(ranks.clone()));
        ranks.iter().for_each(|rank| self.leave(connection, *rank));
        self.check_unseized(&ranks, &actions);
        self.take(&actions[1..]);
    }

    fn check_unseized(&self, left: &[u32], actions: &[Action]) {
        for rank in left {
            let is_unseized = actions.contains(&Action::Unseize { rank: *rank });
            assert_eq!(is_unseized, self.processes[*rank as usize].tools.is_empty());
        }
    }

    /// Closes the connection of a tool.
    fn close(&mut self) {
        let Some(connection) = self.any_connection() else { return };
        let mut left = Vec::new();
        for rank in 0..RANKS {
            let process = &mut self.processes[rank as usize];
            let Some(tool) = process.tool(connection) else { continue };
            left.push((rank, tool.tool, process.controller == Some(connection)));
            if process.controller == Some(connection) {
                self.free(connection, rank);
            }
            self.leave(connection, rank);
        }
        self.connections.remove(&connection);
        let actions = self.authority.handle(Event::Closed { connection });
        for (rank, tool, was_controller) in &left {
            let undo = Action::Undo { rank: *rank, tool: *tool };
            assert_eq!(actions.contains(&undo), *was_controller);
        }
        let ranks: Vec<u32> = left.iter().map(|(rank, ..)| *rank).collect();
        self.check_unseized(&ranks, &actions);
        self.take(&actions);
    }

    fn exit_or_start(&mut self) {
        let rank = self.rank();
        let process = &mut self.processes[rank as usize];
        if process.has_exited {
            *process = ModelProcess::default();
            assert_eq!(self.authority.handle(Event::Started { rank }), []);
            return;
        }
        let mut tools = std::mem::take(process).tools;
        process.has_exited = true;
        tools.sort_by_key(|tool| std::cmp::Reverse(tool.priority));
        let actions = self.authority.handle(Event::Exited { rank, status: 9 });
        let notices: Vec<ConnectionId> = actions
            .iter()
            .map(|action| match action {
                Action::Send {
                    connection,
                    message: ServiceMessage::Notify(Notice::Exit(ExitNotice { status: 9 })),
                    ..
                } => *connection,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(notices, tools.iter().map(|tool| tool.connection).collect::<Vec<_>>());
        self.count("exited");
    }

    fn signal(&mut self) {
        let rank = self.rank();
        let thread = 1 + self.random.below(THREADS);
        let process = &self.processes[rank as usize];
        if process.has_exited || process.standing.contains(&thread) {
            return;
        }
        let reasons = [SignalReason::Generic, SignalReason::Breakpoint];
        let notice = SignalNotice {
            signal: [5, 10, 64, 9][self.random.below(4) as usize],
            thread,
            instruction: 0,
            access: 0,
            reason: reasons[self.random.below(2) as usize],
            execute_mode: 0,
            restart: [0; 4],
        };
        let is_wanted = process.controller.is_some()
            && notice.signal != 9
            && process.notify_set & 1 << (notice.signal - 1) != 0;
        let actions = self.authority.handle(Event::Signal { rank, notice });
        if is_wanted {
            let process = &mut self.processes[rank as usize];
            process.standing.insert(thread);
            let suspends = actions.contains(&Action::Suspend { rank });
            assert_eq!(suspends, !process.is_suspended);
            process.is_suspended = true;
            self.count("noticed");
        } else {
            assert_eq!(actions, [Action::Pass { rank, notice }]);
        }
        self.take(&actions);
    }

    fn thread_exit(&mut self) {
        let rank = self.rank();
        let thread = 1 + self.random.below(THREADS);
        let actions = self.authority.handle(Event::ThreadExited { rank, thread });
        let process = &mut self.processes[rank as usize];
        process.standing.remove(&thread);
        if process.unsatisfied == Some(thread) {
            process.unsatisfied = None;
        }
        self.take(&actions);
    }

    /// Sends messages that no tool should send.
    fn nonsense(&mut self) {
        let Some(connection) = self.any_connection() else { return };
        let tool = self.connections[&connection].unwrap_or(0) ^ 0x55;
        let update = ToolMessage::Update(Vec::new());
        let actions = self.send_as(connection, tool, 0, update);
        assert_eq!(self.answer(connection, &actions).1, ReturnCode::ToolIdError);
        if let Some(tool) = self.connections[&connection] {
            let query = ToolMessage::Query(Vec::new());
            let actions = self.send_as(connection, tool, RANKS, query);
            assert_eq!(self.answer(connection, &actions).1, ReturnCode::ProcessIdError);
        }
        let seized = Event::Seized { connection, ranks: Vec::new(), result: Ok(()) };
        assert_eq!(self.authority.handle(seized), []);
        assert_eq!(self.send(connection, 0, ToolMessage::NotifyAck), []);
    }

    /// Checks the actions other than the answer.
    fn take(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Send { connection, header, message: ServiceMessage::Notify(notice) } => {
                    self.take_notice(*connection, header.rank, notice);
                }
                Action::Resume { rank, .. } => self.processes[*rank as usize].all_go_on(),
                Action::Send { .. } | Action::Close { .. } | Action::Execute { .. } => {
                    panic!("{action:?}")
                }
                _ => {}
            }
        }
    }

    fn take_notice(&mut self, connection: ConnectionId, rank: u32, notice: &Notice) {
        let process = &mut self.processes[rank as usize];
        match notice {
            Notice::Signal(notice) => {
                // Notices go only to the controller, one at a time.
                assert_eq!(process.controller, Some(connection));
                assert_eq!(process.unsatisfied, None);
                assert!(process.standing.contains(&notice.thread));
                process.unsatisfied = Some(notice.thread);
            }
            Notice::Control(notice) => {
                let got = (connection, rank, notice.tool, notice.reason);
                let place = self.expected.iter().position(|expected| *expected == got);
                let place = place.unwrap_or_else(|| panic!("{got:?} was not expected"));
                self.expected.remove(place);
            }
            Notice::Exit(_) => panic!("the process has not exited"),
        }
    }

    /// Checks the invariants.
    fn check(&self) {
        assert_eq!(self.expected, [], "notices that were not sent");
        for (rank, process) in self.processes.iter().enumerate() {
            let controller = self.authority.controller(rank as u32);
            let expected = process.controller.and_then(|connection| process.tool(connection));
            assert_eq!(controller.map(|one| one.tool), expected.map(|one| one.tool));
            assert_eq!(process.controller.is_some(), expected.is_some());
            assert_eq!(self.authority.is_suspended(rank as u32), process.is_suspended);
            let priorities: BTreeSet<u8> = process.tools.iter().map(|one| one.priority).collect();
            let numbers: BTreeSet<u32> = process.tools.iter().map(|one| one.tool).collect();
            assert!(process.tools.len() <= 4);
            assert_eq!(
                (priorities.len(), numbers.len()),
                (process.tools.len(), process.tools.len())
            );
            // A refused tool is notified when authority becomes free.
            let is_free = process.controller.is_none();
            assert!(!is_free || process.refused.is_empty() || process.offered.is_some());
            // If a process is suspended, the tool with authority can resume it. If threads wait for
            // that tool, it has been notified of one of them.
            assert!(!process.is_suspended || process.controller.is_some());
            assert!(process.standing.is_empty() || process.unsatisfied.is_some());
        }
    }
}

#[test]
fn any_messages_of_four_tools_violate_no_rule() {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in 0..1_000 {
        let run = std::panic::catch_unwind(|| Simulation::new(seed).run());
        let run = run.unwrap_or_else(|_| panic!("seed {seed}"));
        run.into_iter().for_each(|(event, count)| *counts.entry(event).or_default() += count);
    }
    let events = [
        "attached",
        "attach refused",
        "control given",
        "control refused",
        "released",
        "offered",
        "noticed",
        "exited",
    ];
    for event in events {
        assert!(counts.get(event).is_some_and(|count| *count > 1_000), "{event}: {counts:?}");
    }
}
