//! Tests of the watchpoints that new threads inherit.

use std::time::Duration;

use crate::support::Session;
use score_toolctl::tracer::*;

/// Sets a watchpoint for writes to a variable of the program.
fn watch(session: &mut Session, tid: Tid, name: &str) {
    let range = WatchRange { address: session.address(name), length: 8, kind: WatchKind::Write };
    session.ask(tid, Request::SetWatchpoint(range)).unwrap();
}

#[test]
fn a_new_thread_inherits_the_watchpoints_of_its_creator_if_the_policy_permits_it() {
    let Some(mut session) = Session::attached("1") else { return };
    let (pid, watched) = (session.pid, session.address("watched"));
    watch(&mut session, pid, "watched");
    session.tell("W");
    let notice = session.notice();
    assert_eq!((notice.reason, notice.access), (NoticeReason::WatchWrite, watched));
    assert_ne!(notice.tid, pid);
    let again = session.ask(notice.tid, Request::ResetWatchpoint(watched));
    assert_eq!(again, Ok(Answer::Done), "it is a watchpoint of the thread");
    session.tracer.resume(pid).unwrap();
    session.done();
    session.tracer.set_watch_policy(pid, WatchPolicy::NoPropagate).unwrap();
    session.tell("W");
    session.done();
    session.tracer.set_watch_policy(pid, WatchPolicy::Propagate).unwrap();
    session.ask(pid, Request::ResetWatchpoint(watched)).unwrap();
    // The watchpoint of another thread is not inherited.
    let worker = session.thread("worker-0");
    watch(&mut session, worker, "watched");
    session.tell("W");
    session.done();
    session.assert_no_notice();
    session.detach();
    session.assert_works();
}

#[test]
fn each_of_many_new_threads_has_the_watchpoint_before_its_first_instruction() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    watch(&mut session, pid, "churned");
    // A new thread creates all further threads, and each of them writes once.
    session.tell("c");
    for hits in 1..=500 {
        let notice = session.notice();
        assert_eq!(notice.reason, NoticeReason::WatchWrite);
        // Three other threads may have written, and wait for their notices.
        let churned = session.variable("churned", 0);
        assert!((hits..=hits + 3).contains(&churned), "{churned} writes, {hits} notices");
        session.tracer.resume(pid).unwrap();
    }
    session.detach();
    session.assert_works();
}

#[test]
fn the_inherited_watchpoints_of_a_dead_tool_are_removed() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    watch(&mut session, pid, "churned");
    session.tell("c");
    for hits in 0..20 {
        session.notice();
        // The tool dies at different moments of the creation of threads.
        session.tracer.resume(pid).unwrap();
        session.pump_for(Duration::from_micros(200 * hits));
    }
    session.tracer.release_all(pid).unwrap();
    // A thread may have written before its watchpoint was removed.
    let wanted = session.variable("churned", 0) + 100;
    session.until("work after the end of the tool", |session| {
        session.answer_notices(|_| None::<()>);
        (session.variable("churned", 0) >= wanted).then_some(())
    });
    session.forget_events();
    let wanted = session.variable("churned", 0) + 500;
    session.until("work without a notice", |session| {
        session.assert_no_notice();
        (session.variable("churned", 0) >= wanted).then_some(())
    });
    session.detach();
    session.assert_works();
}

#[test]
fn a_thread_whose_creation_is_not_reported_starts_later() {
    let Some(mut session) = Session::attached("1") else { return };
    let pid = session.pid;
    watch(&mut session, pid, "watched");
    session.tell("k");
    session.done();
    session.until("new thread", |it| (it.variable("churned", 0) == 1).then_some(()));
    session.tell("k");
    session.done();
    session.detach();
    session.until("new thread", |it| (it.variable("churned", 0) == 2).then_some(()));
    session.assert_works();
}
