//! Tests of breakpoints, steps, watchpoints, notices and signals.

use std::time::Duration;

use crate::support::Session;
use score_toolctl::tracer::*;

const INT3: u8 = 0xcc;

#[test]
fn a_breakpoint_suspends_all_threads_and_is_passed_without_losing_a_hit() {
    let Some(mut session) = Session::attached("4") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    let original = session.raw_byte(spot);
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    assert!(session.tracer.set_breakpoint(pid, spot, BreakpointKind::Fast).is_err());
    assert_eq!(session.raw_byte(spot), INT3);
    assert_eq!(session.tracer.read_memory(pid, spot, 1).unwrap(), [original], "it is hidden");
    let first = session.notice();
    // From here on each hit is counted, because all threads are suspended now.
    let start = session.variable("spots", 0);
    let mut hits = 0;
    let mut notice = first;
    for _ in 0..200 {
        assert_eq!((notice.signal, notice.reason), (libc::SIGTRAP, NoticeReason::Breakpoint));
        assert_eq!(notice.instruction, spot);
        assert_eq!(session.special(notice.tid).base.rip, spot);
        hits += 1;
        let spots = session.variable("spots", 0);
        session.pump();
        assert_eq!(session.variable("spots", 0), spots, "a thread runs in the suspension");
        session.tracer.resume(pid).unwrap();
        notice = session.notice();
    }
    // Each thread at the breakpoint has caused a notice or will do so. No thread has passed it
    // without a notice.
    let passed = session.variable("spots", 0) - start;
    assert!(passed <= hits && passed >= hits - 5, "{passed} of {hits}");
    assert!(session.tracer.reset_breakpoint(pid, spot, original ^ 1).is_err());
    session.tracer.reset_breakpoint(pid, spot, original).unwrap();
    assert!(session.tracer.reset_breakpoint(pid, spot, original).is_err());
    assert_eq!(session.raw_byte(spot), original);
    session.detach();
    session.assert_works();
}

#[test]
fn a_write_over_a_breakpoint_changes_the_program_beneath() {
    let Some(mut session) = Session::attached("0") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    let code = session.tracer.read_memory(pid, spot, 8).unwrap();
    session.tracer.set_breakpoint(pid, spot + 1, BreakpointKind::Normal).unwrap();
    let mut changed = code.clone();
    changed[..3].copy_from_slice(&[0x90, 0x90, 0x90]);
    session.tracer.write_memory(pid, spot, &changed, false).unwrap();
    assert_eq!(session.tracer.read_memory(pid, spot, 8).unwrap(), changed);
    assert_eq!((session.raw_byte(spot), session.raw_byte(spot + 1)), (0x90, INT3));
    session.tracer.write_memory(pid, spot, &code, false).unwrap();
    session.detach();
    assert_eq!(session.raw_byte(spot + 1), code[1], "no breakpoint is left");
}

#[test]
fn a_step_moves_one_thread_by_one_instruction() {
    let Some(mut session) = Session::attached("3") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    let worker = session.thread("worker-0");
    assert!(session.tracer.step(pid, worker).is_err(), "it is not suspended");
    let mut notice = session.notice();
    let sleeping = session.tracer.step(pid, pid);
    assert!(matches!(sleeping, Err(TraceError::WrongState(..))), "{sleeping:?}");
    // Other threads may have reached the breakpoint at the same moment. Their notices come first.
    while session.tracer.step(pid, notice.tid).unwrap() == StepOutcome::NoticePending {
        notice = session.notice();
    }
    let step = session.notice();
    assert_eq!((step.tid, step.reason), (notice.tid, NoticeReason::Step));
    assert!(step.instruction > spot && step.instruction <= spot + 15, "{step:?}");
    assert_eq!(session.raw_byte(spot), INT3, "the breakpoint is there again");
    let counters: Vec<i64> = (0..3).map(|index| session.variable("counters", index)).collect();
    for _ in 0..20 {
        let before = session.special(step.tid).base.rip;
        session.tracer.step(pid, 0).unwrap();
        let next = session.notice();
        assert_eq!(next.tid, step.tid);
        assert_ne!(next.instruction, before);
    }
    let now: Vec<i64> = (0..3).map(|index| session.variable("counters", index)).collect();
    let moved = counters.iter().zip(&now).filter(|(before, now)| before != now).count();
    assert!(moved <= 1, "{counters:?} {now:?}");
    session
        .tracer
        .reset_breakpoint(pid, spot, session.tracer.read_memory(pid, spot, 1).unwrap()[0])
        .unwrap();
    session.tracer.resume(pid).unwrap();
    session.detach();
    session.assert_works();
}

