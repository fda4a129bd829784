//! system(6).

use crate::harness::{TestDir, folder};

#[test]
fn the_program_runs_on_every_node_with_its_variables() {
    let test_dir = TestDir::new();
    let script = "echo $SCORE_SELF_NODE $SCORE_SELF_HOST $SCORE_SELF_PROC \
                  $SCORE_NUM_NODE $SCORE_NUM_HOST $SCORE_NUM_PROC";
    let line = format!("scrun -nodes=3 system sh -c '{script}' | sort");
    assert_eq!(test_dir.text(&line), "0 0 0 3 1 3\n1 0 1 3 1 3\n2 0 2 3 1 3\n");
}

#[test]
fn the_host_option_runs_the_program_in_the_first_process_of_each_host_only() {
    let test_dir = TestDir::new();
    assert_eq!(test_dir.text("scrun -nodes=3 system -host sh -c 'echo $SCORE_SELF_NODE'"), "0\n");
}

/// If a job names `system` by its path, it is an ordinary program, which starts on every node and
/// calls exec.
#[test]
fn system_can_be_invoked_by_its_path() {
    let test_dir = TestDir::new();
    let system = folder().join("system");
    let line = |rest: &str| format!("scrun -nodes=3 system {} {rest}", system.display());
    assert_eq!(test_dir.text(&line("echo here")), "here\n".repeat(3));
    assert_eq!(test_dir.text(&line("-host echo here")), "here\n");
    let stderr = test_dir.failure(&line("no-such-program"), 127);
    assert!(stderr.contains("system: node 0: no-such-program: No such file"), "{stderr}");
    let stderr = test_dir.failure(&line("/dev/null"), 126);
    assert!(stderr.contains("/dev/null: Permission denied"), "{stderr}");
}
