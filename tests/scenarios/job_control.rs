//! In a shell with job control, ^Z suspends the whole job, `fg` resumes it, ^C ends it, ^\ says
//! that there are no checkpoints yet.

use std::time::Duration;

use score_tests::Scene;
use score_tests::terminal::Terminal;

const SOON: Duration = Duration::from_secs(15);

#[test]
fn the_keys_act_on_the_whole_job() {
    let scene = Scene::new();
    let script =
        scene.file("count", "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.1; done\n");
    let mut terminal = Terminal::shell(&scene);
    terminal.press(&format!("scrun -nodes=2 system sh {}\n", script.display()));
    let at = terminal.wait_for("tick 3", SOON);
    terminal.press("\x1a");
    let at = terminal.wait_for_after(at, "Stopped", SOON);
    terminal.wait_for_after(at, "ready> ", SOON);
    let shown = terminal.shown();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(terminal.shown(), shown, "it ticks while it is stopped:\n{}", terminal.text());
    terminal.press("fg\n");
    let at = terminal.wait_for_after(shown, "tick ", SOON);
    terminal.press("\x1c");
    let at = terminal.wait_for_after(at, "checkpoint", SOON);
    let at = terminal.wait_for_after(at, "tick ", SOON);
    terminal.press("\x03");
    let at = terminal.wait_for_after(at, "ready> ", SOON);
    terminal.press("echo code $?\n");
    terminal.wait_for_after(at, "code 130", SOON);
    terminal.press("exit\n");
    terminal.wait(SOON);
}

#[test]
fn a_job_in_the_background_does_not_touch_the_terminal() {
    let scene = Scene::new();
    let mut terminal = Terminal::shell(&scene);
    terminal.press("scrun -nodes=2 system echo background < /dev/null & wait $!; echo code $?\n");
    terminal.wait_for("code 0", SOON);
    assert_eq!(terminal.text().matches("background\r\n").count(), 2, "{}", terminal.text());
    terminal.press("exit\n");
    terminal.wait(SOON);
}
