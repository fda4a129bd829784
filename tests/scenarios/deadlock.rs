//! All processes of a program wait for each other. SCore reports the deadlock and each process, and
//! sends SIGHUP to the program, which ends with exit code 35 (manual 3.5). A program that can make
//! progress is never reported, whatever its state looks like.

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{EXIT_DEADLOCK, Outcome, TestEnv};
use std::io::Write;
use std::time::{Duration, Instant};

/// Time limit of a job with several hosts on a busy machine.
const JOB_TIMEOUT: Duration = Duration::from_secs(120);
/// Options for shared memory, for Ethernet, and for both in a composite.
const NETWORKS: [&str; 3] = ["-nodes=3", "-group=local:2,nodes=2x1", "-group=local:2,nodes=2x2"];

/// Runs `tests/programs/deadlock.c`. Returns `None` if there is no compiler.
fn run(env: &TestEnv, args: &[&str], input: Option<&str>) -> Option<Outcome> {
    let program = env.test_program("deadlock")?;
    let program = program.to_str()?;
    let args: Vec<&str> =
        args.iter().map(|word| if *word == "PROGRAM" { program } else { *word }).collect();
    let job = env.scrun(&args).timeout(JOB_TIMEOUT);
    Some(input.into_iter().fold(job, |job, input| job.input(input)).run())
}

// Promise (deadlock): A program whose processes all wait for each other is detected, on shared
// memory, between hosts and on both, whether it polls or sleeps; each process is reported; then
// SIGHUP, five seconds, exit code 35.
#[test]
fn a_deadlock_is_found_on_every_network() {
    let env = TestEnv::new();
    for network in NETWORKS {
        for (pattern, expected) in [
            ("alone", &["node 0", "waits for a message since", "node 1", "has ended"][..]),
            ("mutual", &["sent 3, the last to node 1; received 3, the last from node"]),
            ("blocked", &["node 1", "waits for a message", "sent 0; received 0"]),
            (
                "barrier",
                &["node 0", "waits for a message", "node 1", "waits in sc_barrier() since"],
            ),
            ("unread", &["sent 1, the last to node 1", "has ended; sent 0; received"]),
            ("sleeper", &["waits for a message"]),
        ] {
            let Some(outcome) = run(&env, &[network, "PROGRAM", pattern], None) else { return };
            let text = "deadlock: no process of deadlock can continue";
            let outcome = outcome.assert_stderr(&[text]).assert_stderr(expected);
            let outcome = outcome.expect_code(EXIT_DEADLOCK);
            let (_, tree) = outcome.stderr.split_once("stacks of deadlock:\n").expect("a tree");
            assert!(tree.contains("main in deadlock"), "{outcome}");
            // The tree omits frames inside SCore's static libraries.
            assert!(!tree.contains("::"), "{outcome}");
        }
    }
}

// Promise of `a_deadlock_is_found_on_every_network`.
#[test]
fn a_process_with_a_sighup_handler_can_inspect_itself_and_is_then_ended() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("deadlock") else { return };
    for (pattern, expected) in [
        ("handled", &["deadlock:"][..]),
        ("inspect", &["deadlock:", "called sc_inspectme() for SIGHUP"]),
        ("ignored", &["deadlock:"]),
    ] {
        let job = env.scrun(&["-nodes=2", program.to_str().unwrap(), pattern]);
        let mut job = job.timeout(JOB_TIMEOUT).start();
        job.wait_for("handler of SIGHUP", 1);
        let handled_at = Instant::now();
        let outcome = job.wait();
        match pattern {
            "ignored" => assert!(outcome.elapsed > Duration::from_secs(5), "{outcome}"),
            _ => assert!(handled_at.elapsed() < Duration::from_secs(5), "{outcome}"),
        }
        let _ = outcome.assert_stderr(expected).expect_code(EXIT_DEADLOCK);
    }
}

// Promise (deadlock): A program that can continue is never reported: never idle, late releases,
// barriers, threads that wake, idle by mistake, timers, children, input, pipes.
#[test]
fn a_job_that_can_continue_is_never_reported() {
    let env = TestEnv::new();
    for network in [NETWORKS[0], NETWORKS[2]] {
        for pattern in [
            "never-idle",
            "late",
            "barrier-computes",
            "barriers",
            "helper",
            "helper-wakes",
            "mistake",
            "alarm",
            "test",
            "child",
        ] {
            let Some(outcome) = run(&env, &[network, "PROGRAM", pattern], None) else { return };
            let _ = outcome.expect_code(0);
        }
    }
}

// Promise of `a_job_that_can_continue_is_never_reported`.
#[test]
fn a_job_that_waits_for_outside_input_is_not_reported() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("deadlock") else { return };
    let program = program.to_str().unwrap();
    let folder = program.rsplit_once('/').unwrap().0;
    let line = format!("PATH={folder}:$PATH; (sleep 1; echo x) | scrun -nodes=2 deadlock stdin");
    let outcome = env.sh(&line).timeout(JOB_TIMEOUT).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["node 0 went on", "node 1 went on"], "{outcome}");
    let args = ["-nodes=2", "PROGRAM", "feed", "==", "PROGRAM", "pipe"];
    let outcome = run(&env, &args, None).unwrap().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["node 0 went on", "node 1 went on"], "{outcome}");
}

