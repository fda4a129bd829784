//! The commands of a Query or an Update (docs/dev/tools.md, groups Q and U), which are carried out
//! one after the other. A command that needs a thread to stop waits for the tracer, while the
//! service continues.

use score_proto::toolctl::ToolctlReport;
use score_stacks::capture::Snapshot;
use score_stacks::memory::ProcessMemory;
use score_stacks::unwind;
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::process_data::{self, ThreadState as KernelState};
use score_toolctl::tracer::{
    self, Answer, Pid, Preferences, Request, ThreadSnapshot, Tid, WatchRange, procfs,
};
use score_tools::wire::{
    AuxVector, AuxVectorHead, BreakpointKind, COMMUNICATION_THREAD, CommandAnswer, CommandCode,
    CommandRequest, FrameEntry, MemoryCopy, NoData, OldBreakpoint, Preference, ProcessData,
    ReceivedCommand, ThreadData, ThreadDataHead, ThreadEntry, ThreadList, ThreadListHead,
    ThreadState, ToolState, WrittenMemory,
};

use super::work::{self, Waiting, WaitingCommand, Work};
use super::{Service, convert, files};

/// The most threads in an answer of Get Thread List.
const MAX_LISTED_THREADS: usize = 8_000;

/// The outcome of carrying out a command.
pub(super) enum Outcome {
    /// The command is done, with this code and this data.
    Done(CommandCode, Option<CommandAnswer<'static>>),
    /// The command continues when this has arrived.
    Wait(Waiting),
}

impl From<Result<Option<CommandAnswer<'static>>, CommandCode>> for Outcome {
    fn from(result: Result<Option<CommandAnswer<'static>>, CommandCode>) -> Self {
        match result {
            Ok(answer) => Self::Done(CommandCode::Success, answer),
            Err(code) => Self::Done(code, None),
        }
    }
}

