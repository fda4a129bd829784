//! A session without gdb: checks which commands it writes, and how it handles good and bad lines.

use super::*;
use proptest::prelude::*;

struct Dialog {
    session: Session,
    now: MonotonicTime,
    last: u64,
}

impl Dialog {
    fn new() -> Self {
        let mut session = Session::new(3);
        session.set_terminal("/dev/pts/9".to_owned());
        Self { session, now: Duration::from_secs(1), last: 0 }
    }

    fn step(&mut self, input: SessionInput) -> Vec<SessionAction> {
        let mut actions = Vec::new();
        self.session.step(input, self.now, &mut actions);
        actions
    }

    fn begin(&mut self, operation: Operation) -> Vec<SessionAction> {
        self.last += 1;
        self.step(SessionInput::Begin(CommandId(self.last), operation))
    }

    fn line(&mut self, line: &str) -> Vec<SessionAction> {
        self.step(SessionInput::Line(line.as_bytes().to_vec()))
    }

    /// Answers the last command of the session.
    fn result(&mut self, class: &str) -> Vec<SessionAction> {
        let token = self.session.last_token;
        self.line(&format!("{token}^{class}"))
    }

    /// A process that has stopped in main.
    fn started() -> Self {
        let mut dialog = Self::new();
        dialog.begin(start());
        dialog.line("(gdb) ");
        while !matches!(dialog.result("done").as_slice(), [] | [SessionAction::Answer(..)]) {}
        dialog.line("*running,thread-id=\"all\"");
        let actions = dialog.line(STOPPED);
        assert!(matches!(actions.as_slice(), [SessionAction::Answer(..)]), "{actions:?}");
        dialog
    }
}

const STOPPED: &str =
    r#"*stopped,reason="breakpoint-hit",frame={addr="0x1",func="main",file="x.c",line="7"}"#;

fn start() -> Operation {
    let (executable, arguments) = ("./x".to_owned(), vec!["a b".to_owned()]);
    Operation::Start { executable, arguments, stop_in_main: true }
}

fn failed(command: u64, text: &str) -> SessionAction {
    SessionAction::Answer(CommandId(command), DebugEvent::Failed(text.to_owned()))
}

#[test]
fn a_start_loads_the_program_sets_a_breakpoint_in_main_and_answers_when_it_is_reached() {
    let mut dialog = Dialog::new();
    let [SessionAction::Spawn(arguments)] = &dialog.begin(start())[..] else { panic!() };
    assert!(arguments.ends_with(&["--args", "./x", "a b"].map(str::to_owned)), "{arguments:?}");
    assert_eq!(dialog.line("=thread-group-added,id=\"i1\""), []);
    let mut written = Vec::new();
    let mut actions = dialog.line("(gdb) ");
    while let [SessionAction::Write(text)] = &actions[..] {
        written.push(text.trim_start_matches(|char: char| char.is_ascii_digit()).to_owned());
        actions = dialog.result(if written.len() == 6 { "running" } else { "done" });
    }
    assert_eq!(actions, []);
    let expected = [
        "-gdb-set confirm off\n",
        "-gdb-set pagination off\n",
        "-gdb-set mi-async on\n",
        "-inferior-tty-set /dev/pts/9\n",
        "-break-insert -t main\n",
        "-exec-run\n",
    ];
    assert_eq!(written, expected);
    dialog.line("*running,thread-id=\"all\"");
    let frame = StackFrame { function: "main".to_owned(), file: "x.c".to_owned(), line: 7 };
    let event = DebugEvent::Stopped { reason: StopReason::Breakpoint, frame };
    assert_eq!(dialog.line(STOPPED), [SessionAction::Answer(CommandId(1), event)]);
}

