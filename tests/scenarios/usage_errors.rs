//! A mistake on scrun's command line results in one line that names the word, and in exit code 2.
//! No process is started.

use score_tests::{Outcome, TestEnv};

fn assert_refused(args: &[&str]) -> Outcome {
    let env = TestEnv::new();
    let witness = env.dir().join("witness");
    let outcome = env.scrun(args).run();
    assert_eq!(outcome.code, 2, "{args:?}: {outcome}");
    assert!(outcome.stdout.is_empty(), "{outcome}");
    assert!(!witness.exists(), "something was started: {outcome}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome}");
    outcome
}

// Promise (faults): For an error on the command line scrun prints one line with the word, exits
// with code 2, and starts nothing.
#[test]
fn an_option_near_a_known_one_gets_a_suggestion() {
    let outcome = assert_refused(&["-nodse=2", "system", "touch", "witness"]);
    let _ = outcome.assert_stderr(&["nodse", "did you mean", "nodes"]);
}

// Promise of `an_option_near_a_known_one_gets_a_suggestion`.
#[test]
fn a_wrong_value_is_named() {
    let _ = assert_refused(&["-nodes=two", "system", "touch", "witness"]).assert_stderr(&["two"]);
    let _ = assert_refused(&["-nodes=0", "system", "touch", "witness"]).assert_stderr(&["0"]);
    let _ = assert_refused(&["-nodes=-1", "system", "touch", "witness"]).assert_stderr(&["-1"]);
    let _ = assert_refused(&["-nodes=99999999999999", "system", "true"])
        .assert_stderr(&["99999999999999"]);
    let _ =
        assert_refused(&["-message=loud", "system", "touch", "witness"]).assert_stderr(&["loud"]);
}

#[test]
fn more_hosts_than_are_available_are_refused() {
    let outcome = assert_refused(&["-nodes=2x2", "system", "touch", "witness"]);
    let _ = outcome.assert_stderr(&["2x2"]);
}

// Promise of `an_option_near_a_known_one_gets_a_suggestion`.
#[test]
fn operators_at_an_end_or_doubled_are_shown() {
    for line in [
        &["==", "system", "true"][..],
        &["system", "true", "=="],
        &["system", "true", "==", "==", "system", "true"],
        &["::", "system", "true"],
        &["system", "true", "::"],
        &["system", "true", "==", "::", "system", "true"],
    ] {
        let word = if line.contains(&"::") { "::" } else { "==" };
        let _ = assert_refused(line).assert_stderr(&[word]);
    }
}

// Promise of `an_option_near_a_known_one_gets_a_suggestion`.
#[test]
fn a_redirect_without_a_file_name_is_named() {
    for operator in [":=", "=:", "=::", ":=:"] {
        let _ = assert_refused(&["system", "true", operator]).assert_stderr(&[operator]);
        let _ = assert_refused(&["system", "true", operator, "==", "system", "cat"])
            .assert_stderr(&[operator]);
    }
}

#[test]
fn a_relative_path_is_no_redirect_target() {
    let outcome = assert_refused(&["system", "touch", "witness", "=:", "a/b"]);
    let _ = outcome.assert_stderr(&["a/b"]);
}

#[test]
fn no_program_at_all_is_a_usage_error() {
    let _ = assert_refused(&[]).assert_stderr(&["scrun"]);
    let _ = assert_refused(&["-nodes=2"]);
    let _ = assert_refused(&[""]);
}

#[test]
fn an_option_of_the_manual_without_effect_is_reported_once_and_the_job_runs() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=2,priority=3", "system", "echo", "ran"]).run().expect_code(0);
    assert_eq!(outcome.text(), "ran\nran\n");
    assert_eq!(outcome.stderr.matches("priority").count(), 1, "{outcome}");
}
