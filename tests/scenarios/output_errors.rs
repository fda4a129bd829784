//! The reader of scrun's output exits early, the disk is full, or descriptors run out. scrun
//! behaves like any Unix pipeline: it does not hang, prints a clear line, and loses no earlier
//! output.

use std::time::Duration;

use score_tests::TestEnv;
use score_tests::job::open_dev_full;
use score_tests::test_env::CLEANUP_TIMEOUT;

// Promise (output and input): A reader that exits early, a full disk and too few descriptors have
// the same effect as in a Unix pipeline.
#[test]
fn the_job_ends_after_head_has_read_one_line() {
    let env = TestEnv::new();
    let outcome = env.sh("scrun -nodes=4 system yes | head -1").run().expect_code(0);
    assert_eq!(outcome.text(), "y\n");
    env.assert_clean();
}

#[test]
fn the_writers_code_is_that_of_a_broken_pipe() {
    let env = TestEnv::new();
    let line = "(scrun -nodes=2 system yes; echo code $? >&2) | head -1";
    let outcome = env.sh(line).run().expect_code(0).assert_stderr(&["code "]);
    assert!(!outcome.stderr.contains("panicked"), "{outcome}");
    assert!(!outcome.stderr.contains("code 0\n"), "yes did not end by itself: {outcome}");
}

// Promise of `the_job_ends_after_head_has_read_one_line`.
#[test]
fn a_full_disk_is_reported_and_ends_the_job() {
    let env = TestEnv::new();
    let job = env.scrun(&["-nodes=2", "system", "yes"]).output_to(open_dev_full());
    let outcome = job.run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["No space left"]);
}

// Promise of `the_job_ends_after_head_has_read_one_line`.
#[test]
fn too_few_descriptors_are_reported_without_a_hang() {
    let env = TestEnv::new();
    for limit in [4, 6, 8, 10, 12, 16, 24, 32] {
        let line = format!("ulimit -n {limit}; exec scrun -nodes=8 system echo here");
        let outcome = env.sh(&line).timeout(Duration::from_secs(20)).run();
        assert!(!outcome.stderr.contains("panicked"), "ulimit -n {limit}: {outcome}");
        if outcome.code == 0 {
            assert_eq!(outcome.text(), "here\n".repeat(8), "ulimit -n {limit}: {outcome}");
        } else {
            assert!(!outcome.stderr.is_empty(), "ulimit -n {limit}: no message: {outcome}");
        }
        let clean = env.wait_until_clean(CLEANUP_TIMEOUT);
        clean.unwrap_or_else(|left| panic!("ulimit -n {limit}: {left:#?}"));
    }
}

#[test]
fn closed_standard_streams_do_no_harm() {
    let env = TestEnv::new();
    for line in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let command_line = format!("scrun -nodes=2 system echo here {line}");
        let outcome = env.sh(&command_line).timeout(Duration::from_secs(20)).run();
        assert!(!outcome.stderr.contains("panicked"), "{line}: {outcome}");
        if line == "<&-" || line == "2>&-" {
            assert_eq!((outcome.code, outcome.text()), (0, "here\nhere\n".into()), "{line}");
        }
    }
}