impl From<Result<(), TraceError>> for Outcome {
    fn from(result: Result<(), TraceError>) -> Self {
        result.map(|()| None).map_err(convert::code_of).into()
    }
}

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
        if work.has_pins {
            self.tracer.unpin(work.pid);
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
                self.finish_command(work, (*number, tid, outside), code, answer);
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
            CommandRequest::CopyMemory(copy) => self.copy_memory(work, copy).into(),
            CommandRequest::GetThreadList(_) => self.thread_list(pid),
            CommandRequest::GetAuxVectors(_) => {
                let list = procfs::auxiliary_vector(pid).ok_or(CommandCode::ProcessExiting);
                let to_answer = |list| {
                    Some(CommandAnswer::GetAuxVectors(AuxVector { head: AuxVectorHead {}, list }))
                };
                list.map(to_answer).into()
            }
            CommandRequest::GetProcessData(_) => {
                self.ask_time();
                Outcome::Wait(Waiting::JobTime)
            }
            CommandRequest::GetThreadData(_) => {
                work.has_pins = true;
                // An error here also makes the request fail.
                _ = self.tracer.pin(pid, Some(tid));
                match self.tracer.request(pid, Some(tid), Request::Snapshot(0)) {
                    Ok(ticket) => Outcome::Wait(Waiting::Tracer(ticket)),
                    Err(error) => Err(error).into(),
                }
            }
            CommandRequest::GetFileNames(_) => {
                let (code, names) = files::names(&self.directory);
                Outcome::Done(code, Some(CommandAnswer::GetFileNames(names)))
            }
            CommandRequest::GetFileStat(file) => files::stat(&self.directory, &file.path)
                .map(|stat| Some(CommandAnswer::GetFileStat(stat)))
                .into(),
            CommandRequest::GetFileContents(range) => {
                files::contents(&self.directory, &range.path, range.offset, range.number)
                    .map(|contents| Some(CommandAnswer::GetFileContents(contents)))
                    .into()
            }
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
                for (address, original) in self.tracer.breakpoints_in(pid, address, length) {
                    let report = ToolctlReport::BreakpointSet { rank, address, original };
                    self.report_breakpoint(report);
                }
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
                if self.start_notices.get(&work.rank()) == Some(&it.address) {
                    self.disarm_start_notice(work.rank());
                }
                self.insert_breakpoint(work.rank(), pid, it.address, kind).into()
            }
            CommandRequest::ResetBreakpoint(it) => self.reset_breakpoint(work.rank(), pid, *it),
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

    /// Sends a request to the tracer. If a message has several commands, its threads remain stopped
    /// until the end of the message, so that the results are consistent.
    fn ask_tracer(&mut self, work: &mut Work, tid: Tid, request: Request, count: usize) -> Outcome {
        if count > 1 {
            work.has_pins = true;
            // An error here also makes the request fail.
            _ = self.tracer.pin(work.pid, Some(tid));
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
            Ok(Answer::Snapshot(threads)) => match self.thread_data(work.pid, tid, &threads) {
                Ok(answer) => (CommandCode::Success, Some(answer)),
                Err(code) => (code, None),
            },
            Ok(answer) => (CommandCode::Success, convert::answer(answer)),
            Err(error) => (convert::code_of(error), None),
        };
        self.finish_command(&mut work, (number, tid, outside), code, answer);
        self.works.put_back(work);
    }

    /// Handles the shepherd's answer on how long the job has been running.
    pub(super) fn on_job_time(&mut self, ns: u64) {
        while let Some(rank) = self.works.waiting_for(Waiting::JobTime) {
            let Some(mut work) = self.works.take(rank) else { return };
            let Some(WaitingCommand { number, tid, outside, .. }) = work.waiting.take() else {
                return;
            };
            let (code, answer) = match self.process_data(rank, work.pid, ns) {
                Ok(answer) => (CommandCode::Success, Some(answer)),
                Err(code) => (code, None),
            };
            self.finish_command(&mut work, (number, tid, outside), code, answer);
            self.works.put_back(work);
        }
    }

    /// Adds the result of a command to the answer. Lists that do not fit are truncated.
    fn finish_command(
        &mut self,
        work: &mut Work,
        (number, tid, outside): (u16, Tid, u32),
        code: CommandCode,
        answer: Option<CommandAnswer<'static>>,
    ) {
        let answer = match (code, answer) {
            (CommandCode::Success, None) => Some(CommandAnswer::HoldThread(NoData {})),
            (_, answer) => answer,
        };
        work.push(number, (tid, outside), code, answer.as_ref());
    }

    /// Copies memory of a process to the memory that the tool shares.
    fn copy_memory(
        &self,
        work: &Work,
        copy: &MemoryCopy,
    ) -> Result<Option<CommandAnswer<'static>>, CommandCode> {
        let memory = work.memory.as_ref().ok_or(CommandCode::LengthError)?;
        let start = copy.offset as usize;
        let range = start..start.saturating_add(copy.length as usize);
        let count = self.tracer.copy_memory(work.pid, copy.address, memory, range);
        let length = count.map_err(convert::code_of)? as u32;
        Ok(Some(CommandAnswer::CopyMemory(MemoryCopy { length, ..*copy })))
    }

    fn thread_list(&mut self, pid: Pid) -> Outcome {
        let tids = self.tracer.threads(pid);
        let outside = self.ids.threads_outside(pid, &tids);
        let entry = |(inside, outside): &(Tid, Tid)| ThreadEntry {
            tid: outside.cast_unsigned(),
            flags: match procfs::is_communication_thread(pid, *inside) {
                true => COMMUNICATION_THREAD,
                false => 0,
            },
        };
        let list: Vec<ThreadEntry> = outside.iter().take(MAX_LISTED_THREADS).map(entry).collect();
        let code = match list.len() == outside.len() {
            true => CommandCode::Success,
            false => CommandCode::AllocationError,
        };
        let list = ThreadList { head: ThreadListHead {}, list };
        Outcome::Done(code, Some(CommandAnswer::GetThreadList(list)))
    }

    fn process_data(
        &mut self,
        rank: u32,
        pid: Pid,
        ns: u64,
    ) -> Result<CommandAnswer<'static>, CommandCode> {
        let data = process_data::process_data(pid).map_err(convert::code_of)?;
        let outside = self.ids.process_outside(pid).ok_or(CommandCode::ProcessExiting)?;
        let number = self.processes.get(&rank).map_or(0, |process| process.number);
        let pair = |(start, end): (u64, u64)| [start, end];
        Ok(CommandAnswer::GetProcessData(ProcessData {
            rank,
            tgid: outside.cast_unsigned(),
            coordinates: [self.host, 0, 0, 0, 0, number],
            shared_memory: pair(data.shared),
            persistent_memory: [0; 2],
            heap: pair(data.heap),
            heap_break: data.heap_break,
            mappings: pair(data.mapped),
            job_seconds: (ns / 1_000_000_000).cast_signed(),
            job_microseconds: (ns % 1_000_000_000 / 1000).cast_signed(),
        }))
    }

    fn thread_data(
        &mut self,
        pid: Pid,
        tid: Tid,
        threads: &[ThreadSnapshot],
    ) -> Result<CommandAnswer<'static>, CommandCode> {
        let registers = threads.first().and_then(|thread| thread.registers);
        let stack_pointer = registers.map(|registers| registers.rsp);
        let data = process_data::thread_data(pid, tid, stack_pointer).map_err(convert::code_of)?;
        let tool_state = self.tracer.tool_state(pid, tid).map_err(convert::code_of)?;
        let registers = registers.map(|registers| (tid, super::stacks::registers_of(&registers)));
        let snapshot = registers
            .and_then(|thread| Snapshot::of_held(pid, &[thread], &ProcessMemory::new(pid)).ok());
        let unwound = snapshot.map(|snapshot| unwind::unwind(&snapshot, &mut self.modules));
        let frames = unwound.iter().flatten().flat_map(|thread| thread.trace_back());
        let signed = |number: u32| number.cast_signed();
        let pair = |(start, end): (u64, u64)| [start, end];
        let head = ThreadDataHead {
            core: signed(data.core),
            core_thread: signed(data.thread_in_core),
            state: match data.state {
                KernelState::Run => ThreadState::Run,
                KernelState::Sleep => ThreadState::Sleep,
                KernelState::FutexWait => ThreadState::FutexWait,
            },
            tool_state: match tool_state {
                tracer::ToolState::Active => ToolState::Active,
                tracer::ToolState::Hold => ToolState::Hold,
                tracer::ToolState::Suspend => ToolState::Suspend,
                tracer::ToolState::HoldSuspend => ToolState::HoldSuspend,
            },
            speculative_state: 0,
            guard: pair(data.guard),
            stack_start: data.stack_start,
            stack_current: data.stack_pointer,
        };
        let list = frames.map(|frame| FrameEntry {
            frame: frame.frame_address,
            return_address: frame.return_address,
        });
        Ok(CommandAnswer::GetThreadData(ThreadData { head, list: list.collect() }))
    }

    /// Removes a breakpoint. The command contains the four original bytes of the program at this
    /// address. They are compared if four bytes can be read.
    fn reset_breakpoint(&mut self, rank: u32, pid: Pid, breakpoint: OldBreakpoint) -> Outcome {
        let wanted = breakpoint.instruction.to_ne_bytes();
        let mut there = [0; 4];
        let is_read = self.tracer.read_memory_into(pid, breakpoint.address, &mut there).is_ok();
        if is_read && there != wanted {
            return Outcome::Done(CommandCode::BreakpointFailed, None);
        }
        let address = breakpoint.address;
        let result = self.tracer.reset_breakpoint(pid, address, wanted[0]);
        if result.is_ok() {
            self.report_breakpoint(ToolctlReport::BreakpointReset { rank, address });
        }
        result.into()
    }

    /// Sets a breakpoint. Reports it to the shepherd before it is written into the text.
    pub(super) fn insert_breakpoint(
        &mut self,
        rank: u32,
        pid: Pid,
        address: u64,
        kind: tracer::BreakpointKind,
    ) -> Result<(), TraceError> {
        let mut byte = [0];
        self.tracer.read_memory_into(pid, address, &mut byte)?;
        let [original] = byte;
        self.report_breakpoint(ToolctlReport::BreakpointSet { rank, address, original });
        let result = self.tracer.set_breakpoint(pid, address, kind);
        if result.is_err() && self.tracer.breakpoints_in(pid, address, 1).is_empty() {
            self.report_breakpoint(ToolctlReport::BreakpointReset { rank, address });
        }
        result
    }
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
