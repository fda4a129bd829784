//! The commands of a Query or an Update (docs/dev/tools.md, groups Q and U), which are carried out
//! one after the other. A command that needs a thread to stop waits for the tracer, while the
//! service continues.

use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{self, Answer, Linux, Preferences, Request, Tid, Tracer, WatchRange};
use score_tools::wire::{
    BreakpointKind, CommandAnswer, CommandCode, CommandRequest, MemoryCopy, Preference,
    ReceivedCommand, WrittenMemory,
};

use super::work::{self, Outcome, Waiting, WaitingCommand, Work};
use super::{Service, convert, queries};

impl Service {
    /// Carries out commands of the first message of a rank, until one has to wait.
    pub(super) fn run_work(&mut self, rank: u32) {
        let Some(mut work) = self.works.take(rank) else { return };
        let record = std::mem::take(&mut work.record);
        let commands = work::commands_of(&record);
        while let Some(command) = commands.get(work.next) {
            if self.run_command(&mut work, command, commands.len()) {
                work.record = record;
                self.works.put_back(work);
                return;
            }
        }
        for pin in work.pins.drain(..) {
            self.tracer.unpin(pin);
        }
        self.clients.send(work.connection, work.answer());
        self.clients.end(work.connection);
        self.carry_out(std::mem::take(&mut work.actions));
    }

    /// Carries out the next command of a message. Returns whether it waits.
    fn run_command(
        &mut self,
        work: &mut Work,
        command: &ReceivedCommand<'_>,
        count: usize,
    ) -> bool {
        let ReceivedCommand { number, thread: named, request } = command;
        let is_for_host = matches!(
            request,
            Ok(CommandRequest::GetFileNames(_)
                | CommandRequest::GetFileStat(_)
                | CommandRequest::GetFileContents(_))
        );
        let thread = if is_for_host { Ok((0, *named)) } else { self.thread_of(work, *named) };
        let outcome = match (request, thread) {
            (Err(code), _) => Outcome::Done(*code, None),
            (_, Err(code)) => Outcome::Done(code, None),
            (Ok(request), Ok((tid, outside))) => {
                let permitted = match work.is_update() {
                    true => work.failed.check(tid.cast_unsigned()),
                    false => Ok(()),
                };
                match (permitted, request) {
                    (Err(code), _) => Outcome::Done(code, None),
                    (Ok(()), CommandRequest::GetMemory(range)) => {
                        let (tracer, pid) = (&self.tracer, work.pid);
                        work.push_memory(outside, range, |bytes| {
                            let read = tracer.read_memory_into(pid, range.address, bytes);
                            read.map_err(convert::code_of)
                        });
                        return false;
                    }
                    (Ok(()), request) => match convert::authority_command(request) {
                        Some(it) => self.execute_authority(work, *named, tid, it),
                        None => self.execute(work, tid, request, count),
                    },
                }
            }
        };
        let (tid, outside) = thread.unwrap_or((0, *named));
        match outcome {
            Outcome::Done(code, answer) => {
                work.finish_command((*number, tid, outside), code, answer);
                false
            }
            Outcome::Wait(what) => {
                work.waiting = Some(WaitingCommand { what, number: *number, tid, outside });
                true
            }
        }
    }

    /// The thread of a command: its id in this namespace, and its id for tools.
    fn thread_of(&mut self, work: &Work, named: u32) -> Result<(Tid, u32), CommandCode> {
        let pid = work.pid;
        if !self.tracer.is_attached(pid) {
            return Err(CommandCode::ProcessExiting);
        }
        let threads = self.tracer.threads(pid);
        if named == 0 {
            let tid = self.authority.default_thread(work.rank());
            let tid = tid.map_or(pid, u32::cast_signed);
            let outside = self.ids.thread_outside(pid, tid).unwrap_or(0);
            return Ok((tid, outside.cast_unsigned()));
        }
        let tid = self.ids.thread_inside(pid, named.cast_signed());
        let tid = tid.filter(|tid| threads.contains(tid)).ok_or(CommandCode::ThreadInvalid)?;
        Ok((tid, named))
    }

