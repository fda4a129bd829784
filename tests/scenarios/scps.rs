//! `scps`: a user sees the own jobs in full and of others where they run, an operator sees all; a
//! job that waits is told its place.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::{Running, Scene};
use serde_json::Value;

fn jobs(cluster: &Cluster<'_>, uid: u32, words: &[&str]) -> Vec<Value> {
    let outcome = cluster.command(uid, "scps", "a").args(words).arg("-json").run();
    assert_eq!(outcome.code, 0, "{outcome}");
    let all: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    all["jobs"].as_array().unwrap().clone()
}

fn end(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

#[test]
fn the_own_jobs_are_listed_in_full_and_those_of_others_by_their_hosts() {
    let scene = Scene::new();
    let options = ["-rows", "1"];
    let database = Cluster::database(&["a", "b"]);
    let Some(cluster) = Cluster::start_as(&scene, &["a", "b"], &database, &options) else { return };
    assert!(jobs(&cluster, ALICE, &[]).is_empty());
    let table = cluster.command(ALICE, "scps", "a").run();
    assert!(table.code == 0 && table.text().starts_with("JOB  USER  STATE"), "{table}");

    let alice = cluster.hold(ALICE, "a", "nodes=2x2,priority=3");
    let waiting = cluster.scrun(BOB, "b", "nodes=3,wait", "echo up").start();
    let end_of_patience = Instant::now() + Duration::from_secs(30);
    while jobs(&cluster, BOB, &["-own"]).is_empty() {
        assert!(Instant::now() < end_of_patience, "bob's job does not wait: {}", waiting.stderr());
        sleep(Duration::from_millis(20));
    }
    let seen = jobs(&cluster, ALICE, &[]);
    assert_eq!(seen.len(), 2, "{seen:?}");
    let (own, other) = (&seen[0], &seen[1]);
    assert_eq!((&own["state"], &own["priority"]), (&"running".into(), &3.into()));
    assert_eq!((&own["nodes"], &own["host_count"]), (&4.into(), &2.into()));
    assert_eq!((&own["uid"], own["hosts"].as_array().unwrap().len()), (&ALICE.into(), 2));
    assert!(own["since_ms"].as_u64().unwrap() < 60_000, "{own}");
    assert_eq!((&other["uid"], &other["state"]), (&BOB.into(), &"waiting".into()));
    for hidden in ["priority", "nodes", "since_ms", "share_permille", "ahead"] {
        assert!(other[hidden].is_null(), "{other}");
    }
    for uid in [OPERATOR, 0] {
        let seen = jobs(&cluster, uid, &[]);
        assert_eq!((&seen[0]["priority"], &seen[1]["nodes"]), (&3.into(), &3.into()));
        assert_eq!((&seen[1]["ahead"], &seen[1]["priority"]), (&0.into(), &8.into()));
    }
    assert_eq!(jobs(&cluster, BOB, &["-own"]).len(), 1);
    let table = cluster.command(BOB, "scps", "b").run().text();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].contains("61001  running") && lines[1].ends_with("  b,a"), "{table}");
    assert!(lines[2].contains("61002  waiting, 0 before it"), "{table}");
    end(alice);
    let outcome = waiting.wait();
    assert_eq!((outcome.code, outcome.text().as_str()), (0, "up\nup\nup\n"), "{outcome}");
}

#[test]
fn where_no_scored_serves_the_host_one_line_says_so() {
    let scene = Scene::new();
    let program = score_tests::binaries::program("scps");
    let outcome = scene.command(program).args(&["-socket", "nowhere"]).run();
    let _ = outcome.expect(1).says(&["no scored serves this host (nowhere", "an operator"]);
}
