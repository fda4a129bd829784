//! Tests of system calls that the process executes for a tool: memory, and the handler of fast
//! breakpoints.

use std::time::Duration;

use crate::support::Session;
use score_toolctl::tracer::*;

fn allocate(session: &mut Session, length: u64) -> u64 {
    match session.ask(session.pid, Request::Allocate(length)) {
        Ok(Answer::Address(address)) => address,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_is_allocated_and_freed_while_threads_work_and_sleep() {
    let Some(mut session) = Session::attached("3") else { return };
    let pid = session.pid;
    session.tell("n");
    let mut addresses = Vec::new();
    for round in 0..30 {
        let address = allocate(&mut session, 5000);
        assert_eq!(address % 4096, 0);
        assert_eq!(session.tracer.read_memory(pid, address, 5000).unwrap(), vec![0; 5000]);
        session.tracer.write_memory(pid, address, &[round; 8], false).unwrap();
        addresses.push(address);
        session.pump_for(Duration::from_millis(3));
    }
    assert_eq!(session.line(), "slept 0 1", "the interrupted call continues");
    session.done();
    let first = addresses[0];
    let wrong = session.ask(pid, Request::Free(first, 9000));
    assert_eq!(wrong, Err(TraceError::Address(first)));
    let mapped = session.address("counters") & !4095;
    let wrong = session.ask(pid, Request::Free(mapped, 4096));
    assert_eq!(wrong, Err(TraceError::Address(mapped)));
    session.ask(pid, Request::Free(first, 5000)).unwrap();
    assert!(session.tracer.read_memory(pid, first, 1).is_err());
    assert_eq!(session.ask(pid, Request::Free(first, 5000)), Err(TraceError::Address(first)));
    let refused = session.ask(pid, Request::Allocate(1 << 62));
    assert!(matches!(refused, Err(TraceError::NoMemory(..))), "{refused:?}");
    assert!(session.ask(pid, Request::Allocate(0)).is_err());
    session.detach();
    let is_left = |address: &u64| memory::read_raw(pid, *address, &mut [0]);
    assert!(!addresses.iter().any(is_left), "detaching gives all of it back");
    session.assert_works();
}

#[test]
fn breakpoints_of_a_process_have_a_limit() {
    let Some(mut session) = Session::attached("0") else { return };
    let pid = session.pid;
    let start = allocate(&mut session, breakpoints::MAX_BREAKPOINTS as u64 + 1);
    let end = start + breakpoints::MAX_BREAKPOINTS as u64;
    for address in start..end {
        session.tracer.set_breakpoint(pid, address, BreakpointKind::Normal).unwrap();
    }
    let refused = session.tracer.set_breakpoint(pid, end, BreakpointKind::Normal);
    assert!(matches!(refused, Err(TraceError::Breakpoint(..))), "{refused:?}");
    session.tracer.reset_breakpoint(pid, start, 0).unwrap();
    session.tracer.set_breakpoint(pid, end, BreakpointKind::Normal).unwrap();
    session.detach();
}

#[test]
fn memory_is_allocated_at_a_notice_and_the_signal_is_kept() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGSEGV])).unwrap();
    session.tell("g");
    session.notice();
    let before = session.special(pid);
    allocate(&mut session, 4096);
    assert_eq!(session.special(pid), before, "registers, and the address of the fault");
    assert_eq!(before.fault_address, 0x1230);
    session.tracer.set_continuation(pid, 0, libc::SIGSEGV).unwrap();
    session.tracer.resume(pid).unwrap();
    let status = session.event("exit", |event| match event {
        Event::Exited { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(status & 0x7f, libc::SIGSEGV);
}

#[test]
fn fast_breakpoints_and_watchpoints_invoke_the_handler() {
    let Some(mut session) = Session::attached("1") else { return };
    let (pid, spot, handler) =
        (session.pid, session.address("spot"), session.address("trap_handler"));
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Fast).unwrap();
    assert_eq!(session.notice().reason, NoticeReason::Breakpoint, "fast ones are disabled");
    session.ask(pid, Request::InstallTrapHandler(handler)).unwrap();
    assert!(session.ask(pid, Request::InstallTrapHandler(handler)).is_err());
    let wanted = Preferences { fast_breakpoints: true, fast_watchpoints: true };
    session.tracer.set_preferences(pid, wanted).unwrap();
    session.tracer.resume(pid).unwrap();
    let before = session.variable("spots", 0);
    session.until("traps", |it| (it.variable("traps", 0) > 50).then_some(()));
    let (traps, passed) = (session.variable("traps", 0), session.variable("spots", 0) - before);
    assert!((traps - passed).abs() <= 3, "one call of the handler a hit: {traps} {passed}");
    assert_eq!(session.variable("last_trap_address", 0) as u64, spot);
    session.assert_no_notice();
    let original = session.tracer.read_memory(pid, spot, 1).unwrap()[0];
    session.tracer.reset_breakpoint(pid, spot, original).unwrap();
    let watched = session.address("watched");
    let range = WatchRange { address: watched, length: 8, kind: WatchKind::Write };
    session.ask(pid, Request::SetWatchpoint(range)).unwrap();
    session.pump_for(Duration::from_millis(10));
    let traps = session.variable("traps", 0);
    session.tell("w");
    let line = session.done();
    assert!(line.ends_with(&format!("traps {}", traps + 1)), "{line} after {traps}");
    assert!(session.ask(pid, Request::RemoveTrapHandler(handler + 1)).is_err());
    session.ask(pid, Request::RemoveTrapHandler(handler)).unwrap();
    assert!(session.ask(pid, Request::RemoveTrapHandler(handler)).is_err());
    let (caught, _) = procfs::handled_signals(pid);
    assert_eq!(caught >> (libc::SIGTRAP - 1) & 1, 0, "the former action is there again");
    session.ask(pid, Request::InstallTrapHandler(handler)).unwrap();
    session.detach();
    let (caught, _) = procfs::handled_signals(pid);
    assert_eq!(caught >> (libc::SIGTRAP - 1) & 1, 0, "also after detaching");
    session.assert_works();
}
