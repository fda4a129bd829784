//! A program that is started without scrun runs as a single node (manual 1.4.4). Commands that need
//! a job report an error.

use score_tests::TestEnv;

// Promise (use): A program runs without scrun as one node.
#[test]
fn a_program_without_scrun_is_one_node_and_its_calls_work() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("calls") else { return };
    let run = |mode: &str| env.command(&program).arg(mode).run().expect_code(0).text();
    assert_eq!(run("who"), "node 0 of 1, proc 0 of 1, host 0 of 1, networks 0\n");
    assert_eq!(run("barrier"), "through\n");
    assert_eq!(run("files"), "written and read\n");
    assert_eq!(run("broadcast"), "got SIGUSR1\n");
    assert_eq!(run("flush"), "0\n");
}

#[test]
fn commands_of_a_job_that_are_started_without_scrun_report_that_they_need_it() {
    let env = TestEnv::new();
    for line in ["scatter", "gather", "system true", "pmtest"] {
        let outcome = env.sh(line).run();
        let name = line.split(' ').next().unwrap();
        assert_ne!(outcome.code, 0, "{name}: {outcome}");
        let _ = outcome.assert_stderr(&[name, "must be invoked by scrun"]);
    }
}
