//! The trial run of a program on this host for its resource request (manual 1.4.2, steps 2 and 3).
//! It takes place only if the program's note requires it. The program has no standard input or
//! output, and a time limit.

use crate::usage::{StartError, printable};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2, read};
use score_proto::elf_note::{MAX_REQUEST_LEN, Request};
use score_proto::env::RESOURCE_FD_ENV;
use score_proto::exit_code::EXIT_USAGE;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The time in which a program must write its resource request.
const TRIAL_RUN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the program, and adds the notes that it writes to `request`.
///
/// # Errors
/// A program that cannot be started, takes too long, or writes an invalid request.
pub fn run_for_request(path: &Path, request: &mut Request) -> Result<(), StartError> {
    let name = printable(path.as_os_str());
    let start_error = |reason: String| StartError::plain(EXIT_USAGE, format!("{name}: {reason}"));
    let io_error = |error: std::io::Error| {
        start_error(format!("cannot be run to get its resource request: {error}"))
    };
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(|error| io_error(error.into()))?;
    let mut child = spawn(path, writer).map_err(io_error)?;
    let written = read_request(&reader, Instant::now() + TRIAL_RUN_TIMEOUT);
    // The request is complete or has failed: the rest of this run is not needed.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.wait();
    let written = written.map_err(io_error)?;
    let Some(bytes) = written else {
        return Err(start_error(format!(
            "no resource request within {} s",
            TRIAL_RUN_TIMEOUT.as_secs()
        )));
    };
    if bytes.is_empty() {
        return Err(start_error("ended before score_initialize wrote its request".into()));
    }
    request.add_encoded(&bytes).map_err(|error| start_error(error.to_string()))
}

fn spawn(path: &Path, writer: OwnedFd) -> std::io::Result<Child> {
    // The child inherits only this descriptor and its standard ones.
    let inherited = nix::unistd::dup(&writer)?;
    Command::new(path)
        .env(RESOURCE_FD_ENV, inherited.as_raw_fd().to_string())
        .env_remove(score_proto::env::CONTROL_FD_ENV)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Reads to the end of the pipe. Returns `None` if the deadline passes first.
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
