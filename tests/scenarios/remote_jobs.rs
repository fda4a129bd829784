//! Jobs on other machines use the same command. Hosts come from a file, and ssh starts the daemons.
//! The user's machine may be the first host, another host, or no host of the job.

use score_tests::testbed::Testbed;
use score_tests::{Outcome, TestEnv};

/// Runs a job with two nodes on each of these hosts. Each node prints its host.
fn run_and_report_nodes(
    env: &TestEnv,
    testbed: &Testbed,
    lan_hosts: u32,
    hosts: &[&str],
) -> Outcome {
    env.write_file("machines", hosts.join("\n") + "\n");
    let line = format!(
        "seq 3 | scrun -file=machines,nodes={}x2 system sh -c \
         'read line; echo $SCORE_SELF_HOST $SCORE_SELF_NODE $line'",
        hosts.len()
    );
    testbed.run(env, lan_hosts, &line).run().expect_code(0)
}

fn assert_nodes(outcome: &Outcome, hosts: u32) {
    let expected: Vec<String> = (0..2 * hosts)
        .map(|node| format!("{} {node} {}", node / 2, if node == 0 { "1" } else { "" }))
        .map(|line| line.trim_end().to_owned())
        .collect();
    assert_eq!(outcome.sorted_lines(), expected, "{outcome}");
}

// Promise (jobs on many hosts): Jobs run on machines reached by ssh, with or without the user's own
// machine.
#[test]
fn ssh_starts_the_daemons_on_the_hosts_of_a_job() {
    for hosts in [
        &["10.77.0.2", "10.77.0.3"][..],
        &["localhost", "10.77.0.2", "10.77.0.3"],
        &["10.77.0.3", "localhost", "10.77.0.2"],
    ] {
        let env = TestEnv::new();
        let Some(testbed) = Testbed::ssh(&env) else { return };
        assert_nodes(&run_and_report_nodes(&env, &testbed, 3, hosts), hosts.len() as u32);
    }
}

// Promise of `ssh_starts_the_daemons_on_the_hosts_of_a_job`.
#[test]
fn a_program_of_score_is_copied_by_ssh() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::ssh(&env) else { return };
    env.write_file("machines", "10.77.0.2\n10.77.0.3\n");
    let line = "seq 20 | scrun -file=machines,nodes=2x2 scatter == system cat | sort -n | uniq -c";
    let outcome = testbed.run(&env, 3, line).run().expect_code(0);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let expected: Vec<String> = (1..=20).map(|number| format!("4 {number}")).collect();
    assert_eq!(lines, expected, "{outcome}");
}

// Promise of `ssh_starts_the_daemons_on_the_hosts_of_a_job`.
#[test]
fn a_host_that_ssh_does_not_reach_is_named_and_no_job_starts() {
    let env = TestEnv::new();
    let Some(testbed) = Testbed::ssh(&env) else { return };
    env.write_file("machines", "10.77.0.2\n10.77.0.9\n");
    let line = "scrun -file=machines,nodes=2x1 system echo never";
    let outcome = testbed.run(&env, 2, line).run().expect_code(1);
    assert_eq!(outcome.text(), "");
    let _ = outcome.assert_stderr(&["10.77.0.9: no daemon could be started by the remote shell"]);
}