#[test]
fn an_attach_uses_the_pid_of_its_rank_and_accepts_result_and_stop_in_any_order() {
    for stop_first in [false, true] {
        let mut dialog = Dialog::new();
        dialog.begin(Operation::Attach { first: 2, pids: vec![70, 71, 72] });
        dialog.line("(gdb)");
        dialog.result("done");
        dialog.result("done");
        let [SessionAction::Write(text)] = &dialog.result("done")[..] else { panic!() };
        assert!(text.ends_with("-target-attach 71\n"), "{text}");
        let stop = "*stopped,frame={func=\"read\",from=\"libc.so.6\"}";
        let mut actions = Vec::new();
        if stop_first {
            actions.extend(dialog.line(stop));
        }
        actions.extend(dialog.result("done"));
        if !stop_first {
            actions.extend(dialog.line(stop));
        }
        let frame = StackFrame { function: "read".into(), file: "libc.so.6".into(), line: 0 };
        let event = DebugEvent::Stopped { reason: StopReason::Attached, frame };
        assert_eq!(actions, [SessionAction::Answer(CommandId(1), event)]);
    }
    let mut dialog = Dialog::new();
    let actions = dialog.begin(Operation::Attach { first: 4, pids: vec![70] });
    assert_eq!(actions, [failed(1, "the command has no process id for this rank")]);
}

#[test]
fn an_operation_that_the_process_cannot_do_now_is_refused_with_the_reason() {
    let mut dialog = Dialog::new();
    assert_eq!(
        dialog.begin(Operation::Where),
        [failed(1, "there is no process; start one, or attach")]
    );
    let mut dialog = Dialog::started();
    let text = "a process is being debugged; kill it or detach first";
    assert_eq!(dialog.begin(start()), [failed(2, text)]);
    assert_eq!(dialog.begin(Operation::Interrupt), [failed(3, "the process does not run")]);
    dialog.begin(Operation::Continue);
    dialog.result("running");
    dialog.line("*running,thread-id=\"all\"");
    let text = "the process runs; interrupt it first";
    assert_eq!(dialog.begin(Operation::Where), [failed(5, text)]);
    assert!(matches!(&dialog.begin(Operation::Interrupt)[..], [SessionAction::Write(_)]));
    dialog.result("done");
    let exited = dialog.line("*stopped,reason=\"exited\",exit-code=\"012\"");
    assert_eq!(exited, [SessionAction::Answer(CommandId(4), DebugEvent::Exited { code: 10 })]);
    assert_eq!(dialog.begin(Operation::Continue), [failed(7, "there is no process")]);
}

#[test]
fn an_error_of_gdb_is_the_answer_and_gdb_continues() {
    let mut dialog = Dialog::started();
    dialog.begin(Operation::Print { expression: "no\"thing".to_owned() });
    let actions = dialog.result("error,msg=\"No symbol \\\"no\\\" in current context.\"");
    assert_eq!(actions, [failed(2, "No symbol \"no\" in current context.")]);
    let actions = dialog.begin(Operation::Print { expression: "\"a\"".to_owned() });
    let [SessionAction::Write(text)] = &actions[..] else { panic!("{actions:?}") };
    assert!(text.ends_with("-data-evaluate-expression \"\\\"a\\\"\"\n"), "{text}");
    let value = SessionAction::Answer(CommandId(3), DebugEvent::Value("97 'a'".to_owned()));
    assert_eq!(dialog.result("done,value=\"97 'a'\""), [value]);
}

