//! Scans the threads of one process for deadlock detection.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::IdleClaim;
use super::fd_classes::{LiveProcess, PmSockets};
use super::proc_threads::{self, Task};
use super::thread_rules::{ThreadState, classify_thread};

/// Evidence about the threads of a process that claims to be idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadEvidence {
    /// Whether one of the threads polls.
    pub polling: bool,
    /// Equal in two scans if the blocked threads have not run between them.
    pub fingerprint: u64,
}

/// How thorough a scan is. A scan takes time from the processes. Each depth reads only the files
/// that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanDepth {
    /// Checks whether a deadlock is possible at all. Stopping the job is pointless if a thread may
    /// run.
    Suspect,
    /// Checks whether threads have run since the last scan. `Confirm` checks other sources of a
    /// wake-up again.
    Recheck,
    /// The processes are stopped, and the result is final.
    Confirm,
}

/// Scans the threads of a process. Returns None if one of them may continue by itself, or if that
/// cannot be excluded.
pub(super) fn threads(
    claim: &IdleClaim,
    sockets: &PmSockets,
    depth: ScanDepth,
) -> Option<ThreadEvidence> {
    let IdleClaim { pid, adapter_count, ref thread_slots, quiet_pmi_socket } = *claim;
    let tasks = proc_threads::threads_of(pid)?;
    let tids: HashSet<u32> = tasks.iter().map(|task| task.tid).collect();
    // A thread that has a slot but does not exist has not ended in the regular way.
    if !thread_slots.iter().all(|thread_slot| tids.contains(&thread_slot.tid)) {
        return None;
    }
    let live = LiveProcess::new(pid, sockets, tids, adapter_count, quiet_pmi_socket);
    let slot_of = |task: &Task| thread_slots.iter().find(|thread_slot| thread_slot.tid == task.tid);
    let states: Vec<ThreadState> =
        tasks.iter().map(|task| classify_thread(task, slot_of(task), &live)).collect();
    let polling_count = states.iter().filter(|state| **state == ThreadState::Polling).count();
    // Empty polls are counted per process. They can therefore prove the state of one thread only.
    if states.contains(&ThreadState::Unknown) || polling_count > 1 {
        return None;
    }
    if depth != ScanDepth::Recheck {
        let may_poll_others = polling_count > 0 && live.may_poll_foreign_fds();
        if proc_threads::signal_state(pid)?.may_wake_itself()
            || live.has_async_io()
            || may_poll_others
        {
            return None;
        }
    }
    let mut hasher = DefaultHasher::new();
    for (task, state) in
        tasks.iter().zip(&states).filter(|(_, state)| **state != ThreadState::Ignored)
    {
        let switches_if_blocked = (*state == ThreadState::Blocked).then_some(task.context_switches);
        (task.tid, switches_if_blocked).hash(&mut hasher);
    }
    Some(ThreadEvidence { polling: polling_count > 0, fingerprint: hasher.finish() })
}
