//! Tools attach to the processes of a running job through the socket of its host, read their state,
//! stop them and change them (docs/dev/tools.md, "Tool control"). When the tools detach or are
//! killed, the job continues as if there had been no tools.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::TestEnv;
use score_tests::service::{ALICE, Cluster};
use score_tests::tool::{ANSWER_TIMEOUT, Target, TargetJob, Tool};
use score_toolctl::client::ToolConnection;
use score_tools::wire::*;

const SIGTRAP: u32 = 5;
const SIGUSR1: u32 = 10;
const SERVICE: &str = "scored-toolctl";
/// How long a service does not answer: longer than the time limit of a command.
const SERVICE_DELAY: Duration = Duration::from_secs(5);

/// The bit of a signal in a set of signals.
fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

#[test]
fn the_12_queries_are_answered_without_control() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let target = target_job.targets[1].clone();
    let mut tool = target_job.attach(b"querytag", 50);
    assert!(tool.0.tool() >= 1 << 31);
    let threads = tool.threads(1);
    let processes = env.processes();
    let is_leader = |tid: u32| processes.iter().any(|it| it.pid.cast_unsigned() == tid);
    assert!(threads.len() >= 2 && is_leader(threads[0]), "{threads:?} {processes:#?}");
    let main = threads[0];
    let other = *threads.iter().max().unwrap();
    // Thread ids are those outside of the job's PID namespace. A thread of another process is
    // refused.
    assert!(Path::new(&format!("/proc/{main}/task/{other}")).exists());
    let foreign = tool.threads(0)[0];
    let request = CommandRequest::GetGeneralRegisters(NoData {});
    assert_eq!(tool.code(1, foreign, request), CommandCode::ThreadInvalid);

    tool.wait_for_change(1, target.counter);
    let (general, special) = (tool.general(1, main), tool.special(1, main));
    assert_ne!((general[GeneralRegister::Rsp.number() as usize], special[0]), (0, 0));
    assert_ne!(special[SpecialRegister::FsBase.number() as usize], 0);
    assert_eq!(tool.debug(1, main)[..4], [0; 4]);
    let (features, area) = tool.float(1, main);
    assert!(features & 0b11 == 0b11 && area.len() >= 576, "{features:x} {}", area.len());
    // Several commands for a thread in one request report the same state.
    let requests = [
        (other, CommandRequest::GetSpecialRegisters(NoData {})),
        (other, CommandRequest::GetGeneralRegisters(NoData {})),
        (other, CommandRequest::GetThreadData(NoData {})),
    ];
    tool.commands(1, &requests, |results| match results {
        [
            CommandResult { answer: Some(CommandAnswer::GetSpecialRegisters(_)), .. },
            CommandResult { answer: Some(CommandAnswer::GetGeneralRegisters(general)), .. },
            CommandResult { answer: Some(CommandAnswer::GetThreadData(data)), .. },
        ] => {
            let stack_pointer = general.values[GeneralRegister::Rsp.number() as usize];
            assert_eq!(data.head.stack_current, stack_pointer);
            assert_eq!(data.list[0].frame, stack_pointer);
        }
        other => panic!("{other:?}"),
    });
    let data = tool.thread_data(1, main);
    assert_eq!(data.head.tool_state, ToolState::Active);
    assert!(data.list.len() >= 3 && data.list.last().unwrap().return_address == 0, "{data:?}");
    tool.get(1, 0, CommandRequest::GetAuxVectors(NoData {}), |answer| match answer {
        CommandAnswer::GetAuxVectors(vector) => assert!(vector.list.len() > 20),
        other => panic!("{other:?}"),
    });
    tool.get(1, 0, CommandRequest::GetProcessData(NoData {}), |answer| match answer {
        CommandAnswer::GetProcessData(data) => {
            assert_eq!((data.rank, data.tgid, data.coordinates), (1, main, [0, 0, 0, 0, 0, 1]));
            assert!(data.heap[0] != 0 && data.mappings[0] < data.mappings[1]);
            assert!(data.job_seconds < 60 && data.job_seconds + data.job_microseconds > 0);
        }
        other => panic!("{other:?}"),
    });
    let hidden = MemoryRange { address: 8, length: 8, access: SpeculativeAccess::Forbidden };
    let request = CommandRequest::GetMemory(hidden);
    assert_eq!(tool.code(1, 0, request), CommandCode::AddressError);
    files_of_the_job_are_read(&mut tool, &target.directory);
    // Only a tool with authority may change a process.
    let update = [Command { thread: 0, request: CommandRequest::HoldThread(NoData {}) }];
    tool.ask(1, &ToolRequest::Update(&update), |header, _| {
        assert_eq!(header.code(), Some(ReturnCode::ToolControlRequired));
    });
    assert_eq!(tool.detach(), (ReturnCode::Success, vec![0, 1]));
    target_job.end(0);
}

