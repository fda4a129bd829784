//! The local run of a program for its resource request (manual 1.4.2, steps 2 and 3): only where
//! its note asks for it, with standard input and output closed to it and a limit of time.

use crate::usage::{EXIT_USAGE, StartError, printable};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2, read};
use score_proto::elf_note::{MAX_REQUEST_LEN, Request};
use score_proto::env::RESOURCE_FD_ENV;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to say what it asks for.
const TRIAL_RUN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the program and adds what it writes to its request.
///
/// # Errors
/// A program that cannot be started, takes too long, or writes what is no request.
pub fn run_for_request(path: &Path, request: &mut Request) -> Result<(), StartError> {
    let name = printable(path.as_os_str());
    let start_error = |reason: String| StartError::plain(EXIT_USAGE, format!("{name}: {reason}"));
    let io_error =
        |error: std::io::Error| start_error(format!("cannot be run for its request: {error}"));
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(|error| io_error(error.into()))?;
    let mut child = spawn(path, writer).map_err(io_error)?;
    let written = read_request(&reader, Instant::now() + TRIAL_RUN_TIMEOUT);
    // The request is there, or will never be: nothing else of this run is wanted.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.wait();
    let written = written.map_err(io_error)?;
    let Some(bytes) = written else {
        return Err(start_error(format!(
            "said no resource request within {} s",
            TRIAL_RUN_TIMEOUT.as_secs()
        )));
    };
    if bytes.is_empty() {
        return Err(start_error("ended before score_initialize said what it asks for".into()));
    }
    request.add_encoded(&bytes).map_err(|error| start_error(error.to_string()))
}

fn spawn(path: &Path, writer: OwnedFd) -> std::io::Result<Child> {
    // The only descriptor that the child gets besides its standard ones.
    let inherited = nix::unistd::dup(&writer)?;
    Command::new(path)
        .env(RESOURCE_FD_ENV, inherited.as_raw_fd().to_string())
        .env_remove(score_proto::env::CONTROL_FD_ENV)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Reads to the end of the pipe; `None` when the time is over before.
fn read_request(reader: &OwnedFd, deadline: Instant) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    while bytes.len() <= MAX_REQUEST_LEN {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut poll_fds = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        match poll(&mut poll_fds, timeout) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match read(reader, &mut chunk)? {
            0 => break,
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
    Ok(Some(bytes))
}