#[test]
fn a_held_thread_stays_held_through_continue_and_step() {
    let Some(mut session) = Session::attached("3") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    let held = session.thread("worker-2");
    session.tracer.hold(pid, held).unwrap();
    session.general(held);
    let count = session.variable("counters", 2);
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    for _ in 0..20 {
        let notice = session.notice();
        assert_ne!(notice.tid, held);
        assert_eq!(session.tracer.tool_state(pid, held), Ok(ToolState::HoldSuspend));
        assert_eq!(session.tracer.tool_state(pid, notice.tid), Ok(ToolState::Suspend));
        session.tracer.resume(pid).unwrap();
    }
    assert_eq!(session.variable("counters", 2), count);
    session.tracer.release(pid, held).unwrap();
    loop {
        let notice = session.notice();
        session.tracer.resume(pid).unwrap();
        if notice.tid == held {
            break;
        }
    }
    session.detach();
    session.assert_works();
}

#[test]
fn signals_of_the_set_cause_notices_and_the_tool_decides_their_delivery() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    // The signal is not in the set, so it is delivered.
    session.tell("r");
    assert!(session.done().contains("handled 1"));
    session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGUSR1, libc::SIGSEGV])).unwrap();
    session.tell("r");
    let notice = session.notice();
    assert_eq!(
        (notice.tid, notice.signal, notice.reason),
        (pid, libc::SIGUSR1, NoticeReason::Signal)
    );
    session.tracer.resume(pid).unwrap();
    assert!(session.done().contains("handled 1"), "without a signal by default");
    session.tell("r");
    session.notice();
    assert!(session.tracer.set_continuation(pid, 0, 65).is_err());
    session.tracer.set_continuation(pid, 0, 0).unwrap();
    session.tracer.set_continuation(pid, 0, libc::SIGUSR1).unwrap();
    session.tracer.resume(pid).unwrap();
    assert!(session.done().contains("handled 2"));
    assert!(session.tracer.set_continuation(pid, 0, 0).is_err(), "no notice is given");
    // A step with a signal that has a handler ends at the handler's first instruction.
    session.tell("r");
    session.notice();
    session.tracer.set_continuation(pid, 0, libc::SIGUSR1).unwrap();
    session.tracer.step(pid, 0).unwrap();
    let step = session.notice();
    assert_eq!((step.reason, step.instruction), (NoticeReason::Step, session.address("count")));
    session.tracer.resume(pid).unwrap();
    assert!(session.done().contains("handled 3"));
    // A fault also causes a notice.
    session.tell("g");
    let fault = session.notice();
    assert_eq!((fault.signal, fault.access), (libc::SIGSEGV, 0x1230));
    assert_eq!(session.special(pid).fault_address, 0x1230);
    session.tracer.set_continuation(pid, 0, libc::SIGSEGV).unwrap();
    session.tracer.resume(pid).unwrap();
    let status = session.event("exit", |event| match event {
        Event::Exited { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(status & 0x7f, libc::SIGSEGV);
}

#[test]
fn a_tool_sends_signals_to_threads_and_processes() {
    let Some(mut session) = Session::attached("2") else { return };
    let pid = session.pid;
    session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGUSR1])).unwrap();
    let worker = session.thread("worker-0");
    session.tracer.send_signal(pid, worker, libc::SIGUSR1).unwrap();
    let notice = session.notice();
    assert_eq!((notice.tid, notice.signal), (worker, libc::SIGUSR1));
    // A second signal remains pending until the thread continues, and causes its own notice.
    session.tracer.send_signal(pid, worker, libc::SIGUSR1).unwrap();
    session.pump_for(Duration::from_millis(20));
    session.assert_no_notice();
    session.tracer.resume(pid).unwrap();
    assert_eq!(session.notice().tid, worker);
    assert_eq!(session.tracer.default_thread(pid), Ok(worker));
    session.tracer.resume(pid).unwrap();
    assert!(session.tracer.send_signal(pid, worker, 0).is_err());
    assert!(session.tracer.send_signal_to_process(pid, 65).is_err());
    // Held threads are skipped. If all threads are held, no signal is pending.
    for tid in session.tracer.threads(pid) {
        if tid != worker {
            session.tracer.hold(pid, tid).unwrap();
        }
    }
    session.tracer.send_signal_to_process(pid, libc::SIGUSR1).unwrap();
    assert_eq!(session.notice().tid, worker);
    session.tracer.hold(pid, worker).unwrap();
    session.tracer.resume(pid).unwrap();
    session.tracer.send_signal_to_process(pid, libc::SIGUSR1).unwrap();
    for tid in session.tracer.threads(pid) {
        session.tracer.release(pid, tid).unwrap();
    }
    session.pump_for(Duration::from_millis(50));
    session.assert_no_notice();
    session.detach();
    session.assert_works();
}

