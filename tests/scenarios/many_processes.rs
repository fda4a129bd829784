//! Many more processes than processors start, run and end.

use std::time::Duration;

use score_tests::TestEnv;

// Promise (use): 256 processes start and end on two processors.
#[test]
fn two_hundred_and_fifty_six_programs_run_and_end() {
    let env = TestEnv::new();
    let outcome = env.scrun(&["-nodes=256", "system", "echo", "x"]).run().expect_code(0);
    assert_eq!(outcome.text(), "x\n".repeat(256));
}

#[test]
fn sixty_four_nodes_pass_a_barrier_and_communicate() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("calls") else { return };
    let job = env.scrun(&["-nodes=64", program.to_str().unwrap(), "barrier"]);
    let outcome = job.timeout(Duration::from_secs(60)).run().expect_code(0);
    assert_eq!(outcome.text(), "through\n".repeat(64));
}
