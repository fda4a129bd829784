//! A C program makes the sc_* calls in a job of several nodes.

use score_tests::{Outcome, TestEnv};

fn run_calls(nodes: usize, mode: &str) -> Option<Outcome> {
    let env = TestEnv::new();
    let program = env.test_program("calls")?;
    let option = format!("-nodes={nodes}");
    Some(env.scrun(&[option.as_str(), program.to_str().unwrap(), mode]).run())
}

#[test]
fn sc_barrier_can_be_used_repeatedly() {
    let Some(outcome) = run_calls(4, "barrier") else { return };
    assert_eq!(outcome.expect_code(0).text(), "through\n".repeat(4));
}

#[test]
fn sc_flush_fixes_the_order_of_lines() {
    let Some(outcome) = run_calls(4, "order") else { return };
    assert_eq!(outcome.expect_code(0).text(), "turn of 0\nturn of 1\nturn of 2\nturn of 3\n");
}

#[test]
fn temporary_files_are_made_opened_and_removed() {
    let Some(outcome) = run_calls(3, "files") else { return };
    assert_eq!(outcome.expect_code(0).text(), "written and read\n".repeat(3));
}

#[test]
fn sc_signal_bcast_reaches_every_node_and_refuses_the_schedulers_signals() {
    let Some(outcome) = run_calls(3, "broadcast") else { return };
    assert_eq!(outcome.expect_code(0).text(), "got SIGUSR1\n".repeat(3));
}

#[test]
fn sc_getpid_returns_the_same_number_on_every_node() {
    let Some(outcome) = run_calls(3, "number") else { return };
    let outcome = outcome.expect_code(0);
    let lines = outcome.sorted_lines();
    assert_eq!(lines.len(), 3, "{outcome}");
    assert!(lines.windows(2).all(|pair| pair[0] == pair[1]), "{outcome}");
}

#[test]
fn sc_inspectme_names_the_process_and_the_debugger_and_never_returns() {
    let Some(outcome) = run_calls(3, "inspect") else { return };
    assert_ne!(outcome.code, 0, "{outcome}");
    assert_eq!(outcome.text(), "");
    let _ = outcome.assert_stderr(&["node 1", "SIGSEGV", "gdb"]);
}

#[test]
fn sc_sleep_and_sc_yield_succeed_and_sc_checkpoint_fails_with_enosys() {
    let Some(outcome) = run_calls(2, "later") else { return };
    assert_eq!(outcome.expect_code(0).text(), "1 1 1\n1 1 1\n");
}
