//! Runs gdb to evaluate expressions. Commands and answers use GDB/MI. The wait for each answer is
//! bounded.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use score_sdm::gdb::mi::{MAX_MI_LINE_LEN, MiOutcome, MiRecord, parse_line};

use score_client::is_readable;

const PROGRAM: &str = "gdb";
/// Interval at which a wait for output checks whether the user has interrupted the command.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running gdb. Dropping this value kills gdb.
#[derive(Debug)]
pub struct Gdb<'a> {
    child: Child,
    output: ChildStdout,
    /// Bytes that were read but are not yet a whole line.
    unread: Vec<u8>,
    last_token: u64,
    is_interrupted: &'a AtomicBool,
}

impl<'a> Gdb<'a> {
    /// Starts gdb without the user's settings.
    ///
    /// # Errors
    /// One line: gdb is not installed or cannot be started.
    pub fn start(is_interrupted: &'a AtomicBool) -> Result<Self, String> {
        let mut command = Command::new(PROGRAM);
        command.args(["-nx", "-q", "--interpreter=mi3"]).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // The process group makes sure that a ^C on the terminal reaches only scdb.
        let mut child = command.process_group(0).spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!(
                "print needs {PROGRAM} in PATH on this host: install the \
                 package {PROGRAM}"
            ),
            _ => format!("{PROGRAM}: {error}"),
        })?;
        let output = child.stdout.take().ok_or("gdb has no standard output")?;
        Ok(Self { child, output, unread: Vec::new(), last_token: 0, is_interrupted })
    }

    /// Makes gdb execute an MI command within `timeout`.
    ///
    /// # Errors
    /// gdb's message, or the reason why there is no answer.
    pub fn ask(&mut self, command: &str, timeout: Duration) -> Result<MiOutcome, String> {
        self.last_token += 1;
        let line = format!("{}{command}\n", self.last_token);
        let input = self.child.stdin.as_mut().ok_or("gdb has no standard input")?;
        input.write_all(line.as_bytes()).map_err(|error| format!("{PROGRAM}: {error}"))?;
        let deadline = Instant::now() + timeout;
        loop {
            let line = self.next_line(deadline, timeout)?;
            match parse_line(&line) {
                Ok(MiRecord::Result(outcome)) if outcome.token == Some(self.last_token) => {
                    return match outcome.class.as_str() {
                        "error" => Err(outcome.text("msg").unwrap_or("no reason").to_owned()),
                        _ => Ok(outcome),
                    };
                }
                Ok(_) => {}
                Err(error) => return Err(format!("{PROGRAM}: {error}")),
            }
        }
    }

    fn next_line(&mut self, deadline: Instant, timeout: Duration) -> Result<Vec<u8>, String> {
        let mut buffer = [0; 16 << 10];
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.unread.drain(..=end).collect();
                line.pop();
                return Ok(line);
            }
            if self.unread.len() > MAX_MI_LINE_LEN {
                return Err(format!("{PROGRAM}: a line has more than {MAX_MI_LINE_LEN} bytes"));
            }
            if self.is_interrupted.load(Ordering::Relaxed) {
                return Err("interrupted".to_owned());
            }
            if Instant::now() >= deadline {
                return Err(format!("{PROGRAM} has not answered within {timeout:?}"));
            }
            let failed = |error: io::Error| format!("{PROGRAM}: {error}");
            if !is_readable(self.output.as_fd(), POLL_INTERVAL).map_err(failed)? {
                continue;
            }
            match self.output.read(&mut buffer) {
                Ok(0) => return Err(format!("{PROGRAM} has ended")),
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

impl Drop for Gdb<'_> {
    fn drop(&mut self) {
        // gdb has changed nothing, so it has nothing to undo.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
