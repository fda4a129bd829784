//! Daemons on other machines are started by ssh, by srun inside a Slurm allocation, or by qrsh
//! inside a parallel environment of Grid Engine. All launchers are real, on a virtual LAN. If a
//! daemon cannot be started, scrun names its host and prints the launcher's message.

use score_tests::testbed::Testbed;
use score_tests::{TestEnv, binaries};

fn scored() -> String {
    binaries::program("scored").display().to_string()
}

// Promise (use): Daemons start on other hosts by ssh, by srun in an allocation of Slurm, and by
// qrsh in a parallel environment of Grid Engine; if one does not start, the message has the host
// and the error of the launcher.
#[test]
fn ssh_starts_a_trial_daemon_on_every_host() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::ssh(&env) else { return };
    let line = format!("{} -try 10.77.0.2,10.77.0.3", scored());
    let outcome = testbed.run(&env, 3, &line).run().expect_code(0);
    for host in ["10.77.0.2", "10.77.0.3"] {
        assert!(outcome.text().contains(&format!("{host}: up after")), "{outcome}");
    }
}

// Promise of `ssh_starts_a_trial_daemon_on_every_host`.
#[test]
fn a_host_that_ssh_does_not_reach_is_named_and_other_hosts_start() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::ssh(&env) else { return };
    // 10.77.0.2 exists, but 10.77.0.9 does not. The second command has a path without a scored.
    let line = format!(
        "{scored} -try 10.77.0.2,10.77.0.9; SCORE_SCORED=/nowhere/scored {scored} -try 10.77.0.2",
        scored = scored()
    );
    let outcome = testbed.run(&env, 2, &line).run().expect_code(1);
    let text = outcome.text();
    assert!(text.contains("10.77.0.2: up after"), "{outcome}");
    assert!(
        text.contains("10.77.0.9: no daemon could be started by the remote shell"),
        "{outcome}"
    );
    assert!(text.contains("10.77.0.2: no daemon could be started"), "{outcome}");
    assert!(text.contains("/nowhere/scored"), "{outcome}");
}

// Promise of `ssh_starts_a_trial_daemon_on_every_host`.
#[test]
fn an_ssh_that_would_ask_a_question_fails_at_once() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::ssh(&env) else { return };
    let line = format!(
        "SCORE_RSH=\"$SCORE_RSH -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=ask\" {} \
         -try 10.77.0.2",
        scored()
    );
    let outcome = testbed.run(&env, 2, &line).run().expect_code(1);
    let text = outcome.text();
    assert!(text.contains("10.77.0.2: no daemon"), "{outcome}");
    assert!(text.contains("Host key verification failed"), "{outcome}");
}

// Promise of `ssh_starts_a_trial_daemon_on_every_host`.
#[test]
fn a_daemon_that_ssh_has_started_ends_when_its_scored_is_killed() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::ssh(&env) else { return };
    // The second host does not exist. Therefore scored still waits for it when the first daemon is
    // up.
    let line = format!(
        "SCORE_RSH=\"$SCORE_RSH -o ConnectionAttempts=100\"; export SCORE_RSH\n\
         {} -try 10.77.0.2,10.77.0.9 > output & scored=$!\n\
         tries=0; until grep 'up after' output || [ $tries = 400 ]; do \
         tries=$((tries + 1)); sleep 0.05; done\n\
         ps ax | grep -c '[s]cored -greet -connect .* -host 10.77.0.2'\n\
         kill -KILL $scored; wait $scored; tries=0\n\
         while ps ax | grep '[s]cored -greet' > left && [ $tries -lt 100 ]; do \
         tries=$((tries + 1)); sleep 0.05; done; wc -l < left",
        scored()
    );
    let outcome = testbed.run(&env, 2, &line).run().expect_code(0);
    let lines: Vec<String> = outcome.text().lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("10.77.0.2: up after"), "{outcome}");
    // The pattern may also match a shell that has not executed the trial daemon yet, and the
    // arguments of ssh.
    assert!(lines[1].trim().parse::<u32>().is_ok_and(|count| count >= 1), "{outcome}");
    assert_eq!(lines[2].trim(), "0", "still there: {outcome}");
}

// Promise of `ssh_starts_a_trial_daemon_on_every_host`.
#[test]
fn srun_starts_a_trial_daemon_on_every_node_of_an_allocation() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::slurm(&env, 3) else { return };
    let line = format!("{} -try node1,node2,node3", scored());
    let outcome = testbed.run(&env, 4, &line).run().expect_code(0);
    for node in 1..=3 {
        let expected = format!("node{node}: up after");
        assert!(outcome.text().contains(&expected), "{outcome}");
    }
}

// Promise of `ssh_starts_a_trial_daemon_on_every_host`.
#[test]
fn a_node_outside_the_allocation_is_refused_with_the_error_of_srun() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::slurm(&env, 2) else { return };
    let line = format!("{} -try node1,node9", scored());
    let outcome = testbed.run(&env, 3, &line).run().expect_code(1);
    let text = outcome.text();
    for host in ["node1", "node9"] {
        let expected = format!("{host}: no daemon could be started by srun");
        assert!(text.contains(&expected), "{outcome}");
    }
    assert!(text.contains("srun: error:") && text.contains("start=ssh"), "{outcome}");
}

// Promise of `ssh_starts_a_trial_daemon_on_every_host`.
#[test]
fn qrsh_starts_a_trial_daemon_on_every_host_of_a_parallel_environment() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::grid_engine(&env, 2) else { return };
    let line = format!("{} -try node1,node2", scored());
    let outcome = testbed.run(&env, 3, &line).run().expect_code(0);
    for host in 1..=2 {
        let expected = format!("node{host}: up after");
        assert!(outcome.text().contains(&expected), "{outcome}");
    }
}
