//! Runs gdb with its three pipes, and provides a terminal for the program.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::pty::openpty;
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};
use score_tools::merge::{CommandId, MonotonicTime};

use super::mi::MAX_MI_LINE_LEN;
use super::session::{Session, SessionAction, SessionInput};
use crate::backend::Backend;
use crate::message::{DebugEvent, Operation};

/// Maximum bytes that one call reads from gdb, and from the terminal.
const MAX_READ_BYTES: usize = 256 << 10;

/// Maximum bytes of gdb's standard error that are kept for the reason of a failure.
const MAX_ERROR_LEN: usize = 400;

/// Time limit for gdb to end by itself. If gdb were killed at once, it could leave breakpoints in a
/// process.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// Interval at which a write to gdb is retried.
const WRITE_INTERVAL: Duration = Duration::from_millis(10);

/// gdb as the debug engine of one rank.
#[derive(Debug)]
pub struct Gdb {
    program: String,
    session: Session,
    running: Option<RunningGdb>,
    terminal: Option<Terminal>,
    answers: Vec<(CommandId, DebugEvent)>,
    output: Vec<u8>,
    last_now: MonotonicTime,
}

/// A running gdb.
#[derive(Debug)]
struct RunningGdb {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Bytes that are not yet written to stdin.
    unwritten: Vec<u8>,
    /// Bytes of stdout since the last newline.
    partial: Vec<u8>,
    error_text: String,
}

/// The terminal of the program. gdb opens it by its name, and this process reads the program's
/// output.
#[derive(Debug)]
struct Terminal {
    master: std::fs::File,
    /// If no process had the slave open, reading the master would fail.
    _slave: OwnedFd,
    name: String,
}

impl Gdb {
    /// The gdb in PATH, for a rank.
    pub fn new(rank: u32) -> Self {
        Self::with_program(rank, "gdb")
    }

    /// Another program that uses GDB/MI.
    pub fn with_program(rank: u32, program: &str) -> Self {
        Self {
            program: program.to_owned(),
            session: Session::new(rank),
            running: None,
            terminal: None,
            answers: Vec::new(),
            output: Vec::new(),
            last_now: MonotonicTime::ZERO,
        }
    }

    fn step(&mut self, input: SessionInput, now: MonotonicTime) {
        let mut actions = Vec::new();
        self.session.step(input, now, &mut actions);
        for action in actions {
            match action {
                SessionAction::Answer(command, event) => self.answers.push((command, event)),
                SessionAction::Kill => self.running = None,
                SessionAction::Write(text) => {
                    if let Some(running) = &mut self.running {
                        running.unwritten.extend_from_slice(text.as_bytes());
                        running.write();
                    }
                }
                SessionAction::Spawn(arguments) => {
                    // The old gdb must end before the new one starts.
                    self.running = None;
                    match RunningGdb::spawn(&self.program, &arguments) {
                        Ok(running) => self.running = Some(running),
                        Err(error) => {
                            let reason = format!("cannot start {}: {error}", self.program);
                            self.step(SessionInput::Ended(reason), now);
                        }
                    }
                }
            }
        }
    }

    /// Writes input to the terminal. The terminal buffers only a few kilobytes if the program does
    /// not read.
    fn write_input(&mut self, bytes: &[u8]) -> DebugEvent {
        let (Some(terminal), Some(_)) = (&mut self.terminal, &self.running) else {
            return DebugEvent::Failed("no program was started here".to_owned());
        };
        let mut written = 0;
        while written < bytes.len() {
            match terminal.master.write(&bytes[written..]) {
                Ok(count) if count > 0 => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                _ => {
                    let len = bytes.len();
                    let text = format!("the program has accepted only {written} of {len} bytes");
                    return DebugEvent::Failed(text);
                }
            }
        }
        DebugEvent::Done
    }

