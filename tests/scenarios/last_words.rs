//! A process sends its last message and ends at once, on a network that loses every tenth packet:
//! whatever pmSend has taken arrives, because the shepherd goes on for the dead.

use score_tests::{Outcome, Scene};

const LOSS: &str = "drop=0.1,duplicate=0.05,reorder=0.05,seed=";

fn run(how: &str, seed: u32) -> Option<Outcome> {
    let scene = Scene::new();
    let program = scene.program("last_words")?;
    let words = ["-group=local:4,nodes=4x1", program.to_str().unwrap(), "200", how];
    let job = scene.scrun(&words).env("SCORE_TEST_LOSS", &format!("{LOSS}{seed}"));
    Some(job.run())
}

fn arrives(how: &str) {
    for seed in 1..=3 {
        let Some(outcome) = run(how, seed) else { return };
        let outcome = outcome.expect(0);
        assert_eq!(outcome.sorted(), ["all 200 of node 1", "all 200 of node 3"], "{outcome}");
    }
}

#[test]
fn everything_arrives_after_a_return_from_main() {
    arrives("return");
}

#[test]
fn everything_arrives_after_exit() {
    arrives("exit");
}

#[test]
fn everything_arrives_after_an_end_without_handlers() {
    arrives("_exit");
}

#[test]
fn a_loss_that_is_none_is_refused() {
    let scene = Scene::new();
    let Some(program) = scene.program("last_words") else { return };
    let words = ["-group=local:2,nodes=2x1", program.to_str().unwrap(), "1", "exit"];
    let outcome = scene.scrun(&words).env("SCORE_TEST_LOSS", "drop=2").run();
    assert_ne!(outcome.code, 0, "{outcome}");
    let _ = outcome.says(&["no ethernet device"]);
}