fn files_of_the_job_are_read(tool: &mut Tool, directory: &Path) {
    std::fs::write(directory.join("a file"), "its contents").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", directory.join("outside")).unwrap();
    tool.get(1, 0, CommandRequest::GetFileNames(NoData {}), |answer| match answer {
        CommandAnswer::GetFileNames(files) => {
            assert!(files.names.iter().any(|name| name == b"a file"), "{files:?}");
        }
        other => panic!("{other:?}"),
    });
    let path = |name: &str| JobFilePath::new(name.as_bytes()).unwrap();
    let stat = CommandRequest::GetFileStat(FileStatPath { path: path("a file") });
    tool.get(1, 0, stat, |answer| match answer {
        CommandAnswer::GetFileStat(stat) => assert_eq!((stat.size, stat.mode >> 12), (12, 8)),
        other => panic!("{other:?}"),
    });
    let part = |name: &str| {
        CommandRequest::GetFileContents(FileRange { path: path(name), offset: 4, number: 100 })
    };
    tool.get(1, 0, part("a file"), |answer| match answer {
        CommandAnswer::GetFileContents(contents) => assert_eq!(*contents.bytes, *b"contents"),
        other => panic!("{other:?}"),
    });
    for name in ["outside", "../..", "/etc/passwd", "none", "."] {
        assert_eq!(tool.code(1, 0, part(name)), CommandCode::FileNotFound, "{name}");
    }
}

#[test]
fn the_26_updates_change_the_process_of_the_tool_in_control() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 1) else { return };
    let target = target_job.targets[0].clone();
    let mut tool = target_job.attach(b"updating", 50);
    let (code, ack) = tool.control(0, bit(SIGTRAP) | bit(SIGUSR1));
    assert_eq!((code, ack.controller, ack.priority), (ReturnCode::Success, tool.0.tool(), 50));
    let counting = *tool.threads(0).iter().max().unwrap();

    // At a breakpoint the tool gets a notice with the thread, and all threads stop.
    tool.set_breakpoint(0, target.tick, BreakpointKind::Normal);
    let notice = tool.signal_notice(0);
    assert_eq!((notice.reason, notice.signal), (SignalReason::Breakpoint, SIGTRAP));
    assert_eq!((notice.thread, notice.instruction), (counting, target.tick));
    assert!(tool.is_still(0, target.counter));
    assert_eq!(tool.thread_data(0, counting).head.tool_state, ToolState::Suspend);
    registers_are_changed(&mut tool, counting);

    // The tool steps, continues to the next hit, and removes the breakpoint.
    let step = CommandRequest::StepThread(NoData {});
    tool.done(0, 0, step.clone());
    let notice = tool.signal_notice(0);
    assert_eq!((notice.reason, notice.thread), (SignalReason::StepCompleted, counting));
    assert_ne!(notice.instruction, target.tick);
    let before = tool.word(0, target.counter);
    tool.proceed(0);
    assert_eq!(tool.signal_notice(0).reason, SignalReason::Breakpoint);
    assert_eq!(tool.word(0, target.counter), before + 1);
    tool.reset_breakpoint(0, target.tick);

    // An action must be the last command. Commands after a failed command are not executed.
    let requests = [
        (0, CommandRequest::ContinueProcess(NoData {})),
        (0, CommandRequest::HoldThread(NoData {})),
    ];
    tool.commands(0, &requests, |results| {
        assert!(results.iter().all(|it| it.return_code == CommandCode::Conflict.number()));
    });
    let free = FreedMemory { address: 0x1000, size: 4096 };
    let requests =
        [(0, CommandRequest::FreeMemory(free)), (0, CommandRequest::ContinueProcess(NoData {}))];
    tool.commands(0, &requests, |results| {
        assert_eq!(results[0].return_code, CommandCode::AddressError.number());
        assert_eq!(results[1].return_code, CommandCode::PreviousCommandFailed.number());
    });
    tool.proceed(0);
    tool.wait_for_change(0, target.counter);
    assert_eq!(tool.code(0, 0, step), CommandCode::ThreadInvalid);

    memory_is_allocated_and_threads_held(&mut tool, &target, counting);
    signals_are_sent_and_continued(&mut tool, &target, counting);
    watchpoints_and_fast_breakpoints(&mut tool, &target, counting);
    tool.release(0);
    drop(tool);
    target_job.end(2);
}

