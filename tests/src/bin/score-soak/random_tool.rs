//! A tool that performs random operations on the processes of a job until it is killed.
//! `score-soak random-tool SOCKET JOB SEED` starts the tool. The tool prints a letter for each
//! operation ([`DEEDS`]).

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use score_toolctl::client::ToolConnection;
use score_tools::wire::*;

use crate::random::Random;

/// The first argument that makes this program act as a tool.
pub const COMMAND: &str = "random-tool";
/// The exit code of a tool whose connection was closed because the job has ended.
pub const EXIT_CLOSED: u8 = 3;
/// The letter for attaching.
pub const ATTACHED: char = 'a';
/// The letters that a tool prints, with the operations that they count.
pub const DEEDS: &[(char, &str)] = &[
    (ATTACHED, "attaches"),
    ('b', "breakpoints hit"),
    ('w', "watchpoints hit"),
    ('s', "steps"),
    ('p', "suspensions"),
    ('h', "held threads"),
];
/// The time limit for an answer. If a process does not answer in time, the tool fails.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the tool waits for the socket to exist.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the tool waits for a notice that may never come.
const NOTICE_TIMEOUT: Duration = Duration::from_millis(40);
/// The number of bytes that the tool reads from a stack.
const STACK_LEN: u32 = 1024;
const SIGTRAP: u32 = 5;

/// Why the tool ends.
enum ToolEnd {
    Closed,
    Failed(String),
}

impl From<io::Error> for ToolEnd {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Runs the tool.
pub fn run(args: &[String]) -> ExitCode {
    ExitCode::from(run_until_end(args))
}

/// Runs the tool until it ends. Returns its exit code.
fn run_until_end(args: &[String]) -> u8 {
    let [socket, job, seed] = args else {
        eprintln!("usage: score-soak {COMMAND} SOCKET JOB SEED");
        return 2;
    };
    let (Ok(job), Ok(seed)) = (job.parse(), seed.parse()) else {
        eprintln!("score-soak {COMMAND}: JOB and SEED are numbers");
        return 2;
    };
    let mut random = Random(seed);
    loop {
        match RandomTool::run(Path::new(socket), job, &mut random) {
            Ok(()) => {}
            Err(ToolEnd::Closed) => return EXIT_CLOSED,
            Err(ToolEnd::Failed(reason)) => {
                eprintln!("score-soak {COMMAND}: {reason}");
                return 1;
            }
        }
    }
}

/// The state of a process according to the notices that the tool has received.
#[derive(Default)]
struct TracedProcess {
    rank: u32,
    has_control: bool,
    /// Whether a thread is stopped at a notice, or the process is suspended.
    stands: bool,
    breakpoints: Vec<u64>,
    /// For each watchpoint, the thread and the address in its stack.
    watchpoints: Vec<(u32, u64)>,
}

struct RandomTool<'a> {
    connection: ToolConnection,
    random: &'a mut Random,
    processes: Vec<TracedProcess>,
}

