//! scrun at a terminal, under a shell with job control.

use crate::built::{self, text};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::openpty;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An interactive bash on a pseudo terminal of the test. Its jobs end with it.
struct Shell {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    searched_len: usize,
    child: Child,
}

impl Shell {
    fn new() -> Self {
        let pair = openpty(None, None).unwrap();
        // If a child kept the master open, the terminal would never hang up.
        fcntl(&pair.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        fcntl(&pair.slave, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).unwrap();
        let slave = || Stdio::from(pair.slave.try_clone().unwrap());
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", "bash", "--norc", "--noprofile", "-i"])
            .env("SCRUN", built::binary())
            .env("TERM", "dumb")
            .env_remove("SCORE_OPTIONS")
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .spawn()
            .unwrap();
        let keyboard = File::from(pair.master);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (screen_writer, mut master) = (screen.clone(), keyboard.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut chunk = vec![0; 1 << 16];
            while let Ok(n @ 1..) = master.read(&mut chunk) {
                screen_writer.lock().unwrap().extend_from_slice(&chunk[..n]);
            }
        });
        let mut shell = Self { keyboard, screen, searched_len: 0, child };
        shell.type_keys("PS1='rea''dy> '; set +o history; stty -echo\n");
        shell.wait_for("ready> ");
        shell
    }

    fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for text after the text that was found last.
    fn wait_for(&mut self, expected: &str) {
        let deadline = Instant::now() + Duration::from_secs(15);
        let mut start = self.searched_len;
        loop {
            {
                let screen = self.screen.lock().unwrap();
                let found =
                    screen[start..].windows(expected.len()).position(|w| w == expected.as_bytes());
                if let Some(index) = found {
                    self.searched_len = start + index + expected.len();
                    return;
                }
                // Each part of the output is searched only once, because the output may be long.
                start = start.max(screen.len().saturating_sub(expected.len()));
                let last = text(&screen[screen.len().saturating_sub(500)..]);
                assert!(Instant::now() < deadline, "no {expected:?}, but: {last}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn output_grows_within(&self, duration: Duration) -> bool {
        let length = || self.screen.lock().unwrap().len();
        let before = length();
        std::thread::sleep(duration);
        length() > before
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.keyboard.write_all(b"\x03\x03\nkill -9 $(jobs -p) 2>/dev/null; exit\n");
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TICKS: &str = "while :; do echo tick; sleep 0.02; done";

#[test]
fn control_c_ends_the_job_and_the_loop_around_it() {
    let mut shell = Shell::new();
    let job = format!("$SCRUN -nodes=2 system sh -c '{TICKS}'");
    shell.type_keys(&format!("for i in 1 2 3; do echo start $i; {job}; done\n"));
    shell.wait_for("start 1");
    shell.wait_for("tick");
    shell.type_keys("\x03");
    shell.wait_for("ready> ");
    shell.type_keys("echo code $?\n");
    shell.wait_for("code 130");
    let screen = text(&shell.screen.lock().unwrap());
    assert!(!screen.contains("start 2"), "{screen}");
}

#[test]
fn control_z_stops_and_fg_continues() {
    let mut shell = Shell::new();
    shell.type_keys(&format!("$SCRUN -nodes=2 system sh -c '{TICKS}'\n"));
    shell.wait_for("tick");
    shell.type_keys("\x1a");
    shell.wait_for("Stopped");
    shell.wait_for("ready> ");
    std::thread::sleep(Duration::from_millis(200));
    assert!(!shell.output_grows_within(Duration::from_millis(300)));
    shell.type_keys("fg\n");
    shell.wait_for("tick");
    shell.type_keys("\x1a");
    shell.wait_for("Stopped");
    shell.type_keys("bg\n");
    shell.wait_for("tick");
    shell.type_keys("kill %1; wait %1; echo code $?\n");
    shell.wait_for("code 137");
}

#[test]
fn a_background_job_is_not_stopped_for_input_and_reads_input_after_fg() {
    let mut shell = Shell::new();
    shell.type_keys("$SCRUN -nodes=1 system sh -c 'sleep 0.5; echo alive; cat' &\n");
    shell.wait_for("alive");
    shell.type_keys("fg\n");
    shell.wait_for("system");
    shell.type_keys("typed\n");
    shell.wait_for("typed");
    shell.type_keys("\x04");
    shell.wait_for("ready> ");
}

#[test]
fn a_stopped_terminal_blocks_the_job_but_not_its_signals() {
    let mut shell = Shell::new();
    shell.type_keys("$SCRUN -nodes=2 system yes\n");
    shell.wait_for("y");
    shell.type_keys("\x13");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!shell.output_grows_within(Duration::from_millis(300)));
    shell.type_keys("\x11");
    assert!(shell.output_grows_within(Duration::from_millis(500)));
    shell.type_keys("\x03");
    shell.wait_for("ready> ");
}

#[test]
fn control_backslash_prints_one_line_and_the_job_continues() {
    let mut shell = Shell::new();
    shell.type_keys("$SCRUN -nodes=1 system sh -c 'echo go; read x; echo got $x'\n");
    shell.wait_for("go");
    shell.type_keys("\x1c");
    shell.wait_for("SIGQUIT");
    shell.type_keys("more\n");
    shell.wait_for("got more");
    shell.wait_for("ready> ");
}