/// The thread is stopped at a notice.
fn registers_are_changed(tool: &mut Tool, thread: u32) {
    let general = tool.general(0, thread);
    let rax = GeneralRegister::Rax;
    let set = SetGeneral { selection: rax, value: 77 };
    tool.done(0, thread, CommandRequest::SetGeneralRegister(set));
    assert_eq!(tool.general(0, thread)[rax.number() as usize], 77);
    let all = GeneralRegisters { values: general };
    tool.done(0, thread, CommandRequest::SetGeneralRegisters(all));
    assert_eq!(tool.general(0, thread), general);

    let special = tool.special(0, thread);
    let mxcsr = SpecialRegister::Mxcsr;
    let set = SetSpecial { selection: mxcsr, value: 0x1f81 };
    tool.done(0, thread, CommandRequest::SetSpecialRegister(set));
    assert_eq!(tool.special(0, thread)[mxcsr.number() as usize], 0x1f81);
    let all = SpecialRegisters { values: special };
    tool.done(0, thread, CommandRequest::SetSpecialRegisters(all));
    assert_eq!(tool.special(0, thread), special);
    let set = SetSpecial { selection: mxcsr, value: 1 << 40 };
    let request = CommandRequest::SetSpecialRegister(set);
    assert_eq!(tool.code(0, thread, request), CommandCode::ParameterError);

    let (features, area) = tool.float(0, thread);
    let set = SetFloat { selection: FloatRegister::Xmm(3), value: [9; 64] };
    tool.done(0, thread, CommandRequest::SetFloatRegister(set));
    assert_eq!(tool.float(0, thread).1[160 + 48..160 + 64], [9; 16]);
    let head = FloatRegistersHead { features };
    let all = FloatRegisters { head, bytes: area.clone().into() };
    tool.done(0, thread, CommandRequest::SetFloatRegisters(all));
    assert_eq!(tool.float(0, thread).1[..416], area[..416]);

    let set = SetDebug { selection: DebugRegister::Dr1, value: 0x1000 };
    tool.done(0, thread, CommandRequest::SetDebugRegister(set));
    assert_eq!(tool.debug(0, thread)[1], 0x1000);
    let nothing = DebugRegisters { values: [0; DEBUG_REGISTERS] };
    tool.done(0, thread, CommandRequest::SetDebugRegisters(nothing));
    assert_eq!(tool.debug(0, thread)[1], 0);
}

fn memory_is_allocated_and_threads_held(tool: &mut Tool, target: &Target, counting: u32) {
    let size = AllocationSize { size: 10_000 };
    let address = tool.get(0, 0, CommandRequest::AllocateMemory(size), |answer| match answer {
        CommandAnswer::AllocateMemory(memory) => memory.address,
        other => panic!("{other:?}"),
    });
    assert_eq!((address % 4096, tool.word(0, address)), (0, 0));
    tool.set_word(0, address, 5);
    assert_eq!(tool.word(0, address), 5);
    tool.done(0, 0, CommandRequest::FreeMemory(FreedMemory { address, size: 10_000 }));
    let range = MemoryRange { address, length: 8, access: SpeculativeAccess::Permitted };
    assert_eq!(tool.code(0, 0, CommandRequest::GetMemory(range)), CommandCode::AddressError);

    // Holds are not counted, so one release suffices.
    for _ in 0..2 {
        tool.done(0, counting, CommandRequest::HoldThread(NoData {}));
    }
    // The thread stops soon after the command, but not immediately.
    std::thread::sleep(Duration::from_millis(20));
    assert!(tool.is_still(0, target.counter));
    assert_eq!(tool.thread_data(0, counting).head.tool_state, ToolState::Hold);
    tool.done(0, counting, CommandRequest::ReleaseThread(NoData {}));
    tool.wait_for_change(0, target.counter);
}

