//! Consoles (`scdb`): tools whose commands arrive from the shepherd, and that have no connection to
//! this service. The authority treats a console like any other tool. A console attaches to a
//! process and takes control of it with the first action that needs this. It leaves the process
//! when it has no holds, stops, breakpoints or watchpoints there, so that other tools can take
//! control.

use std::collections::{BTreeMap, VecDeque};

use score_proto::ids::ElementIndex;
use score_proto::tool_command::{
    CommandId, ConsoleAction, Location, ProcessState, StopReason, ToolResult,
};
use score_proto::toolctl::ToolProcess;
use score_stacks::location::LocationFinder;
use score_toolctl::tracer::{Linux, Pid, SignalSet, Ticket, Tid, Tracer};
use score_tools::authority::{
    AuthorityCommand, CONSOLE_TAG, ConnectionId, Event, MAX_TOOLS, Reach, describe_control_conflict,
};
use score_tools::wire::{
    Attach, CommandCode, Control, ControlAck, Detach, Header, Notice, ProcessSelect, ReleaseNotify,
    ReturnCode, ServiceMessage, SignalNotice, SignalReason, StartNotice, ToolMessage, TrapMode,
    WatchPolicy,
};

use super::Service;
use super::line_step::LineStep;
use super::shepherd::Target;

/// The priority of a console. If another tool has this priority, the console tries lower ones.
const PRIORITY: u8 = 50;
/// The signals of which a console is notified. SIGTRAP covers breakpoints, watchpoints and steps.
const NOTIFY_SET: u64 = 1 << (libc::SIGTRAP - 1);

/// A thread that has stopped its process.
#[derive(Debug)]
pub(super) struct StoppedThread {
    pub(super) reason: StopReason,
    pub(super) tid: Tid,
    /// The stack of the thread, once it has been read.
    pub(super) stack: Option<Vec<u8>>,
    /// The commands that wait for the stack.
    pub(super) waiting: Vec<Target>,
}

/// The progress of a console in taking control of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The console attaches. Contains the number of priorities that were in use.
    Attaching(u8),
    /// The console has requested control.
    Asking,
    /// The console has control.
    InControl,
}

/// A process on which a console acts.
#[derive(Debug)]
pub(super) struct ConsoleProcess {
    pub(super) pid: Pid,
    progress: Progress,
    /// The actions that wait for control.
    waiting: VecDeque<(Target, ConsoleAction)>,
    pub(super) is_held: bool,
    pub(super) stop: Option<StoppedThread>,
    /// Whether a thread makes a step. A stop follows.
    pub(super) is_stepping: bool,
    /// The step by lines of which that step is a part.
    pub(super) line_step: Option<LineStep>,
    /// The addresses of each breakpoint.
    pub(super) breakpoints: BTreeMap<Location, Vec<u64>>,
    /// The address of each watchpoint.
    pub(super) watchpoints: BTreeMap<Location, u64>,
    /// The number of requests to the tracer that have no answer yet.
    requests: usize,
}

impl ConsoleProcess {
    fn new(pid: Pid) -> Self {
        Self {
            pid,
            progress: Progress::Attaching(0),
            waiting: VecDeque::new(),
            is_held: false,
            stop: None,
            is_stepping: false,
            line_step: None,
            breakpoints: BTreeMap::new(),
            watchpoints: BTreeMap::new(),
            requests: 0,
        }
    }

    /// Whether the console has no holds, stops, breakpoints or watchpoints left in the process.
    fn is_free(&self) -> bool {
        self.progress == Progress::InControl
            && self.waiting.is_empty()
            && !self.is_held
            && self.stop.is_none()
            && !self.is_stepping
            && self.breakpoints.is_empty()
            && self.watchpoints.is_empty()
            && self.requests == 0
    }
}

/// A console. The job master limits the number of consoles.
#[derive(Debug)]
pub(super) struct Console {
    connection: ConnectionId,
    /// The tool number of the console, once it has one.
    tool: u32,
    /// The processes, by rank.
    pub(super) processes: BTreeMap<u32, ConsoleProcess>,
}

/// The purpose of a request to the tracer.
#[derive(Debug)]
pub(super) enum RequestUse {
    /// Wait until the process is held, and then answer this command.
    Held(Target),
    /// Read the stack of the thread that has stopped the process.
    Stack,
    /// Set the watchpoint with this number in one thread.
    Watch(u64),
}

/// A request to the tracer.
#[derive(Debug)]
pub(super) struct ConsoleRequest {
    pub(super) session: u64,
    pub(super) rank: u32,
    pub(super) purpose: RequestUse,
}

