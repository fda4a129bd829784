use super::*;
use score_proto::message::NodeUsage;

fn session() -> Session {
    Session::new(Statistics::Off, vec![])
}

fn on(session: &mut Session, event: Event) -> Vec<Action> {
    at(session, event, Instant::now())
}

fn at(session: &mut Session, event: Event, now: Instant) -> Vec<Action> {
    let mut actions = Vec::new();
    session.on(event, now, &mut actions);
    actions
}

fn output(stream: Stream, bytes: &[u8]) -> Event {
    Event::Up(Up::Output { host: 0, stream, bytes: bytes.to_vec() })
}

fn end(code: u8) -> Event {
    Event::Up(Up::Finished(JobEnd { code, usage: vec![], elapsed_ns: 0 }))
}

fn accepted() -> Event {
    Event::Up(Up::Accepted { job: 3, nodes: 4, hosts: 1 })
}

fn send(message: Down) -> Action {
    Action::Send(message)
}

#[test]
fn signals_are_treated_as_table_3_1_says() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGABRT, libc::SIGUSR1, libc::SIGUSR2] {
        assert_eq!(on(&mut session(), Event::Signal(signal)), [send(Down::Signal(signal))]);
    }
    for signal in [libc::SIGURG, libc::SIGWINCH] {
        assert_eq!(on(&mut session(), Event::Signal(signal)), [send(Down::Signal(signal))]);
    }
    assert_eq!(on(&mut session(), Event::Signal(libc::SIGTERM)), [send(Down::Kill)]);
    let stop = [send(Down::Suspend), Action::StopSelf];
    assert_eq!(on(&mut session(), Event::Signal(libc::SIGTSTP)), stop);
    let go = [Action::Continued, send(Down::Resume)];
    assert_eq!(on(&mut session(), Event::Signal(libc::SIGCONT)), go);
}

#[test]
fn sigquit_is_swallowed_with_one_line() {
    let actions = on(&mut session(), Event::Signal(libc::SIGQUIT));
    assert!(matches!(&actions[..], [Action::Notice(Level::Warning, line)] if !line.contains('\n')));
}

#[test]
fn the_third_interrupt_within_two_seconds_kills_and_a_slow_one_does_not() {
    let (mut session, start) = (session(), Instant::now());
    let mut interrupt = |ms| {
        let now = start + Duration::from_millis(ms);
        let actions = at(&mut session, Event::Signal(libc::SIGINT), now);
        actions.contains(&send(Down::Kill))
    };
    assert_eq!([0, 500, 3000, 3500, 4000].map(&mut interrupt), [false, false, false, false, true]);
}

#[test]
fn a_second_sigterm_ends_scrun_at_once() {
    let mut session = session();
    on(&mut session, Event::Signal(libc::SIGTERM));
    assert_eq!(on(&mut session, Event::Signal(libc::SIGTERM)), [Action::Abandon(143)]);
}

#[test]
fn a_flush_is_answered_after_all_that_came_before_it_is_written() {
    let mut session = session();
    on(&mut session, output(Stream::Stdout, b"12345"));
    on(&mut session, output(Stream::Stderr, b"123"));
    assert_eq!(on(&mut session, Event::Up(Up::Flush(9))), []);
    on(&mut session, output(Stream::Stdout, b"later"));
    assert_eq!(on(&mut session, Event::Taken([5, 0])), [send(Down::OutputTaken(5))]);
    let both = [send(Down::OutputTaken(3)), send(Down::Flushed(9))];
    assert_eq!(on(&mut session, Event::Taken([5, 3])), both);
    assert_eq!(on(&mut session, Event::Taken([5, 3])), []);
    assert_eq!(on(&mut session, Event::Up(Up::Flush(10))), []);
    let both = [send(Down::OutputTaken(5)), send(Down::Flushed(10))];
    assert_eq!(on(&mut session, Event::Taken([10, 3])), both);
}

#[test]
fn a_reader_that_has_gone_closes_the_stream_once() {
    let mut session = session();
    let gone = || Event::OutputFailed(Stream::Stdout, libc::EPIPE);
    assert_eq!(on(&mut session, gone()), [send(Down::OutputClosed(Stream::Stdout))]);
    assert_eq!(on(&mut session, gone()), []);
    assert_eq!(on(&mut session, end(141)), [Action::Finish(141)]);
}

