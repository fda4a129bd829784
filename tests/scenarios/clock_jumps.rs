//! The time of day jumps by years, forwards and back, each time a process of a job reads it: scrun,
//! daemons, shepherds and programs. No process is considered dead, and nothing ends too early or
//! too late. If a host hangs, scrun names it in time.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::{Job, TestEnv, binaries, skip, test_env};

/// Runs scrun with these arguments and a jumping clock.
fn scrun_with_jumping_clock(env: &TestEnv, args: &[&str]) -> Option<Job> {
    if !test_env::is_installed("gcc") {
        skip("clock_jumps", "gcc is not installed");
        return None;
    }
    let library = env.dir().join("clock.so");
    let status = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(binaries::root().join("tests/programs/clock.c"))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "gcc");
    Some(env.scrun(args).env("LD_PRELOAD", library.to_str().unwrap()))
}

/// Waits for the daemon of a host, and until it reads the jumping clock. Otherwise the scenario
/// would prove nothing.
fn wait_for_daemon(env: &TestEnv, host: &str) -> Process {
    let option = format!("-host {host} ");
    env.wait_for_process("daemon with the jumping clock", |process| {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid));
        process.is_scored()
            && process.command.contains(&option)
            && maps.is_ok_and(|maps| maps.contains("clock.so"))
    })
}

/// The program of a job of three hosts. Its nodes must read different years.
const DATES: &str = "a=$(date +%Y); for n in 1 2 3 4 5 6; do sleep 1; date +%Y; done; echo over";

// Promise (faults): A clock that jumps has no effect: no time-out depends on it.
#[test]
fn a_clock_that_jumps_has_no_effect() {
    let env = TestEnv::new();
    let args = ["-group=local:3,nodes=3x1,statistics", "system", "sh", "-c", DATES];
    let Some(job) = scrun_with_jumping_clock(&env, &args) else { return };
    let job = job.start();
    let _ = wait_for_daemon(&env, "local2");
    let outcome = job.wait().expect_code(0);
    let text = outcome.text();
    assert_eq!(text.matches("over").count(), 3, "{outcome}");
    let mut years: Vec<&str> = text.lines().filter(|line| *line != "over").collect();
    years.sort_unstable();
    years.dedup();
    assert!(years.len() > 1, "the clock did not jump: {years:?}");
    assert!(!outcome.stderr.contains("lost"), "{outcome}");
}

// Promise of `a_clock_that_jumps_has_no_effect`.
#[test]
fn a_host_that_hangs_is_named_in_time_though_the_clock_jumps() {
    let env = TestEnv::new();
    let args = ["-group=local:2,nodes=2x1", "system", "sh", "-c", "echo up; exec sleep 300"];
    let Some(job) = scrun_with_jumping_clock(&env, &args) else { return };
    let mut job = job.start();
    job.wait_for("up", 2);
    let daemon = wait_for_daemon(&env, "local1");
    let started_at = std::time::Instant::now();
    daemon.signal(Signal::SIGSTOP);
    let outcome = job.wait().assert_stderr(&["host local1 is lost"]);
    assert_ne!(outcome.code, 0);
    let elapsed = started_at.elapsed();
    let limits = Duration::from_secs(10)..Duration::from_secs(30);
    assert!(limits.contains(&elapsed), "it took {elapsed:?}");
}
