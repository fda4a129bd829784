//! Test support for tool control: the program `tool_target`, whose processes tests read and change,
//! and a tool that does so through the socket of its host.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use score_toolctl::client::ToolConnection;
use score_tools::wire::*;

use crate::{Running, TestEnv};

/// The time limit for an answer or a notice.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A process of the program `tool_target`, described by the addresses of its parts.
#[derive(Debug, Clone)]
pub struct Target {
    /// The function that the counting thread calls.
    pub tick: u64,
    /// The handler of SIGTRAP.
    pub on_trap: u64,
    /// The counter of calls of `tick`.
    pub counter: u64,
    /// A word that is written at each 16th call.
    pub watched: u64,
    /// The counter of calls of `on_trap`.
    pub traps: u64,
    /// The counter of SIGUSR1.
    pub user_signals: u64,
    /// A word that ends the program if it is not 0.
    pub stop: u64,
    /// The job's directory.
    pub directory: PathBuf,
}

/// A running job of `tool_target`.
pub struct TargetJob {
    /// The job.
    pub job: Running,
    /// Its processes, by rank.
    pub targets: Vec<Target>,
}

impl TargetJob {
    /// Starts the program on `processes` nodes.
    pub fn start(env: &TestEnv, processes: usize) -> Option<Self> {
        let built = env.test_program("tool_target")?;
        let program = env.dir().join("tool_target");
        std::fs::copy(built, &program).unwrap();
        let nodes = format!("-nodes={processes}");
        let job = env.scrun(&[&nodes, program.to_str().unwrap()]).start();
        Some(Self::of(job, processes))
    }

    /// Waits until all processes of a job have described themselves.
    pub fn of(mut job: Running, processes: usize) -> Self {
        // Each process prints one line, which may arrive in parts.
        job.wait_for("\n", processes);
        let mut targets: Vec<(u32, Target)> = job.stdout().lines().filter_map(target_of).collect();
        targets.sort_by_key(|(rank, _)| *rank);
        let targets = targets.into_iter().map(|(_, target)| target).collect();
        Self { job, targets }
    }

