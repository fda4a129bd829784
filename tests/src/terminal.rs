//! A pseudo terminal for a scenario. It sends keys to a command, and collects the shown output.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::pty::openpty;

use crate::TestEnv;

/// A terminal with a command in its foreground.
pub struct Terminal {
    master: File,
    output: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    /// Opens a terminal and starts `program` as the leader of its session.
    pub fn open(env: &TestEnv, program: &str, args: &[&str]) -> Self {
        let pair = openpty(None, None).expect("a pseudo terminal can be opened");
        let (master, slave) = (File::from(pair.master), pair.slave);
        let stdio_of = |fd: &OwnedFd| Stdio::from(fd.try_clone().expect("a descriptor is free"));
        // setsid(1) makes this terminal the controlling terminal of a new session.
        let mut command = Command::new("setsid");
        env.configure(&mut command);
        let child = command
            .args(["--ctty", "--wait", program])
            .args(args)
            .env("TERM", "dumb")
            .stdin(stdio_of(&slave))
            .stdout(stdio_of(&slave))
            .stderr(stdio_of(&slave))
            .spawn()
            .expect("setsid(1) of util-linux is installed");
        drop(slave);
        let output = Arc::new(Mutex::new(Vec::new()));
        let (shared, mut reader) = (Arc::clone(&output), master.try_clone().expect("dup"));
        thread::spawn(move || {
            let mut chunk = vec![0; 1 << 16];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                let mut output = shared.lock().unwrap_or_else(PoisonError::into_inner);
                output.extend_from_slice(&chunk[..count]);
            }
        });
        Self { master, output, child }
    }

    /// Opens a shell with job control, and waits for its first prompt.
    pub fn shell(env: &TestEnv) -> Self {
        let mut terminal = Self::open(env, "bash", &["--norc", "--noprofile", "-i"]);
        terminal.type_keys("PS1='ready> '; set +o history\n");
        terminal.wait_for("ready> ", Duration::from_secs(10));
        terminal
    }

    /// Types these characters. `\x1a` is ^Z.
    pub fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal accepts input");
    }

    /// Returns everything shown so far.
    pub fn output(&self) -> Vec<u8> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns everything shown so far as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output()).into_owned()
    }

    /// Returns the number of bytes shown so far.
    pub fn bytes_shown(&self) -> usize {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until `text` is shown after position `offset`. Returns the position after the text.
    pub fn wait_for_after(&self, offset: usize, text: &str, timeout: Duration) -> usize {
        let started_at = Instant::now();
        loop {
            let output = self.output();
            let rest = &output[offset.min(output.len())..];
            let found =
                rest.windows(text.len().max(1)).position(|window| window == text.as_bytes());
            if let Some(index) = found {
                return offset + index + text.len();
            }
            assert!(
                started_at.elapsed() < timeout,
                "no {text:?} within {timeout:?}; the screen shows\n{}",
                String::from_utf8_lossy(rest)
            );
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `text` is shown anywhere.
    pub fn wait_for(&self, text: &str, timeout: Duration) -> usize {
        self.wait_for_after(0, text, timeout)
    }

    /// Waits for the end of the session. Returns its exit code.
    pub fn wait(mut self, timeout: Duration) -> i32 {
        let started_at = Instant::now();
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.code().unwrap_or(-1);
            }
            assert!(
                started_at.elapsed() < timeout,
                "the session goes on; it shows\n{}",
                self.text()
            );
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
