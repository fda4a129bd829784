//! Ranks crash, and the user sees their stacks before the job ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::terminal::Terminal;
use score_tests::test_env::is_installed;
use score_tests::virtual_display::VirtualDisplay;
use score_tests::{Outcome, TestEnv, skip};

const DEBUG_TIMEOUT: Duration = Duration::from_secs(240);
const SERVICE: &str = "scored-toolctl";
const ONE_HOST: &[&str] = &["-nodes=4"];
const TWO_HOSTS: &[&str] = &["-group=local:2", "-nodes=2x2"];

/// Compiles `tests/programs/crashes.c`.
fn program(env: &TestEnv) -> Option<PathBuf> {
    env.test_program("crashes")
}

fn run(env: &TestEnv, options: &[&str], program: &Path, how: &str) -> Outcome {
    env.scrun(options).args(&[program.to_str().unwrap(), how, "1", "3"]).run()
}

/// Returns the line of a frame, which must appear once.
fn line_of<'a>(outcome: &'a Outcome, frame: &str) -> &'a str {
    let mut lines = outcome.stderr.lines().filter(|line| line.contains(frame));
    let line = lines.next().unwrap_or_else(|| panic!("no {frame}: {outcome}"));
    assert_eq!(lines.next(), None, "{outcome}");
    line
}

// Promise (tools): Before the job ends, ranks that crash in the same place are shown as one
// back-trace, on one host and on several; a service that does not answer delays the end by only a
// few seconds; handlers and children of the program are not affected.
#[test]
fn ranks_that_crash_in_the_same_function_are_shown_as_one_back_trace() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    for (how, code, signal, frame, options) in [
        ("segv", 139, "SIGSEGV", "write_nowhere in crashes", ONE_HOST),
        ("segv", 139, "SIGSEGV", "write_nowhere in crashes", TWO_HOSTS),
        ("fpe", 136, "SIGFPE", "divide in crashes", ONE_HOST),
        ("abort", 134, "SIGABRT", "abort", ONE_HOST),
        ("thread", 139, "SIGSEGV", "crash_in_thread in crashes", TWO_HOSTS),
        ("overflow", 139, "SIGSEGV", "the stack has more frames", ONE_HOST),
    ] {
        let outcome = run(&env, options, &program, how).expect_code(code);
        let title = format!("nodes 1, 3 of crashes got {signal}:\nall ranks [1,3]\n");
        let end = format!(" of crashes was killed by {signal}\n");
        let outcome = outcome.assert_stderr(&[&title, frame, &end]);
        line_of(&outcome, frame);
        assert!(outcome.stderr.ends_with(&end), "{outcome}");
        // The output does not show the handler in which the thread waits.
        assert!(!outcome.stderr.contains("score_faults"), "{outcome}");
    }
}

// Promise of `ranks_that_crash_in_the_same_function_are_shown_as_one_back_trace`.
#[test]
fn a_call_of_sc_inspectme_is_reported_with_its_process_and_its_frame() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    let outcome = run(&env, TWO_HOSTS, &program, "inspect").expect_code(135);
    let outcome = outcome.assert_stderr(&[
        "nodes 1, 3 of crashes called sc_inspectme():\nall ranks [1,3]\n",
        "called sc_inspectme() for SIGBUS: its parallel process is ended",
    ]);
    line_of(&outcome, "   sc_inspectme at abi.rs");
}

// Promise of `ranks_that_crash_in_the_same_function_are_shown_as_one_back_trace`.
#[test]
fn child_processes_and_ranks_with_their_own_signal_handler_get_no_back_trace() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    for (how, code) in [("child", Signal::SIGSEGV as i32), ("own", 7)] {
        let outcome = run(&env, ONE_HOST, &program, how).expect_code(code);
        assert!(!outcome.stderr.contains("all ranks"), "{outcome}");
    }
}

// Promise of `ranks_that_crash_in_the_same_function_are_shown_as_one_back_trace`.
#[test]
fn crashes_of_many_ranks_are_shown_as_one_back_trace() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    let ranks: Vec<String> = (0..200).map(|rank| rank.to_string()).collect();
    let ranks: Vec<&str> = ranks.iter().map(String::as_str).collect();
    let mut args = vec![program.to_str().unwrap(), "segv"];
    args.extend(ranks);
    let outcome = env.scrun(&["-nodes=200"]).args(&args).run().expect_code(139);
    line_of(&outcome, "write_nowhere in crashes");
}

// Promise of `ranks_that_crash_in_the_same_function_are_shown_as_one_back_trace`.
#[test]
fn a_service_that_does_not_answer_delays_the_end_by_seconds_only() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    let mut job = env.scrun(ONE_HOST).args(&[program.to_str().unwrap(), "later", "1", "3"]).start();
    job.wait_for("ready", 4);
    let address = job.job_address();
    let _ = env.command("scdb").args(&[&address, "stacks"]).run().expect_code(0);
    let service = env.wait_for_process(SERVICE, |process| process.program() == SERVICE);
    service.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    job.signal(Signal::SIGUSR1);
    let outcome = job.wait().expect_code(139);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let _ = outcome.assert_stderr(&["nodes 1, 3 of crashes got SIGSEGV:", "no answer in time"]);
}

/// Whether gdb is installed.
fn has_gdb(test: &str) -> bool {
    let is_there = is_installed("gdb");
    if !is_there {
        skip(test, "gdb is not installed");
    }
    is_there
}

