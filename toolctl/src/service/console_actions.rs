//! The actions of a console on a process that it controls.

use score_proto::tool_command::{ConsoleAction, Location, ToolResult};
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{Answer, Pid, Request, Ticket, Tid};
use score_tools::authority::AuthorityCommand;
use score_tools::wire::CommandCode;

use super::Service;
use super::console::{ConsoleRequest, PendingWatch, RequestUse};
use super::console_points::reason_of;
use super::line_step::LineStep;
use super::shepherd::Target;

impl Service {
    /// Carries out an action on a process that the console controls, and answers it.
    pub(super) fn run_action(
        &mut self,
        session: u64,
        rank: u32,
        target: Target,
        action: &ConsoleAction,
    ) {
        let Some(process) = self.consoles.process(session, rank) else { return };
        let pid = process.pid;
        if *action != ConsoleAction::Look {
            (process.is_stepping, process.line_step) = (false, None);
        }
        let result = match action {
            ConsoleAction::Hold => {
                process.is_held = true;
                let held = self.tracer.hold_process(pid, true).and_then(|()| {
                    let all_threads = Request::Snapshot(0);
                    self.tracer.request(pid, None, all_threads)
                });
                match held {
                    Ok(ticket) => {
                        let purpose = RequestUse::Held(target);
                        return self.consoles.expect(ticket, session, rank, purpose);
                    }
                    Err(error) => Err(reason_of(error)),
                }
            }
            ConsoleAction::Break(location) => {
                let (tracer, shepherd) = (&mut self.tracer, &mut self.shepherd);
                self.consoles.break_at((session, rank), location, tracer, shepherd)
            }
            ConsoleAction::Watch(location) => {
                let process = (session, rank);
                match self.consoles.watch(process, target, location, &mut self.tracer) {
                    Ok(true) => return,
                    Ok(false) => Ok(()),
                    Err(reason) => Err(reason),
                }
            }
            ConsoleAction::Clear(location) => {
                let is_cleared = self.clear(session, rank, location.as_ref());
                match location {
                    Some(_) if !is_cleared => {
                        Err("it has no breakpoint or watchpoint there".to_owned())
                    }
                    _ => Ok(()),
                }
            }
            ConsoleAction::Release => {
                self.clear(session, rank, None);
                self.go_on(session, rank);
                Ok(())
            }
            ConsoleAction::Unhold => {
                if std::mem::take(&mut process.is_held) {
                    // An error means that the process has ended.
                    _ = self.tracer.hold_process(pid, false);
                }
                Ok(())
            }
            ConsoleAction::Continue => {
                self.go_on(session, rank);
                Ok(())
            }
            ConsoleAction::StepInstruction => self.step_console(session, rank),
            ConsoleAction::StepLine => self.step_line(session, rank),
            // When the console ended, its changes were undone.
            ConsoleAction::Look | ConsoleAction::End => Ok(()),
        };
        match result {
            Ok(()) => self.answer_with_state(session, rank, target),
            Err(reason) => self.shepherd.fail(target, &reason),
        }
    }

    /// Answers with the state of the process, as soon as it is known.
    fn answer_with_state(&mut self, session: u64, rank: u32, target: Target) {
        let answer = self.consoles.state_for(session, rank, target, &self.tracer);
        if let Some(state) = answer {
            self.shepherd.answer(target, &ToolResult::Console(state));
        }
    }

    /// Removes the breakpoints and watchpoints of a location, or all of them. Returns whether there
    /// were any.
    fn clear(&mut self, session: u64, rank: u32, location: Option<&Location>) -> bool {
        let (tracer, shepherd) = (&mut self.tracer, &mut self.shepherd);
        self.consoles.clear((session, rank), location, tracer, shepherd)
    }

    /// Reads the stack of the thread that has stopped a process.
    pub(super) fn read_stop(&mut self, session: u64, rank: u32, pid: Pid, tid: Tid) {
        match self.tracer.request(pid, Some(tid), Request::Snapshot(0)) {
            Ok(ticket) => self.consoles.expect(ticket, session, rank, RequestUse::Stack),
            Err(_) => self.set_stop_stack(session, rank, Vec::new()),
        }
    }

    fn set_stop_stack(&mut self, session: u64, rank: u32, stack: Vec<u8>) {
        let Some(process) = self.consoles.process(session, rank) else { return };
        let Some(stop) = &mut process.stop else { return };
        let goes_on = process.line_step.as_mut().is_some_and(|step| step.continues(&stack));
        stop.stack = Some(stack);
        if goes_on && self.step_console(session, rank).is_ok() {
            return;
        }
        let Some(process) = self.consoles.process(session, rank) else { return };
        process.line_step = None;
        let waiting = process.stop.as_mut().map(|stop| std::mem::take(&mut stop.waiting));
        for target in waiting.unwrap_or_default() {
            self.answer_with_state(session, rank, target);
        }
    }

