//! The harness itself: a scenario that leaves something behind, or hangs, is found out.

use std::time::Duration;

use score_tests::Scene;

#[test]
fn a_process_that_outlives_its_command_is_seen_and_can_be_ended() {
    let scene = Scene::new();
    let mut running = scene.sh("setsid sh -c 'sleep 60 & wait' & echo started; wait").start();
    running.wait_for("started", 1);
    scene.wait_for_process("sleep", |process| process.command == "sleep 60");
    assert!(scene.leftovers().iter().any(|left| left.contains("sleep 60")));
    running.kill_all();
    scene.wait_until_clean(Duration::from_secs(3)).expect("everything was killed");
}

#[test]
fn a_file_that_stays_in_the_private_folders_is_seen() {
    let scene = Scene::new();
    scene.sh("touch $TMPDIR/forgotten").run().expect(0).says(&[]).text();
    assert!(scene.leftovers()[0].ends_with("tmp/forgotten"), "{:?}", scene.leftovers());
    scene.sh("rm $TMPDIR/forgotten").run().expect(0).text();
}

#[test]
#[should_panic(expected = "did not end within 1 s")]
fn the_watchdog_ends_a_command_that_hangs() {
    let scene = Scene::new();
    scene.sh("sleep 50").watchdog(Duration::from_secs(1)).run();
}
