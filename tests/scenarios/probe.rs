//! `scored -probe` prints the capabilities of this machine, one per line, and the effect of each
//! missing one.

use score_tests::{TestEnv, binaries};

#[test]
fn the_probe_prints_a_line_for_each_capability() {
    let env = TestEnv::new();
    let outcome = env.command(binaries::program("scored")).arg("-probe").run().expect_code(0);
    let text = outcome.text();
    assert!(text.lines().count() >= 3, "{outcome}");
    for word in ["membarrier", "namespace"] {
        assert!(text.contains(word), "{word} is missing: {outcome}");
    }
}

#[test]
fn a_wrong_option_of_scored_is_named() {
    let env = TestEnv::new();
    let outcome = env.command(binaries::program("scored")).arg("-prob").run();
    assert_ne!(outcome.code, 0);
    let _ = outcome.assert_stderr(&["-prob"]);
}