    /// Handles the tracer's answer to a request of a console.
    pub(super) fn on_console_answer(
        &mut self,
        ticket: Ticket,
        result: &Result<Answer, TraceError>,
    ) {
        let Some(request) = self.consoles.take_request(ticket) else { return };
        let ConsoleRequest { session, rank, purpose } = request;
        let pid = self.consoles.process(session, rank).map(|process| process.pid);
        match (purpose, result) {
            (RequestUse::Held(target), Ok(_)) => self.answer_with_state(session, rank, target),
            (RequestUse::Held(target), Err(error)) => {
                self.shepherd.fail(target, &reason_of(*error));
            }
            (RequestUse::Stack, result) => {
                let threads = match result {
                    Ok(Answer::Snapshot(threads)) => &threads[..],
                    _ => &[],
                };
                let registers =
                    threads.first().and_then(|thread| Some((thread.tid, thread.registers?)));
                let stack = match (pid, registers) {
                    (Some(pid), Some((tid, registers))) => {
                        self.stacks.place_of(pid, tid, &registers)
                    }
                    _ => Vec::new(),
                };
                self.set_stop_stack(session, rank, stack);
            }
            (RequestUse::Watch(number), result) => {
                if let Some(PendingWatch { target, location, failure, .. }) =
                    self.consoles.on_watched(number, result)
                {
                    match failure {
                        None => self.answer_with_state(session, rank, target),
                        Some(reason) => {
                            self.clear(session, rank, Some(&location));
                            self.shepherd.fail(target, &reason);
                        }
                    }
                }
            }
        }
        self.leave_if_free(session, rank);
    }

    /// Releases a held process, and continues a stopped one.
    fn go_on(&mut self, session: u64, rank: u32) {
        let Some(process) = self.consoles.process(session, rank) else { return };
        let pid = process.pid;
        if std::mem::take(&mut process.is_held) {
            // An error means that the process has ended.
            _ = self.tracer.hold_process(pid, false);
        }
        let Some(process) = self.consoles.process(session, rank) else { return };
        if let Some(stop) = process.stop.take() {
            let waiting = stop.waiting;
            self.command_of_console(session, rank, 0, AuthorityCommand::Continue);
            for target in waiting {
                self.answer_with_state(session, rank, target);
            }
        }
    }

    /// Lets the stopped thread run to another line. Without line numbers it executes one
    /// instruction.
    fn step_line(&mut self, session: u64, rank: u32) -> Result<(), String> {
        let Some(process) = self.consoles.process(session, rank) else { return Ok(()) };
        let stack = process.stop.as_ref().map(|stop| stop.stack.as_deref());
        if stack == Some(None) {
            return Err("its stack is being read; repeat the step".to_owned());
        }
        process.line_step = stack.flatten().and_then(LineStep::begin);
        let begun = self.step_console(session, rank);
        if begun.is_err()
            && let Some(process) = self.consoles.process(session, rank)
        {
            process.line_step = None;
        }
        begun
    }

    fn step_console(&mut self, session: u64, rank: u32) -> Result<(), String> {
        let Some(process) = self.consoles.process(session, rank) else { return Ok(()) };
        let (pid, is_held) = (process.pid, process.is_held);
        let Some(stop) = &process.stop else {
            return Err("it has not stopped: only a stopped process can step".to_owned());
        };
        if is_held {
            return Err("it is held: continue it first".to_owned());
        }
        let tid = stop.tid;
        // The step answers the current notice. If another notice is pending, it is issued instead
        // of the step.
        let command = match self.tracer.has_pending_notices(pid) {
            true => AuthorityCommand::Continue,
            false => {
                self.tracer.check_step(pid, tid).map_err(reason_of)?;
                AuthorityCommand::Step
            }
        };
        let thread = if command == AuthorityCommand::Step { tid } else { 0 };
        let stop = self.consoles.process(session, rank).and_then(|process| {
            process.is_stepping = true;
            process.stop.take()
        });
        let code = self.command_of_console(session, rank, thread, command);
        for target in stop.map(|stop| stop.waiting).unwrap_or_default() {
            self.answer_with_state(session, rank, target);
        }
        match code {
            CommandCode::Success | CommandCode::PendingNotify => Ok(()),
            code => {
                if let Some(process) = self.consoles.process(session, rank) {
                    process.is_stepping = false;
                }
                Err(format!("the step was refused ({code:?})"))
            }
        }
    }
}
