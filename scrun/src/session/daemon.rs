//! Starts the daemon of a session, and removes the job's directory if the daemon dies.

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use score_client::Connection;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time for which the removal of a dead daemon's directory is retried, because the processes of the
/// job may still be exiting.
const DIRECTORY_REMOVAL_TIMEOUT: Duration = Duration::from_millis(800);

/// The path of a binary of this package: next to scrun's own binary or, if it is not there, found
/// in PATH.
pub fn sibling_binary(name: &str) -> PathBuf {
    std::env::current_exe()
        .ok()
        .and_then(|exe| exe.parent().map(|directory| directory.join(name)))
        .filter(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(name))
}

/// The daemon at the other end of a session's socket.
#[derive(Debug)]
pub struct DaemonHandle {
    /// The process, if scrun has started it.
    child: Option<Child>,
    pid: Option<u32>,
    /// The message for a lost connection, if scrun has not started the daemon.
    exit_message: &'static str,
}

impl DaemonHandle {
    /// A daemon that scrun has not started. `exit_message` is for a lost connection.
    pub fn external(exit_message: &'static str) -> Self {
        Self { child: None, pid: None, exit_message }
    }

    /// The daemon of the scout session at the other end of this connection.
    pub fn of_scout(connection: &Connection) -> Self {
        let peer = getsockopt(connection, PeerCredentials).ok();
        let pid = peer.and_then(|peer| u32::try_from(peer.pid()).ok());
        Self { pid, ..Self::external("the scout session has ended") }
    }

    /// The process id of the daemon of single-user mode.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Waits up to `timeout` for the exit of the daemon and describes it.
    pub fn wait_for_exit(&mut self, timeout: Duration) -> String {
        match &mut self.child {
            Some(child) => describe_exit(reap(child, timeout)),
            None => self.exit_message.into(),
        }
    }
}

/// Starts `scored -single` with `options` and additional variables. Returns the daemon and the
/// connection to it.
///
/// The daemon gets a process group of its own, because only scrun handles the signals of the
/// terminal.
///
/// # Errors
/// The error of the system, with the name of the binary.
pub fn start(
    options: &[String],
    variables: &[(&str, &OsStr)],
) -> Result<(DaemonHandle, Connection), String> {
    let path = sibling_binary("scored");
    let spawn_error = |error: io::Error| format!("{}: {error}", path.display());
    let (ours, theirs) = inheritable_pair().map_err(|error| format!("socketpair: {error}"))?;
    let child = Command::new(&path)
        .arg("-single")
        .arg("-control")
        .arg(theirs.as_raw_fd().to_string())
        .args(options)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(spawn_error)?;
    let pid = Some(child.id());
    let mut connection =
        Connection::new(ours, "scored").map_err(|error| format!("scored: {error}"))?;
    connection.greet();
    Ok((DaemonHandle { child: Some(child), pid, exit_message: "" }, connection))
}

/// A socket pair. Child processes inherit the second end.
fn inheritable_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok((ours, theirs))
}

/// Waits up to `timeout` for the exit of the daemon, then kills it.
fn reap(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + timeout;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Err(_) => return None, // SIGCHLD is ignored: the kernel has reaped the child
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_micros(200)),
            Ok(None) => {
                let _ = child.kill();
                return child.wait().ok();
            }
        }
    }
}

/// A description of how a daemon has ended.
fn describe_exit(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        Some((Some(signal), _)) => format!("scored was killed by signal {signal}"),
        Some((_, Some(code))) => format!("scored ended unexpectedly with code {code}"),
        _ => "scored ended unexpectedly".into(),
    }
}

/// Whether this can be the directory of a job of this user. It must be below a directory of scored,
/// must not be a symbolic link, and must be accessible to the user only.
fn is_job_directory(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name).map(|name| name.as_bytes());
    let is_below_scored =
        parent.is_some_and(|name| name == b"scored" || name.starts_with(b"scored-"));
    let has_plain_components = path.components().all(|part| {
        matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
    });
    let is_private = fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_dir()
            && found.uid() == nix::unistd::geteuid().as_raw()
            && found.mode() & 0o077 == 0
    });
    let has_job_name = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"job-"));
    path.is_absolute() && has_plain_components && is_below_scored && has_job_name && is_private
}

/// Removes the directory of a job whose daemon has died. Retries while processes of the job exit.
///
/// # Errors
/// The reason why it still exists.
pub fn remove_directory(path: &Path) -> Result<(), String> {
    if !path.exists() {
        return Ok(());
    }
    if !is_job_directory(path) {
        return Err(format!("{}: not the directory of a job", path.display()));
    }
    let deadline = Instant::now() + DIRECTORY_REMOVAL_TIMEOUT;
    loop {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Ok(()) => {
                // The base directory below /tmp or the user's run-time directory is also removed.
                // This fails if other jobs still have directories in it.
                if let Some(base) = path.parent().filter(|base| *base != Path::new("/var/scored")) {
                    let _ = fs::remove_dir(base);
                }
                return Ok(());
            }
            Err(error) if Instant::now() > deadline => {
                return Err(format!("{}: {error}", path.display()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::DirBuilderExt;

    #[test]
    fn only_a_private_directory_below_scored_is_removed() {
        let base = std::env::temp_dir().join(format!("scrun-dir-{}", std::process::id()));
        let job = base.join("scored-1/job-1");
        let make =
            |path: &Path, mode| fs::DirBuilder::new().recursive(true).mode(mode).create(path);
        make(&job, 0o700).unwrap();
        fs::write(job.join("file"), "x").unwrap();
        let open = base.join("scored-1/job-open");
        make(&open, 0o755).unwrap();
        let other = base.join("other/job-1");
        make(&other, 0o700).unwrap();
        assert!(remove_directory(&open).is_err());
        assert!(remove_directory(&other).is_err());
        assert!(remove_directory(&base.join("scored-1/../scored-1/job-1")).is_err());
        assert_eq!(remove_directory(&job), Ok(()));
        assert_eq!(remove_directory(&job), Ok(()));
        assert!(!job.exists() && open.exists() && other.exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