    /// Waits for the socket to which tools connect. Returns its path.
    pub fn socket(&self) -> PathBuf {
        let path = self.targets[0].directory.join(".jobs/1/toolctl_node/0");
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while !path.exists() {
            assert!(Instant::now() < deadline, "{} is missing", path.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        path
    }

    /// Connects a tool, without attaching it.
    pub fn connect(&self) -> ToolConnection {
        ToolConnection::connect(&self.socket(), 1, 0).unwrap()
    }

    /// Connects a tool, and attaches it to all processes.
    pub fn attach(&self, tag: &[u8; 8], priority: u8) -> Tool {
        let mut tool = Tool(self.connect());
        let ranks: Vec<u32> = (0..self.targets.len() as u32).collect();
        assert_eq!(tool.attach(tag, priority), (ReturnCode::Success, ranks));
        tool
    }

    /// Lets all processes end by themselves, and checks that they ran as they do without tools.
    pub fn end(mut self, user_signals: u64) {
        let mut tool = self.attach(b"the end ", 99);
        // The service may not have noticed yet that another tool has closed its connection.
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        for (rank, target) in (0..).zip(&self.targets) {
            while tool.control(rank, 0).0 == ReturnCode::ToolControlConflict
                && Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(tool.control(rank, 0).0, ReturnCode::Success);
            tool.set_word(rank, target.stop, 1);
        }
        drop(tool);
        self.job.wait_for("ended ", self.targets.len());
        let outcome = self.job.wait().expect_code(0);
        let ended = format!("ended {user_signals}");
        let all = outcome.text().lines().filter(|line| **line == ended).count();
        assert_eq!(all, self.targets.len(), "{outcome}");
    }
}

fn target_of(line: &str) -> Option<(u32, Target)> {
    let words: Vec<&str> = line.strip_prefix("target ")?.split(' ').collect();
    let address = |index: usize| u64::from_str_radix(&words[index][2..], 16).unwrap();
    let target = Target {
        tick: address(1),
        on_trap: address(2),
        counter: address(3),
        watched: address(4),
        traps: address(5),
        user_signals: address(6),
        stop: address(7),
        directory: words[8].into(),
    };
    Some((words[0].parse().unwrap(), target))
}

/// A connected tool.
pub struct Tool(pub ToolConnection);

impl Tool {
    /// Sends a request, and returns its answer.
    pub fn ask<T>(
        &mut self,
        rank: u32,
        request: &ToolRequest,
        read: impl FnOnce(Header, ServiceMessage) -> T,
    ) -> T {
        let record = self.0.ask(rank, request, ANSWER_TIMEOUT).unwrap();
        let (header, message) = ServiceMessage::decode(&record).unwrap();
        read(header, message)
    }

    /// Attaches to all processes of the host.
    pub fn attach(&mut self, tag: &[u8; 8], priority: u8) -> (ReturnCode, Vec<u32>) {
        let body = Attach { tag: *tag, priority, select: ProcessSelect::RanksInNode };
        self.ask(0, &ToolRequest::Attach(body), |header, message| match message {
            ServiceMessage::AttachAck(ranks) => (header.code().unwrap(), ranks),
            other => panic!("{other:?}"),
        })
    }

    /// Detaches from all processes of the host.
    pub fn detach(&mut self) -> (ReturnCode, Vec<u32>) {
        let body = Detach { select: ProcessSelect::RanksInNode };
        self.ask(0, &ToolRequest::Detach(body), |header, message| match message {
            ServiceMessage::DetachAck(ranks) => (header.code().unwrap(), ranks),
            other => panic!("{other:?}"),
        })
    }

    /// Requests authority, with these signals.
    pub fn control(&mut self, rank: u32, notify_set: u64) -> (ReturnCode, ControlAck) {
        self.control_with_signal(rank, notify_set, 0)
    }

    /// Requests authority, with a signal for the process leader.
    pub fn control_with_signal(
        &mut self,
        rank: u32,
        notify_set: u64,
        signal: u32,
    ) -> (ReturnCode, ControlAck) {
        let start_notice = StartNotice::DynamicLoader;
        self.control_from_start(rank, notify_set, (signal, start_notice))
    }

    /// Requests authority, with the point at which a program that has not started is to report.
    pub fn control_from_start(
        &mut self,
        rank: u32,
        notify_set: u64,
        (signal, start_notice): (u32, StartNotice),
    ) -> (ReturnCode, ControlAck) {
        let body = Control {
            notify_set,
            signal,
            start_notice,
            trap_mode: TrapMode::NoChange,
            watch_policy: WatchPolicy::NoPropagate,
        };
        self.ask(rank, &ToolRequest::Control(body), |header, message| match message {
            ServiceMessage::ControlAck(ack) => (header.code().unwrap(), ack),
            other => panic!("{other:?}"),
        })
    }

    /// Executes commands of one set by one request, and passes their results to `read`.
    pub fn commands<T>(
        &mut self,
        rank: u32,
        commands: &[(u32, CommandRequest)],
        read: impl FnOnce(&[CommandResult]) -> T,
    ) -> T {
        let commands: Vec<Command> = commands
            .iter()
            .map(|(thread, request)| Command { thread: *thread, request: request.clone() })
            .collect();
        let request = match commands[0].request.kind().set() {
            CommandSet::Query => ToolRequest::Query(&commands),
            CommandSet::Update => ToolRequest::Update(&commands),
        };
        self.ask(rank, &request, |header, message| {
            assert_eq!(header.code(), Some(ReturnCode::Success), "{commands:?}");
            match message {
                ServiceMessage::QueryAck(results) | ServiceMessage::UpdateAck(results) => {
                    assert_eq!(results.len(), commands.len());
                    read(&results)
                }
                other => panic!("{other:?}"),
            }
        })
    }

    /// Executes one command, and returns its code.
    pub fn code(&mut self, rank: u32, thread: u32, request: CommandRequest) -> CommandCode {
        self.commands(rank, &[(thread, request)], |results| {
            CommandCode::from_number(results[0].return_code).unwrap()
        })
    }

    /// Executes a command that must succeed.
    pub fn done(&mut self, rank: u32, thread: u32, request: CommandRequest) {
        let text = format!("{request:?}");
        assert_eq!(self.code(rank, thread, request), CommandCode::Success, "{text}");
    }

    /// Executes a command that must succeed, and returns its data.
    pub fn get<T>(
        &mut self,
        rank: u32,
        thread: u32,
        request: CommandRequest,
        read: impl FnOnce(&CommandAnswer) -> T,
    ) -> T {
        let text = format!("{request:?}");
        self.commands(rank, &[(thread, request)], |results| {
            assert_eq!(results[0].return_code, 0, "{text}");
            read(results[0].answer.as_ref().expect(&text))
        })
    }

    /// Reads memory.
    pub fn memory(&mut self, rank: u32, address: u64, length: u32) -> Vec<u8> {
        let access = SpeculativeAccess::Permitted;
        let range = MemoryRange { address, length, access };
        self.get(rank, 0, CommandRequest::GetMemory(range), |answer| match answer {
            CommandAnswer::GetMemory(memory) => memory.bytes.to_vec(),
            other => panic!("{other:?}"),
        })
    }

    /// Reads eight bytes of memory.
    pub fn word(&mut self, rank: u32, address: u64) -> u64 {
        u64::from_ne_bytes(self.memory(rank, address, 8).try_into().unwrap())
    }

    /// Writes eight bytes of memory.
    pub fn set_word(&mut self, rank: u32, address: u64, value: u64) {
        let head = SetMemoryHead {
            address,
            access: SpeculativeAccess::Permitted,
            shared: SharedAccess::Refused,
        };
        let bytes = value.to_ne_bytes().to_vec().into();
        self.done(rank, 0, CommandRequest::SetMemory(SetMemory { head, bytes }));
    }

    /// Returns the threads of a process. The counting thread is the last.
    pub fn threads(&mut self, rank: u32) -> Vec<u32> {
        self.get(rank, 0, CommandRequest::GetThreadList(NoData {}), |answer| match answer {
            CommandAnswer::GetThreadList(threads) => {
                let mut tids: Vec<u32> = threads.list.iter().map(|thread| thread.tid).collect();
                tids.sort_unstable();
                tids
            }
            other => panic!("{other:?}"),
        })
    }

    /// Returns the general purpose registers.
    pub fn general(&mut self, rank: u32, thread: u32) -> [u64; GENERAL_REGISTERS] {
        self.get(
            rank,
            thread,
            CommandRequest::GetGeneralRegisters(NoData {}),
            |answer| match answer {
                CommandAnswer::GetGeneralRegisters(registers) => registers.values,
                other => panic!("{other:?}"),
            },
        )
    }

    /// Returns the special registers.
    pub fn special(&mut self, rank: u32, thread: u32) -> [u64; SPECIAL_REGISTERS] {
        self.get(
            rank,
            thread,
            CommandRequest::GetSpecialRegisters(NoData {}),
            |answer| match answer {
                CommandAnswer::GetSpecialRegisters(registers) => registers.values,
                other => panic!("{other:?}"),
            },
        )
    }

    /// Returns the debug registers.
    pub fn debug(&mut self, rank: u32, thread: u32) -> [u64; DEBUG_REGISTERS] {
        self.get(
            rank,
            thread,
            CommandRequest::GetDebugRegisters(NoData {}),
            |answer| match answer {
                CommandAnswer::GetDebugRegisters(registers) => registers.values,
                other => panic!("{other:?}"),
            },
        )
    }

    /// Returns the features of the XSAVE area, and the area.
    pub fn float(&mut self, rank: u32, thread: u32) -> (u64, Vec<u8>) {
        self.get(
            rank,
            thread,
            CommandRequest::GetFloatRegisters(NoData {}),
            |answer| match answer {
                CommandAnswer::GetFloatRegisters(it) => (it.head.features, it.bytes.to_vec()),
                other => panic!("{other:?}"),
            },
        )
    }

    /// Returns the data of the service about a thread.
    pub fn thread_data(&mut self, rank: u32, thread: u32) -> ThreadData {
        self.get(rank, thread, CommandRequest::GetThreadData(NoData {}), |answer| match answer {
            CommandAnswer::GetThreadData(data) => data.clone(),
            other => panic!("{other:?}"),
        })
    }

    /// Sets a breakpoint.
    pub fn set_breakpoint(&mut self, rank: u32, address: u64, kind: BreakpointKind) {
        self.done(rank, 0, CommandRequest::SetBreakpoint(NewBreakpoint { address, kind }));
    }

    /// Removes a breakpoint. Checks first that the command fails if it names the wrong instruction.
    pub fn reset_breakpoint(&mut self, rank: u32, address: u64) {
        let bytes = self.memory(rank, address, 4);
        let instruction = u32::from_ne_bytes(bytes.try_into().unwrap());
        let wrong = OldBreakpoint { address, instruction: instruction ^ 0x100 };
        let request = CommandRequest::ResetBreakpoint(wrong);
        assert_eq!(self.code(rank, 0, request), CommandCode::BreakpointFailed);
        let right = OldBreakpoint { address, instruction };
        self.done(rank, 0, CommandRequest::ResetBreakpoint(right));
    }

    /// Executes the command Continue Process.
    pub fn proceed(&mut self, rank: u32) {
        self.done(rank, 0, CommandRequest::ContinueProcess(NoData {}));
    }

    /// Executes the command Release Control.
    pub fn release(&mut self, rank: u32) {
        let notify = ReleaseNotify::No;
        self.done(rank, 0, CommandRequest::ReleaseControl(ReleaseOption { notify }));
    }

    /// Returns the next notice and its rank, or `None` if the connection was closed.
    pub fn next_notice(&mut self) -> Option<(u32, Notice)> {
        let record = self.0.notice(ANSWER_TIMEOUT).unwrap()?;
        match ServiceMessage::decode(&record).unwrap() {
            (header, ServiceMessage::Notify(notice)) => Some((header.rank, notice)),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next notice, which must be about a signal of this rank.
    pub fn signal_notice(&mut self, rank: u32) -> SignalNotice {
        match self.next_notice() {
            Some((from, Notice::Signal(notice))) if from == rank => notice,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next notice, which must be about authority.
    pub fn control_notice(&mut self) -> ControlNotice {
        match self.next_notice() {
            Some((_, Notice::Control(notice))) => notice,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until a word in memory changes.
    pub fn wait_for_change(&mut self, rank: u32, address: u64) {
        let before = self.word(rank, address);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.word(rank, address) == before {
            assert!(Instant::now() < deadline, "rank {rank} does not run");
        }
    }

    /// Waits until a word in memory has this value.
    pub fn wait_for_word(&mut self, rank: u32, address: u64, value: u64) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while self.word(rank, address) != value {
            assert!(Instant::now() < deadline, "rank {rank}: no {value} at {address:#x}");
        }
    }

    /// Whether a word in memory stays unchanged for a while.
    pub fn is_still(&mut self, rank: u32, address: u64) -> bool {
        let before = self.word(rank, address);
        std::thread::sleep(Duration::from_millis(30));
        self.word(rank, address) == before
    }
}
