//! Runs a command to its end under a watchdog, or observes it while it runs.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use score_sys::host_name::system_host_name;

use crate::process;

/// The watchdog's default time-out for a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// The minimum time-out of a wait. A test may begin the wait after the command's time-out, because
/// it has waited for other commands first.
const LATE_TIMEOUT: Duration = Duration::from_secs(20);

/// The standard input of a command.
enum Input {
    Null,
    Bytes(Vec<u8>),
    File(Stdio),
}

/// A command that has not been started yet.
pub struct Job {
    marker: String,
    command: Command,
    input: Input,
    stdout_redirected: bool,
    timeout: Duration,
}

impl Job {
    /// Makes a job of a command whose environment contains `marker`.
    pub fn new(marker: String, command: Command) -> Self {
        Self {
            marker,
            command,
            input: Input::Null,
            stdout_redirected: false,
            timeout: COMMAND_TIMEOUT,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<str>>(mut self, args: &[S]) -> Self {
        self.command.args(args.iter().map(AsRef::as_ref));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the bytes of standard input. The default is /dev/null.
    #[must_use]
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Bytes(bytes.into());
        self
    }

    /// Uses a file as standard input.
    #[must_use]
    pub fn input_from(mut self, file: impl Into<Stdio>) -> Self {
        self.input = Input::File(file.into());
        self
    }

    /// Writes standard output to this file instead of collecting it.
    #[must_use]
    pub fn output_to(mut self, file: impl Into<Stdio>) -> Self {
        self.command.stdout(file);
        self.stdout_redirected = true;
        self
    }

    /// Sets the watchdog's time-out.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Starts the command.
    pub fn start(mut self) -> Running {
        self.command.stderr(Stdio::piped());
        if !self.stdout_redirected {
            self.command.stdout(Stdio::piped());
        }
        let (stdin, bytes) = match self.input {
            Input::Null => (Stdio::null(), None),
            Input::Bytes(bytes) => (Stdio::piped(), Some(bytes)),
            Input::File(file) => (file, None),
        };
        self.command.stdin(stdin);
        let shown_args = format!("{:?}", self.command.get_args());
        let mut child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{:?}: {error}", self.command.get_program()),
        };
        if let (Some(bytes), Some(mut pipe)) = (bytes, child.stdin.take()) {
            thread::spawn(move || {
                // The reader may exit before it has read everything.
                let _ = pipe.write_all(&bytes);
            });
        }
        let stdout = child.stdout.take().map(Collector::start);
        let stderr = child.stderr.take().map(Collector::start);
        let started_at = Instant::now();
        Running {
            marker: self.marker,
            shown_args,
            child,
            stdout,
            stderr,
            started_at,
            timeout: self.timeout,
        }
    }

    /// Runs the command to its end.
    pub fn run(self) -> Outcome {
        self.start().wait()
    }
}

/// Collects the bytes of a stream as they arrive.
struct Collector {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Collector {
    fn start(mut stream: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let thread = thread::spawn(move || {
            let mut chunk = vec![0; 1 << 16];
            while let Ok(count @ 1..) = stream.read(&mut chunk) {
                let mut bytes = shared.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend_from_slice(&chunk[..count]);
            }
        });
        Self { bytes, thread }
    }

    fn captured(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running command.
pub struct Running {
    marker: String,
    shown_args: String,
    child: Child,
    stdout: Option<Collector>,
    stderr: Option<Collector>,
    started_at: Instant,
    timeout: Duration,
}

impl Running {
    /// The process id of the command.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(i32::MAX)
    }

    /// The job of this scrun, as commands name it: `PID@HOST`.
    pub fn job_address(&self) -> String {
        format!("{}@{}", self.pid(), system_host_name())
    }

    /// Sends a signal to the command.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid()), signal);
    }

