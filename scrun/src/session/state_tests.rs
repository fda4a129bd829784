use super::*;
use score_proto::exit_code::EXIT_IO_ERROR;
use score_proto::ids::JobId;
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::message::NodeUsage;

fn session() -> SessionState {
    SessionState::new(Statistics::Off, vec![])
}

fn step(session: &mut SessionState, event: Event) -> Vec<Action> {
    step_at(session, event, Instant::now())
}

fn step_at(session: &mut SessionState, event: Event, now: Instant) -> Vec<Action> {
    let mut actions = Vec::new();
    session.on_event(event, now, &mut actions);
    actions
}

fn output(stream: Stream, bytes: &[u8]) -> Event {
    Event::JobAnswer(JobAnswer::Output { host: JobHostId(0), stream, bytes: bytes.to_vec() })
}

fn finished(code: u8) -> Event {
    Event::JobAnswer(JobAnswer::Finished(JobEnd { code, usage: vec![], elapsed_ns: 0 }))
}

fn accepted() -> Event {
    Event::JobAnswer(JobAnswer::Accepted { job: JobId(3), nodes: 4, hosts: 1 })
}

fn send(message: JobRequest) -> Action {
    Action::Send(message)
}

#[test]
fn signals_are_treated_according_to_table_3_1() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGABRT, libc::SIGUSR1, libc::SIGUSR2] {
        assert_eq!(step(&mut session(), Event::Signal(signal)), [send(JobRequest::Signal(signal))]);
    }
    for signal in [libc::SIGURG, libc::SIGWINCH] {
        assert_eq!(step(&mut session(), Event::Signal(signal)), [send(JobRequest::Signal(signal))]);
    }
    let kill = [Action::ReportAbort, send(JobRequest::Kill)];
    assert_eq!(step(&mut session(), Event::Signal(libc::SIGTERM)), kill);
    let stop = [send(JobRequest::Suspend), Action::StopSelf];
    assert_eq!(step(&mut session(), Event::Signal(libc::SIGTSTP)), stop);
    let resume = [Action::RecheckForeground, send(JobRequest::Resume)];
    assert_eq!(step(&mut session(), Event::Signal(libc::SIGCONT)), resume);
}

#[test]
fn sigquit_only_prints_one_line() {
    let actions = step(&mut session(), Event::Signal(libc::SIGQUIT));
    assert!(matches!(&actions[..], [Action::Notice(Level::Warning, line)] if !line.contains('\n')));
}

#[test]
fn the_third_interrupt_within_two_seconds_kills_and_a_slow_one_does_not() {
    let (mut session, start) = (session(), Instant::now());
    let mut interrupt = |ms| {
        let now = start + Duration::from_millis(ms);
        let actions = step_at(&mut session, Event::Signal(libc::SIGINT), now);
        actions.contains(&send(JobRequest::Kill))
    };
    assert_eq!([0, 500, 3000, 3500, 4000].map(&mut interrupt), [false, false, false, false, true]);
}

#[test]
fn a_second_sigterm_ends_scrun_at_once() {
    let mut session = session();
    step(&mut session, Event::Signal(libc::SIGTERM));
    assert_eq!(step(&mut session, Event::Signal(libc::SIGTERM)), [Action::Abandon(143)]);
}

#[test]
fn a_flush_is_answered_after_all_earlier_output_is_written() {
    let mut session = session();
    step(&mut session, output(Stream::Stdout, b"12345"));
    step(&mut session, output(Stream::Stderr, b"123"));
    assert_eq!(step(&mut session, Event::JobAnswer(JobAnswer::Flush(9))), []);
    step(&mut session, output(Stream::Stdout, b"later"));
    assert_eq!(step(&mut session, Event::OutputWritten([5, 0])), [send(JobRequest::OutputAck(5))]);
    let both = [send(JobRequest::OutputAck(3)), send(JobRequest::Flushed(9))];
    assert_eq!(step(&mut session, Event::OutputWritten([5, 3])), both);
    assert_eq!(step(&mut session, Event::OutputWritten([5, 3])), []);
    assert_eq!(step(&mut session, Event::JobAnswer(JobAnswer::Flush(10))), []);
    let both = [send(JobRequest::OutputAck(5)), send(JobRequest::Flushed(10))];
    assert_eq!(step(&mut session, Event::OutputWritten([10, 3])), both);
}

