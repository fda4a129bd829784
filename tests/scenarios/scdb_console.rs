//! The console of scdb, with commands from a file or from a terminal: stacks and threads of ranks,
//! ranks held and released, breakpoints and watchpoints. The console is a tool like others. When it
//! ends or is killed, the ranks continue.

use std::io::{PipeWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::terminal::Terminal;
use score_tests::tool::TargetJob;
use score_tests::{Outcome, Running, TestEnv, binaries};
use score_tools::wire::ReturnCode;

use crate::gdb_stub::DebuggedJob;

const SCDB_TIMEOUT: Duration = Duration::from_secs(60);
const PROGRAM: &str = "tool_target";

/// The job's address on scdb's command line.
fn job_of(target_job: &TargetJob) -> String {
    target_job.job.job_address()
}

fn scdb(env: &TestEnv, target_job: &TargetJob, args: &[&str]) -> Outcome {
    env.command("scdb").args(&[&job_of(target_job)[..]]).args(args).timeout(SCDB_TIMEOUT).run()
}

fn batch(
    env: &TestEnv,
    target_job: &TargetJob,
    commands: &str,
    args: &[&str],
) -> (PathBuf, Outcome) {
    let file = env.write_file("commands", commands);
    let outcome = scdb(env, target_job, &[&["-batch", file.to_str().unwrap()][..], args].concat());
    (file, outcome)
}

/// Starts scdb, to which the test sends commands one by one.
fn start(env: &TestEnv, target_job: &TargetJob) -> (Running, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let command = env.command("scdb").args(&[&job_of(target_job)[..], "-batch", "-"]);
    (command.input_from(reader).timeout(SCDB_TIMEOUT).start(), writer)
}

// Promise (tools): The console of scdb shows stacks and threads, holds ranks, and stops them at
// breakpoints and after writes; it is refused while another tool has control; when it ends or is
// killed, the ranks continue.
#[test]
fn stacks_and_threads_are_shown_with_their_ranks() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 3) else { return };
    // A rank that has described itself may not wait for its thread yet.
    let deadline = Instant::now() + SCDB_TIMEOUT;
    let text = loop {
        let text = scdb(&env, &target_job, &["where"]).expect_code(0).text();
        if text.starts_with("ranks 0-2:\n  #0   ") {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
    };
    assert!(text.contains(&format!("main in {PROGRAM}\n")), "{text}");
    let text = scdb(&env, &target_job, &["where", "1-2", "-all"]).expect_code(0).text();
    assert!(text.contains(&format!(": thread 2 ({PROGRAM}):\n")), "{text}");
    assert!(text.contains(&format!("count in {PROGRAM}\n")) && !text.contains("0-2"), "{text}");
    let (_, outcome) = batch(&env, &target_job, "threads # all\nwhere 1\n", &["-json"]);
    let outcome = outcome.expect_code(0).text();
    let documents: Vec<serde_json::Value> =
        outcome.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(documents.len(), 2, "{outcome}");
    for answer in documents[0]["answers"].as_array().unwrap() {
        let threads = answer["threads"].as_array().unwrap();
        assert!(threads.len() >= 2, "{answer}");
        assert_eq!((&threads[0]["number"], &threads[1]["number"]), (&1.into(), &2.into()));
        assert!(["running", "sleeping"].contains(&threads[0]["state"].as_str().unwrap()));
        assert!(threads.iter().all(|thread| thread["frames"].as_array().unwrap().len() == 1));
    }
    assert_eq!(documents[1]["command"], "where 1");
    assert_eq!(documents[1]["answers"][0]["ranks"], "1");
    target_job.end(0);
}

// Promise of `stacks_and_threads_are_shown_with_their_ranks`.
#[test]
fn held_ranks_stop_while_other_ranks_run_and_continue_when_the_console_ends() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let counter = target_job.targets[0].counter;
    // This tool has the priority that the console tries first. It only reads.
    let mut looking = target_job.attach(b"looking ", 50);
    let (mut console, mut commands) = start(&env, &target_job);
    commands.write_all(b"hold 0\n").unwrap();
    console.wait_for("rank 0: held\n", 1);
    assert!(looking.is_still(0, counter));
    looking.wait_for_change(1, target_job.targets[1].counter);
    let text = scdb(&env, &target_job, &["threads", "0"]).expect_code(0).text();
    assert!(text.starts_with("rank 0:\n  1    held "), "{text}");
    assert!(scdb(&env, &target_job, &["where"]).expect_code(0).text().contains("main in"));
    commands.write_all(b"release 0\n").unwrap();
    console.wait_for("rank 0: running\n", 1);
    looking.wait_for_change(0, counter);

    commands.write_all(b"hold\n").unwrap();
    console.wait_for("ranks 0-1: held\n", 1);
    assert!(looking.is_still(0, counter));
    console.signal(Signal::SIGKILL);
    looking.wait_for_change(0, counter);
    looking.wait_for_change(1, target_job.targets[1].counter);
    drop(console.wait());

    // The console ends at the end of its commands.
    let (_, outcome) = batch(&env, &target_job, "hold 1\n", &[]);
    assert_eq!(outcome.expect_code(0).text(), "rank 1: held\n");
    looking.wait_for_change(1, target_job.targets[1].counter);
    drop(looking);
    target_job.end(0);
}

