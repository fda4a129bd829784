//! Whatever is killed, at whatever moment, everything else of the job ends within a second and
//! nothing is left: no process, also none that has called setsid or forked twice, and no file.

use std::time::Duration;

use nix::sys::signal::Signal;
use score_tests::process::Process;
use score_tests::{Running, Scene};

/// A job whose descendants have left their session, as daemons do.
const ESCAPE: &str = "scrun -nodes=3 system sh -c '\
    setsid sleep 300 & (setsid sh -c \"sleep 301 & sleep 302\" &) ; echo up; exec sleep 303'";

fn start(scene: &Scene) -> Running {
    let mut job = scene.sh(ESCAPE).start();
    job.wait_for("up", 3);
    for (seconds, what) in [("300", "setsid child"), ("301", "double fork"), ("303", "rank")] {
        scene.wait_for_process(what, |process| process.command == format!("sleep {seconds}"));
    }
    job
}

fn kill(scene: &Scene, what: &str, wanted: impl Fn(&Process) -> bool) {
    scene.wait_for_process(what, wanted).signal(Signal::SIGKILL);
    let clean = scene.wait_until_clean(Duration::from_secs(3));
    let took = clean.unwrap_or_else(|left| panic!("after SIGKILL of {what}: {left:#?}"));
    eprintln!("everything gone {took:?} after SIGKILL of {what}");
}

#[test]
fn a_rank_is_killed() {
    let scene = Scene::new();
    let job = start(&scene);
    kill(&scene, "a rank", |process| process.command == "sleep 303");
    let _ = job.wait().expect(137).says(&["node ", "SIGKILL"]);
}

#[test]
fn the_shepherd_is_killed() {
    let scene = Scene::new();
    let job = start(&scene);
    kill(&scene, "the shepherd", Process::is_shepherd);
    let outcome = job.wait().says(&["shepherd"]);
    assert_ne!(outcome.code, 0, "{outcome}");
}

#[test]
fn scored_is_killed() {
    let scene = Scene::new();
    let job = start(&scene);
    kill(&scene, "scored", Process::is_scored);
    let outcome = job.wait().says(&["scored"]);
    assert_ne!(outcome.code, 0, "{outcome}");
}

#[test]
fn scrun_is_killed() {
    let scene = Scene::new();
    let job = start(&scene);
    kill(&scene, "scrun", Process::is_scrun);
    assert_eq!(job.wait().code, 137);
}

#[test]
fn scrun_and_scored_are_killed_at_once() {
    let scene = Scene::new();
    let job = start(&scene);
    let scored = scene.wait_for_process("scored", Process::is_scored);
    let scrun = scene.wait_for_process("scrun", Process::is_scrun);
    scored.signal(Signal::SIGKILL);
    scrun.signal(Signal::SIGKILL);
    assert_ne!(job.wait().code, 0);
    let begin = std::time::Instant::now();
    while !scene.processes().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "left: {:#?}", scene.processes());
        std::thread::sleep(Duration::from_millis(10));
    }
    // Files of several deaths at once go with the next start.
    let _ = scene.scrun(&["-nodes=1", "system", "true"]).run().expect(0);
}

#[test]
fn descendants_do_not_outlive_a_job_that_ends_well() {
    let scene = Scene::new();
    let line = "scrun -nodes=2 system sh -c 'setsid sleep 300 > /dev/null 2>&1 & echo done'";
    let outcome = scene.sh(line).run().expect(0);
    assert_eq!(outcome.text(), "done\ndone\n");
    let clean = scene.wait_until_clean(Duration::from_secs(3));
    clean.unwrap_or_else(|left| panic!("{left:#?}"));
}

#[test]
fn the_daemon_of_one_job_does_not_mind_the_death_of_another() {
    let scene = Scene::new();
    let mut other = scene.sh("scrun -nodes=2 system sh -c 'echo on; sleep 2; echo off'").start();
    other.wait_for("on", 2);
    let victim = Scene::new();
    let job = start(&victim);
    kill(&victim, "scored", Process::is_scored);
    job.wait();
    let outcome = other.wait().expect(0);
    assert_eq!(outcome.sorted(), ["off", "off", "on", "on"]);
}