fn signals_are_sent_and_continued(tool: &mut Tool, target: &Target, counting: u32) {
    let signal = SignalNumber { signal: SIGUSR1 };
    // The process gets the signal only if the tool requests it.
    tool.done(0, counting, CommandRequest::SendSignal(signal));
    let notice = tool.signal_notice(0);
    assert_eq!((notice.reason, notice.signal), (SignalReason::Generic, SIGUSR1));
    assert_eq!(notice.thread, counting);
    tool.proceed(0);
    tool.wait_for_change(0, target.counter);
    assert_eq!(tool.word(0, target.user_signals), 0);
    for sent in 1..=2 {
        tool.done(0, 0, CommandRequest::SendSignalToProcess(signal));
        assert_eq!(tool.signal_notice(0).signal, SIGUSR1);
        let requests = [
            (0, CommandRequest::SetContinuationSignal(signal)),
            (0, CommandRequest::ContinueProcess(NoData {})),
        ];
        tool.commands(0, &requests, |results| {
            assert!(results.iter().all(|it| it.return_code == 0), "{results:?}");
        });
        tool.wait_for_change(0, target.counter);
        // A thread other than the counting one may have got the signal, and run later.
        tool.wait_for_word(0, target.user_signals, sent);
    }
}

fn watchpoints_and_fast_breakpoints(tool: &mut Tool, target: &Target, counting: u32) {
    let watch = |kind| NewWatchpoint { address: target.watched, length: 8, kind };
    let write = CommandRequest::SetWatchpoint(watch(WatchType::Write));
    match tool.code(0, counting, write.clone()) {
        CommandCode::Success => {
            let overlapping = tool.code(0, counting, write);
            assert_eq!(overlapping, CommandCode::WatchConflict);
            let notice = tool.signal_notice(0);
            assert_eq!(notice.reason, SignalReason::WriteWatchpoint);
            assert_eq!((notice.access, notice.thread), (target.watched, counting));
            let old = OldWatchpoint { address: target.watched };
            tool.done(0, counting, CommandRequest::ResetWatchpoint(old));
            let again = tool.code(0, counting, CommandRequest::ResetWatchpoint(old));
            assert_eq!(again, CommandCode::AddressError);
            tool.proceed(0);
        }
        // A virtual machine may have no debug registers.
        code => assert_eq!(code, CommandCode::HardwareUnavailable),
    }
    let handler = TrapHandler { address: target.on_trap };
    tool.done(0, 0, CommandRequest::InstallTrapHandler(handler));
    let preferences = Preferences {
        fast_breakpoints: Preference::Enable,
        fast_watchpoints: Preference::NoChange,
        trap_mode: TrapMode::NoChange,
    };
    tool.done(0, 0, CommandRequest::SetPreferences(preferences));
    tool.set_breakpoint(0, target.tick, BreakpointKind::Fast);
    tool.wait_for_change(0, target.traps);
    tool.reset_breakpoint(0, target.tick);
    let other = TrapHandler { address: target.tick };
    let refused = tool.code(0, 0, CommandRequest::RemoveTrapHandler(other));
    assert_eq!(refused, CommandCode::ParameterError);
    tool.done(0, 0, CommandRequest::RemoveTrapHandler(handler));
}