/// A watchpoint that is being set in all threads.
#[derive(Debug)]
pub(super) struct PendingWatch {
    pub(super) target: Target,
    pub(super) location: Location,
    /// The number of threads that have not answered.
    pub(super) threads: usize,
    /// The error of a thread, if one has failed.
    pub(super) failure: Option<String>,
}

/// All consoles.
#[derive(Debug, Default)]
pub struct Consoles {
    job: u64,
    pub(super) sessions: BTreeMap<u64, Console>,
    /// Messages to consoles that have not been handled.
    inbox: VecDeque<(ConnectionId, Header, ServiceMessage<'static>)>,
    requests: BTreeMap<Ticket, ConsoleRequest>,
    pub(super) watches: BTreeMap<u64, PendingWatch>,
    pub(super) last_watch: u64,
    pub(super) locations: LocationFinder,
}

impl Consoles {
    /// Whether a console has requested authority over a rank.
    pub(super) fn is_asking_for(&self, rank: u32) -> bool {
        let process = |console: &Console| console.processes.get(&rank).map(|it| it.progress);
        self.sessions.values().filter_map(process).any(|it| it == Progress::Asking)
    }

    /// Sets the job's number.
    pub fn set_job(&mut self, job: u64) {
        self.job = job;
    }

    /// Whether no console acts on any process.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whether a connection belongs to a console.
    pub fn is_console(&self, connection: ConnectionId) -> bool {
        self.sessions.values().any(|console| console.connection == connection)
    }

    /// Adds a message to a console.
    pub fn receive(
        &mut self,
        connection: ConnectionId,
        header: Header,
        message: ServiceMessage<'static>,
    ) {
        self.inbox.push_back((connection, header, message));
    }

    /// Whether a console waits for this answer of the tracer.
    pub fn waits_for(&self, ticket: Ticket) -> bool {
        self.requests.contains_key(&ticket)
    }

    pub(super) fn process(&mut self, session: u64, rank: u32) -> Option<&mut ConsoleProcess> {
        self.sessions.get_mut(&session)?.processes.get_mut(&rank)
    }

    /// Notes a request to the tracer, whose answer is for a console.
    pub(super) fn expect(&mut self, ticket: Ticket, session: u64, rank: u32, purpose: RequestUse) {
        if let Some(process) = self.process(session, rank) {
            process.requests += 1;
        }
        self.requests.insert(ticket, ConsoleRequest { session, rank, purpose });
    }

    /// Takes the request with this ticket, which the tracer has answered.
    pub(super) fn take_request(&mut self, ticket: Ticket) -> Option<ConsoleRequest> {
        let request = self.requests.remove(&ticket)?;
        if let Some(process) = self.process(request.session, request.rank) {
            process.requests = process.requests.saturating_sub(1);
        }
        Some(request)
    }

    /// The state of a process, for the answer to a command. `None` if the command has to wait until
    /// the stack has been read.
    pub(super) fn state_for(
        &mut self,
        session: u64,
        rank: u32,
        target: Target,
        tracer: &Tracer<Linux>,
    ) -> Option<ProcessState> {
        let Some(process) = self.process(session, rank) else {
            return Some(ProcessState::Running);
        };
        let (pid, is_held) = (process.pid, process.is_held);
        Some(match &mut process.stop {
            None if is_held => ProcessState::Held,
            None => ProcessState::Running,
            Some(stop) => {
                let Some(stack) = stop.stack.clone() else {
                    stop.waiting.push(target);
                    return None;
                };
                let threads = tracer.threads(pid);
                let place = threads.iter().position(|tid| *tid == stop.tid).unwrap_or(0);
                let thread = u32::try_from(place + 1).unwrap_or(u32::MAX);
                ProcessState::Stopped { reason: stop.reason, thread, stack }
            }
        })
    }
}

impl Service {
    /// Handles a command of a console for these processes.
    pub(super) fn on_console_action(
        &mut self,
        (element, id): (ElementIndex, CommandId),
        processes: &[ToolProcess],
        session: u64,
        action: &ConsoleAction,
    ) {
        if *action == ConsoleAction::End {
            self.end_console(session);
        }
        for process in processes {
            let target = Target { element, id, node: process.node };
            let rank = self.processes.rank(process.pid);
            let is_known = rank.is_some_and(|rank| self.consoles.process(session, rank).is_some());
            match (rank, action) {
                (None, _) => self.shepherd.fail(target, "it has ended"),
                (Some(rank), _) if is_known => self.queue_action(session, rank, target, action),
                (Some(_), ConsoleAction::StepInstruction | ConsoleAction::StepLine) => {
                    self.shepherd
                        .fail(target, "it has not stopped: only a stopped process can step");
                }
                // The console has nothing in this process to undo or to continue.
                (
                    Some(_),
                    ConsoleAction::Release
                    | ConsoleAction::Clear(_)
                    | ConsoleAction::Continue
                    | ConsoleAction::Unhold
                    | ConsoleAction::Look
                    | ConsoleAction::End,
                ) => {
                    self.shepherd.answer(target, &ToolResult::Console(ProcessState::Running));
                }
                (
                    Some(rank),
                    ConsoleAction::Hold | ConsoleAction::Break(_) | ConsoleAction::Watch(_),
                ) => self.begin_console_process(session, rank, process.pid, target, action),
            }
        }
    }