impl<'a> RandomTool<'a> {
    /// Connects, performs some operations, and disconnects.
    fn run(socket: &Path, job: u64, random: &'a mut Random) -> Result<(), ToolEnd> {
        let connection = connect(socket, job)?;
        let mut tool = Self { connection, random, processes: Vec::new() };
        let priority = u8::try_from(tool.random.below(100)).unwrap_or(0);
        let body = Attach { tag: *b"random..", priority, select: ProcessSelect::RanksInNode };
        let ranks = tool.ask(0, &ToolRequest::Attach(body), |code, message| match message {
            ServiceMessage::AttachAck(ranks) if code == Some(ReturnCode::Success) => ranks,
            _ => Vec::new(),
        })?;
        // Attaching fails if another tool has this priority, or if there are four tools already.
        if ranks.is_empty() {
            sleep(Duration::from_millis(10));
            return Ok(());
        }
        print_deed(ATTACHED);
        let process = |rank| TracedProcess { rank, ..TracedProcess::default() };
        tool.processes = ranks.into_iter().map(process).collect();
        for _ in 0..10 + tool.random.below(100) {
            tool.act()?;
        }
        // Half of the tools detach. The others just close their connection.
        if tool.random.below(2) == 0 {
            for index in 0..tool.processes.len() {
                tool.release(index)?;
            }
            let body = Detach { select: ProcessSelect::RanksInNode };
            tool.ask(0, &ToolRequest::Detach(body), |_, _| ())?;
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), ToolEnd> {
        let index = self.random.below(self.processes.len());
        if !self.processes[index].has_control && self.random.below(3) == 0 {
            self.control(index)?;
        }
        match self.random.below(12) {
            0 | 1 => self.look(index)?,
            2 | 3 => self.set_breakpoint(index)?,
            4 => self.set_watchpoint(index)?,
            5 => self.reset_one(index)?,
            6 => self.hold_for_a_while(index)?,
            7 => self.suspend(index)?,
            8 if self.random.below(4) == 0 => self.release(index)?,
            8 => sleep(Duration::from_micros(self.random.next() % 3000)),
            _ => self.notice()?,
        }
        if self.processes[index].stands {
            match self.random.below(4) {
                0 => self.step(index)?,
                1 | 2 => self.proceed(index)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn ask<T>(
        &mut self,
        rank: u32,
        request: &ToolRequest<'_>,
        read: impl FnOnce(Option<ReturnCode>, ServiceMessage<'_>) -> T,
    ) -> Result<T, ToolEnd> {
        let record = self.connection.ask(rank, request, ANSWER_TIMEOUT)?;
        match ServiceMessage::decode(&record) {
            Ok((header, message)) => Ok(read(header.code(), message)),
            Err(error) => Err(ToolEnd::Failed(format!("{request:?}: {error:?}"))),
        }
    }

    /// Executes one command. Returns `None` if it failed, because threads and processes may exit at
    /// any time.
    fn command<T>(
        &mut self,
        index: usize,
        thread: u32,
        request: CommandRequest<'_>,
        read: impl FnOnce(&CommandAnswer<'_>) -> Option<T>,
    ) -> Result<Option<T>, ToolEnd> {
        let rank = self.processes[index].rank;
        let set = request.kind().set();
        let command = [Command { thread, request }];
        let request = match set {
            CommandSet::Query => ToolRequest::Query(&command),
            CommandSet::Update => ToolRequest::Update(&command),
        };
        self.ask(rank, &request, |_, message| match message {
            ServiceMessage::QueryAck(results) | ServiceMessage::UpdateAck(results) => {
                let result = results.into_iter().next().filter(|result| result.return_code == 0)?;
                read(&result.answer?)
            }
            _ => None,
        })
    }

    /// Whether a command that changes the process was executed.
    fn change(
        &mut self,
        index: usize,
        thread: u32,
        request: CommandRequest<'_>,
    ) -> Result<bool, ToolEnd> {
        Ok(self.command(index, thread, request, |_| Some(()))?.is_some())
    }

    fn random_thread(&mut self, index: usize) -> Result<Option<u32>, ToolEnd> {
        let request = CommandRequest::GetThreadList(NoData {});
        let threads = self.command(index, 0, request, |answer| match answer {
            CommandAnswer::GetThreadList(list) => {
                Some(list.list.iter().map(|thread| thread.tid).collect::<Vec<_>>())
            }
            _ => None,
        })?;
        let threads = threads.unwrap_or_default();
        Ok(threads.get(self.random.below(threads.len())).copied())
    }

    /// Returns a random thread, its instruction pointer and its stack pointer.
    fn random_place(&mut self, index: usize) -> Result<Option<(u32, u64, u64)>, ToolEnd> {
        let Some(thread) = self.random_thread(index)? else { return Ok(None) };
        let request = CommandRequest::GetSpecialRegisters(NoData {});
        let instruction = self.command(index, thread, request, |answer| match answer {
            CommandAnswer::GetSpecialRegisters(special) => {
                special.values.get(SpecialRegister::Rip.number() as usize).copied()
            }
            _ => None,
        })?;
        let request = CommandRequest::GetGeneralRegisters(NoData {});
        let stack = self.command(index, thread, request, |answer| match answer {
            CommandAnswer::GetGeneralRegisters(general) => {
                general.values.get(GeneralRegister::Rsp.number() as usize).copied()
            }
            _ => None,
        })?;
        Ok(instruction.zip(stack).map(|(instruction, stack)| (thread, instruction, stack)))
    }

    fn memory(
        &mut self,
        index: usize,
        address: u64,
        length: u32,
    ) -> Result<Option<Vec<u8>>, ToolEnd> {
        let access = SpeculativeAccess::Permitted;
        let request = CommandRequest::GetMemory(MemoryRange { address, length, access });
        self.command(index, 0, request, |answer| match answer {
            CommandAnswer::GetMemory(memory) => Some(memory.bytes.to_vec()),
            _ => None,
        })
    }

    fn look(&mut self, index: usize) -> Result<(), ToolEnd> {
        if let Some((thread, _, stack)) = self.random_place(index)? {
            self.memory(index, stack, STACK_LEN)?;
            let request = CommandRequest::GetThreadData(NoData {});
            self.command(index, thread, request, |_| Some(()))?;
        }
        Ok(())
    }

    fn control(&mut self, index: usize) -> Result<(), ToolEnd> {
        let body = Control {
            notify_set: 1 << (SIGTRAP - 1),
            signal: 0,
            start_notice: StartNotice::DynamicLoader,
            trap_mode: TrapMode::NoChange,
            watch_policy: WatchPolicy::NoPropagate,
        };
        let rank = self.processes[index].rank;
        let code = self.ask(rank, &ToolRequest::Control(body), |code, _| code)?;
        self.processes[index].has_control = code == Some(ReturnCode::Success);
        Ok(())
    }

    /// Sets the breakpoint at the current instruction of a thread, because the thread may execute
    /// it again.
    fn set_breakpoint(&mut self, index: usize) -> Result<(), ToolEnd> {
        if let Some((_, address, _)) = self.random_place(index)? {
            let kind = BreakpointKind::Normal;
            let request = CommandRequest::SetBreakpoint(NewBreakpoint { address, kind });
            if self.change(index, 0, request)? {
                self.processes[index].breakpoints.push(address);
            }
        }
        Ok(())
    }

    fn set_watchpoint(&mut self, index: usize) -> Result<(), ToolEnd> {
        if let Some((thread, _, stack)) = self.random_place(index)? {
            let address = (stack & !7).wrapping_sub(8 * self.random.below(16) as u64);
            let watchpoint = NewWatchpoint { address, length: 8, kind: WatchType::Write };
            if self.change(index, thread, CommandRequest::SetWatchpoint(watchpoint))? {
                self.processes[index].watchpoints.push((thread, address));
            }
        }
        Ok(())
    }

    fn reset_one(&mut self, index: usize) -> Result<(), ToolEnd> {
        if let Some((thread, address)) = self.processes[index].watchpoints.pop() {
            let request = CommandRequest::ResetWatchpoint(OldWatchpoint { address });
            self.change(index, thread, request)?;
        }
        let Some(address) = self.processes[index].breakpoints.pop() else { return Ok(()) };
        let Some(bytes) = self.memory(index, address, 4)? else { return Ok(()) };
        let bytes = bytes.try_into().unwrap_or_default();
        let instruction = u32::from_ne_bytes(bytes);
        let request = CommandRequest::ResetBreakpoint(OldBreakpoint { address, instruction });
        self.change(index, 0, request).map(drop)
    }

    fn hold_for_a_while(&mut self, index: usize) -> Result<(), ToolEnd> {
        let Some(thread) = self.random_thread(index)? else { return Ok(()) };
        if self.change(index, thread, CommandRequest::HoldThread(NoData {}))? {
            print_deed('h');
            sleep(Duration::from_micros(self.random.next() % 20_000));
            // One thread in eight stays held until the tool detaches or is killed.
            if self.random.below(8) > 0 {
                self.change(index, thread, CommandRequest::ReleaseThread(NoData {}))?;
            }
        }
        Ok(())
    }

    fn suspend(&mut self, index: usize) -> Result<(), ToolEnd> {
        if self.change(index, 0, CommandRequest::SuspendProcess(NoData {}))? {
            self.processes[index].stands = true;
            print_deed('p');
        }
        Ok(())
    }

    fn step(&mut self, index: usize) -> Result<(), ToolEnd> {
        for _ in 0..1 + self.random.below(20) {
            if !self.change(index, 0, CommandRequest::StepThread(NoData {}))? {
                break;
            }
            print_deed('s');
            self.processes[index].stands = false;
            self.notice()?;
        }
        Ok(())
    }

    fn proceed(&mut self, index: usize) -> Result<(), ToolEnd> {
        self.change(index, 0, CommandRequest::ContinueProcess(NoData {}))?;
        self.processes[index].stands = false;
        Ok(())
    }

    /// Removes all breakpoints and watchpoints and then releases authority. The service refuses the
    /// release as long as a breakpoint or watchpoint exists.
    fn release(&mut self, index: usize) -> Result<(), ToolEnd> {
        while !self.processes[index].breakpoints.is_empty()
            || !self.processes[index].watchpoints.is_empty()
        {
            self.reset_one(index)?;
        }
        let option = ReleaseOption { notify: ReleaseNotify::Yes };
        if self.change(index, 0, CommandRequest::ReleaseControl(option))? {
            let process = &mut self.processes[index];
            (process.has_control, process.stands) = (false, false);
        }
        Ok(())
    }

    /// Reads the next notice, if one comes soon.
    fn notice(&mut self) -> Result<(), ToolEnd> {
        let record = match self.connection.notice(NOTICE_TIMEOUT) {
            Ok(Some(record)) => record,
            Ok(None) => return Err(ToolEnd::Closed),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Ok((header, ServiceMessage::Notify(notice))) = ServiceMessage::decode(&record) else {
            return Err(ToolEnd::Failed("a notice cannot be read".to_owned()));
        };
        let process = self.processes.iter_mut().find(|process| process.rank == header.rank);
        if let (Notice::Signal(notice), Some(process)) = (notice, process) {
            process.stands = true;
            match notice.reason {
                SignalReason::Breakpoint => print_deed('b'),
                SignalReason::WriteWatchpoint | SignalReason::ReadWatchpoint => print_deed('w'),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Connects to the socket, which exists from soon after the start of the processes until their end.
fn connect(socket: &Path, job: u64) -> Result<ToolConnection, ToolEnd> {
    let started_at = Instant::now();
    loop {
        match ToolConnection::connect(socket, job, 0) {
            Ok(connection) => return Ok(connection),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {}
                _ => return Err(error.into()),
            },
        }
        if started_at.elapsed() > CONNECT_TIMEOUT {
            return Err(ToolEnd::Closed);
        }
        sleep(Duration::from_millis(1));
    }
}

/// Writes each letter at once, because the tool may be killed at any moment.
fn print_deed(letter: char) {
    print!("{letter}");
    let _ = io::stdout().flush();
}