#[test]
fn two_tools_share_a_process_according_to_the_13_steps() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let target = target_job.targets[0].clone();
    let mut snapshot = target_job.attach(b"snapshot", 10);
    assert_eq!(snapshot.control(0, bit(SIGTRAP)).0, ReturnCode::Success);
    snapshot.set_breakpoint(0, target.tick, BreakpointKind::Normal);
    assert_eq!(snapshot.signal_notice(0).instruction, target.tick);
    let mut same = Tool(target_job.connect());
    assert_eq!(same.attach(b"the same", 10).0, ReturnCode::ToolPriorityConflict);
    drop(same);
    let mut debugger = target_job.attach(b"debugger", 90);
    let (code, ack) = debugger.control(0, bit(SIGTRAP));
    assert_eq!((code, &ack.tag), (ReturnCode::ToolControlConflict, b"snapshot"));
    assert_eq!(ack.controller, snapshot.0.tool());
    let notice = snapshot.control_notice();
    assert_eq!((notice.reason, notice.priority), (ControlReason::Conflict, 90));
    assert_eq!((notice.tool, &notice.tag), (debugger.0.tool(), b"debugger"));
    assert_eq!(snapshot.detach().0, ReturnCode::ToolControlReleaseRequired);
    snapshot.reset_breakpoint(0, target.tick);
    let option = ReleaseOption { notify: ReleaseNotify::Yes };
    snapshot.done(0, 0, CommandRequest::ReleaseControl(option));
    let notice = debugger.control_notice();
    assert_eq!((notice.reason, notice.tool), (ControlReason::Available, snapshot.0.tool()));
    assert_eq!(debugger.control(0, bit(SIGTRAP)).0, ReturnCode::Success);
    snapshot.wait_for_change(0, target.counter);
    debugger.release(0);
    assert_eq!(snapshot.control_notice().reason, ControlReason::Available);
    assert_eq!(snapshot.control(0, 0).0, ReturnCode::Success);
    // A breakpoint has no effect while its tool has not requested the trap.
    snapshot.set_breakpoint(0, target.tick, BreakpointKind::Normal);
    debugger.wait_for_change(0, target.counter);
    snapshot.reset_breakpoint(0, target.tick);
    // A signal with the request for authority suspends the process until the tool continues it.
    assert_eq!(snapshot.control_with_signal(0, bit(SIGUSR1), SIGUSR1).0, ReturnCode::Success);
    std::thread::sleep(Duration::from_millis(20));
    assert!(debugger.is_still(0, target.counter));
    snapshot.proceed(0);
    assert_eq!(snapshot.signal_notice(0).signal, SIGUSR1);
    snapshot.release(0);
    // All tools get a notice when a process exits. After that, commands for it fail.
    assert_eq!(snapshot.control(0, 0).0, ReturnCode::Success);
    snapshot.set_word(0, target.stop, 1);
    for tool in [&mut snapshot, &mut debugger] {
        match tool.next_notice() {
            Some((0, Notice::Exit(notice))) => assert_eq!(notice.status, 0),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(snapshot.control(0, 0).0, ReturnCode::ToolProcessExiting);
    // The second process kept the service in operation until here.
    assert_eq!(snapshot.control(1, 0).0, ReturnCode::Success);
    snapshot.set_word(1, target_job.targets[1].stop, 1);
    let _ = target_job.job.wait().expect_code(0);
}

#[test]
fn the_death_of_a_tool_undoes_its_changes_to_the_job() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let target = target_job.targets[1].clone();
    let mut watcher = target_job.attach(b"watching", 1);
    for round in 0..4 {
        let mut tool = target_job.attach(b"dies now", 50);
        assert_eq!(tool.control(1, bit(SIGTRAP)).0, ReturnCode::Success);
        let counting = *tool.threads(1).iter().max().unwrap();
        match round {
            // The tool holds threads.
            0 => tool.done(1, counting, CommandRequest::HoldThread(NoData {})),
            // The tool has a breakpoint that no thread has reached, or at which a thread is
            // stopped.
            1 => tool.set_breakpoint(1, target.on_trap, BreakpointKind::Normal),
            _ => {
                tool.set_breakpoint(1, target.tick, BreakpointKind::Normal);
                assert_eq!(tool.signal_notice(1).thread, counting);
            }
        }
        // The tool is in a step.
        if round == 3 {
            tool.done(1, 0, CommandRequest::StepThread(NoData {}));
        }
        drop(tool);
        watcher.wait_for_change(1, target.counter);
        watcher.wait_for_change(1, target.counter);
        assert_eq!(watcher.thread_data(1, counting).head.tool_state, ToolState::Active);
        assert_ne!(watcher.memory(1, target.tick, 1), [0xcc]);
    }
    drop(watcher);
    target_job.end(0);
}

#[test]
fn a_service_that_is_late_keeps_its_tools() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let target = target_job.targets[1].clone();
    let mut tool = target_job.attach(b"is late\0", 1);
    assert_eq!(tool.control(1, bit(SIGTRAP)).0, ReturnCode::Success);
    tool.set_breakpoint(1, target.tick, BreakpointKind::Normal);
    let _ = tool.signal_notice(1);
    let service = env.wait_for_process(SERVICE, |process| process.program() == SERVICE);
    service.signal(Signal::SIGSTOP);
    // The shepherd does not get an answer within the time limit of the command and the grace.
    let begun = Instant::now();
    let stacks =
        env.command("scdb").args(&["-wait", "1", &target_job.job.job_address(), "stacks"]).run();
    let _ = stacks.assert_stderr(&["scored-toolctl does not answer"]);
    std::thread::sleep(SERVICE_DELAY.saturating_sub(begun.elapsed()));
    service.signal(Signal::SIGCONT);
    tool.reset_breakpoint(1, target.tick);
    tool.proceed(1);
    tool.wait_for_change(1, target.counter);
    drop(tool);
    target_job.end(0);
}

