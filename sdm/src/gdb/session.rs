//! The dialogue with one gdb as a state machine without I/O: `(input, now) -> actions`.

use std::collections::VecDeque;
use std::time::Duration;

use score_tools::merge::{CommandId, MonotonicTime};

use super::mi::{MiOutcome, MiRecord, MiValue, parse_line, quoted};
use crate::message::{DebugEvent, MAX_TEXT_LEN, Operation, StackFrame, StopReason, cut_text};

/// Time limit for gdb to start and to read the symbols of the program.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for gdb to answer a command. It does not include the time until the process stops.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of operations that wait for an earlier one.
const MAX_QUEUED: usize = 64;

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 256;

/// Maximum length of the name of a function or file, in bytes.
const MAX_NAME_LEN: usize = 1024;

/// Maximum length of a message of gdb in an event, in bytes.
const MAX_MESSAGE_LEN: usize = 1024;

/// An input of a session.
#[derive(Debug, Clone)]
pub enum SessionInput {
    /// An operation begins.
    Begin(CommandId, Operation),
    /// gdb has printed a line, without its newline.
    Line(Vec<u8>),
    /// gdb has ended for this reason.
    Ended(String),
    /// Time has passed; see [`Session::deadline`].
    Tick,
}

/// An action for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionAction {
    /// Start gdb with these arguments. Kill a running gdb first.
    Spawn(Vec<String>),
    /// Write to gdb.
    Write(String),
    /// Answer an operation.
    Answer(CommandId, DebugEvent),
    /// Kill gdb.
    Kill,
}

/// The state of gdb.
#[derive(Debug, PartialEq, Eq)]
enum Engine {
    Absent,
    /// gdb has not yet printed its first prompt, which is due at this time.
    Starting(MonotonicTime),
    Ready,
    Failed(String),
}

/// The state of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Debuggee {
    Absent,
    Stopped,
    Running,
}

/// The meaning of the result of a script's last command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptResult {
    Done,
    Breakpoint,
    Frames,
    Value,
    /// The answer is the next stop.
    Stop,
    /// gdb is no longer needed.
    End,
}

/// The commands of one operation.
#[derive(Debug)]
struct Script {
    command: CommandId,
    steps: VecDeque<String>,
    result: ScriptResult,
    /// The current command, its number, and the time at which its answer is due.
    step: String,
    token: u64,
    deadline: MonotonicTime,
    /// A stop that gdb has reported before the result.
    stop: Option<DebugEvent>,
}

/// The dialogue with one gdb.
#[derive(Debug)]
pub struct Session {
    rank: u32,
    terminal: Option<String>,
    engine: Engine,
    debuggee: Debuggee,
    is_attached: bool,
    script: Option<Script>,
    /// The command that waits for a stop.
    resumed: Option<CommandId>,
    queue: VecDeque<(CommandId, Operation)>,
    last_token: u64,
    /// The last message that gdb has printed during its start.
    start_message: String,
}

impl Session {
    /// A session for a rank. The first operation starts gdb.
    pub fn new(rank: u32) -> Self {
        Self {
            rank,
            terminal: None,
            engine: Engine::Absent,
            debuggee: Debuggee::Absent,
            is_attached: false,
            script: None,
            resumed: None,
            queue: VecDeque::new(),
            last_token: 0,
            start_message: String::new(),
        }
    }

    /// Sets the terminal of programs that are started later. Their output is thus separate from the
    /// lines of gdb.
    pub fn set_terminal(&mut self, path: String) {
        self.terminal = Some(path);
    }