#[test]
fn a_broken_pipe_closes_the_stream_once() {
    let mut session = session();
    let broken_pipe = || Event::OutputFailed(Stream::Stdout, libc::EPIPE);
    assert_eq!(step(&mut session, broken_pipe()), [send(JobRequest::OutputClosed(Stream::Stdout))]);
    assert_eq!(step(&mut session, broken_pipe()), []);
    assert_eq!(step(&mut session, finished(141)), [Action::Finish(141)]);
}

#[test]
fn a_full_disk_ends_the_job_with_one_line_and_its_own_code() {
    let mut session = session();
    let actions = step(&mut session, Event::OutputFailed(Stream::Stdout, libc::ENOSPC));
    let [Action::Notice(Level::Error, line), Action::Send(JobRequest::Kill)] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert!(line.contains("standard output") && line.contains("No space left"), "{line}");
    assert_eq!(step(&mut session, finished(137)), [Action::Finish(EXIT_IO_ERROR)]);
}

#[test]
fn a_full_disk_after_the_end_still_changes_the_code() {
    let mut session = session();
    step(&mut session, finished(0));
    let actions = step(&mut session, Event::OutputFailed(Stream::Stdout, libc::ENOSPC));
    assert_eq!(actions.last(), Some(&Action::Finish(EXIT_IO_ERROR)));
}

#[test]
fn a_lost_daemon_is_named_and_its_directory_removed() {
    let mut session = session();
    step(&mut session, Event::JobAnswer(JobAnswer::Directory("/run/scored/3".into())));
    step(&mut session, accepted());
    let actions = step(&mut session, Event::DaemonLost("scored was killed".into()));
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
    step(&mut session, Event::JobAnswer(JobAnswer::Directory("/run/scored/3".into())));
    let actions = step(&mut session, Event::DaemonLost("scored was killed".into()));
    assert!(
        actions.contains(&Action::RemoveDirectory("/run/scored/3".into())),
        "the directory stays: {actions:?}"
    );
}

#[test]
fn a_daemon_that_exits_after_the_end_is_ignored() {
    let mut session = session();
    step(&mut session, accepted());
    step(&mut session, finished(0));
    assert_eq!(step(&mut session, Event::DaemonLost("x".into())), []);
}

#[test]
fn a_refused_job_ends_with_its_code() {
    let refused = JobAnswer::Refused { reason: "no".into(), code: 126 };
    let expected = [Action::Notice(Level::Error, "no".into()), Action::Finish(126)];
    assert_eq!(step(&mut session(), Event::JobAnswer(refused)), expected);
    let refused = Event::SessionRefused { reason: "no".into(), code: 126 };
    assert_eq!(step(&mut session(), refused), expected);
}

#[test]
fn a_signal_after_the_end_abandons_unwritten_output() {
    let mut session = session();
    step(&mut session, finished(0));
    let abandon = [Action::ReportAbort, Action::Abandon(130)];
    assert_eq!(step(&mut session, Event::Signal(libc::SIGINT)), abandon);
    assert_eq!(step(&mut session, Event::Signal(libc::SIGUSR1)), []);
}

#[test]
fn input_flows_in_the_granted_window_and_its_end_is_passed_on() {
    let mut session = session();
    assert_eq!(
        step(&mut session, Event::JobAnswer(JobAnswer::StdinWindow(7))),
        [Action::GrantInput(7)]
    );
    assert_eq!(step(&mut session, Event::Stdin(vec![1])), [send(JobRequest::Stdin(vec![1]))]);
    assert_eq!(step(&mut session, Event::StdinEnd(None)), [send(JobRequest::StdinEof)]);
    assert_eq!(step(&mut session, Event::JobAnswer(JobAnswer::StdinClosed)), [Action::StopReading]);
    let actions = step(&mut session, Event::StdinEnd(Some("EISDIR".into())));
    assert!(matches!(&actions[0], Action::Notice(Level::Warning, line) if line.contains("EISDIR")));
}

#[test]
fn statistics_are_printed_before_the_end() {
    let mut session = SessionState::new(Statistics::Summary, vec![vec!["p".into()]]);
    step(&mut session, accepted());
    let usage = NodeUsage {
        stage: 0,
        element: ElementIndex(0),
        node: 0,
        user_ns: 0,
        system_ns: 0,
        max_rss_kib: 5,
        code: 0,
        ..NodeUsage::default()
    };
    let end = JobAnswer::Finished(JobEnd { code: 0, usage: vec![usage], elapsed_ns: 1 });
    let actions = step(&mut session, Event::JobAnswer(end));
    assert!(
        matches!(&actions[..], [Action::Print(text), Action::Finish(0)] if text.contains("job 3"))
    );
}