#[test]
fn a_tool_stays_connected_when_the_next_stage_begins() {
    let env = TestEnv::new();
    let Some(built) = env.test_program("tool_target") else { return };
    let program = env.dir().join("tool_target");
    std::fs::copy(built, &program).unwrap();
    let program = program.to_str().unwrap();
    let job = env.scrun(&["-nodes=1", program, "::", program]).start();
    let first_stage = TargetJob::of(job, 1);
    let mut tool = first_stage.attach(b"stages\0\0", 1);
    assert_eq!(tool.control(0, 0).0, ReturnCode::Success);
    tool.set_word(0, first_stage.targets[0].stop, 1);
    // The second process has started, and describes itself, when there are three lines.
    let second_stage = TargetJob::of(first_stage.job, 3);
    let [_, second] = &second_stage.targets[..] else { panic!("{:?}", second_stage.targets) };
    assert_eq!(tool.attach(b"stages\0\0", 1), (ReturnCode::Success, vec![0]));
    tool.wait_for_change(0, second.counter);
    assert_eq!(tool.control(0, 0).0, ReturnCode::Success);
    tool.set_word(0, second.stop, 1);
    let outcome = second_stage.job.wait().expect_code(0);
    assert_eq!(outcome.text().matches("ended 0\n").count(), 2, "{outcome}");
}

#[test]
fn the_stacks_of_a_process_that_a_tool_holds_are_shown() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let target = target_job.targets[1].clone();
    let mut tool = target_job.attach(b"it holds", 50);
    assert_eq!(tool.control(1, bit(SIGTRAP)).0, ReturnCode::Success);
    tool.set_breakpoint(1, target.tick, BreakpointKind::Normal);
    let _ = tool.signal_notice(1);
    let job = target_job.job.job_address();
    let outcome = env.command("scdb").args(&[&job, "stacks"]).run().expect_code(0);
    let text = outcome.text();
    let tick = text.lines().find(|line| line.contains("tick in tool_target"));
    assert!(tick.is_some_and(|line| line.ends_with("[1]")), "{text}");
    // The process is stopped as before.
    assert!(tool.is_still(1, target.counter));
    drop(tool);
    target_job.end(0);
}

#[test]
fn breakpoints_of_a_killed_service_are_removed_by_the_next_service() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 1) else { return };
    let target = target_job.targets[0].clone();
    let mut tool = target_job.attach(b"no luck ", 50);
    assert_eq!(tool.control(0, bit(SIGTRAP)).0, ReturnCode::Success);
    let leader = tool.threads(0)[0];
    let memory = std::fs::File::open(format!("/proc/{leader}/mem")).unwrap();
    let byte = || {
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut byte, target.on_trap).unwrap();
        byte[0]
    };
    let before = byte();
    tool.set_breakpoint(0, target.on_trap, BreakpointKind::Normal);
    assert_eq!(byte(), 0xcc);
    env.wait_for_process("the service", |process| process.program() == "scored-toolctl")
        .signal(Signal::SIGKILL);
    assert!(tool.next_notice().is_none());
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    while byte() != before {
        assert!(Instant::now() < deadline, "the breakpoint is left");
        std::thread::sleep(Duration::from_millis(5));
    }
    target_job.end(0);
}

#[test]
fn a_killed_shepherd_closes_the_sockets_and_no_process_or_file_remains() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 1) else { return };
    let target = target_job.targets[0].clone();
    let mut tool = target_job.attach(b"at work ", 50);
    assert_eq!(tool.control(0, bit(SIGTRAP)).0, ReturnCode::Success);
    tool.set_breakpoint(0, target.tick, BreakpointKind::Normal);
    let _ = tool.signal_notice(0);
    env.wait_for_process("the shepherd", score_tests::process::Process::is_shepherd)
        .signal(Signal::SIGKILL);
    while tool.next_notice().is_some() {}
    let _ = target_job.job.wait();
    env.assert_clean();
}