    /// The time at which [`SessionInput::Tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        match (&self.engine, &self.script) {
            (Engine::Starting(deadline), _) => Some(*deadline),
            (Engine::Ready, Some(script)) => Some(script.deadline),
            _ => None,
        }
    }

    /// Handles one input and appends the resulting actions to `actions`.
    pub fn step(
        &mut self,
        input: SessionInput,
        now: MonotonicTime,
        actions: &mut Vec<SessionAction>,
    ) {
        match input {
            SessionInput::Begin(command, _) if self.queue.len() >= MAX_QUEUED => {
                let text = format!("{MAX_QUEUED} operations wait for gdb");
                actions.push(SessionAction::Answer(command, DebugEvent::Failed(text)));
            }
            SessionInput::Begin(command, operation) => {
                self.queue.push_back((command, operation));
            }
            SessionInput::Line(line) => match parse_line(&line) {
                Ok(record) => self.on_record(record, now, actions),
                Err(error) => {
                    let text = String::from_utf8_lossy(&line[..line.len().min(80)]);
                    self.fail(&format!("gdb printed {text:?}: {error}"), actions);
                }
            },
            SessionInput::Ended(reason) => {
                self.fail(&format!("gdb has ended: {reason}"), actions);
            }
            SessionInput::Tick => (),
        }
        self.check_deadline(now, actions);
        while self.script.is_none() {
            let Some((command, operation)) = self.queue.pop_front() else { break };
            if let Err(text) = self.begin(command, operation, now, actions) {
                actions.push(SessionAction::Answer(command, DebugEvent::Failed(text)));
            }
        }
    }

    fn check_deadline(&mut self, now: MonotonicTime, actions: &mut Vec<SessionAction>) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let text = match &self.script {
            Some(script) if self.engine == Engine::Ready => {
                format!("gdb has not answered {} for {REPLY_TIMEOUT:?}", script.step)
            }
            _ => format!("gdb has not started within {START_TIMEOUT:?}"),
        };
        self.fail(&text, actions);
    }

    /// Answers all waiting operations with the error. The next start uses a new gdb.
    fn fail(&mut self, reason: &str, actions: &mut Vec<SessionAction>) {
        if matches!(self.engine, Engine::Absent | Engine::Failed(_)) {
            return;
        }
        let reason = cut_text(reason, MAX_MESSAGE_LEN);
        let waiting = self.script.take().map(|script| script.command).into_iter();
        let waiting = waiting.chain(self.resumed.take());
        for command in waiting.chain(self.queue.drain(..).map(|(command, _)| command)) {
            actions.push(SessionAction::Answer(command, DebugEvent::Failed(reason.clone())));
        }
        (self.engine, self.debuggee) = (Engine::Failed(reason), Debuggee::Absent);
        actions.push(SessionAction::Kill);
    }

    fn begin(
        &mut self,
        command: CommandId,
        operation: Operation,
        now: MonotonicTime,
        actions: &mut Vec<SessionAction>,
    ) -> Result<(), String> {
        let starts = matches!(operation, Operation::Start { .. } | Operation::Attach { .. });
        match &self.engine {
            _ if starts => (),
            Engine::Absent => return Err("there is no process; start one, or attach".to_owned()),
            Engine::Failed(reason) => return Err(reason.clone()),
            Engine::Starting(_) | Engine::Ready => (),
        }
        let needs_stop = matches!(
            operation,
            Operation::Continue
                | Operation::Step
                | Operation::Next
                | Operation::Finish
                | Operation::Where
                | Operation::Print { .. }
        );
        match self.debuggee {
            Debuggee::Stopped | Debuggee::Running if starts => {
                return Err("a process is being debugged; kill it or detach first".to_owned());
            }
            Debuggee::Absent if needs_stop => return Err("there is no process".to_owned()),
            Debuggee::Running if needs_stop => {
                return Err("the process runs; interrupt it first".to_owned());
            }
            Debuggee::Absent | Debuggee::Stopped if operation == Operation::Interrupt => {
                return Err("the process does not run".to_owned());
            }
            _ => (),
        }
        let (steps, result) = self.script_of(&operation)?;
        let script = Script {
            command,
            steps,
            result,
            step: String::new(),
            token: 0,
            deadline: now,
            stop: None,
        };
        self.script = Some(script);
        if starts {
            self.is_attached = matches!(operation, Operation::Attach { .. });
            self.engine = Engine::Starting(now + START_TIMEOUT);
            self.start_message.clear();
            actions.push(SessionAction::Spawn(arguments_of(&operation)));
        } else {
            self.next_step(now, actions);
        }
        Ok(())
    }

    /// The GDB/MI commands for an operation.
    fn script_of(&self, operation: &Operation) -> Result<(VecDeque<String>, ScriptResult), String> {
        let one = |step: &str| VecDeque::from([step.to_owned()]);
        // gdb must not ask questions, because the session cannot answer them.
        let mut start: VecDeque<String> =
            ["-gdb-set confirm off", "-gdb-set pagination off", "-gdb-set mi-async on"]
                .map(str::to_owned)
                .into();
        Ok(match operation {
            Operation::Start { stop_in_main, .. } => {
                let terminal =
                    self.terminal.as_deref().ok_or("there is no terminal for the program")?;
                start.push_back(format!("-inferior-tty-set {terminal}"));
                if *stop_in_main {
                    start.push_back("-break-insert -t main".to_owned());
                }
                start.push_back("-exec-run".to_owned());
                (start, ScriptResult::Stop)
            }
            Operation::Attach { first, pids } => {
                let index = self.rank.checked_sub(*first).map(|index| index as usize);
                let pid = index.and_then(|index| pids.get(index)).filter(|pid| **pid > 0);
                let pid = pid.ok_or("the command has no process id for this rank")?;
                start.push_back(format!("-target-attach {pid}"));
                (start, ScriptResult::Stop)
            }
            Operation::Break { location } => {
                let step = format!("-break-insert -- {}", quoted(location));
                (one(&step), ScriptResult::Breakpoint)
            }
            Operation::Continue => (one("-exec-continue"), ScriptResult::Stop),
            Operation::Step => (one("-exec-step"), ScriptResult::Stop),
            Operation::Next => (one("-exec-next"), ScriptResult::Stop),
            Operation::Finish => (one("-exec-finish"), ScriptResult::Stop),
            Operation::Interrupt => (one("-exec-interrupt"), ScriptResult::Done),
            Operation::Where => {
                let step = format!("-stack-list-frames 0 {}", MAX_FRAMES - 1);
                (one(&step), ScriptResult::Frames)
            }
            Operation::Print { expression } => {
                let step = format!("-data-evaluate-expression {}", quoted(expression));
                (one(&step), ScriptResult::Value)
            }
            Operation::Input { .. } => return Err("input does not go through gdb".to_owned()),
            Operation::Detach if self.debuggee == Debuggee::Absent => {
                (one("-gdb-set confirm off"), ScriptResult::End)
            }
            Operation::Detach => (one("-target-detach"), ScriptResult::End),
            Operation::Kill if self.debuggee == Debuggee::Absent => {
                (one("-gdb-set confirm off"), ScriptResult::End)
            }
            Operation::Kill => (one("-interpreter-exec console \"kill\""), ScriptResult::End),
        })
    }

    fn next_step(&mut self, now: MonotonicTime, actions: &mut Vec<SessionAction>) {
        let Some(script) = &mut self.script else { return };
        let Some(step) = script.steps.pop_front() else { return };
        self.last_token += 1;
        actions.push(SessionAction::Write(format!("{}{step}\n", self.last_token)));
        (script.step, script.token) = (step, self.last_token);
        script.deadline = now + REPLY_TIMEOUT;
    }

    fn on_record(
        &mut self,
        record: MiRecord,
        now: MonotonicTime,
        actions: &mut Vec<SessionAction>,
    ) {
        let is_starting = matches!(self.engine, Engine::Starting(_));
        match record {
            MiRecord::Prompt if is_starting => {
                self.engine = Engine::Ready;
                self.next_step(now, actions);
            }
            MiRecord::Log(text) if is_starting => {
                self.start_message = cut_text(text.trim(), MAX_MESSAGE_LEN);
            }
            MiRecord::Result(outcome) => self.on_result(&outcome, now, actions),
            MiRecord::Exec(outcome) if outcome.class == "running" => {
                self.debuggee = Debuggee::Running;
            }
            MiRecord::Exec(outcome) if outcome.class == "stopped" => {
                let event = self.stop_event(&outcome);
                self.on_stop(event, actions);
            }
            MiRecord::Notice(outcome) if outcome.class == "thread-group-exited" => {
                self.debuggee = Debuggee::Absent;
            }
            MiRecord::Exec(_)
            | MiRecord::Notice(_)
            | MiRecord::Text(_)
            | MiRecord::Log(_)
            | MiRecord::Prompt => (),
        }
    }

    fn on_result(
        &mut self,
        outcome: &MiOutcome,
        now: MonotonicTime,
        actions: &mut Vec<SessionAction>,
    ) {
        let is_expected = |script: &&mut Script| outcome.token == Some(script.token);
        let Some(script) = self.script.as_mut().filter(is_expected) else { return };
        if outcome.class == "error" {
            let text = cut_text(outcome.text("msg").unwrap_or("no reason"), MAX_MESSAGE_LEN);
            let command = script.command;
            self.script = None;
            let text = match std::mem::take(&mut self.start_message) {
                start if start.is_empty() => text,
                start => format!("{text} ({start})"),
            };
            return actions.push(SessionAction::Answer(command, DebugEvent::Failed(text)));
        }
        if !script.steps.is_empty() {
            return self.next_step(now, actions);
        }
        let (command, result, stop) = (script.command, script.result, script.stop.take());
        self.script = None;
        self.start_message.clear();
        let event = match result {
            ScriptResult::Done => DebugEvent::Done,
            ScriptResult::Breakpoint => breakpoint_event(outcome),
            ScriptResult::Frames => frames_event(outcome),
            ScriptResult::Value => {
                DebugEvent::Value(cut_text(outcome.text("value").unwrap_or(""), MAX_TEXT_LEN))
            }
            ScriptResult::Stop => match stop {
                Some(event) => event,
                None => return self.resumed = Some(command),
            },
            ScriptResult::End => {
                self.on_end(actions);
                DebugEvent::Done
            }
        };
        actions.push(SessionAction::Answer(command, event));
    }

    /// Called after the process was detached or killed. gdb is no longer needed.
    fn on_end(&mut self, actions: &mut Vec<SessionAction>) {
        if let Some(command) = self.resumed.take() {
            let text = "the debugger has detached from the process".to_owned();
            actions.push(SessionAction::Answer(command, DebugEvent::Failed(text)));
        }
        (self.engine, self.debuggee) = (Engine::Absent, Debuggee::Absent);
        actions.push(SessionAction::Kill);
    }

    fn on_stop(&mut self, event: DebugEvent, actions: &mut Vec<SessionAction>) {
        self.debuggee = match event {
            DebugEvent::Stopped { .. } => Debuggee::Stopped,
            _ => Debuggee::Absent,
        };
        if let Some(command) = self.resumed.take() {
            return actions.push(SessionAction::Answer(command, event));
        }
        // gdb may report the stop before the result of the command that caused it.
        let is_last =
            |script: &&mut Script| script.result == ScriptResult::Stop && script.steps.is_empty();
        if let Some(script) = self.script.as_mut().filter(is_last) {
            script.stop = Some(event);
        }
    }

    /// The event of a stop. It contains nothing that differs between equal processes.
    fn stop_event(&self, outcome: &MiOutcome) -> DebugEvent {
        let signal = || cut_text(outcome.text("signal-name").unwrap_or("?"), MAX_NAME_LEN);
        let reason = match outcome.text("reason").unwrap_or("") {
            "exited-normally" => return DebugEvent::Exited { code: 0 },
            "exited" => {
                let code = outcome.text("exit-code").unwrap_or("");
                let code = u32::from_str_radix(code, 8).unwrap_or(u32::MAX);
                return DebugEvent::Exited { code };
            }
            "exited-signalled" => return DebugEvent::Killed { signal: signal() },
            "breakpoint-hit" => StopReason::Breakpoint,
            "end-stepping-range" | "function-finished" | "location-reached" => StopReason::StepDone,
            _ if self.is_attached && self.debuggee == Debuggee::Absent => StopReason::Attached,
            "signal-received" => StopReason::Signal(signal()),
            other => StopReason::Other(cut_text(other, MAX_NAME_LEN)),
        };
        let frame = outcome.get("frame").map(frame_of).unwrap_or_default();
        DebugEvent::Stopped { reason, frame }
    }
}

