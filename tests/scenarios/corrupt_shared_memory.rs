//! A process writes garbage into shared memory, tries to resize it, or dies in the middle of a
//! message. Only its own job ends, and scrun prints the reason. No other process crashes, and the
//! daemon continues.

use std::time::Duration;

use score_tests::{Outcome, TestEnv};

fn run(mode: &str) -> Option<Outcome> {
    let env = TestEnv::new();
    let program = env.test_program("hostile")?;
    let job = env.scrun(&["-nodes=3", program.to_str().unwrap(), mode]);
    let outcome = job.timeout(Duration::from_secs(60)).run();
    assert_ne!(outcome.code, 0, "{outcome}");
    for word in ["panicked", "SIGBUS", "SIGSEGV", "scored has died", "scored died"] {
        assert!(!outcome.stderr.contains(word), "{mode}: {word}: {outcome}");
    }
    assert!(!outcome.stderr.is_empty() || outcome.code == 5, "no reason: {outcome}");
    Some(outcome)
}

// Promise (faults): Garbage in shared memory ends only its own job; no other process crashes.
#[test]
fn garbage_in_shared_memory_ends_only_its_own_job() {
    let Some(outcome) = run("garbage") else { return };
    assert!([5, 9].contains(&outcome.code), "{outcome}");
}

// Promise of `garbage_in_shared_memory_ends_only_its_own_job`.
#[test]
fn zeros_in_shared_memory_end_only_its_own_job() {
    let Some(outcome) = run("zeros") else { return };
    assert!([5, 9].contains(&outcome.code), "{outcome}");
}

// Promise (faults): Shared objects cannot be resized.
#[test]
fn shared_objects_cannot_be_resized() {
    let Some(outcome) = run("resize") else { return };
    assert_eq!(outcome.text(), "resizing was tried\n");
    assert_eq!(outcome.code, 5, "{outcome}");
}

#[test]
fn a_death_between_buffer_and_send_ends_the_job() {
    let Some(outcome) = run("halfway") else { return };
    let _ = outcome.expect_code(137).assert_stderr(&["node 0", "SIGKILL"]);
}