/// The jobs take turns of 10 ms. At the start of each slice the switch thread sends SIGCONT to all
/// processes of the job, also to the held one.
#[test]
fn a_held_rank_does_not_run_in_any_slice_of_its_job() {
    let env = TestEnv::new();
    let Some(built) = env.test_program(PROGRAM) else { return };
    let program = env.dir().join(PROGRAM);
    std::fs::copy(built, &program).unwrap();
    let database = "a address=127.0.0.1 cores=2 group=all\n";
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], database, &["-ts", "10"]) else {
        return;
    };
    let _ = cluster.program("scored-toolctl");
    let job = cluster.command(ALICE, "scrun", "a");
    let mut job = job.args(&["-scored=all,nodes=2", program.to_str().unwrap()]).start();
    job.wait_for_stderr("2 nodes on 1 host");
    // "scrun: job 7: 2 nodes on 1 host"
    let number = job.stderr().split([' ', ':']).nth(3).unwrap().to_owned();
    let other = cluster.scrun(BOB, "a", "nodes=2", "echo up; while :; do :; done").start();
    let target_job = TargetJob::of(job, 2);
    let is_rank = |process: &Process, rank: &str| {
        let environment = std::fs::read(format!("/proc/{}/environ", process.pid));
        let wanted = format!("SCORE_SELF_NODE={rank}");
        let environment = environment.unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let processes: Vec<Process> =
        env.processes().into_iter().filter(|process| process.program() == PROGRAM).collect();
    let counter = |rank: usize| {
        let number = rank.to_string();
        let process = processes.iter().find(|process| is_rank(process, &number)).unwrap();
        let memory = std::fs::File::open(format!("/proc/{}/mem", process.pid)).unwrap();
        let mut word = [0; 8];
        memory.read_exact_at(&mut word, target_job.targets[rank].counter).unwrap();
        u64::from_ne_bytes(word)
    };
    let wait_for_change = |rank: usize| {
        let (before, since) = (counter(rank), Instant::now());
        while counter(rank) == before {
            assert!(since.elapsed() < SCDB_TIMEOUT, "rank {rank} does not run");
        }
    };
    let (reader, mut commands) = std::io::pipe().unwrap();
    let console = cluster.command(ALICE, "scdb", "a").args(&[&number, "-batch", "-"]);
    let mut console = console.input_from(reader).timeout(SCDB_TIMEOUT).start();
    commands.write_all(b"hold 1\n").unwrap();
    console.wait_for("rank 1: held\n", 1);
    let before = counter(1);
    for _ in 0..10 {
        wait_for_change(0);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(counter(1), before);
    commands.write_all(b"continue 1\n").unwrap();
    console.wait_for("rank 1: running\n", 1);
    wait_for_change(1);
    commands.write_all(b"hold 1\n").unwrap();
    console.wait_for("rank 1: held\n", 2);
    drop(commands);
    let _ = console.wait().expect_code(0);
    wait_for_change(1);
    for job in [target_job.job, other] {
        job.signal(Signal::SIGTERM);
        let _ = job.wait();
    }
}

// Promise of `stacks_and_threads_are_shown_with_their_ranks`.
#[test]
fn a_console_is_refused_while_another_tool_has_control() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let mut debugger = target_job.attach(b"debugger", 10);
    assert_eq!(debugger.control(0, 0).0, ReturnCode::Success);
    let (file, outcome) = batch(&env, &target_job, "where\nhold\nwhere\n", &[]);
    let outcome = outcome.expect_code(1);
    let line = format!(
        "scdb: {}:2: rank 0: a tool with the tag 'debugger', which was not started by start_tool, has \
         control of it; end that tool",
        file.display()
    );
    assert!(outcome.text().ends_with("rank 1: held\n"), "{outcome}");
    let _ = outcome.assert_stderr(&[&line]);
    debugger.release(0);
    let (_, outcome) = batch(&env, &target_job, "hold\n", &[]);
    assert_eq!(outcome.expect_code(0).text(), "ranks 0-1: held\n");
    drop(debugger);
    // A wrong command also ends the processing of a file.
    let (file, outcome) = batch(&env, &target_job, "threads\n\nhodl 0\nhold\n", &[]);
    let line = format!("scdb: {}:3: hodl: unknown command; did you mean hold?", file.display());
    let _ = outcome.expect_code(2).assert_stderr(&[&line]);
    let (_, outcome) = batch(&env, &target_job, "hold 2\n", &["-json"]);
    let outcome = outcome.expect_code(1);
    let document: serde_json::Value = serde_json::from_str(&outcome.text()).unwrap();
    assert_eq!(document["error"], "rank 2: job 1 has ranks 0 to 1");
    target_job.end(0);
}

