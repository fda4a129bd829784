//! A slip of the pen on scrun's command line gives one line that names the word and exit code 2;
//! nothing is started.

use score_tests::{Outcome, Scene};

fn refused(words: &[&str]) -> Outcome {
    let scene = Scene::new();
    let witness = scene.dir().join("witness");
    let outcome = scene.scrun(words).run();
    assert_eq!(outcome.code, 2, "{words:?}: {outcome}");
    assert!(outcome.stdout.is_empty(), "{outcome}");
    assert!(!witness.exists(), "something was started: {outcome}");
    assert!(!outcome.stderr.contains("panicked"), "{outcome}");
    outcome
}

#[test]
fn an_option_near_a_known_one_gets_a_suggestion() {
    let outcome = refused(&["-nodse=2", "system", "touch", "witness"]);
    let _ = outcome.says(&["nodse", "did you mean", "nodes"]);
}

#[test]
fn a_wrong_value_is_named() {
    let _ = refused(&["-nodes=two", "system", "touch", "witness"]).says(&["two"]);
    let _ = refused(&["-nodes=0", "system", "touch", "witness"]).says(&["0"]);
    let _ = refused(&["-nodes=-1", "system", "touch", "witness"]).says(&["-1"]);
    let _ = refused(&["-nodes=99999999999999", "system", "true"]).says(&["99999999999999"]);
    let _ = refused(&["-message=loud", "system", "touch", "witness"]).says(&["loud"]);
}

#[test]
fn several_hosts_are_refused_with_the_reason() {
    let outcome = refused(&["-nodes=2x2", "system", "touch", "witness"]);
    let _ = outcome.says(&["2x2"]);
}

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
        let _ = refused(line).says(&[word]);
    }
}

#[test]
fn a_redirect_without_a_file_name_is_named() {
    for operator in [":=", "=:", "=::", ":=:"] {
        let _ = refused(&["system", "true", operator]).says(&[operator]);
        let _ = refused(&["system", "true", operator, "==", "system", "cat"]).says(&[operator]);
    }
}

#[test]
fn a_relative_path_is_no_redirect_target() {
    let outcome = refused(&["system", "touch", "witness", "=:", "a/b"]);
    let _ = outcome.says(&["a/b"]);
}

#[test]
fn no_program_at_all_is_a_usage_error() {
    let _ = refused(&[]).says(&["scrun"]);
    let _ = refused(&["-nodes=2"]);
    let _ = refused(&[""]);
}

#[test]
fn options_of_the_manual_without_effect_say_so_once_and_run() {
    let scene = Scene::new();
    let outcome = scene.scrun(&["-nodes=2,priority=3", "system", "echo", "ran"]).run().expect(0);
    assert_eq!(outcome.text(), "ran\nran\n");
    assert_eq!(outcome.stderr.matches("priority").count(), 1, "{outcome}");
}