    fn read_terminal(&mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        let mut buffer = [0; 16 << 10];
        while self.output.len() < MAX_READ_BYTES {
            match terminal.master.read(&mut buffer) {
                Ok(count) if count > 0 => self.output.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
    }
}

impl Backend for Gdb {
    fn begin(&mut self, command: CommandId, operation: Operation, now: MonotonicTime) {
        self.last_now = now;
        if matches!(operation, Operation::Start { .. }) && self.terminal.is_none() {
            match Terminal::open() {
                Ok(terminal) => {
                    self.session.set_terminal(terminal.name.clone());
                    self.terminal = Some(terminal);
                }
                Err(error) => {
                    let text = format!("cannot open a terminal for the program: {error}");
                    return self.answers.push((command, DebugEvent::Failed(text)));
                }
            }
        }
        if let Operation::Input { bytes } = &operation {
            let event = self.write_input(bytes);
            return self.answers.push((command, event));
        }
        self.step(SessionInput::Begin(command, operation), now);
    }

    fn progress(&mut self, now: MonotonicTime) -> Vec<(CommandId, DebugEvent)> {
        self.last_now = now;
        let mut lines = Vec::new();
        let ended = self.running.as_mut().and_then(|running| running.progress(&mut lines));
        // Read the output that the process wrote before it stopped, so that it precedes the event
        // of the stop.
        self.read_terminal();
        for line in lines {
            self.step(SessionInput::Line(line), now);
        }
        if let Some(reason) = ended.filter(|_| self.running.is_some()) {
            self.step(SessionInput::Ended(reason), now);
        }
        self.step(SessionInput::Tick, now);
        std::mem::take(&mut self.answers)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = Vec::new();
        if let Some(running) = &self.running {
            all.push(running.stdout.as_fd());
            all.extend(running.stderr.as_ref().map(AsFd::as_fd));
        }
        all.extend(self.terminal.as_ref().map(|terminal| terminal.master.as_fd()));
        all
    }

    fn deadline(&self) -> Option<MonotonicTime> {
        let is_blocked = self.running.as_ref().is_some_and(|gdb| !gdb.unwritten.is_empty());
        let retry = is_blocked.then(|| self.last_now + WRITE_INTERVAL);
        let answers = (!self.answers.is_empty()).then_some(MonotonicTime::ZERO);
        self.session.deadline().into_iter().chain(retry).chain(answers).min()
    }

    fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }
}

fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
    fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

impl Terminal {
    fn open() -> io::Result<Self> {
        let pair = openpty(None, None)?;
        for fd in [&pair.master, &pair.slave] {
            fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        }
        // The program's output must arrive unchanged, and its input must not be echoed.
        let mut settings = tcgetattr(&pair.slave)?;
        cfmakeraw(&mut settings);
        tcsetattr(&pair.slave, SetArg::TCSANOW, &settings)?;
        set_nonblocking(&pair.master)?;
        let name = nix::unistd::ttyname(&pair.slave)?.to_string_lossy().into_owned();
        Ok(Self { master: pair.master.into(), _slave: pair.slave, name })
    }
}

impl RunningGdb {
    fn spawn(program: &str, arguments: &[String]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).env("LC_ALL", "C").env("SHELL", "/bin/sh");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The keys of this server's terminal must not send signals to gdb.
        let mut child = command.process_group(0).spawn()?;
        let missing = || io::Error::from(ErrorKind::BrokenPipe);
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take();
        let running = Self {
            child,
            stdin: Some(stdin),
            stdout,
            stderr,
            unwritten: Vec::new(),
            partial: Vec::new(),
            error_text: String::new(),
        };
        running.stdin.as_ref().map_or(Ok(()), set_nonblocking)?;
        set_nonblocking(&running.stdout)?;
        running.stderr.as_ref().map_or(Ok(()), set_nonblocking)?;
        Ok(running)
    }

    fn write(&mut self) {
        let Some(stdin) = &mut self.stdin else { return };
        while !self.unwritten.is_empty() {
            match stdin.write(&self.unwritten) {
                Ok(count) if count > 0 => drop(self.unwritten.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                // A closed pipe is also detected at stdout.
                _ => return,
            }
        }
    }

    /// Moves bytes. Adds gdb's whole lines to `lines`, including a line that is too long. Returns a
    /// reason if gdb has ended.
    fn progress(&mut self, lines: &mut Vec<Vec<u8>>) -> Option<String> {
        self.write();
        self.read_errors();
        let mut buffer = [0; 16 << 10];
        let mut total = 0;
        while total < MAX_READ_BYTES {
            match self.stdout.read(&mut buffer) {
                Ok(0) => return Some(self.end_reason()),
                Ok(count) => {
                    total += count;
                    self.partial.extend_from_slice(&buffer[..count]);
                    self.cut_lines(lines);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) => return Some(error.to_string()),
            }
        }
        None
    }

    fn cut_lines(&mut self, lines: &mut Vec<Vec<u8>>) {
        let mut start = 0;
        while let Some(len) = self.partial[start..].iter().position(|byte| *byte == b'\n') {
            lines.push(self.partial[start..start + len].to_vec());
            start += len + 1;
        }
        self.partial.drain(..start);
        if self.partial.len() > MAX_MI_LINE_LEN {
            lines.push(std::mem::take(&mut self.partial));
        }
    }

    fn read_errors(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut buffer = [0; 4096];
        for _ in 0..16 {
            match stderr.read(&mut buffer) {
                Ok(0) => return self.stderr = None,
                Ok(count) => {
                    let text = String::from_utf8_lossy(&buffer[..count]);
                    self.error_text.push_str(&text);
                    let mut excess = self.error_text.len().saturating_sub(MAX_ERROR_LEN);
                    while !self.error_text.is_char_boundary(excess) {
                        excess += 1;
                    }
                    self.error_text.drain(..excess);
                }
                Err(_) => return,
            }
        }
    }

    fn end_reason(&mut self) -> String {
        self.read_errors();
        // gdb has closed its output. It either ends within this time or is killed.
        let status = self.wait_for_end(EXIT_GRACE).map(|status| status.to_string());
        let status = status.unwrap_or_else(|| "it closed its output".to_owned());
        match self.error_text.trim() {
            "" => status,
            text => format!("{status}, {text}"),
        }
    }

    fn wait_for_end(&mut self, grace: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + grace;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                result => return result.ok().flatten(),
            }
        }
    }
}

impl Drop for RunningGdb {
    /// Closes gdb's input. gdb then detaches from a process that it attached to, and removes its
    /// breakpoints. It kills a process that it started.
    fn drop(&mut self) {
        self.stdin = None;
        if self.wait_for_end(EXIT_GRACE).is_none() {
            // Both calls fail only if gdb has ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
