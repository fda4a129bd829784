//! scrun at a terminal, under a shell with job control.

mod built;

use built::text;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::pty::openpty;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An interactive bash whose terminal is ours. Its jobs end with it.
struct Shell {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    seen: usize,
    child: Child,
}

impl Shell {
    fn new() -> Self {
        let pair = openpty(None, None).unwrap();
        // Held by a child, the terminal would never hang up.
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
        let (theirs, mut master) = (screen.clone(), keyboard.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut chunk = vec![0; 1 << 16];
            while let Ok(n @ 1..) = master.read(&mut chunk) {
                theirs.lock().unwrap().extend_from_slice(&chunk[..n]);
            }
        });
        let mut shell = Self { keyboard, screen, seen: 0, child };
        shell.press("PS1='rea''dy> '; set +o history; stty -echo\n");
        shell.wait_for("ready> ");
        shell
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for text behind what has been waited for already.
    fn wait_for(&mut self, wanted: &str) {
        let until = Instant::now() + Duration::from_secs(15);
        let mut from = self.seen;
        loop {
            {
                let screen = self.screen.lock().unwrap();
                let found =
                    screen[from..].windows(wanted.len()).position(|w| w == wanted.as_bytes());
                if let Some(at) = found {
                    self.seen = from + at + wanted.len();
                    return;
                }
                // A screen that floods is searched once only.
                from = from.max(screen.len().saturating_sub(wanted.len()));
                let last = text(&screen[screen.len().saturating_sub(500)..]);
                assert!(Instant::now() < until, "no {wanted:?}, but: {last}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn grown_within(&self, time: Duration) -> bool {
        let length = || self.screen.lock().unwrap().len();
        let before = length();
        std::thread::sleep(time);
        length() > before
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.keyboard.write_all(b"\x03\x03\nkill -9 $(jobs -p) 2>/dev/null; exit\n");
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
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
    shell.press(&format!("for i in 1 2 3; do echo start $i; {job}; done\n"));
    shell.wait_for("start 1");
    shell.wait_for("tick");
    shell.press("\x03");
    shell.wait_for("ready> ");
    shell.press("echo code $?\n");
    shell.wait_for("code 130");
    let screen = text(&shell.screen.lock().unwrap());
    assert!(!screen.contains("start 2"), "{screen}");
}

#[test]
fn control_z_stops_and_fg_continues() {
    let mut shell = Shell::new();
    shell.press(&format!("$SCRUN -nodes=2 system sh -c '{TICKS}'\n"));
    shell.wait_for("tick");
    shell.press("\x1a");
    shell.wait_for("Stopped");
    shell.wait_for("ready> ");
    std::thread::sleep(Duration::from_millis(200));
    assert!(!shell.grown_within(Duration::from_millis(300)));
    shell.press("fg\n");
    shell.wait_for("tick");
    shell.press("\x1a");
    shell.wait_for("Stopped");
    shell.press("bg\n");
    shell.wait_for("tick");
    shell.press("kill %1; wait %1; echo code $?\n");
    shell.wait_for("code 137");
}

#[test]
fn a_job_in_the_background_is_not_stopped_for_input_and_gets_it_after_fg() {
    let mut shell = Shell::new();
    shell.press("$SCRUN -nodes=1 system sh -c 'sleep 0.5; echo alive; cat' &\n");
    shell.wait_for("alive");
    shell.press("fg\n");
    shell.wait_for("system");
    shell.press("typed\n");
    shell.wait_for("typed");
    shell.press("\x04");
    shell.wait_for("ready> ");
}

#[test]
fn a_held_screen_holds_the_job_but_not_its_signals() {
    let mut shell = Shell::new();
    shell.press("$SCRUN -nodes=2 system yes\n");
    shell.wait_for("y");
    shell.press("\x13");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!shell.grown_within(Duration::from_millis(300)));
    shell.press("\x11");
    assert!(shell.grown_within(Duration::from_millis(500)));
    shell.press("\x03");
    shell.wait_for("ready> ");
}

#[test]
fn control_backslash_says_one_line_and_the_job_goes_on() {
    let mut shell = Shell::new();
    shell.press("$SCRUN -nodes=1 system sh -c 'echo go; read x; echo got $x'\n");
    shell.wait_for("go");
    shell.press("\x1c");
    shell.wait_for("SIGQUIT");
    shell.press("more\n");
    shell.wait_for("got more");
    shell.wait_for("ready> ");
}