    fn queue_action(&mut self, session: u64, rank: u32, target: Target, action: &ConsoleAction) {
        let Some(process) = self.consoles.process(session, rank) else { return };
        if process.progress == Progress::InControl {
            self.run_action(session, rank, target, action);
            self.leave_if_free(session, rank);
        } else {
            process.waiting.push_back((target, action.clone()));
        }
    }

    fn begin_console_process(
        &mut self,
        session: u64,
        rank: u32,
        pid: Pid,
        target: Target,
        action: &ConsoleAction,
    ) {
        if !self.consoles.sessions.contains_key(&session) {
            let connection = self.clients.reserve_id();
            let console = Console { connection, tool: 0, processes: BTreeMap::new() };
            self.consoles.sessions.insert(session, console);
            let uid = nix::unistd::geteuid().as_raw();
            self.feed(Event::Connected { connection, uid, reach: Reach::Host });
        }
        let Some(console) = self.consoles.sessions.get_mut(&session) else { return };
        let mut process = ConsoleProcess::new(pid);
        process.waiting.push_back((target, action.clone()));
        console.processes.insert(rank, process);
        self.attach_console(session, rank, PRIORITY);
    }

    fn attach_console(&mut self, session: u64, rank: u32, priority: u8) {
        let select = ProcessSelect::RankInHeader;
        self.say(
            session,
            rank,
            &ToolMessage::Attach(Attach { tag: CONSOLE_TAG, priority, select }),
        );
    }

    /// Sends a message of the console to the authority.
    fn say(&mut self, session: u64, rank: u32, message: &ToolMessage<'_>) {
        let Some(console) = self.consoles.sessions.get(&session) else { return };
        let header = Header::new(self.consoles.job, rank, console.tool, 0);
        self.feed(Event::Message { connection: console.connection, header, message });
    }

    /// Handles the messages to consoles. Returns whether there were any.
    pub(super) fn serve_consoles(&mut self) -> bool {
        let mut is_anything_done = false;
        while let Some((connection, header, message)) = self.consoles.inbox.pop_front() {
            is_anything_done = true;
            let is_own = |(_, console): &(&u64, &mut Console)| console.connection == connection;
            let mut sessions = self.consoles.sessions.iter_mut();
            let Some((session, console)) = sessions.find(is_own) else { continue };
            if header.tool != 0 {
                console.tool = header.tool;
            }
            let (session, rank) = (*session, header.rank);
            match message {
                ServiceMessage::AttachAck(_) => self.on_attached(session, rank, &header, ""),
                ServiceMessage::AttachRefused(reason) => {
                    self.on_attached(session, rank, &header, &reason);
                }
                ServiceMessage::ControlAck(ack) => self.on_control(session, rank, &header, &ack),
                ServiceMessage::Notify(Notice::Signal(notice)) => {
                    self.on_stop(session, rank, &notice);
                }
                ServiceMessage::Notify(Notice::Exit(_)) => {
                    self.drop_console_process(session, rank, "it has ended");
                }
                // No other tool can take control away. The console needs no answer to a Detach, and
                // sends no requests with the other answers.
                ServiceMessage::Notify(Notice::Control(_))
                | ServiceMessage::DetachAck(_)
                | ServiceMessage::QueryAck(_)
                | ServiceMessage::UpdateAck(_)
                | ServiceMessage::ShareMemoryAck(_)
                | ServiceMessage::ErrorAck => {}
            }
        }
        is_anything_done
    }

    fn on_attached(&mut self, session: u64, rank: u32, header: &Header, refusal: &str) {
        let Some(process) = self.consoles.process(session, rank) else { return };
        let Progress::Attaching(tries) = process.progress else { return };
        let reason = match header.code() {
            Some(ReturnCode::Success) => {
                process.progress = Progress::Asking;
                let control = Control {
                    notify_set: NOTIFY_SET,
                    signal: 0,
                    start_notice: StartNotice::DynamicLoader,
                    trap_mode: TrapMode::NoChange,
                    watch_policy: WatchPolicy::NoPropagate,
                };
                return self.say(session, rank, &ToolMessage::Control(control));
            }
            Some(ReturnCode::ToolPriorityConflict) if usize::from(tries) < MAX_TOOLS => {
                process.progress = Progress::Attaching(tries + 1);
                return self.attach_console(session, rank, PRIORITY - tries - 1);
            }
            Some(ReturnCode::ToolMaxAttachedExceeded) => {
                format!("{MAX_TOOLS} tools are attached to it; end one of them")
            }
            Some(ReturnCode::ToolProcessExiting) => "it has ended".to_owned(),
            Some(ReturnCode::RequestFailed) => refusal.to_owned(),
            code => format!("attaching to it failed ({code:?})"),
        };
        self.drop_console_process(session, rank, &reason);
    }

