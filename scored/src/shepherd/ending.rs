//! Ending every process that the job has left.

use std::io;
use std::time::{Duration, Instant};

use crate::sys::process::{self, Reap};

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
pub fn reclaim(limit: Duration) -> io::Result<()> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        kill_all();
        match process::reap() {
            Reap::One(_) => {}
            Reap::NoChildren => break,
            Reap::AllRunning => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Ok(())
}
