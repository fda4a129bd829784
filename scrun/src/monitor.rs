//! `monitor` (manual 3.5.3): `scmon` displays the activity of the job, in its own window or on
//! this terminal. scrun forwards the metrics, and drops some if scmon reads slowly.

use crate::session::daemon::sibling_binary;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use score_proto::frame;
use score_proto::ids::JobId;
use score_proto::observation::{Metrics, MonitorMessage};
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, PipeReader, PipeWriter, Write, stderr, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Milliseconds between two updates of the display.
pub const REPORT_INTERVAL_MS: u32 = 500;
/// The time in which scmon must restore the terminal and exit.
const SCMON_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Capacity of the pipe in bytes: enough for the metrics of a thousand processes at once.
const PIPE_CAPACITY_LEN: i32 = 1 << 20;
/// Maximum bytes of standard error that wait for scmon. Further bytes are written over the display.
const MAX_BUFFERED_STDERR_BYTES: usize = 4 << 20;

/// The displays that are available to scrun.
#[derive(Debug, Clone, Copy)]
struct DisplayCapabilities {
    /// DISPLAY is set.
    display: bool,
    /// An xterm is in PATH.
    xterm: bool,
    /// The job's standard output is a terminal.
    stdout: bool,
    /// scrun has a controlling terminal.
    terminal: bool,
}

/// The location of the display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MonitorTarget {
    /// In an xterm.
    Window,
    /// On scrun's own terminal.
    Terminal,
}

fn choose_target(capabilities: DisplayCapabilities) -> Result<MonitorTarget, &'static str> {
    match capabilities {
        DisplayCapabilities { stdout: false, terminal: true, .. } => Ok(MonitorTarget::Terminal),
        DisplayCapabilities { display: true, xterm: true, .. } => Ok(MonitorTarget::Window),
        DisplayCapabilities { display: true, .. } => {
            Err("there is no xterm in PATH; redirect the job's output to use this terminal")
        }
        DisplayCapabilities { stdout: true, .. } => {
            Err("the job's output goes to this terminal and DISPLAY is not set: redirect the \
                 output, or set DISPLAY")
        }
        _ => Err("there is neither a terminal nor a DISPLAY"),
    }
}

/// The location at which the metrics can be displayed.
///
/// # Errors
/// The reason why the metrics cannot be displayed.
pub fn resolve_target() -> Result<MonitorTarget, &'static str> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let xterm = std::env::split_paths(&paths).any(|path| path.join("xterm").is_file());
    choose_target(DisplayCapabilities {
        display: std::env::var_os("DISPLAY").is_some_and(|display| !display.is_empty()),
        xterm,
        stdout: stdout().is_terminal(),
        terminal: File::open("/dev/tty").is_ok(),
    })
}

/// Whether the monitor takes the terminal that the job would read from.
pub fn takes_input(target: MonitorTarget) -> bool {
    target == MonitorTarget::Terminal && stdin().is_terminal()
}

/// A monitor that starts when the job has a number.
#[derive(Debug, Clone)]
pub struct MonitorRequest {
    /// The location of the display.
    pub target: MonitorTarget,
    /// The option's value.
    pub value: Option<String>,
}

/// scmon, and the pipe to it.
#[derive(Debug)]
pub struct Monitor {
    child: Child,
    pipe: PipeWriter,
    /// scrun's copy of the pipe's read end, if scmon opens the pipe by its path under /proc.
    _reader: Option<PipeReader>,
    /// Frames that are not yet written to the pipe.
    unsent: Vec<u8>,
    /// Standard error is the terminal on which scmon draws, so its lines are sent to scmon.
    shares_terminal: bool,
}

