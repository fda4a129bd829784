//! Any component of a job is killed at any moment. The rest of the job ends within a second. No
//! file and no process is left, not even a process that has called setsid or forked twice.

use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::test_env::CLEANUP_TIMEOUT;
use score_tests::{Running, TestEnv};

/// A job whose descendants have left their session like daemons.
const DAEMONISING_JOB: &str = "scrun -nodes=3 system sh -c '\
    setsid sleep 300 & (setsid sh -c \"sleep 301 & sleep 302\" &) ; echo up; exec sleep 303'";

fn start(env: &TestEnv) -> Running {
    let mut job = env.sh(DAEMONISING_JOB).start();
    job.wait_for("up", 3);
    for (seconds, what) in [("300", "setsid child"), ("301", "double fork"), ("303", "rank")] {
        env.wait_for_process(what, |process| process.command == format!("sleep {seconds}"));
    }
    job
}

fn kill_and_wait_until_clean(env: &TestEnv, what: &str, predicate: impl Fn(&Process) -> bool) {
    env.wait_for_process(what, predicate).signal(Signal::SIGKILL);
    let clean = env.wait_until_clean(CLEANUP_TIMEOUT);
    let elapsed = clean.unwrap_or_else(|left| panic!("after SIGKILL of {what}: {left:#?}"));
    eprintln!("everything removed {elapsed:?} after SIGKILL of {what}");
}

// Promise (faults): After SIGKILL of a node, the shepherd, scored or scrun, no file, process or
// port is left within a second.
#[test]
fn a_rank_is_killed() {
    let env = TestEnv::new();
    let job = start(&env);
    kill_and_wait_until_clean(&env, "a rank", |process| process.command == "sleep 303");
    let _ = job.wait().expect_code(137).assert_stderr(&["node ", "SIGKILL"]);
}

// Promise of `a_rank_is_killed`.
#[test]
fn the_shepherd_is_killed() {
    let env = TestEnv::new();
    let job = start(&env);
    kill_and_wait_until_clean(&env, "the shepherd", Process::is_shepherd);
    let outcome = job.wait().assert_stderr(&["shepherd"]);
    assert_ne!(outcome.code, 0, "{outcome}");
}

// Promise of `a_rank_is_killed`.
#[test]
fn scored_is_killed() {
    let env = TestEnv::new();
    let job = start(&env);
    kill_and_wait_until_clean(&env, "scored", Process::is_scored);
    let outcome = job.wait().assert_stderr(&["scored"]);
    assert_ne!(outcome.code, 0, "{outcome}");
}

// Promise of `a_rank_is_killed`.
#[test]
fn scrun_is_killed() {
    let env = TestEnv::new();
    let job = start(&env);
    kill_and_wait_until_clean(&env, "scrun", Process::is_scrun);
    assert_eq!(job.wait().code, 137);
}

#[test]
fn scrun_and_scored_are_killed_at_once() {
    let env = TestEnv::new();
    let job = start(&env);
    let scored = env.wait_for_process("scored", Process::is_scored);
    let scrun = env.wait_for_process("scrun", Process::is_scrun);
    scored.signal(Signal::SIGKILL);
    scrun.signal(Signal::SIGKILL);
    assert_ne!(job.wait().code, 0);
    let started_at = std::time::Instant::now();
    while !env.processes().is_empty() {
        assert!(started_at.elapsed() < Duration::from_secs(20), "left: {:#?}", env.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    // After several deaths at once, files may be left. The next start removes them.
    let _ = env.scrun(&["-nodes=1", "system", "true"]).run().expect_code(0);
}

// Promise (faults): Descendants that called setsid or forked twice do not outlive the job.
#[test]
fn descendants_do_not_outlive_a_job_that_ends_well() {
    let env = TestEnv::new();
    let line = "scrun -nodes=2 system sh -c 'setsid sleep 300 > /dev/null 2>&1 & echo done'";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.text(), "done\ndone\n");
    env.assert_clean();
}

#[test]
fn a_job_continues_if_the_daemon_of_another_job_is_killed() {
    let env = TestEnv::new();
    let mut other = env.sh("scrun -nodes=2 system sh -c 'echo on; sleep 2; echo off'").start();
    other.wait_for("on", 2);
    let victim = TestEnv::new();
    let job = start(&victim);
    kill_and_wait_until_clean(&victim, "scored", Process::is_scored);
    job.wait();
    let outcome = other.wait().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["off", "off", "on", "on"]);
}
