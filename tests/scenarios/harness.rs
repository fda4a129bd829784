//! Tests of the harness itself: it detects a scenario that leaves processes or files, or hangs.

use std::time::Duration;

use score_tests::TestEnv;

#[test]
fn a_process_that_outlives_its_command_is_detected_and_can_be_ended() {
    let env = TestEnv::new();
    let mut running = env.sh("setsid sh -c 'sleep 60 & wait' & echo started; wait").start();
    running.wait_for("started", 1);
    env.wait_for_process("sleep", |process| process.command == "sleep 60");
    assert!(env.leftovers().iter().any(|left| left.contains("sleep 60")));
    running.kill_all();
    env.assert_clean();
}

#[test]
fn a_file_that_remains_in_the_private_directories_is_detected() {
    let env = TestEnv::new();
    env.sh("touch $TMPDIR/forgotten").run().expect_code(0).assert_stderr(&[]).text();
    assert!(env.leftovers()[0].ends_with("tmp/forgotten"), "{:?}", env.leftovers());
    env.sh("rm $TMPDIR/forgotten").run().expect_code(0).text();
}

#[test]
#[should_panic(expected = "did not end within 1 s")]
fn a_command_that_hangs_is_killed_at_its_timeout() {
    let env = TestEnv::new();
    env.sh("sleep 50").timeout(Duration::from_secs(1)).run();
}
