//! Many more processes than processors: they start, run and end.

use std::time::Duration;

use score_tests::Scene;

#[test]
fn two_hundred_and_fifty_six_programs_run_and_end() {
    let scene = Scene::new();
    let outcome = scene.scrun(&["-nodes=256", "system", "echo", "x"]).run().expect(0);
    assert_eq!(outcome.text(), "x\n".repeat(256));
}

#[test]
fn sixty_four_nodes_pass_a_barrier_and_communicate() {
    let scene = Scene::new();
    let Some(program) = scene.program("calls") else { return };
    let job = scene.scrun(&["-nodes=64", program.to_str().unwrap(), "barrier"]);
    let outcome = job.watchdog(Duration::from_secs(60)).run().expect(0);
    assert_eq!(outcome.text(), "through\n".repeat(64));
}
