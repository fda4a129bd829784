//! Signals to scrun act on the job as table 3.1 of the manual describes.

use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::{Running, TestEnv};

/// Starts a job whose processes print the signals that they get, and continue.
fn start_listener(env: &TestEnv) -> Running {
    let script = "for s in HUP INT ABRT USR1 USR2 URG WINCH; do trap \"echo got $s\" $s; done; \
                  echo up; while :; do sleep 0.05; done";
    let mut job = env.scrun(&["-nodes=3", "system", "sh", "-c", script]).start();
    job.wait_for("up", 3);
    job
}

// Promise (use): Signals act as table 3.1 says.
#[test]
fn the_broadcast_signals_reach_every_process() {
    let env = TestEnv::new();
    let mut job = start_listener(&env);
    for (signal, name) in [
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGABRT, "ABRT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGURG, "URG"),
        (Signal::SIGWINCH, "WINCH"),
    ] {
        job.signal(signal);
        job.wait_for(&format!("got {name}\n"), 3);
    }
    job.signal(Signal::SIGTERM);
    // Every node is killed, so the exit code is 128 + 9.
    assert_eq!(job.wait().code, 137);
}

// Promise of `the_broadcast_signals_reach_every_process`.
#[test]
fn sigterm_kills_the_job() {
    let env = TestEnv::new();
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let mut job = env.scrun(&["-nodes=2", "system", "sh", "-c", script]).start();
    job.wait_for("up", 2);
    job.signal(Signal::SIGTERM);
    let outcome = job.wait();
    assert_eq!(outcome.code, 137, "{outcome}");
    assert!(outcome.elapsed < Duration::from_secs(30), "{outcome}");
}

/// When the signal arrives, some processes catch it, some are ended by it, and some have not been
/// started.
// Promise of `the_keys_act_on_the_whole_job`.
#[test]
fn sigint_reaches_the_processes_that_are_still_to_be_started() {
    let script = "trap 'echo caught; exit 3' INT; echo up; while :; do sleep 0.05; done";
    for _ in 0..5 {
        let env = TestEnv::new();
        let mut job = env.scrun(&["-nodes=200", "system", "sh", "-c", script]).start();
        job.wait_for("up", 1);
        job.signal(Signal::SIGINT);
        let outcome = job.wait();
        assert!([3, 130].contains(&outcome.code), "{outcome}");
    }
    // Here no process has been started yet.
    let env = TestEnv::new();
    let job = env.scrun(&["-group=local:2,nodes=2x1", "system", "sh", "-c", script]).start();
    std::thread::sleep(Duration::from_millis(20));
    job.signal(Signal::SIGINT);
    let outcome = job.wait();
    assert!([3, 130].contains(&outcome.code), "{outcome}");
}

#[test]
fn sigint_ends_a_job_that_does_not_catch_it() {
    let env = TestEnv::new();
    let mut job = env.scrun(&["-nodes=2", "system", "sh", "-c", "echo up; exec sleep 60"]).start();
    job.wait_for("up", 2);
    job.signal(Signal::SIGINT);
    assert_eq!(job.wait().code, 130);
}

// Promise of `the_broadcast_signals_reach_every_process`.
#[test]
fn sigquit_prints_one_line_and_has_no_other_effect() {
    let env = TestEnv::new();
    let mut job =
        env.scrun(&["-nodes=2", "system", "sh", "-c", "echo up; sleep 1; echo end"]).start();
    job.wait_for("up", 2);
    job.signal(Signal::SIGQUIT);
    let outcome = job.wait().expect_code(0).assert_stderr(&["checkpoint"]);
    assert_eq!(outcome.text().matches("end").count(), 2);
}

// Promise of `the_broadcast_signals_reach_every_process`.
#[test]
fn sigtstp_stops_every_process_and_sigcont_continues_it() {
    let env = TestEnv::new();
    let end = env.dir().join("end");
    let script = format!("echo up; until [ -e {} ]; do sleep 0.2; done; echo end", end.display());
    let mut job = env.scrun(&["-nodes=2", "system", "sh", "-c", &script]).start();
    job.wait_for("up", 2);
    job.signal(Signal::SIGTSTP);
    let are_stopped = |env: &TestEnv| {
        let ranks: Vec<_> = env
            .processes()
            .into_iter()
            .filter(|process| {
                process.command.contains("echo up")
                    && !process.is_scrun()
                    && !process.command.starts_with("/bin/sh -c scrun")
            })
            .collect();
        // A shell that waits for a stopped child of vfork(2) does not run either.
        ranks.len() >= 2 && ranks.iter().all(|rank| matches!(rank.state, 'T' | 'D'))
    };
    let started_at = std::time::Instant::now();
    while !are_stopped(&env) {
        assert!(started_at.elapsed() < Duration::from_secs(20), "{:#?}", env.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::fs::write(&end, "").unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!job.stdout().contains("end"), "a stopped job goes on");
    job.signal(Signal::SIGCONT);
    assert_eq!(job.wait().expect_code(0).text().matches("end").count(), 2);
}