    /// Whether the command has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// The standard output so far.
    pub fn stdout(&self) -> String {
        let bytes = self.stdout.as_ref().map(Collector::captured).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The standard error so far.
    pub fn stderr(&self) -> String {
        let bytes = self.stderr.as_ref().map(Collector::captured).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until standard output contains `text` `times` times.
    pub fn wait_for(&mut self, text: &str, times: usize) {
        self.wait_for_output(Self::stdout, text, times);
    }

    /// Waits until standard error contains `text`.
    pub fn wait_for_stderr(&mut self, text: &str) {
        self.wait_for_output(Self::stderr, text, 1);
    }

    fn wait_for_output(&mut self, output: fn(&Self) -> String, text: &str, times: usize) {
        let deadline = self.deadline();
        loop {
            // The order matters: after the end there is no further output.
            let is_last_look = self.is_over() || Instant::now() > deadline;
            if output(self).matches(text).count() >= times {
                return;
            }
            if is_last_look {
                let (stdout, stderr) = (self.stdout(), self.stderr());
                self.kill_all();
                panic!("{text:?} did not appear {times} times\nstdout: {stdout}\nstderr: {stderr}");
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// Whether the command has ended and its output has been read.
    fn is_over(&mut self) -> bool {
        let mut collectors = self.stdout.iter().chain(&self.stderr);
        collectors.all(|collector| collector.thread.is_finished()) && self.has_ended()
    }

    /// The deadline of a wait that begins now.
    fn deadline(&self) -> Instant {
        let late_timeout = self.timeout.min(LATE_TIMEOUT);
        (self.started_at + self.timeout).max(Instant::now() + late_timeout)
    }

    /// Kills this command and all processes with its marker.
    pub fn kill_all(&mut self) {
        for process in process::with_marker(&self.marker) {
            process.signal(Signal::SIGKILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the end. If the time-out expires, the watchdog lists the living processes and
    /// kills them all.
    pub fn wait(mut self) -> Outcome {
        let deadline = self.deadline();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(error) => panic!("wait: {error}"),
            }
            if Instant::now() > deadline {
                let remaining = process::with_marker(&self.marker);
                let (stdout, stderr) = (self.stdout(), self.stderr());
                self.kill_all();
                panic!(
                    "{} did not end within {} s\nprocesses: {remaining:#?}\nstdout ({} bytes): {}\n\
                     stderr: {stderr}",
                    self.shown_args,
                    self.timeout.as_secs(),
                    stdout.len(),
                    &stdout[..stdout.len().min(2000)],
                );
            }
            sleep(Duration::from_millis(2));
        };
        let elapsed = self.started_at.elapsed();
        let stdout = self.take_output(true);
        let stderr = String::from_utf8_lossy(&self.take_output(false)).into_owned();
        let signal = status.signal();
        Outcome { code: exit_code(status), signal, stdout, stderr, elapsed }
    }

    /// Returns the collected bytes when the stream has ended. A process that outlives the command
    /// may keep the stream open. In this case the bytes so far are returned after 5 s.
    fn take_output(&mut self, stdout: bool) -> Vec<u8> {
        let stream = if stdout { self.stdout.take() } else { self.stderr.take() };
        let Some(collector) = stream else { return Vec::new() };
        let started_at = Instant::now();
        while !collector.thread.is_finished() && started_at.elapsed() < Duration::from_secs(5) {
            sleep(Duration::from_millis(2));
        }
        collector.captured()
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// How a command ended.
pub struct Outcome {
    /// The exit code, or 128 + signal as in a shell.
    pub code: i32,
    /// The signal that ended the command, if any.
    pub signal: Option<i32>,
    /// The complete standard output.
    pub stdout: Vec<u8>,
    /// The complete standard error.
    pub stderr: String,
    /// The run time of the command.
    pub elapsed: Duration,
}

impl Outcome {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The lines of standard output, sorted because the nodes write in any order.
    pub fn sorted_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.text().lines().map(String::from).collect();
        lines.sort();
        lines
    }

    /// Checks the exit code.
    #[must_use]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Checks that standard error contains all of these texts.
    #[must_use]
    pub fn assert_stderr(self, expected: &[&str]) -> Self {
        for text in expected {
            assert!(self.stderr.contains(text), "standard error does not say {text:?}; {self}");
        }
        self
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        let excerpt: String = text.chars().take(2000).collect();
        write!(
            f,
            "exit code {} after {:?}\nstdout ({} bytes): {excerpt}\nstderr: {}",
            self.code,
            self.elapsed,
            self.stdout.len(),
            self.stderr
        )
    }
}

/// Opens /dev/full, which behaves like a file on a full disk.
pub fn open_dev_full() -> File {
    File::options().write(true).open("/dev/full").expect("Linux has /dev/full")
}
