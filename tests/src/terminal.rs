//! A terminal for a scenario: what is typed, what is shown, and a screen that can be held.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::pty::openpty;

use crate::Scene;

/// A terminal with a command in its foreground.
pub struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    /// Opens a terminal and starts `program` as the leader of its session.
    pub fn open(scene: &Scene, program: &str, args: &[&str]) -> Self {
        let pair = openpty(None, None).expect("a pseudo terminal can be opened");
        let (master, slave) = (File::from(pair.master), pair.slave);
        let copy = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor is free"));
        // setsid(1) makes the terminal the controlling one of a new session.
        let mut command = Command::new("setsid");
        scene.dress(&mut command);
        let child = command
            .args(["--ctty", "--wait", program])
            .args(args)
            .env("TERM", "dumb")
            .stdin(copy(&slave))
            .stdout(copy(&slave))
            .stderr(copy(&slave))
            .spawn()
            .expect("setsid(1) of util-linux is there");
        drop(slave);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (shared, mut reader) = (Arc::clone(&screen), master.try_clone().expect("dup"));
        thread::spawn(move || {
            let mut chunk = vec![0; 1 << 16];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                let mut screen = shared.lock().unwrap_or_else(PoisonError::into_inner);
                screen.extend_from_slice(&chunk[..count]);
            }
        });
        Self { keyboard: master, screen, child }
    }

    /// A shell with job control, at its first prompt.
    pub fn shell(scene: &Scene) -> Self {
        let mut terminal = Self::open(scene, "bash", &["--norc", "--noprofile", "-i"]);
        terminal.press("PS1='ready> '; set +o history\n");
        terminal.wait_for("ready> ", Duration::from_secs(10));
        terminal
    }

    /// Types these characters; `\x1a` is ^Z.
    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes what is typed");
    }

    /// Everything shown so far.
    pub fn screen(&self) -> Vec<u8> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything shown so far, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen()).into_owned()
    }

    /// How many bytes have been shown.
    pub fn shown(&self) -> usize {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until `text` is shown after position `from`; answers the position behind it.
    pub fn wait_for_after(&self, from: usize, text: &str, limit: Duration) -> usize {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            let rest = &screen[from.min(screen.len())..];
            let found =
                rest.windows(text.len().max(1)).position(|window| window == text.as_bytes());
            if let Some(at) = found {
                return from + at + text.len();
            }
            assert!(
                begin.elapsed() < limit,
                "no {text:?} within {limit:?}; the screen shows\n{}",
                String::from_utf8_lossy(rest)
            );
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `text` is shown anywhere.
    pub fn wait_for(&self, text: &str, limit: Duration) -> usize {
        self.wait_for_after(0, text, limit)
    }

    /// Waits for the end of the session.
    pub fn wait(mut self, limit: Duration) -> i32 {
        let begin = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code().unwrap_or(-1);
            }
            assert!(begin.elapsed() < limit, "the session goes on; it shows\n{}", self.text());
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