#[test]
fn a_lost_host_is_named_and_tools_on_other_hosts_see_the_end_of_the_job() {
    let env = TestEnv::new();
    let Some(built) = env.test_program("tool_target") else { return };
    let job = env.scrun(&["-group=local:2", "-nodes=2x1", built.to_str().unwrap()]).start();
    let target_job = TargetJob::of(job, 2);
    let mut tool = Tool(target_job.connect());
    assert_eq!(tool.attach(b"one host", 50), (ReturnCode::Success, vec![0]));
    assert_eq!(tool.control(0, bit(SIGTRAP)).0, ReturnCode::Success);
    tool.set_breakpoint(0, target_job.targets[0].tick, BreakpointKind::Normal);
    let _ = tool.signal_notice(0);
    let is_daemon = |process: &score_tests::process::Process| {
        process.is_scored() && process.command.contains("-host local1 ")
    };
    env.wait_for_process("the daemon of local1", is_daemon).signal(Signal::SIGKILL);
    let mut notices = Vec::new();
    while let Some((rank, notice)) = tool.next_notice() {
        notices.push((rank, matches!(notice, Notice::Exit(_))));
    }
    assert_eq!(notices, [(0, true)]);
    let outcome = target_job.job.wait().assert_stderr(&["host local1 is lost"]);
    assert_ne!(outcome.code, 0);
    env.assert_clean();
}

#[test]
fn the_end_of_the_job_is_noticed_and_hostile_bytes_do_no_harm() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let target = target_job.targets[0].clone();
    let hostile = target_job.connect();
    let silent: Vec<ToolConnection> = (0..8).map(|_| target_job.connect()).collect();
    let mut tool = target_job.attach(b"the tool", 50);
    assert_eq!(tool.control(0, 0).0, ReturnCode::Success);
    tool.0.send_record(&[0xa5; 70_000]).unwrap();
    for (bytes, code) in [
        (vec![5; 7], ReturnCode::RequestIncomplete),
        (vec![0; 100], ReturnCode::WrongService),
        (vec![0xa5; 70_000], ReturnCode::RequestFailed),
    ] {
        hostile.send_record(&bytes).unwrap();
        let answer = hostile.receive_record(ANSWER_TIMEOUT).unwrap();
        let (header, message) = ServiceMessage::decode(&answer).unwrap();
        assert_eq!((header.code(), message), (Some(code), ServiceMessage::ErrorAck));
    }
    // This tool does not read. Its requests wait in the socket, and other tools are served.
    let question = [Command { thread: 0, request: CommandRequest::GetThreadList(NoData {}) }];
    let header = Header::new(1, 0, 0, 1);
    let question = ToolRequest::Query(&question).encode(&header).unwrap();
    for _ in 0..100 {
        if hostile.send_record(&question).is_err() {
            break;
        }
    }
    tool.wait_for_change(0, target.counter);
    target_job.job.signal(Signal::SIGTERM);
    let mut exits = Vec::new();
    while let Some((rank, notice)) = tool.next_notice() {
        match notice {
            Notice::Exit(notice) => exits.push((rank, notice.status)),
            other => panic!("{other:?}"),
        }
    }
    exits.sort_unstable();
    assert_eq!(exits, [(0, Signal::SIGKILL as i32), (1, Signal::SIGKILL as i32)]);
    drop((silent, hostile));
    assert_ne!(target_job.job.wait().code, 0);
    env.assert_clean();
}

#[test]
fn the_socket_serves_the_owner_of_the_job_alone() {
    let env = TestEnv::new();
    let Some(built) = env.test_program("tool_target") else { return };
    let program = env.dir().join("tool_target");
    std::fs::copy(built, &program).unwrap();
    let database = "a address=127.0.0.1 cores=2 group=all\n";
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], database, &["-ts", "10"]) else {
        return;
    };
    let _ = cluster.program("scored-toolctl");
    let job = cluster.command(ALICE, "scrun", "a");
    let job = job.args(&["-scored=all,nodes=1", program.to_str().unwrap()]).start();
    let target_job = TargetJob::of(job, 1);
    let socket = target_job.targets[0].directory.join(".toolctl");
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    // root may open the directory, but is not the owner.
    let other_user = loop {
        match ToolConnection::connect(&socket, 1, 0) {
            Ok(other_user) => break other_user,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(other_user.receive_record(ANSWER_TIMEOUT).unwrap().is_empty());
    target_job.job.signal(Signal::SIGTERM);
    let _ = target_job.job.wait();
}