    fn execute(
        &mut self,
        work: &mut Work,
        tid: Tid,
        request: &CommandRequest<'_>,
        count: usize,
    ) -> Outcome {
        let pid = work.pid;
        match tracer_request(request) {
            Some(Ok(request)) => return self.ask_tracer(work, tid, request, count),
            Some(Err(code)) => return Outcome::Done(code, None),
            None => {}
        }
        match request {
            CommandRequest::CopyMemory(copy) => copy_memory(&self.tracer, work, copy).into(),
            CommandRequest::GetThreadList(_) => {
                queries::thread_list(pid, &self.tracer, &mut self.ids)
            }
            CommandRequest::GetAuxVectors(_) => queries::auxiliary_vector(pid).into(),
            CommandRequest::GetProcessData(_) => {
                self.shepherd.ask_time();
                Outcome::Wait(Waiting::JobTime)
            }
            CommandRequest::GetThreadData(_) => {
                // An error here also makes the request fail.
                work.pins.extend(self.tracer.pin(pid, Some(tid)));
                match self.tracer.request(pid, Some(tid), Request::Snapshot(0)) {
                    Ok(ticket) => Outcome::Wait(Waiting::Tracer(ticket)),
                    Err(error) => Err(error).into(),
                }
            }
            CommandRequest::GetFileNames(_) => self.queries.file_names(),
            CommandRequest::GetFileStat(file) => self.queries.file_stat(file).into(),
            CommandRequest::GetFileContents(range) => self.queries.file_contents(range).into(),
            CommandRequest::SetMemory(memory) => {
                let address = memory.head.address;
                let may_write_shared =
                    memory.head.shared == score_tools::wire::SharedAccess::Allowed;
                let length = memory.bytes.len() as u32;
                let rank = work.rank();
                let written = self
                    .tracer
                    .write_memory(pid, address, &memory.bytes, may_write_shared)
                    .map(|()| Some(CommandAnswer::SetMemory(WrittenMemory { address, length })))
                    .map_err(convert::code_of);
                // The program now has other bytes at the breakpoints in this range.
                self.breakpoints().report_written(rank, pid, address, length);
                written.into()
            }
            CommandRequest::HoldThread(_) => self.tracer.hold(pid, tid).into(),
            CommandRequest::ReleaseThread(_) => self.tracer.release(pid, tid).into(),
            CommandRequest::SendSignal(it) => {
                self.tracer.send_signal(pid, tid, it.signal.cast_signed()).into()
            }
            CommandRequest::SendSignalToProcess(it) => {
                self.tracer.send_signal_to_process(pid, it.signal.cast_signed()).into()
            }
            CommandRequest::SetBreakpoint(it) => {
                let kind = match it.kind {
                    BreakpointKind::Normal => tracer::BreakpointKind::Normal,
                    BreakpointKind::Fast => tracer::BreakpointKind::Fast,
                };
                // The tool now owns the breakpoint of the start notice.
                if self.start_notices.is_at(work.rank(), it.address) {
                    self.disarm_start_notice(work.rank());
                }
                self.breakpoints().insert(work.rank(), pid, it.address, kind).into()
            }
            CommandRequest::ResetBreakpoint(it) => {
                let (address, instruction) = (it.address, it.instruction.to_ne_bytes());
                let mut breakpoints = self.breakpoints();
                let reset = breakpoints.reset_instruction(work.rank(), pid, address, instruction);
                reset.map(|()| None).into()
            }
            CommandRequest::SetPreferences(it) => {
                let Preferences { mut fast_breakpoints, mut fast_watchpoints } =
                    self.tracer.preferences(pid);
                change(&mut fast_breakpoints, it.fast_breakpoints);
                change(&mut fast_watchpoints, it.fast_watchpoints);
                let wanted = Preferences { fast_breakpoints, fast_watchpoints };
                self.tracer.set_preferences(pid, wanted).into()
            }
            // The address of the last fault cannot be set. The command has no effect.
            _ => Outcome::Done(CommandCode::Success, None),
        }
    }

    /// Sends a request to the tracer. If a message has several commands, their threads remain
    /// stopped until the end of the message, so that the results are consistent.
    fn ask_tracer(&mut self, work: &mut Work, tid: Tid, request: Request, count: usize) -> Outcome {
        if count > 1 {
            // An error here also makes the request fail.
            work.pins.extend(self.tracer.pin(work.pid, Some(tid)));
        }
        match self.tracer.request(work.pid, Some(tid), request) {
            Ok(ticket) => Outcome::Wait(Waiting::Tracer(ticket)),
            Err(error) => Err(error).into(),
        }
    }

