//! The actions of a console on a process that it controls.

use score_proto::tool_command::{ConsoleAction, Location, ProcessState, ToolResult};
use score_stacks::location::{Place, Purpose};
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{
    Answer, BreakpointKind, Pid, Request, Ticket, Tid, WatchKind, WatchRange,
};
use score_tools::authority::AuthorityCommand;
use score_tools::wire::CommandCode;

use super::Service;
use super::console::{ConsoleRequest, PendingWatch, RequestUse, StoppedThread};
use super::line_step::LineStep;
use super::shepherd::Target;

/// The longest memory of one watchpoint, in bytes: four debug registers.
const MAX_WATCHED_LEN: u64 = 32;

/// The text of an error of the tracer. It contains no ids, so that the texts of different processes
/// can be merged.
fn reason_of(error: TraceError) -> String {
    match error {
        TraceError::NoProcess(_) => "it has ended".to_owned(),
        TraceError::Timeout(_) => "a thread waits in the kernel and does not stop".to_owned(),
        TraceError::Breakpoint(_, reason) => reason.to_owned(),
        TraceError::NoDebugRegister(_) => {
            "no debug register is free; clear a watchpoint".to_owned()
        }
        TraceError::WatchpointOverlap(_) => {
            "a watchpoint exists there already; clear it".to_owned()
        }
        TraceError::WrongState(_, reason) => reason.to_owned(),
        error => error.to_string(),
    }
}