// Promise of `stacks_and_threads_are_shown_with_their_ranks`.
#[test]
fn breakpoints_steps_and_watchpoints_stop_the_ranks_that_they_are_for() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 3) else { return };
    let tick = format!("tick in {PROGRAM} (thread 2)\n");
    let commands = "break tick 0-1\nwait 0-1\nwhere 0-1\nstepi 0\ncontinue 0-1\nclear tick 0-1\n\
                    watch watched 1\nrelease 0\ncontinue 1\n";
    let (_, outcome) = batch(&env, &target_job, commands, &[]);
    let text = outcome.expect_code(0).text();
    let events = text.matches(&format!("stopped at {tick}")).count();
    assert!(events >= 2, "{text}");
    for line in [
        format!("ranks 0-1: thread 2 ({PROGRAM}):\n  #0   tick in {PROGRAM}\n"),
        format!("rank 0: stepped to {tick}"),
        "rank 0: running\n".to_owned(),
        format!("rank 1: stopped after a write, at {tick}"),
    ] {
        assert!(text.contains(&line), "no {line} in\n{text}");
    }
    let (file, outcome) = batch(&env, &target_job, "break no_such_function\n", &[]);
    let line = format!(
        "scdb: {}:1: ranks 0-2: no_such_function: no function of this name",
        file.display()
    );
    let _ = outcome.expect_code(1).assert_stderr(&[&line]);
    let commands = "break tick 2\ncontinue 2\ncontinue 0\nwait 0\n";
    let (_, outcome) = batch(&env, &target_job, commands, &["-wait", "1"]);
    let outcome = outcome.expect_code(1);
    let _ = outcome.assert_stderr(&["rank 0: no stop within 1s"]);
    // The console leaves nothing in the process.
    target_job.end(0);
}

// Promise (tools): `step` of scdb runs a thread to another line of the source, `stepi` executes one
// instruction.
#[test]
fn a_step_is_a_line_of_the_source_and_stepi_one_instruction() {
    let env = TestEnv::new();
    let Some(job) = DebuggedJob::start(&env, "gdb") else { return };
    let source = std::fs::read_to_string(binaries::root().join("tests/programs/debugged.c"));
    let source = source.unwrap();
    let line_of = |text: &str| 1 + source.lines().position(|line| line.contains(text)).unwrap();
    // The console keeps control of the stepping process, even without a breakpoint.
    let commands = "break work 0\ncontinue 0\nclear work 0\nstep 0\nstep 0\nstep 0\nstepi 0\n\
                    step 0\nstep 0\n";
    let file = env.write_file("commands", commands);
    let outcome = job.scdb(&["-batch", file.to_str().unwrap()]).run().expect_code(0);
    let text = outcome.text();
    let mut rest = &text[..];
    for (line, function) in [
        (line_of("watched = twice + 1;"), "work"),
        (line_of("return twice;"), "work"),
        (line_of("sum += work(++round);"), "main"),
    ] {
        let place = format!("rank 0: stepped to debugged.c:{line} in {function}\n");
        let at = rest.find(&place).unwrap_or_else(|| panic!("no {place:?} in\n{text}"));
        rest = &rest[at..];
    }
    assert_eq!(text.matches("rank 0: stepped to ").count(), 6, "{text}");
    job.end(["answer 0, 0 signals right", "answer 0, 0 signals right"]);
}

// Promise (tools): At a terminal the console has a history, and ^C ends only a command.
#[test]
fn at_a_terminal_the_console_has_a_history_and_the_interrupt_key_ends_only_a_command() {
    let env = TestEnv::new();
    let Some(target_job) = TargetJob::start(&env, 2) else { return };
    let line = format!("TERM=xterm HOME={} exec scdb {}", env.dir().display(), job_of(&target_job));
    let mut terminal = Terminal::open(&env, "/bin/sh", &["-c", &line]);
    let mut after = terminal.wait_for("(scdb ", SCDB_TIMEOUT);
    for (keys, text) in [
        ("hold 0\r", "rank 0: held"),
        ("hodl\r", "did you mean hold?"),
        ("\x03", "quit or ^D ends scdb"),
        ("wait 1\r", "wait 1"),
    ] {
        terminal.type_keys(keys);
        after = terminal.wait_for_after(after, text, SCDB_TIMEOUT);
    }
    // The command gets the key only after the line editor has released the terminal.
    let deadline = Instant::now() + SCDB_TIMEOUT;
    while !terminal.text().contains("interrupted: rank 1: running") {
        assert!(Instant::now() < deadline, "{}", terminal.text());
        terminal.type_keys("\x03");
        std::thread::sleep(Duration::from_millis(500));
    }
    after = terminal.wait_for_after(after, "interrupted: rank 1: running", SCDB_TIMEOUT);
    terminal.wait_for_after(after, "(scdb ", SCDB_TIMEOUT);
    terminal.type_keys("\x04");
    assert_eq!(terminal.wait(SCDB_TIMEOUT), 0);
    let history = std::fs::read_to_string(env.dir().join(".scdb_history")).unwrap();
    assert!(history.contains("hold 0\n"), "{history}");
    target_job.end(0);
}
