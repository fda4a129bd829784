//! The local run of a program for its resource request (manual 1.4.2, steps 2 and 3): only where
//! its note asks for it, with standard input and output closed to it and a limit of time.

use crate::usage::{Refusal, USAGE, shown};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2, read};
use score_proto::env::RESOURCE_FD;
use score_proto::note::{MAX_WRITTEN, Request};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program may take to say what it asks for.
const LIMIT: Duration = Duration::from_secs(5);

/// Runs the program and adds what it writes to its request.
///
/// # Errors
/// A program that cannot be started, takes too long, or writes what is no request.
pub fn run(path: &Path, request: &mut Request) -> Result<(), Refusal> {
    let name = shown(path.as_os_str());
    let fail = |why: String| Refusal::plain(USAGE, format!("{name}: {why}"));
    let failed = |error: std::io::Error| fail(format!("cannot be run for its request: {error}"));
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).map_err(|error| failed(error.into()))?;
    let mut child = start(path, writer).map_err(failed)?;
    let answer = collect(&reader, Instant::now() + LIMIT);
    // The request is there, or will never be: nothing else of this run is wanted.
    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
    let _ = child.wait();
    let answer = answer.map_err(failed)?;
    let Some(bytes) = answer else {
        return Err(fail(format!("said no resource request within {} s", LIMIT.as_secs())));
    };
    if bytes.is_empty() {
        return Err(fail("ended before score_initialize said what it asks for".into()));
    }
    request.add_written(&bytes).map_err(|fault| fail(fault.to_string()))
}

fn start(path: &Path, writer: OwnedFd) -> std::io::Result<Child> {
    // The only descriptor that the child gets besides its standard ones.
    let passed = nix::unistd::dup(&writer)?;
    Command::new(path)
        .env(RESOURCE_FD, passed.as_raw_fd().to_string())
        .env_remove(score_proto::env::CONTROL_FD)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
}

/// Reads to the end of the pipe; `None` when the time is over before.
fn collect(reader: &OwnedFd, until: Instant) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    while bytes.len() <= MAX_WRITTEN {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut wanted = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        match poll(&mut wanted, timeout) {
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
