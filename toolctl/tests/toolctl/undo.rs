//! Tests of the state of a process after a tool has died, while another tool remains attached.

use crate::support::Session;
use score_toolctl::tracer::*;

#[test]
fn a_thread_at_a_notice_of_a_dead_tool_gets_its_own_signal() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    for (round, continuation) in (1..).zip([None, Some(0), Some(libc::SIGUSR2)]) {
        session.tracer.set_notify(pid, SignalSet::of(&[libc::SIGUSR1])).unwrap();
        session.tell("r");
        session.notice();
        if let Some(signal) = continuation {
            session.tracer.set_continuation(pid, 0, signal).unwrap();
        }
        session.tracer.release_all(pid).unwrap();
        let line = session.done();
        assert!(line.contains(&format!("handled {round}")), "{continuation:?}: {line}");
    }
    session.detach();
    session.assert_works();
}

#[test]
fn the_preferences_of_a_dead_tool_have_no_effect_on_the_next_tool() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    let wanted = Preferences { fast_breakpoints: true, fast_watchpoints: true };
    session.tracer.set_preferences(pid, wanted).unwrap();
    session.tracer.release_all(pid).unwrap();
    assert_eq!(session.tracer.preferences(pid), Preferences::default());
    let (handler, spot) = (session.address("trap_handler"), session.address("spot"));
    session.ask(pid, Request::InstallTrapHandler(handler)).unwrap();
    session.tracer.set_breakpoint(pid, spot, BreakpointKind::Fast).unwrap();
    assert_eq!(session.notice().reason, NoticeReason::Breakpoint);
    session.tracer.release_all(pid).unwrap();
    session.detach();
    session.assert_works();
}
