//! Starts the real scrun and scored under a watchdog, and observes them.

use crate::built::{binary, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time limit of a command. Commands here end well before it.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// A scrun to be started.
pub struct Scrun {
    command: Command,
    input: Option<Vec<u8>>,
}

/// The result of a finished scrun.
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Scrun {
    pub fn new() -> Self {
        Self::from_command(Command::new(binary()))
    }

    /// A scrun that a line of bash starts as `$0`.
    pub fn shell(line: &str) -> Self {
        let mut command = Command::new("bash");
        command.args(["-c", line]).arg(binary());
        Self::from_command(command)
    }

    fn from_command(mut command: Command) -> Self {
        command.env_remove("SCORE_OPTIONS").env("LC_ALL", "C").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, input: None }
    }

    pub fn args(mut self, args: &[&str]) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn stdin(mut self, from: impl Into<Stdio>) -> Self {
        self.command.stdin(from);
        self
    }

    pub fn stdout(mut self, to: impl Into<Stdio>) -> Self {
        self.command.stdout(to);
        self
    }

    pub fn input(mut self, bytes: Vec<u8>) -> Self {
        self.input = Some(bytes);
        self.stdin(Stdio::piped())
    }

    pub fn start(mut self) -> Running {
        let mut child = self.command.spawn().expect("scrun can be started");
        let mut stdin = child.stdin.take();
        if let Some(bytes) = self.input
            && let Some(mut pipe) = stdin.take()
        {
            // The reader may close the pipe before it has read everything.
            std::thread::spawn(move || drop(pipe.write_all(&bytes)));
        }
        let stdout = capture(child.stdout.take());
        let stderr = capture(child.stderr.take());
        Running { child, stdin, stdout, stderr, deadline: Instant::now() + COMMAND_TIMEOUT }
    }

    pub fn run(self) -> Outcome {
        let mut running = self.start();
        let code = running.wait_for(COMMAND_TIMEOUT);
        let collected =
            |stream: &CapturedStream| std::mem::take(&mut stream.0.lock().unwrap().bytes);
        Outcome { code, stdout: collected(&running.stdout), stderr: collected(&running.stderr) }
    }
}

#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    ended: bool,
}

/// The bytes received from a stream so far.
#[derive(Clone, Default)]
struct CapturedStream(Arc<Mutex<Stream>>);

fn capture(stream: Option<impl Read + Send + 'static>) -> CapturedStream {
    let captured = CapturedStream::default();
    let Some(mut stream) = stream else {
        captured.0.lock().unwrap().ended = true;
        return captured;
    };
    let captured_by_thread = captured.clone();
    std::thread::spawn(move || {
        let mut chunk = vec![0; 1 << 16];
        while let Ok(n @ 1..) = stream.read(&mut chunk) {
            captured_by_thread.0.lock().unwrap().bytes.extend_from_slice(&chunk[..n]);
        }
        captured_by_thread.0.lock().unwrap().ended = true;
    });
    captured
}

/// A running scrun. Killed when dropped.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: CapturedStream,
    stderr: CapturedStream,
    deadline: Instant,
}

impl Running {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    pub fn output(&self) -> Vec<u8> {
        self.stdout.0.lock().unwrap().bytes.clone()
    }

    pub fn output_length(&self) -> usize {
        self.stdout.0.lock().unwrap().bytes.len()
    }

    fn error(&self) -> String {
        text(&self.stderr.0.lock().unwrap().bytes)
    }

    /// Waits until `condition` holds. Panics after the deadline.
    fn wait_until(&mut self, what: &str, condition: impl Fn(&mut Self) -> bool) {
        while !condition(self) {
            assert!(Instant::now() < self.deadline, "never {what}: stderr: {}", self.error());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn wait_for_output(&mut self, expected: &str) {
        self.wait_until(expected, |running| text(&running.output()).contains(expected));
    }

    pub fn wait_for_error(&mut self, expected: &str) {
        self.wait_until(expected, |running| running.error().contains(expected));
    }

    pub fn wait_for_length(&mut self, expected_len: usize) {
        self.wait_until("so much output", |running| running.output_length() >= expected_len);
    }

    pub fn wait_for_lines(&mut self, expected_count: usize) {
        self.wait_until("so many lines", |running| {
            text(&running.output()).lines().count() >= expected_count
        });
    }

    /// Waits until scrun itself has this process state, a letter as in ps(1).
    pub fn wait_for_state(&mut self, expected_state: char) {
        self.wait_until("in that state", |running| {
            state_and_name(running.pid()).is_some_and(|(state, _)| state == expected_state)
        });
    }

    /// scrun's child of that name.
    pub fn child_named(&self, name: &str) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        std::fs::read_to_string(children)
            .unwrap()
            .split_whitespace()
            .map(|pid| Pid::from_raw(pid.parse().unwrap()))
            .find(|pid| state_and_name(*pid).is_some_and(|(_, found)| found == name))
            .expect("such a child")
    }

    /// The exit code, or 128 + signal; `None` if scrun did not end within `timeout`.
    pub fn wait_for(&mut self, timeout: Duration) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let ended = |stream: &CapturedStream| stream.0.lock().unwrap().ended;
                self.wait_until("the end of both outputs", |running| {
                    ended(&running.stdout) && ended(&running.stderr)
                });
                return status.code().or(status.signal().map(|signal| 128 + signal));
            }
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process has ended (it may still be a zombie).
pub fn has_exited(pid: Pid) -> bool {
    state_and_name(pid).is_none_or(|(state, _)| state == 'Z')
}

fn state_and_name(pid: Pid) -> Option<(char, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = stat.rsplit_once(") ")?;
    let name = head.split_once('(')?.1.to_owned();
    Some((tail.chars().next()?, name))
}