// Promise (deadlock): A wait of 30 s that cannot be proved to be a deadlock is reported once, and
// the job continues.
#[test]
fn a_long_wait_that_is_no_proved_deadlock_is_reported_once_and_the_job_continues() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("deadlock") else { return };
    let Some(cluster) = Cluster::start(&env, &["a"]) else { return };
    let (input, mut writer) = std::io::pipe().unwrap();
    let options = ["-scored=all,nodes=2", program.to_str().unwrap(), "stdin"];
    let job = cluster.command(ALICE, "scrun", "a").args(&options).input_from(input);
    let mut job = job.timeout(JOB_TIMEOUT).start();
    let state = || {
        let listing = cluster.command(ALICE, "scps", "a").arg("-json").run().expect_code(0);
        let listing: serde_json::Value = serde_json::from_slice(&listing.stdout).unwrap();
        listing["jobs"][0]["state"].as_str().unwrap_or_default().to_owned()
    };
    job.wait_for_stderr("nodes on");
    assert_eq!(state(), "running");
    job.wait_for_stderr("it may hang");
    assert_eq!(state(), "suspected-hang");
    writer.write_all(b"x\n").unwrap();
    drop(writer);
    let outcome = job.wait().expect_code(0).assert_stderr(&[
        "all processes of deadlock have waited for 30 s, and no message is under way: it may hang",
    ]);
    for wait in ["node 0 waits for a message since ", "node 1 waits for a message since "] {
        let (_, rest) = outcome.stderr.split_once(wait).expect("the report of each node");
        let waited_ms: u64 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!((30_000..60_000).contains(&waited_ms), "{outcome}");
    }
    assert_eq!(outcome.stderr.matches("it may hang").count(), 1, "{outcome}");
    assert_eq!(outcome.sorted_lines(), ["node 0 went on", "node 1 went on"], "{outcome}");
}

// Promise of `a_deadlock_is_found_on_every_network`.
#[test]
fn the_reported_waiting_time_excludes_the_time_that_the_job_was_stopped() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("deadlock") else { return };
    let started_at = Instant::now();
    let job = env.scrun(&["-nodes=2", program.to_str().unwrap(), "held"]);
    let mut job = job.timeout(JOB_TIMEOUT).start();
    job.wait_for("node 0 waits", 1);
    job.signal(Signal::SIGTSTP);
    let is_node = |process: &Process| {
        process.command.contains("deadlock held") && process.program() != "scrun"
    };
    env.wait_for_process("stopped node", |process| is_node(process) && process.state == 'T');
    let stopped_at = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    let stopped_time = stopped_at.elapsed();
    job.signal(Signal::SIGCONT);
    std::fs::write(env.dir().join("go"), "").unwrap();
    let outcome = job
        .wait()
        .assert_stderr(&["deadlock: no process of deadlock can continue"])
        .expect_code(EXIT_DEADLOCK);
    let max_wait = started_at.elapsed() - stopped_time;
    let reported_text = outcome.stderr.split("node 0 waits for a message since ").nth(1);
    let reported_ms = reported_text.and_then(|rest| rest.split(' ').next()?.parse().ok());
    let reported = Duration::from_millis(reported_ms.unwrap_or_else(|| panic!("{outcome}")));
    assert!(reported <= max_wait, "{reported:?} of {max_wait:?}: {outcome}");
}

#[test]
fn noidle_turns_deadlock_detection_off() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("deadlock") else { return };
    let job = env.scrun(&["-nodes=2,noidle", program.to_str().unwrap(), "mutual"]);
    let job = job.timeout(JOB_TIMEOUT).start();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!job.stderr().contains("deadlock:"), "{}", job.stderr());
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
}

// Promise of `a_job_that_can_continue_is_never_reported`.
#[test]
fn jobs_that_share_processors_are_reported_only_for_a_deadlock() {
    let env = TestEnv::new();
    let Some(built) = env.test_program("deadlock") else { return };
    let program = env.dir().join("deadlock");
    std::fs::copy(built, &program).unwrap();
    let program = program.to_str().unwrap();
    let database = "a address=127.0.0.1 cores=2 group=all\n";
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], database, &["-ts", "40"]) else {
        return;
    };
    let spin = "echo up; while :; do :; done";
    let mut neighbour = cluster.scrun(ALICE, "a", "nodes=2", spin).start();
    neighbour.wait_for("up", 2);
    let run_with_neighbour = |pattern: &str| {
        let args = ["-scored=all,nodes=2", program, pattern];
        cluster.command(BOB, "scrun", "a").args(&args).timeout(JOB_TIMEOUT).run()
    };
    for pattern in ["alone", "mutual", "blocked", "barrier", "unread", "sleeper"] {
        let _ = run_with_neighbour(pattern)
            .assert_stderr(&["deadlock: no process of deadlock can continue"])
            .expect_code(EXIT_DEADLOCK);
    }
    for pattern in ["never-idle", "late", "barriers", "helper", "helper-wakes", "mistake", "alarm"]
    {
        let _ = run_with_neighbour(pattern).expect_code(0);
    }
    neighbour.signal(Signal::SIGTERM);
    let _ = neighbour.wait();
}

#[test]
fn a_process_that_waits_for_a_process_that_exits_at_its_start_is_deadlocked() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("exit_at_once") else { return };
    let program = program.display().to_string();
    // Whether PM's threads have run before the exit differs from run to run, so the test repeats.
    for _ in 0..8 {
        let outcome = env.scrun(&["-group=local:2,nodes=2x1", &program]).run();
        let _ =
            outcome.expect_code(EXIT_DEADLOCK).assert_stderr(&["node 0 on host local0 has ended"]);
    }
}