    fn on_control(&mut self, session: u64, rank: u32, header: &Header, ack: &ControlAck) {
        let Some(process) = self.consoles.process(session, rank) else { return };
        if header.code() != Some(ReturnCode::Success) {
            let reason = describe_control_conflict(ack);
            self.detach_console(session, rank);
            return self.drop_console_process(session, rank, &reason);
        }
        process.progress = Progress::InControl;
        while let Some(process) = self.consoles.process(session, rank)
            && let Some((target, action)) = process.waiting.pop_front()
        {
            self.run_action(session, rank, target, &action);
        }
        self.leave_if_free(session, rank);
    }

    fn on_stop(&mut self, session: u64, rank: u32, notice: &SignalNotice) {
        let reason = match notice.reason {
            SignalReason::Breakpoint => StopReason::Breakpoint,
            SignalReason::ReadWatchpoint | SignalReason::WriteWatchpoint => StopReason::Watchpoint,
            SignalReason::StepCompleted => StopReason::Step,
            SignalReason::Generic => StopReason::Trap,
        };
        let Some(process) = self.consoles.process(session, rank) else { return };
        process.is_stepping = false;
        if reason != StopReason::Step {
            process.line_step = None;
        }
        let (pid, tid) = (process.pid, notice.thread.cast_signed());
        let waiting = process.stop.take().map(|stop| stop.waiting).unwrap_or_default();
        process.stop = Some(StoppedThread { reason, tid, stack: None, waiting });
        self.read_stop(session, rank, pid, tid);
    }

    fn detach_console(&mut self, session: u64, rank: u32) {
        let select = ProcessSelect::RankInHeader;
        self.say(session, rank, &ToolMessage::Detach(Detach { select }));
    }

    /// Releases control of a process in which the console has nothing left.
    pub(super) fn leave_if_free(&mut self, session: u64, rank: u32) {
        let Some(console) = self.consoles.sessions.get(&session) else { return };
        let Some(process) = console.processes.get(&rank) else { return };
        let (connection, pid) = (console.connection, process.pid);
        // A pending notice counts as a stop.
        if !process.is_free() || self.tracer.has_pending_notices(pid) {
            return;
        }
        let release = AuthorityCommand::Release(ReleaseNotify::No);
        let (code, actions) = self.authority.command(connection, rank, 0, release);
        if code != CommandCode::Success {
            return;
        }
        self.carry_out(actions);
        // A process that has ended has no notices, so an error does not matter.
        _ = self.tracer.set_notify(pid, SignalSet::default());
        self.detach_console(session, rank);
        self.drop_console_process(session, rank, "");
    }

    /// Passes a command of a console to the authority. Fails if the console has ended.
    pub(super) fn command_of_console(
        &mut self,
        session: u64,
        rank: u32,
        tid: Tid,
        command: AuthorityCommand,
    ) -> CommandCode {
        let console = self.consoles.sessions.get(&session);
        let Some(connection) = console.map(|console| console.connection) else {
            return CommandCode::ProcessExiting;
        };
        let thread = tid.cast_unsigned();
        let (code, actions) = self.authority.command(connection, rank, thread, command);
        self.carry_out(actions);
        code
    }

    /// Removes a process from a console. Waiting commands fail with this reason.
    fn drop_console_process(&mut self, session: u64, rank: u32, reason: &str) {
        let Some(console) = self.consoles.sessions.get_mut(&session) else { return };
        let Some(process) = console.processes.remove(&rank) else { return };
        if console.processes.is_empty() {
            let connection = console.connection;
            self.consoles.sessions.remove(&session);
            self.feed(Event::Closed { connection });
        }
        let of_stop = process.stop.map(|stop| stop.waiting).unwrap_or_default();
        let waiting = process.waiting.into_iter().map(|(target, _)| target).chain(of_stop);
        waiting.for_each(|target| self.shepherd.fail(target, reason));
    }

    /// Ends a console. The authority undoes the changes that the console has made to its processes.
    fn end_console(&mut self, session: u64) {
        let Some(console) = self.consoles.sessions.remove(&session) else { return };
        self.feed(Event::Closed { connection: console.connection });
    }
}