impl Monitor {
    /// Starts scmon for this job.
    ///
    /// # Errors
    /// One line that names the failed step.
    pub fn start(request: &MonitorRequest, job: JobId) -> Result<Self, String> {
        let failed = |object: &str, error: std::io::Error| format!("monitor: {object}: {error}");
        let (reader, pipe) = std::io::pipe().map_err(|error| failed("pipe", error))?;
        // With a smaller pipe, the display is updated less often.
        let _ = fcntl(pipe.as_fd(), FcntlArg::F_SETPIPE_SZ(PIPE_CAPACITY_LEN));
        fcntl(pipe.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(|errno| failed("pipe", errno.into()))?;
        let scmon = sibling_binary("scmon");
        let views = match request.value.as_deref() {
            None => vec!["load".to_owned(), "comm".to_owned()],
            Some(value) => vec![value.to_owned()],
        };
        let mut words: Vec<OsString> = vec![job.to_string().into()];
        for value in views {
            words.extend(["-show".into(), value.into()]);
        }
        words.extend(["-period".into(), REPORT_INTERVAL_MS.to_string().into(), "-pipe".into()]);
        let (mut command, inherited_reader) = match request.target {
            MonitorTarget::Terminal => {
                words.push("-".into());
                let mut command = Command::new(&scmon);
                command.stdin(Stdio::from(reader));
                (command, None)
            }
            MonitorTarget::Window => {
                let pipe_path = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
                words.push(pipe_path.into());
                let mut command = Command::new("xterm");
                let title = format!("SCore job {job}");
                command.args(["-u8", "-title", &title, "-geometry", "110x36", "-e"]).arg(&scmon);
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                (command, Some(reader))
            }
        };
        let program = command.get_program().to_owned();
        let child = command.args(words).spawn();
        let child = child.map_err(|error| failed(&Path::new(&program).to_string_lossy(), error))?;
        let shares_terminal = request.target == MonitorTarget::Terminal && stderr().is_terminal();
        Ok(Self { child, pipe, _reader: inherited_reader, unsent: Vec::new(), shares_terminal })
    }

    /// Forwards metrics, or drops them while earlier ones wait. Returns false if the user has
    /// closed scmon.
    pub fn send_metrics(&mut self, metrics: &Metrics) -> bool {
        if !self.send() || matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
            return false;
        }
        if self.unsent.is_empty() {
            // Metrics that are too long for a frame are not shown.
            let message = MonitorMessage::Metrics(metrics.clone());
            let _ = frame::encode(&message, &mut self.unsent);
        }
        self.send()
    }

    /// Takes bytes that would be written over the display. If it returns false, the caller must
    /// write them.
    pub fn send_stderr(&mut self, bytes: &[u8]) -> bool {
        if !self.shares_terminal || self.unsent.len() > MAX_BUFFERED_STDERR_BYTES {
            return false;
        }
        let message = MonitorMessage::Stderr(bytes.to_vec());
        let fits = frame::encode(&message, &mut self.unsent).is_ok();
        self.send();
        fits
    }

    fn send(&mut self) -> bool {
        let mut sent = 0;
        let is_open = loop {
            if sent == self.unsent.len() {
                break true;
            }
            match self.pipe.write(&self.unsent[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break error.kind() == ErrorKind::WouldBlock,
            }
        };
        self.unsent.drain(..sent);
        is_open
    }

    /// Ends scmon, because the job has ended or the display is closed. scmon restores the terminal.
    /// Returns the bytes of standard error that scmon has not received; the caller must write them.
    pub fn close(mut self) -> Vec<u8> {
        let deadline = Instant::now() + SCMON_EXIT_TIMEOUT;
        while !self.unsent.is_empty() && Instant::now() < deadline && self.send() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let Self { mut child, pipe, _reader, unsent, shares_terminal } = self;
        drop((pipe, _reader));
        while let Ok(None) = child.try_wait() {
            if Instant::now() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if shares_terminal { unread_stderr(&unsent) } else { Vec::new() }
    }
}

/// The bytes of standard error in unread frames.
fn unread_stderr(frames: &[u8]) -> Vec<u8> {
    let mut decoder = frame::Decoder::default();
    decoder.push(frames);
    let mut bytes = Vec::new();
    while let Ok(Some(message)) = decoder.next::<MonitorMessage>() {
        if let MonitorMessage::Stderr(more) = message {
            bytes.extend(more);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monitor_target_follows_display_and_terminals() {
        let target_for = |display, xterm, stdout, terminal| {
            choose_target(DisplayCapabilities { display, xterm, stdout, terminal })
        };
        assert_eq!(target_for(true, true, true, true), Ok(MonitorTarget::Window));
        assert_eq!(target_for(true, true, false, true), Ok(MonitorTarget::Terminal));
        assert_eq!(target_for(true, true, false, false), Ok(MonitorTarget::Window));
        assert_eq!(target_for(false, true, false, true), Ok(MonitorTarget::Terminal));
        assert!(target_for(false, true, true, true).unwrap_err().contains("DISPLAY is not set"));
        assert!(target_for(true, false, true, true).unwrap_err().contains("no xterm"));
        assert!(target_for(false, false, false, false).unwrap_err().contains("neither"));
    }

    #[test]
    fn unread_standard_error_is_returned() {
        let mut frames = Vec::new();
        for text in ["one\n", "two\n"] {
            let message = MonitorMessage::Stderr(text.as_bytes().to_vec());
            frame::encode(&message, &mut frames).unwrap();
        }
        let metrics = MonitorMessage::Metrics(Metrics::default());
        frame::encode(&metrics, &mut frames).unwrap();
        assert_eq!(unread_stderr(&frames), b"one\ntwo\n");
    }
}