/// The arguments of gdb. gdb must not execute commands from files of a user or a program.
fn arguments_of(operation: &Operation) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "-q",
        "-nx",
        "--interpreter=mi3",
        "-iex",
        "set auto-load no",
        "-iex",
        "set debuginfod enabled off",
    ]
    .map(str::to_owned)
    .into();
    // gdb itself quotes the arguments of the program for the shell that starts it.
    if let Operation::Start { executable, arguments: own, .. } = operation {
        arguments.extend(["--args".to_owned(), executable.clone()]);
        arguments.extend(own.iter().cloned());
    }
    arguments
}

fn frame_of(frame: &MiValue) -> StackFrame {
    let name = |key: &str| frame.text(key).map(|text| cut_text(text, MAX_NAME_LEN));
    StackFrame {
        function: name("func").unwrap_or_default(),
        file: name("file").or(name("from")).unwrap_or_default(),
        line: frame.text("line").and_then(|line| line.parse().ok()).unwrap_or(0),
    }
}

fn breakpoint_event(outcome: &MiOutcome) -> DebugEvent {
    let Some(breakpoint) = outcome.get("bkpt") else {
        return DebugEvent::Failed("gdb has not reported the address of the breakpoint".to_owned());
    };
    let number = breakpoint.text("number").and_then(|number| number.parse().ok()).unwrap_or(0);
    DebugEvent::BreakpointSet { number, frame: frame_of(breakpoint) }
}

fn frames_event(outcome: &MiOutcome) -> DebugEvent {
    let frames = outcome.get("stack").into_iter().flat_map(MiValue::items);
    DebugEvent::Frames(frames.take(MAX_FRAMES).map(frame_of).collect())
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