#[test]
fn a_signal_that_no_thread_can_take_is_not_pending() {
    let Some(mut session) = Session::attached("2") else { return };
    let pid = session.pid;
    session.tell("B");
    session.done();
    for name in ["worker-0", "score-pm"] {
        let tid = session.thread(name);
        session.tracer.hold(pid, tid).unwrap();
    }
    session.tracer.send_signal_to_process(pid, libc::SIGUSR1).unwrap();
    session.tell("U");
    assert!(session.done().contains("handled 0"));
    session.tracer.send_signal_to_process(pid, libc::SIGUSR1).unwrap();
    session.until("handler", |it| (it.variable("handled", 0) == 1).then_some(()));
    session.detach();
    session.assert_works();
}

#[test]
fn a_tool_that_gives_up_control_delivers_its_signal_and_releases_no_hold() {
    let Some(mut session) = Session::attached("2") else { return };
    let (pid, worker) = (session.pid, session.thread("worker-0"));
    session.tracer.hold(pid, worker).unwrap();
    session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGUSR1])).unwrap();
    session.tell("r");
    session.notice();
    session.tracer.set_continuation(pid, 0, libc::SIGUSR1).unwrap();
    session.tracer.resume(pid).unwrap();
    assert!(session.done().contains("handled 1"));
    assert_eq!(session.tracer.tool_state(pid, worker), Ok(ToolState::Hold));
    let count = session.variable("counters", 0);
    session.pump_for(Duration::from_millis(20));
    assert_eq!(session.variable("counters", 0), count);
    session.detach();
    session.assert_works();
}

#[test]
fn threads_that_are_created_in_a_suspension_are_suspended() {
    let Some(mut session) = Session::attached("1") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    session.tell("c");
    session.done();
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    for _ in 0..100 {
        session.notice();
        let churned = session.variable("churned", 0);
        session.pump_for(Duration::from_millis(1));
        // A new thread, and a thread that was in the kernel, may need a moment to stop.
        session.until("stop of all threads", |session| {
            let is_still = |tid| {
                let state = procfs::ThreadStat::read(pid, tid).map(|stat| stat.state);
                matches!(state, Some(b't' | b'D' | b'Z' | b'X') | None)
            };
            procfs::threads(session.pid).into_iter().all(is_still).then_some(())
        });
        assert_eq!(session.variable("churned", 0), churned);
        session.tracer.resume(pid).unwrap();
    }
    assert!(session.variable("churned", 0) > 100);
    session.detach();
    session.assert_works();
}

