//! Ranks that crash: what the user sees of them before the job ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::{Outcome, TestEnv};

const SERVICE: &str = "scored-toolctl";
const ONE_HOST: &[&str] = &["-nodes=4"];
const TWO_HOSTS: &[&str] = &["-group=local:2", "-nodes=2x2"];

/// `tests/programs/crashes.c`
fn program(env: &TestEnv) -> Option<PathBuf> {
    env.test_program("crashes")
}

fn run(env: &TestEnv, options: &[&str], program: &Path, how: &str) -> Outcome {
    env.scrun(options).args(&[program.to_str().unwrap(), how, "1", "3"]).run()
}

/// The line of a frame, which stands there once.
fn line_of<'a>(outcome: &'a Outcome, frame: &str) -> &'a str {
    let mut lines = outcome.stderr.lines().filter(|line| line.contains(frame));
    let line = lines.next().unwrap_or_else(|| panic!("no {frame}: {outcome}"));
    assert_eq!(lines.next(), None, "{outcome}");
    line
}

#[test]
fn ranks_that_crash_in_the_same_place_are_one_back_trace_before_the_job_ends() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    for (how, code, signal, frame, options) in [
        ("segv", 139, "SIGSEGV", "write_nowhere in crashes", ONE_HOST),
        ("segv", 139, "SIGSEGV", "write_nowhere in crashes", TWO_HOSTS),
        ("fpe", 136, "SIGFPE", "divide in crashes", ONE_HOST),
        ("abort", 134, "SIGABRT", "abort", ONE_HOST),
        ("thread", 139, "SIGSEGV", "crash_in_thread in crashes", TWO_HOSTS),
        ("overflow", 139, "SIGSEGV", "frames left out", ONE_HOST),
    ] {
        let outcome = run(&env, options, &program, how).expect_code(code);
        let title = format!("nodes 1, 3 of crashes got {signal}:\nall ranks [1,3]\n");
        let end = format!(" of crashes was killed by {signal}\n");
        let outcome = outcome.assert_stderr(&[&title, frame, &end]);
        line_of(&outcome, frame);
        assert!(outcome.stderr.ends_with(&end), "{outcome}");
        // The handler in which the thread waits says nothing.
        assert!(!outcome.stderr.contains("score_faults"), "{outcome}");
    }
}

#[test]
fn a_call_of_sc_inspectme_shows_where_it_is_and_names_the_process() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    let outcome = run(&env, TWO_HOSTS, &program, "inspect").expect_code(135);
    let outcome = outcome.assert_stderr(&[
        "nodes 1, 3 of crashes called sc_inspectme():\nall ranks [1,3]\n",
        "called sc_inspectme() for SIGBUS: its parallel process is ended",
    ]);
    line_of(&outcome, "   sc_inspectme at abi.rs");
}

#[test]
fn a_child_of_a_rank_and_a_rank_with_a_handler_of_its_own_are_left_alone() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    for (how, code) in [("child", Signal::SIGSEGV as i32), ("own", 7)] {
        let outcome = run(&env, ONE_HOST, &program, how).expect_code(code);
        assert!(!outcome.stderr.contains("all ranks"), "{outcome}");
    }
}

#[test]
fn many_ranks_that_crash_are_one_back_trace() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    let ranks: Vec<String> = (0..200).map(|rank| rank.to_string()).collect();
    let ranks: Vec<&str> = ranks.iter().map(String::as_str).collect();
    let mut args = vec![program.to_str().unwrap(), "segv"];
    args.extend(ranks);
    let outcome = env.scrun(&["-nodes=200"]).args(&args).run().expect_code(139);
    line_of(&outcome, "write_nowhere in crashes");
}

#[test]
fn a_service_that_does_not_answer_delays_the_end_by_seconds_only() {
    let env = TestEnv::new();
    let Some(program) = program(&env) else { return };
    let mut job = env.scrun(ONE_HOST).args(&[program.to_str().unwrap(), "later", "1", "3"]).start();
    job.wait_for("ready", 4);
    let host = nix::unistd::gethostname().unwrap();
    let address = format!("{}@{}", job.pid(), host.to_string_lossy());
    let _ = env.command("scdb").args(&[&address, "stacks"]).run().expect_code(0);
    let service = env.wait_for_process(SERVICE, |process| process.program() == SERVICE);
    service.signal(Signal::SIGSTOP);
    let begun = Instant::now();
    job.signal(Signal::SIGUSR1);
    let outcome = job.wait().expect_code(139);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let _ = outcome.assert_stderr(&["nodes 1, 3 of crashes got SIGSEGV:", "no answer in time"]);
}