/// Runs scrun without a terminal and without an X display.
fn run_debug(env: &TestEnv, options: &str, program: &Path, how: &str) -> Outcome {
    let line =
        format!("unset DISPLAY; scrun {options} {} {how} 1 3 < /dev/null", program.display());
    env.sh(&line).timeout(DEBUG_TIMEOUT).run()
}

// Promise (tools): With `debug` processes that crash wait for gdb in an xterm, on the terminal, or
// with commands, a given number at a time; or for DDT; nothing is left when the job ends.
#[test]
fn without_display_and_terminal_debug_prints_the_back_trace_of_each_rank() {
    let env = TestEnv::new();
    let Some(program) = program(&env).filter(|_| has_gdb("debug_in_batch")) else { return };
    for options in ["-nodes=4,debug=1", "-group=local:2 -nodes=2x2 -debug"] {
        let outcome = run_debug(&env, options, &program, "segv").expect_code(139);
        for node in [1, 3] {
            let is_frame = |line: &&str| {
                line.starts_with(&format!("node {node} of crashes: #"))
                    && line.contains("write_nowhere")
            };
            assert_eq!(outcome.stderr.lines().filter(is_frame).count(), 1, "{outcome}");
        }
    }
    // The user's commands run first.
    env.write_file("score.gdb", "info registers rip\n");
    let outcome = run_debug(&env, "-nodes=4,debug", &program, "inspect").expect_code(135);
    let outcome = outcome.assert_stderr(&["node 1 of crashes: rip", "node 3 of crashes: rip"]);
    assert!(!outcome.stderr.contains("crashes: #1 "), "{outcome}");
}

// Promise of `without_display_and_terminal_debug_prints_the_back_trace_of_each_rank`.
#[test]
fn ddt_is_started_if_it_is_installed_and_otherwise_no_job_starts() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    let outcome = run_debug(&env, "-nodes=4,debug=ddt", &program, "segv").expect_code(2);
    let _ = outcome.assert_stderr(&["there is no program ddt in PATH"]);
    std::fs::create_dir(env.dir().join("bin")).unwrap();
    let ddt = env.write_script("bin/ddt", "#!/bin/sh\nreadlink $2\necho ddt $1 $#\n");
    let line = format!(
        "PATH={}:$PATH scrun -nodes=4,debug=ddt {} segv 1 < /dev/null",
        ddt.parent().unwrap().display(),
        program.display()
    );
    let outcome = env.sh(&line).timeout(DEBUG_TIMEOUT).run().expect_code(139);
    let name = format!("node 1 of crashes: {}", program.display());
    let _ = outcome.assert_stderr(&[&name, "node 1 of crashes: ddt -attach 3"]);
}

// Promise of `without_display_and_terminal_debug_prints_the_back_trace_of_each_rank`.
#[test]
fn on_a_terminal_ranks_that_crash_get_gdb_one_after_the_other() {
    let env = TestEnv::new();
    let Some(program) = program(&env).filter(|_| has_gdb("debug_on_a_terminal")) else { return };
    let program = program.to_str().unwrap();
    let job = ["-u", "DISPLAY", "scrun", "-nodes=4,debug", program, "segv", "1", "3"];
    let mut terminal = Terminal::open(&env, "env", &job);
    let mut offset = 0;
    for _ in 0..2 {
        offset = terminal.wait_for_after(offset, "(gdb) ", DEBUG_TIMEOUT);
        terminal.type_keys("backtrace\n");
        offset = terminal.wait_for_after(offset, "write_nowhere", DEBUG_TIMEOUT);
        offset = terminal.wait_for_after(offset, "(gdb) ", DEBUG_TIMEOUT);
        // The prompt after `detach` must not be taken for the prompt of the next gdb.
        terminal.type_keys("detach\n");
        offset = terminal.wait_for_after(offset, "(gdb) ", DEBUG_TIMEOUT);
        terminal.type_keys("quit\n");
    }
    assert_eq!(terminal.wait(DEBUG_TIMEOUT), 139);
}

// Promise of `without_display_and_terminal_debug_prints_the_back_trace_of_each_rank`.
#[test]
fn on_a_display_some_ranks_at_a_time_get_gdb_in_an_xterm_that_ends_with_the_job() {
    let Some(display) = VirtualDisplay::open("debug_in_an_xterm") else { return };
    let env = TestEnv::new();
    let Some(program) = program(&env).filter(|_| has_gdb("debug_in_an_xterm")) else { return };
    let program = program.display();
    let line =
        format!("DISPLAY={} exec scrun -nodes=4,debug=1 {program} segv 1 3", display.display);
    let job = env.sh(&line).timeout(DEBUG_TIMEOUT).start();
    // gdb itself starts a helper gdb, which opens files in the mount namespace of the process.
    let is_gdb = |process: &Process| {
        let has_parent = |one: &Process| one.pid == process.parent && one.program() == "gdb";
        process.program() == "gdb" && !env.processes().iter().any(has_parent)
    };
    let first = env.wait_for_process("gdb", is_gdb);
    let count = || env.processes().iter().filter(|process| is_gdb(process)).count();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(count(), 1);
    first.signal(Signal::SIGKILL);
    // The helper of the first gdb may still exist for a moment, with the same arguments.
    env.wait_for_process("gdb", |process| is_gdb(process) && process.command != first.command);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    assert!(outcome.code != 0 && !outcome.stderr.contains("deadlock"), "{outcome}");
}
