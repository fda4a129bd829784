//! Stacks on the page of a cluster. The owner of a job clicks a button and sees the tree that
//! `scdb JOB stacks` prints. The tree of a deadlock is shown after the end of the job. No other
//! user sees either tree, not even an operator.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::TestEnv;
use score_tests::http::{PageUrl, Response, send_raw};
use score_tests::service::{ALICE, BOB, Cluster, OPERATOR};
use serde_json::Value;

const READING_TIMEOUT: Duration = Duration::from_secs(60);
const EXIT_DEADLOCK: i32 = 35;

/// Copies a test program so that every user may run it.
fn copy_program(env: &TestEnv, name: &str) -> Option<PathBuf> {
    let built = env.test_program(name)?;
    let path = env.dir().join(name);
    std::fs::copy(built, &path).unwrap();
    Some(path)
}

/// Sends the request of a button of the page.
fn post(page: &PageUrl, path: &str) -> Response {
    let text = format!(
        "POST /{}/{path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        page.token, page.addr
    );
    send_raw(page.addr, text.as_bytes())
}

/// Waits for the stacks of a job.
fn wait_for_stacks(page: &PageUrl, job: &str) -> Value {
    let asked_since = Instant::now();
    loop {
        let answer = page.get(&format!("stacks/{job}"));
        assert_eq!(answer.status, 200, "{answer:?}");
        let stacks: Value = serde_json::from_str(&answer.body).unwrap();
        if stacks["state"] != "reading" {
            return stacks;
        }
        assert!(asked_since.elapsed() < READING_TIMEOUT, "{stacks}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

// Promise (several users): The page shows the stacks of a job, as scdb does, and those of a
// deadlock after the end of the job, only to the owner of the job.
#[test]
fn the_owner_of_a_job_alone_has_its_stacks_read_and_sees_those_of_a_deadlock() {
    let env = TestEnv::new();
    let Some(program) = copy_program(&env, "stacks") else { return };
    let Some(deadlock) = copy_program(&env, "deadlock") else { return };
    let Some(cluster) = Cluster::start(&env, &["a"]) else { return };
    // The service must be next to the copy of scored that serves the cluster.
    let _ = cluster.program("scored-toolctl");
    let [page, bobs_page, operators_page] =
        [ALICE, BOB, OPERATOR].map(|uid| PageUrl::for_cluster(&cluster, uid, "a"));
    let command = cluster.command(ALICE, "scrun", "a");
    let job = command.args(&["-scored=all,nodes=2", program.to_str().unwrap(), "300"]);
    let mut job = job.timeout(READING_TIMEOUT * 4).start();
    job.wait_for("up", 2);
    job.wait_for_stderr("2 nodes on 1 host");
    let number = job.stderr().split([' ', ':']).nth(3).unwrap().to_owned();
    let path = format!("stacks/{number}");

    // No stacks have been read, and a GET does not start reading.
    assert_eq!(page.get(&path).status, 404);
    // The answer for another user's job is the same as for a job that does not exist.
    for (reader, path) in [
        (&bobs_page, &path[..]),
        (&operators_page, &path),
        (&page, "stacks/999"),
        (&page, "stacks/x"),
        (&page, "stacks/"),
        (&page, "stacks/4294967296"),
    ] {
        let answer = post(reader, path);
        assert_eq!((answer.status, answer.body.contains("nothing of this name")), (404, true));
    }
    assert_eq!(post(&PageUrl { token: "0".repeat(32), ..page.clone() }, &path).status, 403);
    let answer = post(&page, &path);
    assert_eq!(answer.status, 200, "{answer:?}");
    let mut stacks = wait_for_stacks(&page, &number);
    assert_eq!((&stacks["state"], &stacks["problems"]), (&"read".into(), &serde_json::json!([])));
    // The server refuses a second reading soon after the first. A reading may take longer than this
    // interval.
    let deadline = Instant::now() + READING_TIMEOUT;
    while post(&page, &path).status != 429 {
        assert!(Instant::now() < deadline, "{stacks}");
        stacks = wait_for_stacks(&page, &number);
    }
    let text = stacks["text"].as_str().unwrap();
    // scdb prints the same, except for the call in which a thread is at the moment.
    let scdb = cluster.command(ALICE, "scdb", "a").args(&[&number, "stacks"]).run().text();
    for frame in ["all ranks", "_start", "main in stacks", "compute_something", "count_down"] {
        let line_of =
            |text: &str| text.lines().find(|line| line.contains(frame)).map(str::to_owned);
        let line = line_of(text).unwrap_or_else(|| panic!("no {frame} in {text}"));
        assert_eq!(Some(line), line_of(&scdb), "{scdb}");
    }
    let listed = page.get_data()["stacks"].clone();
    assert_eq!((&listed[0][0].to_string(), &listed[0][1]), (&number, &Value::Null), "{listed}");
    for other in [&bobs_page, &operators_page] {
        assert_eq!(
            (other.get(&path).status, &other.get_data()["stacks"]),
            (404, &serde_json::json!([]))
        );
    }
    job.signal(Signal::SIGTERM);
    assert_ne!(job.wait().code, 0);

    let command = cluster.command(ALICE, "scrun", "a");
    let outcome =
        command.args(&["-scored=all,nodes=2", deadlock.to_str().unwrap(), "mutual"]).run();
    let outcome = outcome.expect_code(EXIT_DEADLOCK);
    let (_, printed) = outcome.stderr.split_once("stacks of deadlock:\n").expect("a tree");
    let number = outcome.stderr.split([' ', ':']).nth(3).unwrap();
    let stacks = wait_for_stacks(&page, number);
    assert_eq!(stacks["title"], "stacks of deadlock");
    let tree = stacks["text"].as_str().unwrap();
    assert!(tree.contains("main in deadlock") && printed.contains(tree), "{tree}\n{printed}");
    assert_eq!(operators_page.get(&format!("stacks/{number}")).status, 404);
    assert_eq!(post(&page, &format!("stacks/{number}")).status, 404, "the job has ended");
}
