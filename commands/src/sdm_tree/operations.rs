//! Maps each operation of the scalable debug manager to requests of the tool control service, and
//! converts the answers.
//!
//! | operation | here |
//! |---|---|
//! | `Attach` | holds all threads of the rank; the process ids of the operation are not used |
//! | `Break` | sets a breakpoint at a function, `file:line` or `*address` |
//! | `Continue` | continues the process; the event is the next stop |
//! | `Interrupt` | holds all threads |
//! | `Where` | returns the stack of the thread that has stopped, with source lines |
//! | `Detach` | removes breakpoints, and continues the process |
//! | `Start`, `Input`, `Kill` | refused: scrun has the programs and their input |
//! | `Step`, `Next`, `Finish`, `Print` | refused: they need gdb (`scdb JOB gdb RANK`) |

use score_proto::tool_command::{
    ConsoleAction, ProcessState, StopReason as ConsoleStop, ThreadDetail, ToolRequest, ToolResult,
};
use score_sdm::message::{DebugEvent, Operation, StackFrame, StopReason};
use score_stacks::frame::{Frame, Stack};

use crate::scdb::command::parse_location;

/// The answer that a command waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// The first hold of the processes.
    Attach,
    /// The completion of a request. Contains the event of the command.
    Done(DebugEvent),
    /// The next stop.
    Stop,
    /// The frames of a thread.
    Frames,
}

/// The meaning of a rank's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankAnswer {
    /// The event of the command.
    Event(DebugEvent),
    /// The rank runs, and the command waits for its stop.
    StillRunning,
}

/// The request for an operation, and the answer that it waits for. `session` is the number of the
/// console's session.
///
/// # Errors
/// The reason why this operation is not supported.
pub fn plan(operation: Operation, session: u64) -> Result<(Purpose, ToolRequest), String> {
    let console = |action| ToolRequest::Console { session, action };
    let refused = |what: &str| Err(format!("{what}; the daemons do not support this operation"));
    Ok(match operation {
        Operation::Attach { .. } => (Purpose::Attach, console(ConsoleAction::Hold)),
        Operation::Break { location } => {
            let place = parse_location(&location)?;
            let frame = StackFrame { function: location, ..StackFrame::default() };
            let event = DebugEvent::BreakpointSet { number: 0, frame };
            (Purpose::Done(event), console(ConsoleAction::Break(place)))
        }
        Operation::Continue => (Purpose::Stop, console(ConsoleAction::Continue)),
        Operation::Interrupt => (Purpose::Done(DebugEvent::Done), console(ConsoleAction::Hold)),
        Operation::Where => (Purpose::Frames, ToolRequest::Threads(ThreadDetail::FirstStack)),
        Operation::Detach => (Purpose::Done(DebugEvent::Done), console(ConsoleAction::Release)),
        Operation::Start { .. } => return refused("scrun starts the programs of a job"),
        Operation::Input { .. } => return refused("scrun has the standard input of a job"),
        Operation::Kill => return refused("a signal to scrun ends a job"),
        Operation::Step | Operation::Next | Operation::Finish => {
            return refused("steps by lines need gdb (scdb JOB gdb RANK)");
        }
        Operation::Print { .. } => {
            return refused("values of expressions need gdb (scdb JOB gdb RANK)");
        }
    })
}

impl Purpose {
    /// Interprets an answer. Returns `None` if it answers another request.
    pub fn answer_of(&self, result: ToolResult) -> Option<RankAnswer> {
        let event = match (self, result) {
            (_, ToolResult::Failed(reason)) => DebugEvent::Failed(reason),
            (Self::Frames, ToolResult::Threads { threads, .. }) => {
                let frames = threads.first().map(|thread| frames(&thread.stack));
                DebugEvent::Frames(frames.unwrap_or_default())
            }
            (Self::Done(event), ToolResult::Console(_)) => event.clone(),
            (Self::Stop, ToolResult::Console(ProcessState::Running)) => {
                return Some(RankAnswer::StillRunning);
            }
            (Self::Attach | Self::Stop, ToolResult::Console(state)) => {
                self.stopped(state, *self == Self::Attach)
            }
            _ => return None,
        };
        Some(RankAnswer::Event(event))
    }

