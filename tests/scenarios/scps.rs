//! `scps`: users see all details of their own jobs, but only the hosts of other jobs. An operator
//! sees everything. A waiting job is shown with its position in the queue.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use score_tests::{Running, TestEnv};
use serde_json::Value;

fn list_jobs(cluster: &Cluster<'_>, uid: u32, args: &[&str]) -> Vec<Value> {
    let outcome = cluster.command(uid, "scps", "a").args(args).arg("-json").run();
    assert_eq!(outcome.code, 0, "{outcome}");
    let listing: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    listing["jobs"].as_array().unwrap().clone()
}

fn terminate(job: Running) {
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);
}

// Promise (several users): scps lists a user's own jobs in full and those of others by number, user
// and hosts; operators see all in full.
#[test]
fn the_jobs_of_a_user_are_listed_in_full_and_those_of_others_by_their_hosts() {
    let env = TestEnv::new();
    let options = ["-rows", "1"];
    let database = Cluster::database(&["a", "b"]);
    let Some(cluster) = Cluster::start_with_options(&env, &["a", "b"], &database, &options) else {
        return;
    };
    assert!(list_jobs(&cluster, ALICE, &[]).is_empty());
    let table = cluster.command(ALICE, "scps", "a").run();
    assert!(table.code == 0 && table.text().starts_with("JOB  USER  STATE"), "{table}");

    let alice_job = cluster.start_long_job(ALICE, "a", "nodes=2x2,priority=3");
    let waiting = cluster.scrun(BOB, "b", "nodes=3,wait", "echo up").start();
    let deadline = Instant::now() + Duration::from_secs(30);
    while list_jobs(&cluster, BOB, &["-own"]).is_empty() {
        assert!(Instant::now() < deadline, "bob's job does not wait: {}", waiting.stderr());
        sleep(Duration::from_millis(20));
    }
    let visible_jobs = list_jobs(&cluster, ALICE, &[]);
    assert_eq!(visible_jobs.len(), 2, "{visible_jobs:?}");
    let (own_job, other) = (&visible_jobs[0], &visible_jobs[1]);
    assert_eq!((&own_job["state"], &own_job["priority"]), (&"running".into(), &3.into()));
    assert_eq!((&own_job["nodes"], &own_job["host_count"]), (&4.into(), &2.into()));
    assert_eq!((&own_job["uid"], own_job["hosts"].as_array().unwrap().len()), (&ALICE.into(), 2));
    assert!(own_job["since_ms"].as_u64().unwrap() < 60_000, "{own_job}");
    assert_eq!((&other["uid"], &other["state"]), (&BOB.into(), &"waiting".into()));
    for field in ["priority", "nodes", "since_ms", "share_permille", "ahead"] {
        assert!(other[field].is_null(), "{other}");
    }
    for uid in [OPERATOR, 0] {
        let visible_jobs = list_jobs(&cluster, uid, &[]);
        assert_eq!(
            (&visible_jobs[0]["priority"], &visible_jobs[1]["nodes"]),
            (&3.into(), &3.into())
        );
        assert_eq!(
            (&visible_jobs[1]["ahead"], &visible_jobs[1]["priority"]),
            (&0.into(), &8.into())
        );
    }
    assert_eq!(list_jobs(&cluster, BOB, &["-own"]).len(), 1);
    let table = cluster.command(BOB, "scps", "b").run().text();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].contains("61001  running") && lines[1].ends_with("  b,a"), "{table}");
    assert!(lines[2].contains("61002  waiting, 0 before it"), "{table}");
    terminate(alice_job);
    let outcome = waiting.wait();
    assert_eq!((outcome.code, outcome.text().as_str()), (0, "up\nup\nup\n"), "{outcome}");
}

#[test]
fn a_host_without_scored_is_reported_in_one_line() {
    let env = TestEnv::new();
    let program = score_tests::binaries::program("scps");
    let outcome = env.command(program).args(&["-socket", "nowhere"]).run();
    let _ = outcome
        .expect_code(1)
        .assert_stderr(&["no scored serves this host (nowhere", "an operator"]);
}
