//! Detaches from PM when a node exits.

use crate::session;

/// Detaches from PM, so that peers need not wait until the shepherd detects the exit. A forked
/// child has nothing to detach. While other threads run, contexts cannot be closed. The shepherd
/// then closes them later.
pub(crate) extern "C" fn detach() {
    let Some(session) = session::of_this_process() else { return };
    if !is_single_threaded() {
        return;
    }
    for network in &session.networks {
        // If a buffer is held, this fails, and the shepherd closes the context later.
        let _ = network.composite.close(network.device);
        for member in &network.members {
            let _ = member.detach();
        }
    }
}

/// The names of PM's own threads. These threads call no function of PM.
const PM_THREADS: [&[u8]; 2] = [b"score-pm\n", b"score-pin\n"];

/// Whether only this thread and PM's own threads run.
fn is_single_threaded() -> bool {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return false };
    let is_pm_thread = |thread: &std::fs::DirEntry| {
        std::fs::read(thread.path().join("comm")).is_ok_and(|name| PM_THREADS.contains(&&name[..]))
    };
    threads.flatten().filter(|thread| !is_pm_thread(thread)).take(2).count() == 1
}
