//! Controls a rank by its tool control service: attaches to it, stops it, reads and changes its
//! state, and lets it continue.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use score_tools::authority::{GDB_TAG, describe_control_conflict};
use score_tools::wire::{
    Attach, BreakpointKind, Command, CommandAnswer, CommandCode, CommandRequest, CommandResult,
    CommandSet, Control, ControlAck, MAX_COMMANDS, MAX_MEMORY_LEN, MemoryRange, NewBreakpoint,
    NoData, Notice, OldBreakpoint, ProcessSelect, ReturnCode, ServiceMessage, SetMemory,
    SetMemoryHead, SharedAccess, SignalNumber, SpeculativeAccess, StartNotice, ToolRequest,
    TrapMode, WatchPolicy,
};

use super::registers::ThreadRegisters;
use super::service::{RankService, ToolSessionLink};

/// Time limit for an answer of the service. The service also answers for threads that wait for
/// their time slice.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Tools of a process must have different priorities. This tool uses the first free one.
const PRIORITIES: std::ops::Range<u8> = 40..50;
/// Signals without notices. The kernel does not show SIGKILL to tools, and the scheduler stops and
/// continues the job by SIGSTOP and SIGCONT.
const SILENT: [i32; 3] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCONT];
const PAGE: u64 = 4096;

/// The reason why a request has failed.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    /// The connection to the service has failed.
    #[error("tool control service: {0}")]
    Io(#[from] io::Error),
    /// The service has refused a message.
    #[error("tool control service: {0:?}")]
    Message(ReturnCode),
    /// A command has failed.
    #[error("{0:?}")]
    Command(CommandCode),
    /// The service has sent an unexpected answer.
    #[error("the tool control service has sent an unknown answer; use tools of the same release")]
    Answer,
}

/// The result of a request to a rank.
pub type RankResult<T> = Result<T, RankError>;

/// A rank to which this tool is attached.
#[derive(Debug)]
pub struct Rank {
    link: ToolSessionLink,
}

