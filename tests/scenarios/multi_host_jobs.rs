//! A job on several hosts behaves like a job on one host: `scrun -group=local:4,nodes=4x2 ...`.
//! Nodes are numbered host by host, output is merged by lines, and input goes to node 0. Exit codes
//! and signals have the same meaning.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use score_tests::{Job, TestEnv};

/// Runs `scrun` on four virtual hosts with two nodes each.
fn scrun_on_four_hosts(env: &TestEnv, args: &[&str]) -> Job {
    env.scrun(&["-group=local:4,nodes=4x2"]).args(args)
}

// Promise (jobs on many hosts): A job on several hosts behaves like a job on one: numbers of nodes,
// pipelines, files, exit codes, input, signals, ^Z.
#[test]
fn nodes_are_numbered_host_by_host() {
    let env = TestEnv::new();
    let script = "echo $SCORE_SELF_HOST/$SCORE_NUM_HOST $SCORE_SELF_NODE/$SCORE_NUM_NODE \
                  $SCORE_SELF_PROC/$SCORE_NUM_PROC";
    let outcome = scrun_on_four_hosts(&env, &["system", "sh", "-c", script]).run().expect_code(0);
    let expected: Vec<String> =
        (0..8).map(|node| format!("{}/4 {node}/8 {}/2", node / 2, node % 2)).collect();
    assert_eq!(outcome.sorted_lines(), expected);
    let _ = outcome.assert_stderr(&["job 1: 8 nodes on 4 hosts"]);
}

#[test]
fn a_job_gets_the_requested_hosts_and_nodes_per_host() {
    let env = TestEnv::new();
    let args = ["-group=local:3", "-nodes=3x2", "system", "sh", "-c", "echo $SCORE_SELF_HOST"];
    let outcome = env.scrun(&args).run().expect_code(0);
    assert_eq!(outcome.sorted_lines(), ["0", "0", "1", "1", "2", "2"]);
}

// Promise of `nodes_are_numbered_host_by_host`.
#[test]
fn every_host_has_its_own_processes_in_a_pipeline() {
    let env = TestEnv::new();
    let args = ["system", "-host", "sh", "-c", "echo $SCORE_SELF_HOST", "==", "system", "sed"];
    let job = scrun_on_four_hosts(&env, &args).arg("s/$/ & $SCORE_SELF_NODE/");
    let outcome = job.run().expect_code(0);
    assert_eq!(outcome.text().lines().count(), 4, "{outcome}");
}

// Promise of `nodes_are_numbered_host_by_host`.
#[test]
fn the_next_element_finds_files_of_an_earlier_element_on_each_host() {
    let env = TestEnv::new();
    let args = ["system", "sh", "-c", "echo $SCORE_SELF_NODE", "=:", "f", "::", "system", "cat"];
    let outcome =
        scrun_on_four_hosts(&env, &[&args[..], &[":=", "f"]].concat()).run().expect_code(0);
    let expected: Vec<String> = (0..8).map(|node| node.to_string()).collect();
    assert_eq!(outcome.sorted_lines(), expected);
}

// Promise of `nodes_are_numbered_host_by_host`.
#[test]
fn exit_codes_combine_as_on_one_host() {
    for (script, code, expected) in [
        ("exit 0", 0, ""),
        ("exit $((SCORE_SELF_NODE == 0 ? 7 : 0))", 7, ""),
        ("exit $((SCORE_SELF_NODE == 5 ? 7 : 0))", 0, "node 5 of sh exited with code 7"),
        ("[ $SCORE_SELF_NODE = 6 ] && kill -SEGV $$; sleep 60", 139, "node 6 of sh was killed"),
    ] {
        let env = TestEnv::new();
        let outcome =
            scrun_on_four_hosts(&env, &["system", "sh", "-c", script]).run().expect_code(code);
        let _ = outcome.assert_stderr(&[expected]);
    }
    let env = TestEnv::new();
    let outcome = scrun_on_four_hosts(&env, &["system", "/nonexistent"]).run().expect_code(127);
    let _ = outcome.assert_stderr(&["/nonexistent: not found"]);
}

