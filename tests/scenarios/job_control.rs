//! In a shell with job control, ^Z suspends the whole job, `fg` resumes it, and ^C ends it. ^\
//! prints that there are no checkpoints yet.

use std::time::Duration;

use score_tests::TestEnv;
use score_tests::terminal::Terminal;

const EFFECT_TIMEOUT: Duration = Duration::from_secs(60);

// Promise (use): ^Z, fg, ^C and ^\\ act on the whole job.
#[test]
fn the_keys_act_on_the_whole_job() {
    let env = TestEnv::new();
    let script =
        env.write_file("count", "n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.1; done\n");
    let mut terminal = Terminal::shell(&env);
    terminal.type_keys(&format!("scrun -nodes=2 system sh {}\n", script.display()));
    let offset = terminal.wait_for("tick 3", EFFECT_TIMEOUT);
    terminal.type_keys("\x1a");
    let offset = terminal.wait_for_after(offset, "Stopped", EFFECT_TIMEOUT);
    terminal.wait_for_after(offset, "ready> ", EFFECT_TIMEOUT);
    let shown_len = terminal.bytes_shown();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(
        terminal.bytes_shown(),
        shown_len,
        "it ticks while it is stopped:\n{}",
        terminal.text()
    );
    terminal.type_keys("fg\n");
    let offset = terminal.wait_for_after(shown_len, "tick ", EFFECT_TIMEOUT);
    terminal.type_keys("\x1c");
    let offset = terminal.wait_for_after(offset, "checkpoint", EFFECT_TIMEOUT);
    let offset = terminal.wait_for_after(offset, "tick ", EFFECT_TIMEOUT);
    terminal.type_keys("\x03");
    let offset = terminal.wait_for_after(offset, "ready> ", EFFECT_TIMEOUT);
    terminal.type_keys("echo code $?\n");
    terminal.wait_for_after(offset, "code 130", EFFECT_TIMEOUT);
    terminal.type_keys("exit\n");
    terminal.wait(EFFECT_TIMEOUT);
}

#[test]
fn a_job_in_the_background_does_not_touch_the_terminal() {
    let env = TestEnv::new();
    let mut terminal = Terminal::shell(&env);
    terminal
        .type_keys("scrun -nodes=2 system echo background < /dev/null & wait $!; echo code $?\n");
    terminal.wait_for("code 0", EFFECT_TIMEOUT);
    assert_eq!(terminal.text().matches("background\r\n").count(), 2, "{}", terminal.text());
    terminal.type_keys("exit\n");
    terminal.wait(EFFECT_TIMEOUT);
}
