//! The cable of a host is unplugged for five seconds and plugged in again. The job continues, every
//! message arrives in order, no host is given up, and scrun reports the failure once. If the cable
//! stays unplugged, scrun names the host.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::netns::{self, NetNs};
use score_tests::{Running, TestEnv};

/// The longest run of `pingpong`, and some time to start and to end.
const PING_PONG_TIMEOUT: Duration = Duration::from_secs(280);

fn set_link_state(switch: &NetNs, host: u32, state: &str) {
    switch.ip(&format!("link set p{host}.0 {state}"));
}

fn count_rounds(job: &Running) -> usize {
    job.stdout().matches("round ").count()
}

/// Waits until the ping-pong has made progress. Its speed depends on the load of the processors.
fn assert_progress(job: &Running) {
    let (started_at, rounds_before) = (Instant::now(), count_rounds(job));
    while count_rounds(job) < rounds_before + 2 {
        let timed_out = started_at.elapsed() > Duration::from_secs(60);
        assert!(!timed_out, "no progress: {}{}", job.stdout(), job.stderr());
        sleep(Duration::from_millis(20));
    }
}

// Promise (faults): If a cable is unplugged for 5 s, no message and no host is lost, and this is
// reported once; if it remains unplugged, the job ends and names the host.
#[test]
fn a_link_that_is_down_for_five_seconds_only_delays_the_job() {
    if !netns::can_enter("cables_for_five_seconds") {
        return;
    }
    let env = TestEnv::new();
    let Some(program) = env.test_program("pingpong") else { return };
    let file = env.dir().join("over");
    let args = ["-group=local:3,nodes=3x1", program.to_str().unwrap(), file.to_str().unwrap()];
    let job = env.scrun(&args).timeout(PING_PONG_TIMEOUT).start();
    assert_progress(&job);
    let switch = NetNs::for_switch(&env);
    set_link_state(&switch, 1, "down");
    // Output from before the cut may still be on its way to this test.
    sleep(Duration::from_millis(1500));
    let rounds_before = count_rounds(&job);
    sleep(Duration::from_millis(3500));
    assert!(count_rounds(&job) <= rounds_before + 1, "the cable carries: {}", job.stdout());
    set_link_state(&switch, 1, "up");
    assert_progress(&job);
    // After this pause the cut began longer ago than the silence limit between daemons. No host may
    // be lost.
    sleep(Duration::from_secs(12));
    assert_progress(&job);
    env.write_file("over", "");
    let outcome = job.wait().expect_code(0);
    assert!(outcome.text().contains("played "), "{outcome}");
    let warning = "host local1, node 1: network link eth0 failed";
    let warnings = outcome.stderr.matches(warning).count();
    assert_eq!(warnings, 1, "{outcome}");
}

// Promise of `a_link_that_is_down_for_five_seconds_only_delays_the_job`.
#[test]
fn a_host_whose_link_stays_down_is_named_and_the_job_ends() {
    if !netns::can_enter("cables_for_ever") {
        return;
    }
    let env = TestEnv::new();
    let script = "echo up; exec sleep 300";
    let args = ["-group=local:3,nodes=3x1", "system", "sh", "-c", script];
    let mut job = env.scrun(&args).start();
    job.wait_for("up", 3);
    set_link_state(&NetNs::for_switch(&env), 2, "down");
    let started_at = Instant::now();
    let outcome = job.wait().assert_stderr(&["host local2 is lost", "no data received"]);
    assert_ne!(outcome.code, 0, "{outcome}");
    // The job ends after 16 s of silence and some delay on a slow machine, not after the minutes
    // that it would run.
    assert!(started_at.elapsed() < Duration::from_secs(50), "it took {:?}", started_at.elapsed());
    // Virtual hosts share this machine, so the processes of the lost host also end.
    env.assert_clean();
}

// Promise of `a_link_that_is_down_for_five_seconds_only_delays_the_job`.
#[test]
fn a_job_can_be_terminated_while_a_link_is_down() {
    if !netns::can_enter("cables_and_signals") {
        return;
    }
    let env = TestEnv::new();
    let script = "echo up; exec sleep 300";
    let args = ["-group=local:3,nodes=3x1", "system", "sh", "-c", script];
    let mut job = env.scrun(&args).start();
    job.wait_for("up", 3);
    set_link_state(&NetNs::for_switch(&env), 1, "down");
    job.signal(Signal::SIGTERM);
    // SCore does not wait longer for an unreachable host than for a lost one.
    assert_ne!(job.wait().code, 0);
    env.assert_clean();
}
