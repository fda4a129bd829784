//! Processes in all states: which stacks are shown, and that the processes continue unaffected.

use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::*;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use score_stacks::StackReader;
use score_stacks::capture::{CaptureError, Snapshot, ThreadCopy, capture};
use score_stacks::frame::{Detail, Frame};
use score_stacks::memory::ProcessMemory;
use score_stacks::module::ModuleCache;
use score_stacks::unwind::{MAX_TRACE_BACK, trace_backs, unwind};

fn states_program() -> Option<PathBuf> {
    compile_c("states")
}

fn start(mode: &str) -> Option<Running> {
    Some(Running::start_with(&states_program()?, &[mode]).0)
}

#[test]
fn system_calls_continue_after_their_stacks_were_read() {
    let Some(mut running) = start("calls") else { return };
    for _ in 0..5 {
        assert_in_order(&running.stacks().threads[0].stack, &["calls", "main"]);
    }
    running.child().stdin.as_mut().unwrap().write_all(b"x").unwrap();
    assert_eq!(running.line(), "read 1 errno 0");
    for _ in 0..50 {
        capture(running.pid()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_in_order(&running.stacks().threads[0].stack, &["calls", "main"]);
    assert_eq!(running.line(), "slept 0 whole");
}

#[test]
fn each_queued_signal_is_delivered_once_while_stacks_are_read() {
    let Some(mut running) = start("queued") else { return };
    let mut captures = 0;
    let pid = running.pid();
    let end = std::thread::scope(|scope| {
        let line = scope.spawn(|| running.line());
        while !line.is_finished() {
            captures += usize::from(capture(pid).is_ok());
        }
        line.join().unwrap()
    });
    assert_eq!(end, "counted 20000");
    assert!(captures > 0);
}

#[test]
fn a_stopped_process_is_shown_and_stays_stopped_without_a_further_stop() {
    let Some(running) = start("calls") else { return };
    let pid = Pid::from_raw(running.pid());
    kill(pid, Signal::SIGSTOP).unwrap();
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
    assert_eq!(stopped, Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
    for _ in 0..3 {
        assert_in_order(&running.stacks().threads[0].stack, &["calls", "main"]);
        running.await_state('T');
    }
    // The parent is not notified of a second stop. It is notified once of the end of this stop.
    let flags = WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED | WaitPidFlag::WNOHANG;
    assert_eq!(waitpid(pid, Some(flags)), Ok(WaitStatus::StillAlive));
    kill(pid, Signal::SIGCONT).unwrap();
    let continued = waitpid(pid, Some(WaitPidFlag::WCONTINUED));
    assert_eq!(continued, Ok(WaitStatus::Continued(pid)));
    running.await_state('S');
}

#[test]
fn a_stop_in_the_midst_of_captures_is_not_lost() {
    let Some(running) = start("spin") else { return };
    let pid = Pid::from_raw(running.pid());
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let captures = scope.spawn(|| {
                for _ in 0..5 {
                    capture(pid.as_raw()).unwrap();
                }
            });
            kill(pid, Signal::SIGSTOP).unwrap();
            captures.join().unwrap();
        });
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
        assert_eq!(stopped, Ok(WaitStatus::Stopped(pid, Signal::SIGSTOP)));
        running.await_state('T');
        kill(pid, Signal::SIGCONT).unwrap();
    }
}

/// Makes a control group for the test. Returns `None` if there is no such hierarchy or the test may
/// not use it.
fn make_group(kind: &str, file: &str) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|mount| match kind {
        "cgroup2" => mount[2] == kind,
        controller => mount[2] == "cgroup" && mount[3].split(',').any(|it| it == controller),
    });
    let group = PathBuf::from(mount?[1]).join(format!("stacks-{}", std::process::id()));
    std::fs::create_dir(&group).ok()?;
    if !group.join(file).exists() {
        std::fs::remove_dir(&group).unwrap();
        return None;
    }
    Some(group)
}

