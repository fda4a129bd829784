//! scrun's exit code says how the job ended: the code of node 0, 128 + signal, the value of
//! sc_exit, or the code of the rightmost element of a pipeline that failed.

use score_tests::TestEnv;

fn exit_code_of(line: &str) -> i32 {
    TestEnv::new().sh(line).run().code
}

// Promise (use): Exit codes are those of [limits.md](../limits.md#exit-codes).
#[test]
fn node_zero_sets_the_exit_code() {
    assert_eq!(exit_code_of("scrun -nodes=3 system true"), 0);
    assert_eq!(exit_code_of("scrun -nodes=3 system sh -c 'exit 7'"), 7);
    assert_eq!(exit_code_of("scrun -nodes=3 system sh -c 'exit $((SCORE_SELF_NODE + 40))'"), 40);
}

#[test]
fn the_code_of_another_node_is_reported_and_does_not_change_the_exit_code() {
    let env = TestEnv::new();
    let outcome =
        env.sh("scrun -nodes=3 system sh -c 'exit $SCORE_SELF_NODE'").run().expect_code(0);
    let _ = outcome.assert_stderr(&["node 1", "node 2"]);
}

// Promise of `node_zero_sets_the_exit_code`.
#[test]
fn the_rightmost_failed_element_of_a_pipeline_sets_the_exit_code() {
    assert_eq!(exit_code_of("scrun -nodes=2 system sh -c 'exit 3' == system cat"), 3);
    assert_eq!(
        exit_code_of("scrun -nodes=2 system sh -c 'exit 3' == system sh -c 'cat; exit 4'"),
        4
    );
    assert_eq!(
        exit_code_of("scrun -nodes=2 system true == system sh -c 'exit 5' == system cat"),
        5
    );
}

#[test]
fn a_failed_stage_stops_the_sequence() {
    let env = TestEnv::new();
    let line = "scrun -nodes=2 system sh -c 'echo a; exit 6' :: system echo b";
    let outcome = env.sh(line).run().expect_code(6);
    assert_eq!(outcome.text(), "a\na\n");
}

// Promise of `node_zero_sets_the_exit_code`.
#[test]
fn a_signal_sets_exit_code_128_plus_its_number() {
    assert_eq!(exit_code_of("scrun -nodes=2 system sh -c 'kill -TERM $$'"), 143);
    assert_eq!(exit_code_of("scrun -nodes=2 system sh -c 'kill -KILL $$'"), 137);
}

#[test]
fn sigpipe_after_the_right_neighbour_has_closed_is_no_failure() {
    assert_eq!(exit_code_of("scrun -nodes=2 system yes == system head -1"), 0);
}

// Promise of `node_zero_sets_the_exit_code`.
#[test]
fn sc_exit_sets_the_code_from_any_node() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("faults") else { return };
    let program = program.to_str().unwrap();
    let outcome = env.scrun(&["-nodes=4", program, "sc_exit", "2"]).run();
    assert_eq!(outcome.code, 42, "{outcome}");
    assert_eq!(outcome.text(), "before sc_exit\n", "what was written before is not lost");
}
