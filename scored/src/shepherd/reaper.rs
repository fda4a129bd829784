//! Ending every process that the job has left.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::process::{self, WaitResult};

/// Kills whatever still runs below this process. True when there was something.
pub fn kill_all() -> bool {
    if std::process::id() == 1 {
        return process::kill_namespace(libc::SIGKILL);
    }
    let found = process::descendants();
    for pid in &found {
        process::kill(*pid, libc::SIGKILL);
    }
    !found.is_empty()
}

/// Kills and reaps until no child is left, for so long at most. A namespace would end with its
/// init anyway; a subreaper has to do it by hand.
///
/// # Errors
/// Never; the type suits the caller.
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
