//! The cable of a host is pulled for five seconds and put back: the job goes on, every message
//! arrives in its turn, no host is given up, and the user reads of it once. A host whose cable
//! stays out is named.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::place::{self, Place};
use score_tests::{Running, Scene};

/// The longest game, as `pingpong` has it, and some time to begin and to end.
const GAME: Duration = Duration::from_secs(280);

fn is_switched(switch: &Place, host: u32, state: &str) {
    switch.ip(&format!("link set p{host}.0 {state}"));
}

fn rounds(job: &Running) -> usize {
    job.stdout().matches("round ").count()
}

/// Waits until the game has got on from where it was. How fast it is depends on who else wants the
/// processors.
fn gets_on(job: &Running) {
    let (begin, before) = (Instant::now(), rounds(job));
    while rounds(job) < before + 2 {
        let over = begin.elapsed() > Duration::from_secs(60);
        assert!(!over, "stands still: {}{}", job.stdout(), job.stderr());
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn five_seconds_without_a_cable_cost_nothing_but_time() {
    if !place::can_enter("cables_for_five_seconds") {
        return;
    }
    let scene = Scene::new();
    let Some(program) = scene.program("pingpong") else { return };
    let file = scene.dir().join("over");
    let words = ["-group=local:3,nodes=3x1", program.to_str().unwrap(), file.to_str().unwrap()];
    let job = scene.scrun(&words).watchdog(GAME).start();
    gets_on(&job);
    let switch = Place::switch(&scene);
    is_switched(&switch, 1, "down");
    sleep(Duration::from_millis(500));
    let before = rounds(&job);
    sleep(Duration::from_millis(4500));
    assert!(rounds(&job) <= before + 1, "the cable carries: {}", job.stdout());
    is_switched(&switch, 1, "up");
    gets_on(&job);
    // Longer than the limit of silence between daemons: nobody has been given up meanwhile.
    sleep(Duration::from_secs(12));
    gets_on(&job);
    scene.file("over", "");
    let outcome = job.wait().expect(0);
    assert!(outcome.text().contains("played "), "{outcome}");
    let warning = "host local1, node 1: network link eth0 carries nothing now";
    let warnings = outcome.stderr.matches(warning).count();
    assert_eq!(warnings, 1, "{outcome}");
}

#[test]
fn a_host_whose_cable_stays_out_is_named_and_the_job_ends() {
    if !place::can_enter("cables_for_ever") {
        return;
    }
    let scene = Scene::new();
    let script = "echo up; exec sleep 300";
    let words = ["-group=local:3,nodes=3x1", "system", "sh", "-c", script];
    let mut job = scene.scrun(&words).start();
    job.wait_for("up", 3);
    is_switched(&Place::switch(&scene), 2, "down");
    let begin = Instant::now();
    let outcome = job.wait().says(&["host local2 is lost", "nothing was heard"]);
    assert_ne!(outcome.code, 0, "{outcome}");
    // Silence for 16 s, and what a slow machine adds; not the minutes for which the job would run.
    assert!(begin.elapsed() < Duration::from_secs(50), "it took {:?}", begin.elapsed());
    // Virtual hosts share this machine: also what the lost one ran is ended.
    scene.wait_until_clean(score_tests::scene::GRACE).unwrap_or_else(|left| panic!("{left:#?}"));
}

#[test]
fn a_job_can_be_ended_while_a_cable_is_out() {
    if !place::can_enter("cables_and_signals") {
        return;
    }
    let scene = Scene::new();
    let script = "echo up; exec sleep 300";
    let words = ["-group=local:3,nodes=3x1", "system", "sh", "-c", script];
    let mut job = scene.scrun(&words).start();
    job.wait_for("up", 3);
    is_switched(&Place::switch(&scene), 1, "down");
    job.signal(Signal::SIGTERM);
    // The host that cannot be told is waited for no longer than one that is lost.
    assert_ne!(job.wait().code, 0);
    scene.wait_until_clean(score_tests::scene::GRACE).unwrap_or_else(|left| panic!("{left:#?}"));
}
