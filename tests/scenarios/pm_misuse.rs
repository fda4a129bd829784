//! A C program that uses PM wrongly gets the error numbers of the manual pages, and its context
//! stays usable.

use score_tests::TestEnv;

// Promise (messages): Every return code of the manual pages, with the event that gives it.
#[test]
fn every_misuse_fails_as_the_manual_page_documents() {
    let env = TestEnv::new();
    let Some(program) = env.test_program("misuse") else { return };
    let program = program.to_str().unwrap();
    for nodes in ["-nodes=2", "-nodes=3"] {
        let outcome = env.scrun(&[nodes, program]).run();
        let lines = outcome.sorted_lines();
        assert!(lines.iter().all(|line| line == "as the manual says"), "{outcome}");
        let _ = outcome.expect_code(0);
    }
}
