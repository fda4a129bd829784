//! A connection to the tool control service, and the state that this tool has set in the processes
//! to which it is attached.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use score_proto::tool_start::{JOB_ID_ENV, TOOL_DIR_ENV, TOOL_ID_ENV};
use score_toolctl::client::{MAX_VIEW_LEN, ReadMemoryError, ToolConnection};
use score_tools::wire::{
    Attach, Command, CommandAnswer, CommandCode, CommandKind, CommandRequest, CommandResult,
    CommandSet, Control, ControlAck, Detach, Header, Notice, ProcessSelect, ReturnCode,
    ServiceMessage, SignalReason, ToolRequest,
};

use crate::failure::Failure;
use crate::rank::Rank;

/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to the service of a host.
#[derive(Debug)]
pub struct Connection {
    service: ToolConnection,
    job: u64,
    /// The ranks to which the tool is attached.
    pub ranks: BTreeMap<u32, Rank>,
    /// Notices that the tool has not read, the oldest first.
    notices: VecDeque<Vec<u8>>,
    /// The last answer or notice that was returned to C, aligned for its structures.
    given: Vec<u64>,
    /// Why the last call failed.
    pub text: CString,
    /// Handles of processes that were returned to C, by rank.
    pub handles: BTreeMap<u32, *mut crate::ProcessHandle>,
}

/// The failure of a call that reads memory by Copy Memory.
fn memory_failure(job: u64, rank: u32, error: ReadMemoryError) -> Failure {
    match error {
        ReadMemoryError::Io(error) => Failure::Service { job, error },
        ReadMemoryError::Refused(Header { return_code: code, error_code: errno, .. }) => {
            Failure::Refused { rank, code, errno }
        }
        ReadMemoryError::Command(code) => {
            Failure::Command { rank, command: CommandKind::CopyMemory, code }
        }
    }
}

/// The value of a variable that start_tool sets.
fn number_of<T: std::str::FromStr>(name: &str) -> Result<T, String> {
    let value = env::var(name).map_err(|_| {
        format!("{name} is not set: start the tool with start_tool, or use score_toolctl_connect")
    })?;
    value.parse().map_err(|_| format!("{name}: {value:?} is not a number"))
}

impl Connection {
    /// Connects to the service by the environment variables that start_tool sets.
    pub fn open() -> Result<Self, String> {
        let (job, tool) = (number_of(JOB_ID_ENV)?, number_of(TOOL_ID_ENV)?);
        let directory = env::var_os(TOOL_DIR_ENV)
            .ok_or_else(|| format!("{TOOL_DIR_ENV} is not set: start the tool with start_tool"))?;
        let nodes = PathBuf::from(directory).join("toolctl_node");
        let entries =
            fs::read_dir(&nodes).map_err(|error| format!("{}: {error}", nodes.display()))?;
        let socket = entries
            .flatten()
            .next()
            .ok_or_else(|| format!("{}: no socket: the job may have ended", nodes.display()))?;
        Self::connect(&socket.path(), job, tool)
    }

    /// Connects to a socket in the directory of a job.
    pub fn connect(path: &Path, job: u64, tool: u32) -> Result<Self, String> {
        let fail = |error: io::Error| format!("{}: {error}", path.display());
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(format!("{}: not the path of a socket", path.display()));
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        // The address of a socket has at most 107 bytes; paths of directories may be longer.
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = open(folder, flags, Mode::empty()).map_err(|errno| fail(errno.into()))?;
        let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        let service = ToolConnection::connect(&short, job, tool).map_err(fail)?;
        Ok(Self {
            service,
            job,
            ranks: BTreeMap::new(),
            notices: VecDeque::new(),
            given: Vec::new(),
            text: CString::default(),
            handles: BTreeMap::new(),
        })
    }

    /// Stores the reason of a failure, or "" after a success.
    pub fn set_text(&mut self, text: &str) {
        self.text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    }

