//! A process sends its last message and exits at once, on a network that loses every tenth packet.
//! Every message that pmSend has accepted arrives, because the shepherd delivers the messages of an
//! exited process.

use score_tests::{Outcome, TestEnv};

const LOSS: &str = "drop=0.1,duplicate=0.05,reorder=0.05,seed=";

fn run(ending: &str, seed: u32) -> Option<Outcome> {
    let env = TestEnv::new();
    let program = env.test_program("send_then_exit")?;
    let args = ["-group=local:4,nodes=4x1", program.to_str().unwrap(), "200", ending];
    let job = env.scrun(&args).env("SCORE_TEST_LOSS", &format!("{LOSS}{seed}"));
    Some(job.run())
}

fn assert_all_arrive(ending: &str) {
    for seed in 1..=3 {
        let Some(outcome) = run(ending, seed) else { return };
        let outcome = outcome.expect_code(0);
        assert_eq!(outcome.sorted_lines(), ["all 200 of node 1", "all 200 of node 3"], "{outcome}");
    }
}

// Promise (faults): Messages sent with pmSend arrive even if the process then returns, exits or
// calls _exit at once, on a network that loses every tenth packet.
#[test]
fn all_messages_arrive_after_a_return_from_main() {
    assert_all_arrive("return");
}

// Promise of `all_messages_arrive_after_a_return_from_main`.
#[test]
fn all_messages_arrive_after_exit() {
    assert_all_arrive("exit");
}

// Promise of `all_messages_arrive_after_a_return_from_main`.
#[test]
fn all_messages_arrive_after_an_exit_without_handlers() {
    assert_all_arrive("_exit");
}

#[test]
fn an_invalid_packet_loss_is_refused() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("send_then_exit") else { return };
    let args = ["-group=local:2,nodes=2x1", program.to_str().unwrap(), "1", "exit"];
    let outcome = env.scrun(&args).env("SCORE_TEST_LOSS", "drop=2").run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.assert_stderr(&["no ethernet device"]);
}