// Promise of `nodes_are_numbered_host_by_host`.
#[test]
fn input_is_sent_to_node_0_only() {
    let env = TestEnv::new();
    let script = "wc -c; echo done";
    let bytes = vec![b'x'; 3_000_000];
    let outcome = scrun_on_four_hosts(&env, &["system", "sh", "-c", script])
        .input(bytes)
        .run()
        .expect_code(0);
    let sorted = outcome.sorted_lines();
    assert_eq!(sorted.iter().filter(|line| *line == "0").count(), 7, "{outcome}");
    assert!(sorted.contains(&"3000000".to_owned()), "{outcome}");
}

// Promise (jobs on many hosts): No line of four hosts is lost or split; a slow reader slows the
// writers of all hosts.
#[test]
fn no_line_of_four_hosts_is_lost_or_split() {
    let count = std::env::var("HARNESS_LINES").ok().and_then(|text| text.parse().ok());
    let count = count.unwrap_or(50_000);
    let env = TestEnv::new();
    let script = format!(
        "seq -f \"$SCORE_SELF_NODE:%.0f\" {count}; [ $SCORE_SELF_PROC = 1 ] || \
         head -c 65000 /dev/zero | tr '\\0' $SCORE_SELF_HOST; echo"
    );
    let outcome = scrun_on_four_hosts(&env, &["system", "sh", "-c", &script]).run().expect_code(0);
    let (mut next, mut long) = (BTreeMap::new(), 0);
    let text = outcome.text();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some((node, number)) = line.split_once(':') {
            let expected = next.entry(node).or_insert(1);
            assert_eq!(number.parse(), Ok(*expected), "node {node}: {line:?}");
            *expected += 1;
        } else {
            let first = line.chars().next().unwrap();
            assert!(line.len() == 65_000 && line.chars().all(|letter| letter == first));
            long += 1;
        }
    }
    assert_eq!(long, 4);
    assert_eq!(next.len(), 8);
    assert!(next.values().all(|last| *last == count + 1));
}

// Promise of `nodes_are_numbered_host_by_host`.
#[test]
fn signals_reach_every_host_and_sigterm_ends_them_all() {
    let env = TestEnv::new();
    let script = "trap 'echo got' USR1; echo up; while :; do sleep 0.05; done";
    let mut job = scrun_on_four_hosts(&env, &["system", "sh", "-c", script]).start();
    job.wait_for("up", 8);
    job.signal(Signal::SIGUSR1);
    job.wait_for("got", 8);
    job.signal(Signal::SIGTERM);
    let _ = job.wait().expect_code(137);
}

// Promise of `nodes_are_numbered_host_by_host`.
#[test]
fn a_suspended_job_stops_on_every_host_and_continues_later() {
    let env = TestEnv::new();
    let script = "echo up; read line; exec sleep 300.25";
    let mut job = scrun_on_four_hosts(&env, &["system", "sh", "-c", script]).start();
    job.wait_for("up", 8);
    let is_sleep = |process: &&score_tests::process::Process| process.command == "sleep 300.25";
    let states = || -> Vec<char> {
        env.processes().iter().filter(is_sleep).map(|process| process.state).collect()
    };
    let wait_for_state = |state: char| {
        let started_at = std::time::Instant::now();
        while states() != vec![state; 8] {
            assert!(started_at.elapsed().as_secs() < 20, "{:?}", states());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    };
    wait_for_state('S');
    job.signal(Signal::SIGTSTP);
    wait_for_state('T');
    job.signal(Signal::SIGCONT);
    wait_for_state('S');
    job.signal(Signal::SIGTERM);
    let _ = job.wait().expect_code(137);
}

// Promise of `no_line_of_four_hosts_is_lost_or_split`.
#[test]
fn writers_on_all_hosts_stop_if_output_is_not_read_and_end_with_their_reader() {
    let env = TestEnv::new();
    let line = "scrun -group=local:4,nodes=4x2,message=quiet system yes | head -c 1000000 | wc -c";
    let outcome = env.sh(line).run().expect_code(0);
    assert_eq!(outcome.text().trim(), "1000000");
}