#[test]
fn a_full_disk_ends_the_job_with_one_line_and_its_own_code() {
    let mut session = session();
    let actions = on(&mut session, Event::OutputFailed(Stream::Stdout, libc::ENOSPC));
    let [Action::Notice(Level::Error, line), Action::Send(Down::Kill)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(line.contains("standard output") && line.contains("No space left"), "{line}");
    assert_eq!(on(&mut session, end(137)), [Action::Finish(OUTPUT_FAILED)]);
}

#[test]
fn a_full_disk_after_the_end_still_changes_the_code() {
    let mut session = session();
    on(&mut session, end(0));
    let actions = on(&mut session, Event::OutputFailed(Stream::Stdout, libc::ENOSPC));
    assert_eq!(actions.last(), Some(&Action::Finish(OUTPUT_FAILED)));
}

#[test]
fn a_lost_daemon_is_named_and_its_directory_removed() {
    let mut session = session();
    on(&mut session, Event::Up(Up::Directory("/run/scored/3".into())));
    on(&mut session, accepted());
    let actions = on(&mut session, Event::DaemonGone("scored was killed".into()));
    let [Action::Notice(Level::Error, line), Action::RemoveDirectory(dir), Action::Finish(70)] =
        &actions[..]
    else {
        panic!("{actions:?}")
    };
    assert_eq!(line, "job 3 is lost: scored was killed");
    assert_eq!(dir, "/run/scored/3");
}

#[test]
fn a_daemon_that_dies_before_it_has_accepted_leaves_no_directory() {
    let mut session = session();
    on(&mut session, Event::Up(Up::Directory("/run/scored/3".into())));
    let actions = on(&mut session, Event::DaemonGone("scored was killed".into()));
    assert!(
        actions.contains(&Action::RemoveDirectory("/run/scored/3".into())),
        "the directory stays: {actions:?}"
    );
}

#[test]
fn a_daemon_that_goes_after_the_end_is_no_event() {
    let mut session = session();
    on(&mut session, accepted());
    on(&mut session, end(0));
    assert_eq!(on(&mut session, Event::DaemonGone("x".into())), []);
}

#[test]
fn another_protocol_version_is_refused_by_both_numbers() {
    let actions = on(&mut session(), Event::Up(Up::Hello { version: 99 }));
    let [Action::Notice(Level::Error, line), Action::Finish(70)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(line.contains("99") && line.contains(&PROTOCOL_VERSION.to_string()));
}

#[test]
fn a_refused_job_ends_with_its_code() {
    let refused = Up::Refused { reason: "no".into(), code: 126 };
    let expected = [Action::Notice(Level::Error, "no".into()), Action::Finish(126)];
    assert_eq!(on(&mut session(), Event::Up(refused)), expected);
}

#[test]
fn after_the_end_a_signal_lets_the_user_out_of_a_stopped_reader() {
    let mut session = session();
    on(&mut session, end(0));
    assert_eq!(on(&mut session, Event::Signal(libc::SIGINT)), [Action::Abandon(130)]);
    assert_eq!(on(&mut session, Event::Signal(libc::SIGUSR1)), []);
}

#[test]
fn input_flows_in_the_granted_window_and_its_end_is_passed_on() {
    let mut session = session();
    assert_eq!(on(&mut session, Event::Up(Up::StdinWindow(7))), [Action::Read(7)]);
    assert_eq!(on(&mut session, Event::Stdin(vec![1])), [send(Down::Stdin(vec![1]))]);
    assert_eq!(on(&mut session, Event::StdinEnd(None)), [send(Down::StdinEof)]);
    assert_eq!(on(&mut session, Event::Up(Up::StdinClosed)), [Action::StopReading]);
    let actions = on(&mut session, Event::StdinEnd(Some("EISDIR".into())));
    assert!(matches!(&actions[0], Action::Notice(Level::Warning, line) if line.contains("EISDIR")));
}

#[test]
fn statistics_are_printed_before_the_end() {
    let mut session = Session::new(Statistics::Summary, vec![vec!["p".into()]]);
    on(&mut session, accepted());
    let usage = NodeUsage {
        stage: 0,
        element: 0,
        node: 0,
        user_ns: 0,
        system_ns: 0,
        max_rss_kib: 5,
        code: 0,
        ..NodeUsage::default()
    };
    let end = Up::Finished(JobEnd { code: 0, usage: vec![usage], elapsed_ns: 1 });
    let actions = on(&mut session, Event::Up(end));
    assert!(
        matches!(&actions[..], [Action::Print(text), Action::Finish(0)] if text.contains("job 3"))
    );
}
