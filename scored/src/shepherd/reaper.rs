//! Kills and reaps all remaining processes of the job.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::process::{self, WaitResult};

/// Kills all descendants of this process. Returns whether there were any.
pub fn kill_all() -> bool {
    if std::process::id() == 1 {
        return process::kill_namespace(libc::SIGKILL);
    }
    let pids = process::descendants();
    for pid in &pids {
        process::kill(*pid, libc::SIGKILL);
    }
    !pids.is_empty()
}

/// Kills and reaps until no child is left, or until the timeout. The kernel kills the processes of
/// a PID namespace when its init exits, but a subreaper has to kill its descendants itself.
///
/// # Errors
/// Never. The return type suits the caller.
pub fn kill_and_reap(timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        kill_all();
        match process::reap() {
            WaitResult::Exited(_) => {}
            WaitResult::NoChildren => break,
            WaitResult::AllRunning => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Ok(())
}
