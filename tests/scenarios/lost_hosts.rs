//! A component dies on any host of a job. scrun names the host. A moment later nothing of the job
//! is left on any host.

use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::test_env::CLEANUP_TIMEOUT;
use score_tests::{Outcome, Running, TestEnv};

/// A job on four hosts whose descendants have left their session like daemons.
const DAEMONISING_JOB: &str = "scrun -group=local:4,nodes=4x2 system sh -c '\
    setsid sleep 300 & (setsid sh -c \"sleep 301 & sleep 302\" &) ; echo up; exec sleep 303'";

fn start(env: &TestEnv) -> Running {
    let mut job = env.sh(DAEMONISING_JOB).start();
    job.wait_for("up", 8);
    job
}

fn is_daemon_of(process: &Process, host: &str) -> bool {
    process.is_scored() && process.command.contains(&format!("-host {host} "))
}

/// Sends a signal to a process, and waits until all processes and files are removed.
fn signal_and_wait_until_clean(
    signal: Signal,
    timeout: Duration,
    predicate: impl Fn(&TestEnv, &Process) -> bool,
) -> Outcome {
    let env = TestEnv::new();
    let job = start(&env);
    let victim = env.wait_for_process("the victim", |process| predicate(&env, process));
    victim.signal(signal);
    let clean = env.wait_until_clean(timeout);
    let elapsed = clean.unwrap_or_else(|left| panic!("after {signal} of {victim:?}: {left:#?}"));
    eprintln!("everything removed {elapsed:?} after {signal} of {}", victim.command);
    job.wait()
}

// Promise (jobs on many hosts): If a daemon, shepherd or process of any host is killed, or hangs,
// the host is named, the job ends, and nothing is left on any host.
#[test]
fn a_daemon_is_killed() {
    let outcome = signal_and_wait_until_clean(Signal::SIGKILL, CLEANUP_TIMEOUT, |_, process| {
        is_daemon_of(process, "local2")
    });
    assert_ne!(outcome.assert_stderr(&["host local2 is lost"]).code, 0);
}

// Promise of `a_daemon_is_killed`.
#[test]
fn a_daemon_that_hangs_is_named_within_the_limit() {
    let limit = Duration::from_secs(25);
    let outcome = signal_and_wait_until_clean(Signal::SIGSTOP, limit, |_, process| {
        is_daemon_of(process, "local1")
    });
    assert_ne!(outcome.assert_stderr(&["host local1 is lost", "no data received"]).code, 0);
}

// Promise of `a_daemon_is_killed`.
#[test]
fn the_server_is_killed() {
    let outcome = signal_and_wait_until_clean(Signal::SIGKILL, CLEANUP_TIMEOUT, |_, process| {
        process.is_scored() && process.command.contains("-single")
    });
    assert_ne!(outcome.assert_stderr(&["scored was killed by signal 9"]).code, 0);
}

// Promise of `a_daemon_is_killed`.
#[test]
fn a_shepherd_of_another_host_is_killed() {
    let outcome = signal_and_wait_until_clean(Signal::SIGKILL, CLEANUP_TIMEOUT, |env, process| {
        let all = env.processes();
        let parent = all.iter().find(|candidate| candidate.pid == process.parent);
        process.is_shepherd() && parent.is_some_and(|daemon| is_daemon_of(daemon, "local3"))
    });
    let _ = outcome
        .expect_code(137)
        .assert_stderr(&["host local3", "shepherd has died (killed by SIGKILL)"]);
}

// Promise of `a_daemon_is_killed`.
#[test]
fn scrun_is_killed() {
    assert_eq!(
        signal_and_wait_until_clean(Signal::SIGKILL, CLEANUP_TIMEOUT, |_, process| process
            .is_scrun())
        .code,
        137
    );
}

// Promise of `a_daemon_is_killed`.
#[test]
fn a_process_on_another_host_is_killed() {
    let outcome = signal_and_wait_until_clean(Signal::SIGKILL, CLEANUP_TIMEOUT, |env, process| {
        let all = env.processes();
        let parent = |pid| all.iter().find(|candidate| candidate.pid == pid);
        let daemon = parent(process.parent).and_then(|shepherd| parent(shepherd.parent));
        process.command == "sleep 303"
            && daemon.is_some_and(|process| is_daemon_of(process, "local1"))
    });
    let _ = outcome.expect_code(137).assert_stderr(&["of sh was killed by SIGKILL"]);
}

// Promise of `a_daemon_is_killed`.
#[test]
fn a_job_can_be_terminated_while_its_hosts_start() {
    for pause in [0, 5, 10, 20, 30, 40, 60, 80] {
        let env = TestEnv::new();
        // `exec` makes the shell become scrun. Otherwise the signal could end the shell before the
        // job begins.
        let job = env.sh(&format!("exec {DAEMONISING_JOB}")).start();
        std::thread::sleep(Duration::from_millis(pause));
        job.signal(Signal::SIGTERM);
        assert_ne!(job.wait().code, 0);
    }
}