// Promise of
// `a_killed_gdb_is_an_error_of_its_rank_and_a_running_process_can_be_interrupted`.
#[test]
fn garbage_silence_and_the_end_of_gdb_fail_all_waiting_operations_and_the_next_start_is_possible() {
    type Trouble = (fn(&mut Dialog) -> Vec<SessionAction>, &'static str);
    let troubles: [Trouble; 4] = [
        (|dialog| dialog.line("Segmentation fault"), "gdb printed"),
        (|dialog| dialog.step(SessionInput::Line(vec![b'x'; 2 << 20])), "more than 1048576 bytes"),
        (
            |dialog| dialog.step(SessionInput::Ended("signal: 9".to_owned())),
            "gdb has ended: signal: 9",
        ),
        (
            |dialog| {
                dialog.now = dialog.session.deadline().unwrap();
                dialog.step(SessionInput::Tick)
            },
            "gdb has not answered -stack-list-frames",
        ),
    ];
    for (trouble, expected) in troubles {
        let mut dialog = Dialog::started();
        dialog.begin(Operation::Where);
        dialog.begin(Operation::Continue);
        let actions = trouble(&mut dialog);
        let [
            SessionAction::Answer(CommandId(2), DebugEvent::Failed(first)),
            SessionAction::Answer(CommandId(3), DebugEvent::Failed(second)),
            SessionAction::Kill,
        ] = &actions[..]
        else {
            panic!("{actions:?}")
        };
        assert!(first.contains(expected) && first == second, "{first}");
        assert_eq!(dialog.begin(Operation::Where), [failed(4, first)]);
        assert!(matches!(&dialog.begin(start())[..], [SessionAction::Spawn(_)]));
    }
    // gdb never prints its prompt.
    let mut dialog = Dialog::new();
    dialog.begin(start());
    dialog.now += START_TIMEOUT;
    let actions = dialog.step(SessionInput::Tick);
    assert_eq!(actions[0], failed(1, "gdb has not started within 60s"));
}

#[test]
fn operations_wait_for_each_other_and_a_flood_of_them_is_refused() {
    let mut dialog = Dialog::started();
    dialog.begin(Operation::Where);
    for _ in 0..MAX_QUEUED {
        assert_eq!(dialog.begin(Operation::Where), []);
    }
    let refused = dialog.begin(Operation::Where);
    assert_eq!(refused, [failed(MAX_QUEUED as u64 + 3, "64 operations wait for gdb")]);
    let actions = dialog.result("done,stack=[]");
    let frames = SessionAction::Answer(CommandId(2), DebugEvent::Frames(Vec::new()));
    assert_eq!(actions[0], frames);
    assert!(matches!(&actions[1..], [SessionAction::Write(_)]));
}

#[test]
fn a_kill_and_a_detach_end_gdb_and_answer_the_command_that_waits_for_a_stop() {
    for operation in [Operation::Kill, Operation::Detach] {
        let mut dialog = Dialog::started();
        dialog.begin(Operation::Continue);
        dialog.result("running");
        dialog.line("*running,thread-id=\"all\"");
        dialog.begin(operation);
        let expected = [
            failed(2, "the debugger has detached from the process"),
            SessionAction::Kill,
            SessionAction::Answer(CommandId(3), DebugEvent::Done),
        ];
        assert_eq!(dialog.result("done"), expected);
    }
}

proptest! {
    #[test]
    fn each_operation_gets_one_answer_for_any_output_of_gdb(
        lines in proptest::collection::vec(
            prop_oneof![
                Just("(gdb)".to_owned()),
                Just(STOPPED.to_owned()),
                Just("*running".to_owned()),
                Just("*stopped,reason=\"exited-normally\"".to_owned()),
                (0u64..12, "(done|error|running|exit)").prop_map(|(n, class)| format!("{n}^{class}")),
                "[^\n]{0,12}",
            ],
            0..30,
        ),
        operations in proptest::collection::vec(0usize..6, 1..12),
    ) {
        let mut dialog = Dialog::new();
        let mut answers = Vec::new();
        let mut collect = |actions: Vec<SessionAction>| {
            answers.extend(actions.into_iter().filter_map(|action| match action {
                SessionAction::Answer(command, _) => Some(command.0),
                _ => None,
            }));
        };
        let mut lines = lines.into_iter();
        for operation in operations {
            collect(dialog.begin(match operation {
                0 | 1 => start(),
                2 => Operation::Where,
                3 => Operation::Continue,
                4 => Operation::Interrupt,
                _ => Operation::Kill,
            }));
            for line in lines.by_ref().take(4) {
                collect(dialog.line(&line));
            }
        }
        collect(dialog.step(SessionInput::Ended("the test ends".to_owned())));
        answers.sort_unstable();
        prop_assert_eq!(answers, (1..=dialog.last).collect::<Vec<_>>());
    }
}