#[test]
fn an_int3_of_the_program_is_a_signal_and_no_breakpoint() {
    let Some(mut session) = Session::attached("0") else { return };
    let pid = session.pid;
    session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGTRAP])).unwrap();
    session.tell("i");
    let notice = session.notice();
    assert_eq!((notice.reason, notice.signal), (NoticeReason::Signal, libc::SIGTRAP));
    session.tracer.resume(pid).unwrap();
    session.done();
    session.detach();
}

#[test]
fn simultaneous_hits_cause_one_notice_after_the_other() {
    let Some(mut session) = Session::attached("6") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    session.set_variable("pace", 0);
    let original = session.raw_byte(spot);
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    let mut were_pending = 0;
    for round in 0..100 {
        session.notice();
        session.assert_no_notice();
        let has_pending = session.tracer.has_pending_notices(pid);
        were_pending += u32::from(has_pending);
        if has_pending && round % 2 == 0 {
            assert_eq!(session.tracer.step(pid, 0), Ok(StepOutcome::NoticePending));
        } else {
            session.tracer.resume(pid).unwrap();
        }
    }
    assert!(were_pending > 0, "busy threads meet the breakpoint together");
    session.tracer.reset_breakpoint(pid, spot, original).unwrap();
    session.detach();
    session.set_variable_untraced("pace", 200);
    session.assert_works();
}

#[test]
fn children_run_without_breakpoints() {
    let Some(mut session) = Session::attached("0") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    session.tell("f");
    assert_eq!(session.line(), format!("child {}", 5 << 8));
    session.done();
    session.tell("v");
    assert_eq!(session.line(), "child 0");
    session.done();
    session.pump();
    assert_eq!(session.raw_byte(spot), INT3, "it is there again after the child of vfork");
    session.assert_no_notice();
    session.tell("s");
    assert_eq!(session.notice().reason, NoticeReason::Breakpoint);
    session.tracer.resume(pid).unwrap();
    session.done();
    session.detach();
}

#[test]
fn a_hostile_program_does_not_break_the_tracer() {
    let Some(mut session) = Session::attached("3") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    for tid in session.tracer.threads(pid) {
        if tid != pid {
            session.tracer.hold(pid, tid).unwrap();
        }
    }
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Normal).unwrap();
    // The program requests to be traced by its parent, and forks hundreds of times. Then a thread
    // that is not the first one calls exec, while other threads are held.
    session.tell("p");
    assert!(session.done().contains("handled 0"), "it has a tracer");
    session.tell("b");
    session.done();
    session.assert_no_notice();
    let worker = session.thread("worker-0");
    session.tracer.release(pid, worker).unwrap();
    session.tell("E");
    let is_exec = |event: &Event| (*event == Event::Exec { pid }).then_some(());
    session.until("exec", |session| session.answer_notices(is_exec));
    session.read_addresses();
    assert_eq!(session.tracer.threads(pid), [pid]);
    session.tell("s");
    session.done();
    session.assert_no_notice();
    session.detach();
}

#[test]
fn no_breakpoint_or_watchpoint_remains_after_exec() {
    let Some(mut session) = Session::attached("3") else { return };
    let (pid, spot) = (session.pid, session.address("spot"));
    let watched = session.address("watched");
    // The breakpoint is inside an instruction of `spot`, which no thread may execute meanwhile.
    for worker in session.tracer.threads(pid).into_iter().filter(|tid| *tid != pid) {
        session.tracer.hold(pid, worker).unwrap();
        session.general(worker);
    }
    let range = WatchRange { address: watched, length: 8, kind: WatchKind::Write };
    session.ask(pid, Request::SetWatchpoint(range)).unwrap();
    session.tell("e");
    session.tracer.set_breakpoint(pid, spot + 1, BreakpointKind::Normal).unwrap();
    session.event("exec", |event| (*event == Event::Exec { pid }).then_some(()));
    session.read_addresses();
    assert_eq!(session.tracer.threads(pid), [pid]);
    session.tell("w");
    session.done();
    session.tell("s");
    session.done();
    session.assert_no_notice();
    assert!(session.ask(pid, Request::ResetWatchpoint(watched)).is_err());
    session.detach();
}