    /// Handles the tracer's answer to the command that a message waits for.
    pub(super) fn on_answer(&mut self, rank: u32, result: Result<Answer, TraceError>) {
        let Some(mut work) = self.works.take(rank) else { return };
        let Some(WaitingCommand { number, tid, outside, .. }) = work.waiting.take() else { return };
        let (code, answer) = match result {
            Ok(Answer::Snapshot(threads)) => {
                let is_suspended = self.authority.is_suspended(rank);
                let thread = (work.pid, tid);
                match self.queries.thread_data(thread, is_suspended, &threads, &self.tracer) {
                    Ok(answer) => (CommandCode::Success, Some(answer)),
                    Err(code) => (code, None),
                }
            }
            Ok(answer) => (CommandCode::Success, convert::answer(answer)),
            Err(error) => (convert::code_of(error), None),
        };
        work.finish_command((number, tid, outside), code, answer);
        self.works.put_back(work);
    }

    /// Handles the shepherd's answer on how long the job has been running.
    pub(super) fn on_job_time(&mut self, ns: u64) {
        while let Some(rank) = self.works.waiting_for(Waiting::JobTime) {
            let Some(mut work) = self.works.take(rank) else { return };
            let Some(WaitingCommand { number, tid, outside, .. }) = work.waiting.take() else {
                return;
            };
            let place = (rank, self.processes.number(rank).unwrap_or_default());
            let data = self.queries.process_data(place, work.pid, ns, &mut self.ids);
            let (code, answer) = match data {
                Ok(answer) => (CommandCode::Success, Some(answer)),
                Err(code) => (code, None),
            };
            work.finish_command((number, tid, outside), code, answer);
            self.works.put_back(work);
        }
    }
}

/// Copies memory of a process to the memory that the tool shares.
fn copy_memory(
    tracer: &Tracer<Linux>,
    work: &Work,
    copy: &MemoryCopy,
) -> Result<Option<CommandAnswer<'static>>, CommandCode> {
    let memory = work.memory.as_ref().ok_or(CommandCode::LengthError)?;
    let start = copy.offset as usize;
    let range = start..start.saturating_add(copy.length as usize);
    let count = tracer.copy_memory(work.pid, copy.address, memory, range);
    let length = count.map_err(convert::code_of)? as u32;
    Ok(Some(CommandAnswer::CopyMemory(MemoryCopy { length, ..*copy })))
}

fn change(setting: &mut bool, wanted: Preference) {
    match wanted {
        Preference::NoChange => {}
        Preference::Disable => *setting = false,
        Preference::Enable => *setting = true,
    }
}

/// The request to the tracer that carries out a command. `None`, if the command needs no thread to
/// stop.
fn tracer_request(request: &CommandRequest<'_>) -> Option<Result<Request, CommandCode>> {
    Some(Ok(match request {
        CommandRequest::GetSpecialRegisters(_) => Request::GetSpecial,
        CommandRequest::GetGeneralRegisters(_) => Request::GetGeneral,
        CommandRequest::GetFloatRegisters(_) => Request::GetExtended,
        CommandRequest::GetDebugRegisters(_) => Request::GetDebug,
        CommandRequest::SetGeneralRegister(it) => {
            Request::SetOneGeneral(it.selection.number() as usize, it.value)
        }
        CommandRequest::SetGeneralRegisters(it) => Request::SetGeneral(it.values),
        CommandRequest::SetFloatRegister(it) => {
            let (register, len) = convert::float_register(it.selection);
            Request::SetOneExtended(register, it.value[..len].to_vec())
        }
        CommandRequest::SetFloatRegisters(it) => Request::SetExtended(it.bytes.to_vec()),
        CommandRequest::SetDebugRegister(it) => {
            Request::SetOneDebug(it.selection.number() as usize, it.value)
        }
        CommandRequest::SetDebugRegisters(it) => {
            Request::SetDebug(convert::debug_registers(&it.values))
        }
        CommandRequest::SetSpecialRegister(it) => {
            Request::SetOneSpecial(convert::special_register(it.selection)?, it.value)
        }
        CommandRequest::SetSpecialRegisters(it) => match convert::special_registers(&it.values) {
            Ok(special) => Request::SetSpecial(special),
            Err(code) => return Some(Err(code)),
        },
        CommandRequest::SetWatchpoint(it) => Request::SetWatchpoint(WatchRange {
            address: it.address,
            length: it.length,
            kind: convert::watch_kind(it.kind),
        }),
        CommandRequest::ResetWatchpoint(it) => Request::ResetWatchpoint(it.address),
        CommandRequest::AllocateMemory(it) => Request::Allocate(it.size),
        CommandRequest::FreeMemory(it) => Request::Free(it.address, it.size),
        CommandRequest::InstallTrapHandler(it) => Request::InstallTrapHandler(it.address),
        CommandRequest::RemoveTrapHandler(it) => Request::RemoveTrapHandler(it.address),
        _ => return None,
    }))
}