/// The memory range of a watchpoint.
fn watched_range(Place { address, len }: Place) -> Result<WatchRange, String> {
    let len = match len {
        // For an address without a length, watch the longest aligned word.
        0 => [8, 4, 2, 1].into_iter().find(|len| address.is_multiple_of(*len)).unwrap_or(1),
        len => len,
    };
    let is_possible =
        len.is_power_of_two() && len <= MAX_WATCHED_LEN && address.is_multiple_of(len);
    match u32::try_from(len) {
        Ok(length) if is_possible => Ok(WatchRange { address, length, kind: WatchKind::Write }),
        _ => Err(format!(
            "it has {len} bytes: only 1, 2, 4, 8, 16 or 32 aligned bytes can be watched; \
             watch a part of it by *ADDRESS"
        )),
    }
}

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
                        return self.expect(ticket, session, rank, RequestUse::Held(target));
                    }
                    Err(error) => Err(reason_of(error)),
                }
            }
            ConsoleAction::Break(location) => self.break_at(session, rank, location),
            ConsoleAction::Watch(location) => match self.watch(session, rank, target, location) {
                Ok(()) => return,
                Err(reason) => Err(reason),
            },
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
        let Some(process) = self.consoles.process(session, rank) else {
            let running = ToolResult::Console(ProcessState::Running);
            return self.shepherd.answer(target, &running);
        };
        let (pid, is_held) = (process.pid, process.is_held);
        let state = match &mut process.stop {
            None if is_held => ProcessState::Held,
            None => ProcessState::Running,
            Some(stop) => {
                let StoppedThread { reason, tid, stack, waiting } = stop;
                let Some(stack) = stack.clone() else { return waiting.push(target) };
                let (reason, tid) = (*reason, *tid);
                let threads = self.tracer.threads(pid);
                let place = threads.iter().position(|it| *it == tid).unwrap_or(0);
                let thread = u32::try_from(place + 1).unwrap_or(u32::MAX);
                ProcessState::Stopped { reason, thread, stack }
            }
        };
        self.shepherd.answer(target, &ToolResult::Console(state));
    }

    fn expect(&mut self, ticket: Ticket, session: u64, rank: u32, purpose: RequestUse) {
        if let Some(process) = self.consoles.process(session, rank) {
            process.requests += 1;
        }
        self.consoles.requests.insert(ticket, ConsoleRequest { session, rank, purpose });
    }

    /// Reads the stack of the thread that has stopped a process.
    pub(super) fn read_stop(&mut self, session: u64, rank: u32, pid: Pid, tid: Tid) {
        match self.tracer.request(pid, Some(tid), Request::Snapshot(0)) {
            Ok(ticket) => self.expect(ticket, session, rank, RequestUse::Stack),
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
        let Some(request) = self.consoles.requests.remove(&ticket) else { return };
        let ConsoleRequest { session, rank, purpose } = request;
        let process = self.consoles.process(session, rank);
        let pid = process.map(|process| {
            process.requests = process.requests.saturating_sub(1);
            process.pid
        });
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
            (RequestUse::Watch(number), result) => self.on_watched(session, rank, number, result),
        }
        self.leave_if_free(session, rank);
    }

    fn break_at(&mut self, session: u64, rank: u32, location: &Location) -> Result<(), String> {
        let Some(process) = self.consoles.process(session, rank) else { return Ok(()) };
        if process.breakpoints.contains_key(location) {
            return Ok(());
        }
        let pid = process.pid;
        let places = self.consoles.locations.find(pid, location, Purpose::Code)?;
        let mut set = Vec::new();
        for Place { address, .. } in places {
            let mut breakpoints = self.breakpoints();
            if let Err(error) = breakpoints.insert(rank, pid, address, BreakpointKind::Normal) {
                set.into_iter().for_each(|address| breakpoints.remove(rank, pid, address));
                return Err(reason_of(error));
            }
            set.push(address);
        }
        if let Some(process) = self.consoles.process(session, rank) {
            process.breakpoints.insert(location.clone(), set);
        }
        Ok(())
    }

    /// Sets a watchpoint in all existing threads. The answer is sent when all threads have it.
    fn watch(
        &mut self,
        session: u64,
        rank: u32,
        target: Target,
        location: &Location,
    ) -> Result<(), String> {
        let Some(process) = self.consoles.process(session, rank) else { return Ok(()) };
        let pid = process.pid;
        if process.watchpoints.contains_key(location) {
            self.answer_with_state(session, rank, target);
            return Ok(());
        }
        let places = self.consoles.locations.find(pid, location, Purpose::Data)?;
        let place = places.first().ok_or("there is nothing to watch")?;
        let range = watched_range(*place)?;
        self.consoles.last_watch += 1;
        let number = self.consoles.last_watch;
        let mut pending =
            PendingWatch { target, location: location.clone(), threads: 0, failure: None };
        let mut tickets = Vec::new();
        for tid in self.tracer.threads(pid) {
            match self.tracer.request(pid, Some(tid), Request::SetWatchpoint(range)) {
                Ok(ticket) => tickets.push(ticket),
                // The thread has just ended.
                Err(TraceError::NoThread(_)) => {}
                Err(error) => pending.failure = Some(reason_of(error)),
            }
        }
        pending.threads = tickets.len();
        if tickets.is_empty() {
            return Err(pending.failure.unwrap_or_else(|| "it has ended".to_owned()));
        }
        if let Some(process) = self.consoles.process(session, rank) {
            process.watchpoints.insert(location.clone(), range.address);
        }
        self.consoles.watches.insert(number, pending);
        for ticket in tickets {
            self.expect(ticket, session, rank, RequestUse::Watch(number));
        }
        Ok(())
    }

    /// Notes whether a thread has got the watchpoint.
    fn on_watched(
        &mut self,
        session: u64,
        rank: u32,
        number: u64,
        result: &Result<Answer, TraceError>,
    ) {
        let Some(pending) = self.consoles.watches.get_mut(&number) else { return };
        pending.threads = pending.threads.saturating_sub(1);
        match result {
            Ok(_) | Err(TraceError::NoThread(_)) => {}
            Err(error) => pending.failure = Some(reason_of(*error)),
        }
        if pending.threads > 0 {
            return;
        }
        let Some(pending) = self.consoles.watches.remove(&number) else { return };
        match pending.failure {
            None => self.answer_with_state(session, rank, pending.target),
            Some(reason) => {
                self.clear(session, rank, Some(&pending.location));
                self.shepherd.fail(pending.target, &reason);
            }
        }
    }

    /// Removes the breakpoints and watchpoints of a location, or all of them. Returns whether there
    /// were any.
    fn clear(&mut self, session: u64, rank: u32, location: Option<&Location>) -> bool {
        let Some(process) = self.consoles.process(session, rank) else { return false };
        let pid = process.pid;
        let is_kept = |other: &Location| location.is_some_and(|location| location != other);
        let (mut breakpoints, mut watchpoints) = (Vec::new(), Vec::new());
        process.breakpoints.retain(|other, addresses| {
            let is_kept = is_kept(other);
            if !is_kept {
                breakpoints.append(addresses);
            }
            is_kept
        });
        process.watchpoints.retain(|other, address| {
            let is_kept = is_kept(other);
            if !is_kept {
                watchpoints.push(*address);
            }
            is_kept
        });
        // Another location may contain the same address.
        let still: Vec<u64> = process.breakpoints.values().flatten().copied().collect();
        let is_any = !breakpoints.is_empty() || !watchpoints.is_empty();
        for address in breakpoints.into_iter().filter(|address| !still.contains(address)) {
            self.breakpoints().remove(rank, pid, address);
        }
        for tid in self.tracer.threads(pid) {
            for address in &watchpoints {
                // A thread that has started later has no watchpoint, so an error does not matter.
                _ = self.tracer.request(pid, Some(tid), Request::ResetWatchpoint(*address));
            }
        }
        is_any
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_range_is_aligned_and_its_length_is_a_power_of_two() {
        let length = |address, len| watched_range(Place { address, len }).map(|it| it.length);
        assert_eq!(length(0x1000, 4), Ok(4));
        assert_eq!(length(0x1000, 32), Ok(32));
        assert_eq!(
            [0x1000, 0x1004, 0x1002, 0x1001].map(|it| length(it, 0)),
            [Ok(8), Ok(4), Ok(2), Ok(1)]
        );
        for (address, len) in [(0x1000, 12), (0x1004, 8), (0x1000, 64)] {
            assert!(length(address, len).unwrap_err().contains("*ADDRESS"), "{len}");
        }
    }
}