#[test]
fn watchpoints_show_reads_and_writes_of_their_thread() {
    let Some(mut session) = Session::attached("1") else { return };
    let (pid, watched) = (session.pid, session.address("watched"));
    let range =
        |address, length, kind| Request::SetWatchpoint(WatchRange { address, length, kind });
    let write = range(watched, 8, WatchKind::Write);
    session.ask(pid, write.clone()).unwrap();
    assert_eq!(session.ask(pid, write), Err(TraceError::WatchpointOverlap(watched)));
    let misaligned = session.ask(pid, range(watched + 2, 4, WatchKind::Write));
    assert_eq!(misaligned, Err(TraceError::Address(watched + 2)));
    let odd = session.ask(pid, range(watched, 3, WatchKind::Write));
    assert_eq!(odd, Err(TraceError::Length(3)));
    session.tell("w");
    let notice = session.notice();
    assert_eq!((notice.tid, notice.reason), (pid, NoticeReason::WatchWrite));
    assert_eq!(notice.access, watched);
    assert_eq!(session.word(watched), 1, "the thread stops after the write");
    session.tracer.resume(pid).unwrap();
    session.done();
    session.tell("l");
    session.done();
    session.ask(pid, Request::ResetWatchpoint(watched)).unwrap();
    assert_eq!(
        session.ask(pid, Request::ResetWatchpoint(watched)),
        Err(TraceError::Address(watched))
    );
    // The watchpoint is for reads only. The hit of the read is reported, and the hit of the write
    // is not.
    session.ask(pid, range(watched, 8, WatchKind::Read)).unwrap();
    session.tell("l");
    assert_eq!(session.notice().reason, NoticeReason::WatchRead);
    session.tracer.resume(pid).unwrap();
    session.done();
    session.ask(pid, Request::ResetWatchpoint(watched)).unwrap();
    session.ask(pid, range(watched, 32, WatchKind::ReadWrite)).unwrap();
    assert_eq!(
        session.ask(pid, range(watched + 32, 1, WatchKind::Write)),
        Err(TraceError::NoDebugRegister(pid))
    );
    // Another thread has its own registers.
    let worker = session.thread("worker-0");
    session.ask(worker, range(watched + 32, 16, WatchKind::Write)).unwrap();
    session.detach();
    for command in ["w", "l"] {
        session.tell(command);
        session.done();
    }
    session.assert_works();
}

#[test]
fn debug_registers_are_set_directly_if_the_service_does_not_use_them() {
    let Some(mut session) = Session::attached("0") else { return };
    let (pid, watched, spot) = (session.pid, session.address("watched"), session.address("spot"));
    let range = WatchRange { address: watched, length: 8, kind: WatchKind::Write };
    session.ask(pid, Request::SetWatchpoint(range)).unwrap();
    let taken = session.ask(pid, Request::SetOneDebug(0, spot));
    assert_eq!(taken, Err(TraceError::NoDebugRegister(pid)));
    session.ask(pid, Request::SetOneDebug(1, spot)).unwrap();
    let Ok(Answer::Debug(mut registers)) = session.ask(pid, Request::GetDebug) else { panic!() };
    assert_eq!(registers.addresses, [watched, spot, 0, 0]);
    registers.control |= 0b100;
    session.ask(pid, Request::SetDebug(registers)).unwrap();
    session.tell("s");
    let notice = session.notice();
    assert_eq!((notice.reason, notice.instruction), (NoticeReason::Breakpoint, spot));
    session.tracer.resume(pid).unwrap();
    session.done();
    assert!(session.ask(pid, Request::SetOneDebug(4, 1)).is_err());
    registers.addresses[1] = u64::MAX;
    assert!(session.ask(pid, Request::SetDebug(registers)).is_err(), "an address of the kernel");
    session.tell("w");
    assert_eq!(session.notice().reason, NoticeReason::WatchWrite);
    session.detach();
}