    /// Stores a record for C until the next call, aligned for its structures.
    pub fn give(&mut self, record: &[u8]) -> *const u8 {
        self.given.clear();
        self.given.extend(record.chunks(8).map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_ne_bytes(word)
        }));
        self.given.as_ptr().cast()
    }

    /// The number of the tool.
    pub fn tool(&self) -> u32 {
        self.service.tool()
    }

    /// The descriptor of the socket, for poll(2).
    pub fn descriptor(&self) -> i32 {
        self.service.as_fd().as_raw_fd()
    }

    fn service_failure(&self, error: io::Error) -> Failure {
        Failure::Service { job: self.job, error }
    }

    /// Sends a request, and returns its acknowledgement unless the service refuses the request.
    fn ask(&mut self, rank: u32, request: &ToolRequest<'_>) -> Result<Vec<u8>, Failure> {
        let answer = self.service.ask(rank, request, ANSWER_TIMEOUT);
        let record = answer.map_err(|error| self.service_failure(error))?;
        let (header, message) = self.decode(&record)?;
        match (header.return_code, message) {
            (0, _) => Ok(record),
            // If the request was an Attach to all ranks, the header names the rank at fault.
            (_, ServiceMessage::AttachRefused(reason)) => {
                Err(Failure::NotTraced { rank: header.rank, reason })
            }
            (code, _) => Err(Failure::Refused { rank, code, errno: header.error_code }),
        }
    }

    fn decode<'a>(&self, record: &'a [u8]) -> Result<(Header, ServiceMessage<'a>), Failure> {
        ServiceMessage::decode(record)
            .map_err(|fault| self.service_failure(io::Error::other(fault.to_string())))
    }

    /// Attaches to a rank, or to all. Returns the attached ranks.
    pub fn attach(
        &mut self,
        rank: Option<u32>,
        priority: u8,
        tag: [u8; 8],
    ) -> Result<Vec<u32>, Failure> {
        let body = Attach { tag, priority, select: select(rank) };
        let record = self.ask(rank.unwrap_or(0), &ToolRequest::Attach(body))?;
        let (_, ServiceMessage::AttachAck(ranks)) = self.decode(&record)? else {
            return Err(self.wrong_answer());
        };
        self.ranks.extend(ranks.iter().map(|rank| (*rank, Rank::default())));
        Ok(ranks)
    }

    /// Detaches from a rank, or from all, and discards the recorded state of these ranks.
    pub fn detach(&mut self, rank: Option<u32>) -> Result<(), Failure> {
        let body = Detach { select: select(rank) };
        let record = self.ask(rank.unwrap_or(0), &ToolRequest::Detach(body))?;
        let (_, ServiceMessage::DetachAck(ranks)) = self.decode(&record)? else {
            return Err(self.wrong_answer());
        };
        ranks.iter().for_each(|rank| _ = self.ranks.remove(rank));
        Ok(())
    }

    /// Requests Control authority. Returns the acknowledgement, which names the tool that has
    /// authority, and whether it is this tool.
    pub fn control(
        &mut self,
        rank: u32,
        settings: Control,
    ) -> Result<(Vec<u8>, Result<ControlAck, Failure>), Failure> {
        let request = ToolRequest::Control(settings);
        let answer = self.service.ask(rank, &request, ANSWER_TIMEOUT);
        let record = answer.map_err(|error| self.service_failure(error))?;
        let (header, message) = self.decode(&record)?;
        let result = match (header.code(), message) {
            (Some(ReturnCode::Success), ServiceMessage::ControlAck(ack)) => {
                if let Some(state) = self.ranks.get_mut(&rank) {
                    state.has_authority = true;
                }
                Ok(ack)
            }
            _ => {
                let (code, errno) = (header.return_code, header.error_code);
                Err(Failure::Refused { rank, code, errno })
            }
        };
        Ok((record, result))
    }

    /// Carries out commands, and records the state that they have set. The answer contains the code
    /// of each command.
    pub fn carry_out(
        &mut self,
        rank: u32,
        set: CommandSet,
        commands: &[Command<'_>],
    ) -> Result<Vec<u8>, Failure> {
        let request = match set {
            CommandSet::Query => ToolRequest::Query(commands),
            CommandSet::Update => ToolRequest::Update(commands),
        };
        let record = self.ask(rank, &request)?;
        let (_, ServiceMessage::QueryAck(results) | ServiceMessage::UpdateAck(results)) =
            self.decode(&record)?
        else {
            return Err(self.wrong_answer());
        };
        if results.len() != commands.len() {
            return Err(self.wrong_answer());
        }
        if let Some(state) = self.ranks.get_mut(&rank) {
            for (command, result) in commands.iter().zip(&results) {
                if result.return_code == CommandCode::Success.number() {
                    state.note(command, result);
                }
            }
        }
        Ok(record)
    }

    /// Carries out commands that must all succeed.
    pub fn succeed<T>(
        &mut self,
        rank: u32,
        commands: &[Command<'_>],
        read: impl FnOnce(&[CommandResult<'_>]) -> Option<T>,
    ) -> Result<T, Failure> {
        let set = commands.first().map_or(CommandSet::Query, |it| it.request.kind().set());
        let record = self.carry_out(rank, set, commands)?;
        let (_, ServiceMessage::QueryAck(results) | ServiceMessage::UpdateAck(results)) =
            self.decode(&record)?
        else {
            return Err(self.wrong_answer());
        };
        for (command, result) in commands.iter().zip(&results) {
            let (command, code) = (command.request.kind(), result.return_code);
            if code != CommandCode::Success.number() {
                return Err(Failure::Command { rank, command, code });
            }
        }
        read(&results).ok_or_else(|| self.wrong_answer())
    }

    /// Carries out an Update of one command without answer data.
    pub fn update(
        &mut self,
        rank: u32,
        thread: u32,
        request: CommandRequest<'_>,
    ) -> Result<(), Failure> {
        self.succeed(rank, &[Command { thread, request }], |_| Some(()))
    }

    /// Carries out a Query of one command.
    pub fn query<T>(
        &mut self,
        rank: u32,
        thread: u32,
        request: CommandRequest<'_>,
        read: impl FnOnce(&CommandAnswer<'_>) -> Option<T>,
    ) -> Result<T, Failure> {
        self.succeed(rank, &[Command { thread, request }], |results| {
            read(results.first()?.answer.as_ref()?)
        })
    }

    /// Reads memory by Copy Memory.
    pub fn copy_memory(
        &mut self,
        rank: u32,
        address: u64,
        buffer: &mut [u8],
    ) -> Result<(), Failure> {
        let result = self.service.read_memory(rank, address, buffer, ANSWER_TIMEOUT);
        result.map_err(|error| memory_failure(self.job, rank, error))
    }

    /// Reads memory, and returns it in the memory that this tool shares with the service, until the
    /// next call.
    pub fn view_memory(
        &mut self,
        rank: u32,
        address: u64,
        len: usize,
    ) -> Result<&[AtomicU8], Failure> {
        if !(1..=MAX_VIEW_LEN).contains(&len) {
            return Err(Failure::Argument("a length is from 1 to SCORE_TOOLCTL_MAX_VIEW bytes"));
        }
        let job = self.job;
        let result = self.service.view_memory(rank, address, len, ANSWER_TIMEOUT);
        result.map_err(|error| memory_failure(job, rank, error))
    }

    /// The failure for an answer that does not belong to the request.
    pub fn wrong_answer(&self) -> Failure {
        self.service_failure(io::Error::other("the answer does not belong to the request"))
    }

    /// Receives the next notice from the service, regardless of stored notices. Fails with
    /// ETIMEDOUT after the deadline, and with EINTR if a signal interrupts the wait.
    fn receive_notice(&mut self, deadline: Option<Instant>) -> Result<Vec<u8>, Failure> {
        loop {
            match self.service.notice(Duration::ZERO) {
                Ok(Some(record)) => {
                    self.note_notice(&record);
                    return Ok(record);
                }
                Ok(None) => {
                    let error = io::ErrorKind::UnexpectedEof.into();
                    return Err(self.service_failure(error));
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return Err(self.service_failure(error)),
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let limit = match left {
                None => PollTimeout::NONE,
                Some(Duration::ZERO) => return Err(Failure::NoNotice(Errno::ETIMEDOUT)),
                // poll has a resolution of milliseconds: round up.
                Some(left) => PollTimeout::try_from(left + Duration::from_millis(1))
                    .unwrap_or(PollTimeout::MAX),
            };
            let mut fds = [PollFd::new(self.service.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, limit) {
                Ok(_) => {}
                Err(errno) => return Err(Failure::NoNotice(errno)),
            }
        }
    }

    /// Removes the state of a rank if the notice reports that its process has ended.
    fn note_notice(&mut self, record: &[u8]) {
        if let Ok((header, ServiceMessage::Notify(Notice::Exit(_)))) = self.decode(record) {
            self.ranks.remove(&header.rank);
        }
    }

    /// Returns the next notice for the tool.
    pub fn next_notice(&mut self, timeout: Option<Duration>) -> Result<Vec<u8>, Failure> {
        match self.notices.pop_front() {
            Some(record) => Ok(record),
            None => self.receive_notice(timeout.map(|timeout| Instant::now() + timeout)),
        }
    }

    /// Continues the process.
    pub fn proceed(&mut self, rank: u32) -> Result<(), Failure> {
        self.update(rank, 0, CommandRequest::ContinueProcess(score_tools::wire::NoData {}))
    }

    /// Removes the notices of signals of a rank that the tool has not read. Returns the thread of
    /// the last removed notice, and the signal that this thread would get without a tool (0: none).
    /// Waits at most `timeout` for a notice.
    pub fn drop_signal_notices(
        &mut self,
        rank: u32,
        timeout: Duration,
    ) -> Result<Option<(u32, u32)>, Failure> {
        let deadline = Instant::now() + timeout;
        let mut last = None;
        let mut kept = VecDeque::new();
        loop {
            let record = match self.notices.pop_front() {
                Some(record) => record,
                // Notices that have already arrived are read in any case.
                None => match self.receive_notice(Some(deadline)) {
                    Ok(record) => record,
                    Err(Failure::NoNotice(_)) => break,
                    Err(failure) => {
                        self.notices = kept;
                        return Err(failure);
                    }
                },
            };
            match self.decode(&record) {
                Ok((header, ServiceMessage::Notify(Notice::Signal(notice))))
                    if header.rank == rank =>
                {
                    let is_program = notice.reason == SignalReason::Generic;
                    let signal = if is_program { notice.signal } else { 0 };
                    last = Some((notice.thread, signal));
                }
                _ => kept.push_back(record),
            }
            if !timeout.is_zero() && last.is_some() {
                break;
            }
        }
        kept.append(&mut self.notices);
        self.notices = kept;
        Ok(last)
    }
}

/// The processes that a message addresses.
fn select(rank: Option<u32>) -> ProcessSelect {
    match rank {
        Some(_) => ProcessSelect::RankInHeader,
        None => ProcessSelect::RanksInNode,
    }
}
