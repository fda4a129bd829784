//! A program whose processes all wait for each other is told of, process by process, is sent SIGHUP
//! and ends with exit code 35 (manual 3.5). A program that can go on does, whatever it looks like.

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Outcome, Scene};
use std::time::{Duration, Instant};

/// For hosts on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const CODE: i32 = 35;
/// Shared memory, ethernet, and both in a composite.
const NETWORKS: [&str; 3] = ["-nodes=3", "-group=local:2,nodes=2x1", "-group=local:2,nodes=2x2"];

/// Runs `tests/programs/deadlock.c`, if it can be compiled.
fn run(scene: &Scene, words: &[&str], input: Option<&str>) -> Option<Outcome> {
    let program = scene.program("deadlock")?;
    let program = program.to_str()?;
    let words: Vec<&str> =
        words.iter().map(|word| if *word == "PROGRAM" { program } else { *word }).collect();
    let job = scene.scrun(&words).watchdog(PATIENCE);
    Some(input.into_iter().fold(job, |job, input| job.input(input)).run())
}

#[test]
fn who_cannot_go_on_is_found_on_every_network() {
    let scene = Scene::new();
    for network in NETWORKS {
        for (what, words) in [
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
            let Some(outcome) = run(&scene, &[network, "PROGRAM", what], None) else { return };
            let text = "deadlock: no process of deadlock can go on";
            let _ = outcome.says(&[text]).says(words).expect(CODE);
        }
    }
}

#[test]
fn a_handler_of_sighup_may_look_and_is_ended_all_the_same() {
    let scene = Scene::new();
    for (what, words) in [
        ("handled", &["deadlock:"][..]),
        ("inspect", &["deadlock:", "called sc_inspectme() for SIGHUP"]),
        ("ignored", &["deadlock:"]),
    ] {
        let Some(outcome) = run(&scene, &["-nodes=2", "PROGRAM", what], None) else { return };
        assert!(outcome.text().contains("handler of SIGHUP"), "{outcome}");
        assert_eq!(outcome.elapsed > Duration::from_secs(5), what == "ignored", "{outcome}");
        let _ = outcome.says(words).expect(CODE);
    }
}

#[test]
fn who_can_go_on_is_never_accused() {
    let scene = Scene::new();
    for network in [NETWORKS[0], NETWORKS[2]] {
        for what in [
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
            let Some(outcome) = run(&scene, &[network, "PROGRAM", what], None) else { return };
            let _ = outcome.expect(0);
        }
    }
}

#[test]
fn what_comes_from_outside_is_waited_for() {
    let scene = Scene::new();
    let Some(program) = scene.program("deadlock") else { return };
    let program = program.to_str().unwrap();
    let folder = program.rsplit_once('/').unwrap().0;
    let line = format!("PATH={folder}:$PATH; (sleep 1; echo x) | scrun -nodes=2 deadlock stdin");
    let outcome = scene.sh(&line).watchdog(PATIENCE).run().expect(0);
    assert_eq!(outcome.sorted(), ["node 0 went on", "node 1 went on"], "{outcome}");
    let words = ["-nodes=2", "PROGRAM", "feed", "==", "PROGRAM", "pipe"];
    let outcome = run(&scene, &words, None).unwrap().expect(0);
    assert_eq!(outcome.sorted(), ["node 0 went on", "node 1 went on"], "{outcome}");
}

#[test]
fn since_when_a_process_waits_is_told_without_the_time_that_the_job_stood_still() {
    let scene = Scene::new();
    let Some(program) = scene.program("deadlock") else { return };
    let begin = Instant::now();
    let job = scene.scrun(&["-nodes=2", program.to_str().unwrap(), "held"]);
    let mut job = job.watchdog(PATIENCE).start();
    job.wait_for("node 0 waits", 1);
    job.signal(Signal::SIGTSTP);
    let node = |one: &Process| one.command.contains("deadlock held") && one.program() != "scrun";
    scene.wait_for_process("stopped node", |one| node(one) && one.state == 'T');
    let stop = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    let stop = stop.elapsed();
    job.signal(Signal::SIGCONT);
    std::fs::write(scene.dir().join("go"), "").unwrap();
    let outcome = job.wait().says(&["deadlock: no process of deadlock can go on"]).expect(CODE);
    let most = begin.elapsed() - stop;
    let told = outcome.stderr.split("node 0 waits for a message since ").nth(1);
    let told = told.and_then(|rest| rest.split(' ').next()?.parse().ok());
    let told = Duration::from_millis(told.unwrap_or_else(|| panic!("{outcome}")));
    assert!(told <= most, "{told:?} of {most:?}: {outcome}");
}

#[test]
fn noidle_leaves_a_deadlock_alone() {
    let scene = Scene::new();
    let Some(program) = scene.program("deadlock") else { return };
    let job = scene.scrun(&["-nodes=2,noidle", program.to_str().unwrap(), "mutual"]);
    let job = job.watchdog(PATIENCE).start();
    std::thread::sleep(Duration::from_secs(2));
    assert!(!job.stderr().contains("deadlock:"), "{}", job.stderr());
    job.signal(Signal::SIGTERM);
    let _ = job.wait();
}

#[test]
fn who_has_to_share_the_processors_is_found_and_never_accused_either() {
    let scene = Scene::new();
    let Some(built) = scene.program("deadlock") else { return };
    let program = scene.dir().join("deadlock");
    std::fs::copy(built, &program).unwrap();
    let program = program.to_str().unwrap();
    let database = "a address=127.0.0.1 cores=2 group=all\n";
    let Some(cluster) = Cluster::start_as(&scene, &["a"], database, &["-ts", "40"]) else { return };
    let spin = "echo up; while :; do :; done";
    let mut neighbour = cluster.scrun(ALICE, "a", "nodes=2", spin).start();
    neighbour.wait_for("up", 2);
    let beside = |what: &str| {
        let words = ["-scored=all,nodes=2", program, what];
        cluster.command(BOB, "scrun", "a").args(&words).watchdog(PATIENCE).run()
    };
    for what in ["alone", "mutual", "blocked", "barrier", "unread", "sleeper"] {
        let _ = beside(what).says(&["deadlock: no process of deadlock can go on"]).expect(CODE);
    }
    for what in ["never-idle", "late", "barriers", "helper", "helper-wakes", "mistake", "alarm"] {
        let _ = beside(what).expect(0);
    }
    neighbour.signal(Signal::SIGTERM);
    let _ = neighbour.wait();
}