#[test]
fn a_frozen_process_is_shown_and_stays_frozen() {
    for (kind, file, frozen, thawed) in
        [("cgroup2", "cgroup.freeze", "1", "0"), ("freezer", "freezer.state", "FROZEN", "THAWED")]
    {
        let Some(running) = start("spin") else { return };
        let Some(group) = make_group(kind, file) else {
            eprintln!("skipped: no group can be made in a hierarchy of {kind}");
            continue;
        };
        std::fs::write(group.join("cgroup.procs"), running.pid().to_string()).unwrap();
        std::fs::write(group.join(file), frozen).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let time = || running.processor_ticks();
        let before = time();
        for _ in 0..3 {
            assert_in_order(&running.stacks().threads[0].stack, &["spin", "main"]);
        }
        std::thread::sleep(Duration::from_millis(200));
        assert!(time() - before <= 2, "{kind}: the process has run {} ticks", time() - before);
        std::fs::write(group.join(file), thawed).unwrap();
        let before = time();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while time() - before < 5 {
            assert!(std::time::Instant::now() < deadline, "{kind}: it does not run any more");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(running);
        std::fs::remove_dir(&group).unwrap();
    }
}

#[test]
fn a_running_process_is_shown() {
    let Some(running) = start("spin") else { return };
    let process = running.stacks();
    assert_in_order(&process.threads[0].stack, &["spin", "main"]);
    assert_complete(&process.threads[0].stack);
}

#[test]
fn frames_below_a_signal_handler_on_an_alternate_stack_are_shown() {
    let Some(program) = compile_c("signals") else { return };
    let (running, _) = Running::start_with(&program, &["raise"]);
    let process = running.stacks();
    let stack = &process.threads[0].stack;
    assert_in_order(stack, &["handler", "raise_signal", "call", "main"]);
    assert_eq!(stack.frames.iter().filter(|frame| **frame == Frame::Signal).count(), 1);
    assert_complete(stack);

    let (running, _) = Running::start_with(&program, &["null"]);
    let process = running.stacks();
    let stack = &process.threads[0].stack;
    assert_in_order(stack, &["handler", "call", "main"]);
    assert!(stack.frames.windows(2).any(|pair| pair == [Frame::Unmapped, Frame::Signal]));
    assert_complete(stack);
}

#[test]
fn a_parent_in_vfork_is_reported_without_waiting_for_it_and_its_child_is_shown() {
    let Some(running) = start("vfork") else { return };
    let pid = running.pid();
    assert_eq!(running.state(), 'D');
    let started_at = std::time::Instant::now();
    let process = running.stacks();
    assert!(started_at.elapsed() < Duration::from_secs(20));
    let [thread] = process.threads.as_slice() else { panic!("{process:?}") };
    assert!(thread.is_uninterruptible);
    assert_in_order(&thread.stack, &["main"]);
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child: i32 = children.trim().parse().unwrap();
    assert_in_order(&stacks_of(child).threads[0].stack, &["main"]);
    assert_eq!((running.state(), state_of(child)), ('D', 'S'));
    // The parent is no longer traced, although it could not be detached while it waited.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("TracerPid:\t0"), "{status}");
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
}

#[test]
fn a_deep_recursion_is_cut_visibly() {
    let Some(running) = start("deep") else { return };
    let snapshot = capture(running.pid()).unwrap();
    let ThreadCopy::Stopped { stack, .. } = &snapshot.threads[0].copy else { panic!() };
    assert!(stack.is_truncated);
    let copied: usize = stack.pieces.iter().map(|piece| piece.bytes.len()).sum();
    assert!(copied <= score_stacks::capture::MAX_STACK_BYTES);
    let process = running.stacks();
    let stack = &process.threads[0].stack;
    assert_eq!(stack.frames[0], Frame::Truncated);
    assert!(stack.frames.iter().any(|frame| matches!(frame, Frame::Omitted(_))));
    assert!(stack.frames.len() < 300);
    assert_in_order(stack, &["deep", "deep", "deep"]);
}

#[test]
fn a_trace_back_has_the_addresses_of_all_frames() {
    let Some(running) = start("spin") else { return };
    let snapshot = capture(running.pid()).unwrap();
    let mut modules = ModuleCache::default();
    let threads = unwind(&snapshot, &mut modules);
    let trace_back = &trace_backs(&snapshot, &mut modules)[0];
    let ThreadCopy::Stopped { registers, stack } = &snapshot.threads[0].copy else { panic!() };
    assert_eq!(trace_back.len(), threads[0].frames.len());
    assert_eq!(trace_back[0].frame_address, registers.rsp());
    let [callees @ .., outermost] = trace_back.as_slice() else { panic!("{trace_back:?}") };
    assert_eq!(outermost.return_address, 0);
    // Each return address is directly before the frame of the caller.
    for (entry, caller) in callees.iter().zip(&trace_back[1..]) {
        let saved = stack.word(caller.frame_address - 8);
        assert_eq!(saved, Some(entry.return_address));
    }
}

#[test]
fn a_long_trace_back_has_more_frames_than_a_shown_stack() {
    let Some(running) = start("deep") else { return };
    let snapshot = capture(running.pid()).unwrap();
    let trace_back = &trace_backs(&snapshot, &mut ModuleCache::default())[0];
    assert_eq!(trace_back.len(), MAX_TRACE_BACK);
    assert!(
        trace_back.iter().all(|entry| entry.return_address != 0),
        "the last frame has a caller"
    );
}

#[test]
fn a_smashed_stack_ends_with_a_broken_frame() {
    let Some(running) = start("smash") else { return };
    let process = running.stacks();
    let stack = &process.threads[0].stack;
    assert_eq!(stack.frames[0], Frame::Broken, "{:#?}", lines(stack));
    assert_in_order(stack, &["smash"]);
}

#[test]
fn generated_code_is_shown_by_its_region_and_followed_by_frame_pointers() {
    let Some(running) = start("generated") else { return };
    let process = running.stacks();
    let stack = &process.threads[0].stack;
    assert_in_order(stack, &["wait_here", "generated", "main"]);
    assert!(lines(stack).contains(&"[anon]+0x5".to_owned()), "{:#?}", lines(stack));
    assert_complete(stack);
}

#[test]
fn threads_that_appear_and_vanish_do_no_harm() {
    let Some(mut running) = start("churn") else { return };
    for _ in 0..100 {
        let process = running.stacks();
        assert_eq!(process.threads[0].tid, running.pid());
    }
    assert_eq!(running.child().try_wait().unwrap(), None);
}

#[test]
fn a_process_whose_first_thread_has_exited_is_shown() {
    let Some(running) = start("leaderless") else { return };
    let process = running.stacks();
    let [thread] = process.threads.as_slice() else { panic!("{process:?}") };
    assert_ne!(thread.tid, running.pid());
    assert_in_order(&thread.stack, &["stay"]);
}

#[test]
fn a_process_with_another_tracer_is_refused_with_its_name() {
    let Some(program) = states_program() else { return };
    let (running, child) = Running::start_with(&program, &["traced"]);
    let child: i32 = child.parse().unwrap();
    match capture(child) {
        Err(CaptureError::TracedBy { pid, tracer, name }) => {
            assert_eq!((pid, tracer, name.as_str()), (child, running.pid(), "stacks-states"));
        }
        other => panic!("{other:?}"),
    }
    kill(Pid::from_raw(child), Signal::SIGKILL).unwrap();
}

#[test]
fn a_process_that_has_exited_or_never_existed_is_refused() {
    let mut child = Command::new("true").spawn().unwrap();
    while state_of(child.id() as i32) != 'Z' {
        std::thread::sleep(Duration::from_millis(1));
    }
    let pid = child.id() as i32;
    assert!(matches!(capture(pid), Err(CaptureError::Exited { .. })));
    // The parent gets the exit status.
    assert_eq!(child.wait().unwrap().into_raw(), 0);
    assert!(matches!(capture(pid), Err(CaptureError::NoSuchProcess { .. })));
}

#[test]
fn another_user_and_an_undumpable_process_are_refused_with_the_reason() {
    const NOBODY: u32 = 65534;
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can act as another user");
    }
    let Some(program) = states_program() else { return };
    // Copy the program to a directory in which every user may read and execute it.
    let public = std::env::temp_dir().join(format!("stacks-{}", std::process::id()));
    std::fs::copy(example_program(), &public).unwrap();
    let as_nobody = |pid: i32| {
        let mut command = Command::new(&public);
        command.arg(pid.to_string()).current_dir("/").uid(NOBODY).gid(NOBODY);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let (running, _) = Running::start_with(&program, &["spin"]);
    let other_user = as_nobody(running.pid());

    let target = public.with_extension("target");
    std::fs::copy(&program, &target).unwrap();
    let mut command = Command::new(&target);
    command.arg("undumpable").current_dir("/").uid(NOBODY).gid(NOBODY);
    let mut undumpable = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let not_dumpable = as_nobody(undumpable.id() as i32);
    undumpable.kill().unwrap();
    undumpable.wait().unwrap();
    for path in [&public, &target] {
        std::fs::remove_file(path).unwrap();
    }
    assert!(other_user.contains("belongs to user 0, not to user 65534"), "{other_user}");
    assert!(not_dumpable.contains("has made itself undumpable"), "{not_dumpable}");
}

#[test]
fn a_tracer_that_holds_a_process_gets_the_same_stacks() {
    let Some(running) = start("spin") else { return };
    let pid = Pid::from_raw(running.pid());
    // In a separate thread, whose end releases the process.
    let held = std::thread::spawn(move || {
        use nix::sys::ptrace;
        ptrace::seize(pid, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(pid).unwrap();
        waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
        let registers = (&ptrace::getregs(pid).unwrap()).into();
        let memory = ProcessMemory::new(pid.as_raw());
        let snapshot = Snapshot::of_held(pid.as_raw(), &[(pid.as_raw(), registers)], &memory);
        StackReader::new().stacks_in(&snapshot.unwrap(), Detail::Lines)
    });
    let held = held.join().unwrap();
    assert_eq!(held.threads.len(), 1);
    assert_in_order(&held.threads[0].stack, &["spin", "main"]);
    assert_eq!(held.threads[0].stack, running.stacks().threads[0].stack);
}
