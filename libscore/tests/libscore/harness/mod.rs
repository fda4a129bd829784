//! The common part of these tests: C programs built against libscore, and a minimal shepherd for
//! them. It uses the real protocol over real sockets, memfds and PM attach descriptors. The
//! shepherd of scored is tested together with scrun.

// UNSAFETY: pre_exec runs between fork and exec.
#![expect(unsafe_code)]

pub mod build;
pub mod shepherd;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// No step of these tests takes this long.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A running test program and its standard streams.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
}

impl Process {
    /// Starts the program with one inherited descriptor, whose number `variable` holds.
    pub fn start(program: &Path, args: &[&str], inherited: Option<(&str, &OwnedFd)>) -> Self {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for variable in ["SCORE_CONTROL_FD", "SCORE_RESOURCE_FD"] {
            command.env_remove(variable);
        }
        if let Some((variable, fd)) = inherited {
            let fd = fd.as_raw_fd();
            command.env(variable, fd.to_string());
            let clear_cloexec = move || {
                // SAFETY: open in the parent, so also open in this child.
                let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
                fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
                Ok(())
            };
            // SAFETY: fcntl is async-signal-safe.
            unsafe { command.pre_exec(clear_cloexec) };
        }
        let mut child = command.spawn().expect("the test program starts");
        let lines = reader(child.stdout.take().unwrap());
        let errors = reader(child.stderr.take().unwrap());
        Self { child, lines, errors }
    }

    /// The process id.
    pub fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// Sends a command without waiting for the reply.
    pub fn send_line(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").expect("the test program reads");
    }

    /// The next line that the program prints.
    pub fn read_line(&self) -> String {
        match self.lines.recv_timeout(TEST_TIMEOUT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the test program prints nothing"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the test program has ended: {:?}", self.stderr_lines())
            }
        }
    }

    /// The next line, if it arrives within `time`.
    pub fn read_line_within(&self, time: Duration) -> Option<String> {
        self.lines.recv_timeout(time).ok()
    }

    /// Sends a command and reads the reply, which is one line.
    pub fn request(&mut self, line: &str) -> String {
        self.send_line(line);
        self.read_line()
    }

    /// The rest of standard output, after the end of the program.
    pub fn remaining_output(&self) -> Vec<String> {
        self.lines.iter().collect()
    }

    /// The whole standard error, after the end of the program.
    pub fn stderr_lines(&self) -> Vec<String> {
        self.errors.iter().collect()
    }

    /// The exit status, if the program has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the end of the program, which must be imminent.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < TEST_TIMEOUT {
            if let Some(status) = self.try_wait() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the test program does not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a stream, read by a thread so that waiting for them can time out.
fn reader(stream: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            if line.is_err() || sender.send(line.unwrap_or_default()).is_err() {
                break;
            }
        }
    });
    receiver
}