    fn stopped(&self, state: ProcessState, is_attached: bool) -> DebugEvent {
        match state {
            ProcessState::Stopped { reason, stack, .. } => {
                let reason = match reason {
                    ConsoleStop::Breakpoint => StopReason::Breakpoint,
                    ConsoleStop::Watchpoint => StopReason::Other("watchpoint".to_owned()),
                    ConsoleStop::Step => StopReason::StepDone,
                    ConsoleStop::Trap => StopReason::Signal("SIGTRAP".to_owned()),
                };
                let frame = frames(&stack).into_iter().next().unwrap_or_default();
                DebugEvent::Stopped { reason, frame }
            }
            ProcessState::Held | ProcessState::Running => {
                let held = StopReason::Other("held".to_owned());
                let reason = if is_attached { StopReason::Attached } else { held };
                DebugEvent::Stopped { reason, frame: StackFrame::default() }
            }
        }
    }
}

/// The frames of a stack, the innermost first.
fn frames(stack: &[u8]) -> Vec<StackFrame> {
    let frames = Stack::decode(stack).map(|stack| stack.frames).unwrap_or_default();
    let to_frame = |frame: Frame| match frame {
        Frame::Function { name, module, source, .. } => {
            let (file, line) = source.map_or((module, 0), |source| (source.file, source.line));
            StackFrame { function: name, file, line }
        }
        Frame::Address { module, .. } => StackFrame { file: module, ..StackFrame::default() },
        other => StackFrame { function: other.to_string(), ..StackFrame::default() },
    };
    frames.into_iter().rev().map(to_frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_stacks::frame::SourceLine;

    fn stack() -> Vec<u8> {
        let source = Some(SourceLine { file: "/src/heat.c".to_owned(), line: 7 });
        let function = |name: &str, source| Frame::Function {
            name: name.to_owned(),
            module: "heat".to_owned(),
            source,
            is_inlined: false,
        };
        Stack { frames: vec![function("main", None), function("work", source)] }.encode().unwrap()
    }

    #[test]
    fn a_command_to_continue_ends_with_a_stop_and_not_before() {
        let (purpose, request) = plan(Operation::Continue, 9).unwrap();
        let action = ConsoleAction::Continue;
        assert_eq!(request, ToolRequest::Console { session: 9, action });
        assert_eq!(
            purpose.answer_of(ToolResult::Console(ProcessState::Running)),
            Some(RankAnswer::StillRunning)
        );
        let (reason, thread) = (ConsoleStop::Breakpoint, 1);
        let stopped = ProcessState::Stopped { reason, thread, stack: stack() };
        let frame =
            StackFrame { function: "work".to_owned(), file: "/src/heat.c".to_owned(), line: 7 };
        let event = DebugEvent::Stopped { reason: StopReason::Breakpoint, frame };
        assert_eq!(purpose.answer_of(ToolResult::Console(stopped)), Some(RankAnswer::Event(event)));
        let ended = ToolResult::Failed("it has ended".to_owned());
        let failed = DebugEvent::Failed("it has ended".to_owned());
        assert_eq!(purpose.answer_of(ended), Some(RankAnswer::Event(failed)));
        // An answer to another request has no meaning for this command.
        let other = ToolResult::Stacks { stacks: Vec::new(), omitted: 0 };
        assert_eq!(purpose.answer_of(other), None);
    }

    #[test]
    fn an_unsupported_operation_is_refused_and_the_error_names_the_alternative() {
        for (operation, who) in [
            (Operation::Kill, "scrun"),
            (Operation::Input { bytes: Vec::new() }, "scrun"),
            (Operation::Next, "scdb JOB gdb RANK"),
            (Operation::Print { expression: "x".to_owned() }, "scdb JOB gdb RANK"),
            (Operation::Break { location: "*x".to_owned() }, "*x: not an address"),
        ] {
            let reason = plan(operation, 1).unwrap_err();
            assert!(reason.contains(who), "{reason}");
        }
    }
}