impl Rank {
    /// Attaches to a rank, with control authority. The rank continues.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn control(link: ToolSessionLink) -> Result<Self, String> {
        let mut rank = Self::attach(link)?;
        match rank.send_control().map_err(|error| format!("control: {error}"))? {
            (ReturnCode::Success, _) => Ok(rank),
            (ReturnCode::ToolControlConflict, Some(ack)) => Err(describe_control_conflict(&ack)),
            (code, _) => Err(format!("control: {code:?}")),
        }
    }

    /// Attaches to a rank without control authority, to inspect it.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn attach(link: ToolSessionLink) -> Result<Self, String> {
        let mut rank = Self { link };
        match rank.send_attach().map_err(|error| format!("attach: {error}"))? {
            (ReturnCode::Success, _) => Ok(rank),
            (ReturnCode::RequestFailed, reason) => Err(reason),
            (ReturnCode::ToolMaxAttachedExceeded | ReturnCode::ToolPriorityConflict, _) => {
                Err("it has too many tools; end one of them".to_owned())
            }
            (ReturnCode::ToolProcessExiting, _) => Err("it has ended".to_owned()),
            (code, _) => Err(format!("attach: {code:?}")),
        }
    }

    /// The rank's service, for requests that are not part of tool control.
    pub fn service(&self) -> &RankService {
        self.link.service()
    }

    /// Sends a request. Returns the code, and the result of `read` for the answer.
    fn ask<T>(
        &mut self,
        request: &ToolRequest<'_>,
        read: impl FnOnce(&ServiceMessage<'_>) -> Option<T>,
    ) -> RankResult<(ReturnCode, Option<T>)> {
        let record = self.link.ask(request, ANSWER_TIMEOUT)?;
        let (header, message) = ServiceMessage::decode(&record).map_err(|_| RankError::Answer)?;
        let code = header.code().ok_or(RankError::Answer)?;
        Ok((code, read(&message)))
    }

    /// Requests to attach. Returns the code, and the reason if the service refuses.
    fn send_attach(&mut self) -> RankResult<(ReturnCode, String)> {
        let mut refused = (ReturnCode::ToolPriorityConflict, String::new());
        for priority in PRIORITIES {
            let select = ProcessSelect::RankInHeader;
            let attach = ToolRequest::Attach(Attach { tag: GDB_TAG, priority, select });
            let (code, reason) = self.ask(&attach, |message| match message {
                ServiceMessage::AttachRefused(reason) => Some(reason.clone()),
                _ => None,
            })?;
            refused = (code, reason.unwrap_or_default());
            if code != ReturnCode::ToolPriorityConflict {
                break;
            }
        }
        Ok(refused)
    }

    /// Requests control authority. Returns the code, and the tool that has the authority.
    fn send_control(&mut self) -> RankResult<(ReturnCode, Option<ControlAck>)> {
        let notify_set = SILENT.iter().fold(u64::MAX, |set, signal| set & !(1 << (signal - 1)));
        let control = ToolRequest::Control(Control {
            notify_set,
            signal: 0,
            start_notice: StartNotice::DynamicLoader,
            trap_mode: TrapMode::NoChange,
            // `DebugRegisterUse` sets watchpoints in new threads.
            watch_policy: WatchPolicy::NoPropagate,
        });
        self.ask(&control, |message| match message {
            ServiceMessage::ControlAck(ack) => Some(*ack),
            _ => None,
        })
    }

    /// Executes at most 16 commands of one kind. `read` gets their results.
    fn commands<T>(
        &mut self,
        commands: &[Command<'_>],
        read: impl FnOnce(&[CommandResult<'_>]) -> RankResult<T>,
    ) -> RankResult<T> {
        let is_query =
            commands.first().is_some_and(|it| it.request.kind().set() == CommandSet::Query);
        let request = match is_query {
            true => ToolRequest::Query(commands),
            false => ToolRequest::Update(commands),
        };
        let (code, result) = self.ask(&request, |message| match message {
            ServiceMessage::QueryAck(results) | ServiceMessage::UpdateAck(results)
                if results.len() == commands.len() =>
            {
                Some(read(results))
            }
            _ => None,
        })?;
        match (code, result) {
            (ReturnCode::Success, Some(result)) => result,
            (ReturnCode::Success, None) => Err(RankError::Answer),
            (code, _) => Err(RankError::Message(code)),
        }
    }

    /// Executes one command. `read` gets its answer.
    pub fn command<T>(
        &mut self,
        thread: u32,
        request: CommandRequest<'_>,
        read: impl FnOnce(&CommandAnswer<'_>) -> Option<T>,
    ) -> RankResult<T> {
        self.commands(&[Command { thread, request }], |results| {
            let answer = results.first().ok_or(RankError::Answer).and_then(answer_of)?;
            read(answer).ok_or(RankError::Answer)
        })
    }

    /// Executes an Update command that has no answer.
    pub fn update(&mut self, thread: u32, request: CommandRequest<'_>) -> RankResult<()> {
        self.updates(&[Command { thread, request }])
    }

    /// Executes Update commands. Returns the error of the first that fails.
    pub fn updates(&mut self, commands: &[Command<'_>]) -> RankResult<()> {
        for part in commands.chunks(MAX_COMMANDS) {
            self.commands(part, |results| {
                results.iter().try_for_each(|result| match code_of(result) {
                    CommandCode::Success => Ok(()),
                    code => Err(RankError::Command(code)),
                })
            })?;
        }
        Ok(())
    }

    /// The thread ids outside of the job, in ascending order: the first thread of the process comes
    /// first.
    pub fn threads(&mut self) -> RankResult<Vec<u32>> {
        let list = CommandRequest::GetThreadList(NoData {});
        let mut threads: Vec<u32> = self.command(0, list, |answer| match answer {
            CommandAnswer::GetThreadList(threads) => {
                Some(threads.list.iter().map(|entry| entry.tid).collect())
            }
            _ => None,
        })?;
        threads.sort_unstable();
        Ok(threads)
    }

    /// The process id of the rank, outside of the job.
    pub fn process(&mut self) -> RankResult<u32> {
        let request = CommandRequest::GetProcessData(NoData {});
        self.command(0, request, |answer| match answer {
            CommandAnswer::GetProcessData(data) => Some(data.tgid),
            _ => None,
        })
    }

    /// The bytes of the auxiliary vector.
    pub fn auxiliary_vector(&mut self) -> RankResult<Vec<u8>> {
        let request = CommandRequest::GetAuxVectors(NoData {});
        self.command(0, request, |answer| match answer {
            CommandAnswer::GetAuxVectors(vector) => {
                Some(vector.list.iter().flat_map(|word| word.to_le_bytes()).collect())
            }
            _ => None,
        })
    }

    /// The state components of the XSAVE area of a thread (XCR0).
    pub fn state_components(&mut self, thread: u32) -> RankResult<u64> {
        let request = CommandRequest::GetFloatRegisters(NoData {});
        self.command(thread, request, |answer| match answer {
            CommandAnswer::GetFloatRegisters(registers) => Some(registers.head.features),
            _ => None,
        })
    }

    /// The registers of a thread.
    pub fn registers(&mut self, thread: u32) -> RankResult<ThreadRegisters> {
        let command = |request| Command { thread, request };
        let commands = [
            command(CommandRequest::GetGeneralRegisters(NoData {})),
            command(CommandRequest::GetSpecialRegisters(NoData {})),
            command(CommandRequest::GetFloatRegisters(NoData {})),
        ];
        self.commands(&commands, |results| {
            let answers: Vec<_> = results.iter().map(answer_of).collect::<RankResult<_>>()?;
            match answers[..] {
                [
                    CommandAnswer::GetGeneralRegisters(general),
                    CommandAnswer::GetSpecialRegisters(special),
                    CommandAnswer::GetFloatRegisters(float),
                ] => Ok(ThreadRegisters {
                    general: general.values,
                    special: special.values,
                    area: float.bytes.to_vec(),
                }),
                _ => Err(RankError::Answer),
            }
        })
    }

    /// Sets those registers of a thread that differ from `before`.
    pub fn set_registers(
        &mut self,
        thread: u32,
        before: &ThreadRegisters,
        after: &ThreadRegisters,
    ) -> RankResult<()> {
        use score_tools::wire::{
            FloatRegistersHead, GeneralRegisters, SpecialRegisters, WithBytes,
        };
        let mut commands = Vec::new();
        let mut add = |request| commands.push(Command { thread, request });
        if after.general != before.general {
            let values = after.general;
            add(CommandRequest::SetGeneralRegisters(GeneralRegisters { values }));
        }
        if after.special != before.special {
            let values = after.special;
            add(CommandRequest::SetSpecialRegisters(SpecialRegisters { values }));
        }
        if after.area != before.area {
            let head = FloatRegistersHead { features: 0 };
            let bytes = (&after.area[..]).into();
            add(CommandRequest::SetFloatRegisters(WithBytes { head, bytes }));
        }
        self.updates(&commands)
    }

    /// Waits until all threads are stopped, after [`Rank::suspend`].
    pub fn wait_until_all_stand(&mut self) -> RankResult<()> {
        let threads = self.threads()?;
        for part in threads.chunks(MAX_COMMANDS) {
            let request = || CommandRequest::GetGeneralRegisters(NoData {});
            let commands: Vec<Command<'_>> =
                part.iter().map(|thread| Command { thread: *thread, request: request() }).collect();
            // A thread that has ended or waits in the kernel counts as stopped.
            self.commands(&commands, |_| Ok(()))?;
        }
        Ok(())
    }

    /// Reads memory without the bytes of breakpoints. If it cannot be read as a whole, reads up to
    /// the end of the last readable page. Returns the number of bytes.
    pub fn read_memory(&mut self, address: u64, bytes: &mut [u8]) -> RankResult<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let here = address.wrapping_add(done as u64);
            let left = &mut bytes[done..];
            let length = left.len().min(MAX_MEMORY_LEN as usize);
            let to_page_end = (PAGE - here % PAGE) as usize;
            let read = match self.read_exactly(here, &mut left[..length]) {
                Err(RankError::Command(_)) if to_page_end < length => {
                    self.read_exactly(here, &mut left[..to_page_end]).map(|()| to_page_end)
                }
                result => result.map(|()| length),
            };
            match read {
                Ok(length) => done += length,
                Err(RankError::Command(_)) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn read_exactly(&mut self, address: u64, bytes: &mut [u8]) -> RankResult<()> {
        let access = SpeculativeAccess::Permitted;
        let range = MemoryRange { address, length: bytes.len() as u32, access };
        self.command(0, CommandRequest::GetMemory(range), |answer| match answer {
            CommandAnswer::GetMemory(memory) if memory.bytes.len() == bytes.len() => {
                bytes.copy_from_slice(&memory.bytes);
                Some(())
            }
            _ => None,
        })
    }

    /// Writes memory. Breakpoints in this range remain.
    pub fn write_memory(&mut self, address: u64, bytes: &[u8]) -> RankResult<()> {
        for (part, offset) in
            bytes.chunks(MAX_MEMORY_LEN as usize).zip((0..).step_by(MAX_MEMORY_LEN as usize))
        {
            let head = SetMemoryHead {
                address: address.wrapping_add(offset),
                access: SpeculativeAccess::Permitted,
                shared: SharedAccess::Allowed,
            };
            self.update(0, CommandRequest::SetMemory(SetMemory { head, bytes: part.into() }))?;
        }
        Ok(())
    }

    /// Sets a breakpoint. Tools that read memory get the original byte.
    pub fn set_breakpoint(&mut self, address: u64) -> RankResult<()> {
        let kind = BreakpointKind::Normal;
        self.update(0, CommandRequest::SetBreakpoint(NewBreakpoint { address, kind }))
    }

    /// Removes a breakpoint.
    pub fn reset_breakpoint(&mut self, address: u64) -> RankResult<()> {
        let mut bytes = [0; 4];
        self.read_memory(address, &mut bytes)?;
        let instruction = u32::from_ne_bytes(bytes);
        self.update(0, CommandRequest::ResetBreakpoint(OldBreakpoint { address, instruction }))
    }

    /// Suspends all threads. Events of the threads arrive as notices.
    pub fn suspend(&mut self) -> RankResult<()> {
        self.update(0, CommandRequest::SuspendProcess(NoData {}))
    }

    /// Continues all threads that are not held. If another notice is pending, the service sends it
    /// instead.
    pub fn proceed(&mut self) -> RankResult<()> {
        self.update(0, CommandRequest::ContinueProcess(NoData {}))
    }

    /// Sends a signal to the process.
    pub fn kill(&mut self, signal: i32) -> RankResult<()> {
        let signal = SignalNumber { signal: signal.cast_unsigned() };
        self.update(0, CommandRequest::SendSignalToProcess(signal))
    }

    /// The next notice that has arrived. `None` if there is none.
    pub fn next_notice(&mut self) -> RankResult<Option<Notice>> {
        while let Some(record) = self.link.next_notice()? {
            match ServiceMessage::decode(&record) {
                // Another tool requests the control authority. That tool has to wait.
                Ok((_, ServiceMessage::Notify(Notice::Control(_)))) => {}
                Ok((_, ServiceMessage::Notify(notice))) => return Ok(Some(notice)),
                _ => return Err(RankError::Answer),
            }
        }
        Ok(None)
    }

    /// A descriptor that is readable when [`Rank::next_notice`] has work to do.
    pub fn wait_fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.link.wait_fd()
    }
}

fn code_of(result: &CommandResult<'_>) -> CommandCode {
    CommandCode::from_number(result.return_code).unwrap_or(CommandCode::CommandInvalid)
}

fn answer_of<'r, 'a>(result: &'r CommandResult<'a>) -> RankResult<&'r CommandAnswer<'a>> {
    match code_of(result) {
        CommandCode::Success => result.answer.as_ref().ok_or(RankError::Answer),
        code => Err(RankError::Command(code)),
    }
}
