//! A look at the threads of one process, for a verdict.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::IdleClaim;
use super::fd_classes::{LiveProcess, PmSockets};
use super::proc_threads::{self, Task};
use super::thread_rules::{ThreadState, classify_thread};

/// What the threads of a process that says it is idle do in truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadEvidence {
    /// One of them polls.
    pub polling: bool,
    /// Equal in two looks: those that sleep have not run between them.
    pub fingerprint: u64,
}

/// How closely it is looked. Who looks costs the processes time, and each kind of file that is read
/// more than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanDepth {
    /// Whether they may be suspected: stopping those that are open would be in vain.
    Suspect,
    /// Whether they have moved since they were; what else might wake them the verdict asks again.
    Recheck,
    /// They stand still, and what is said is final.
    Confirm,
}

/// Looks at the threads of a process; nothing when one of them may go on by itself, or that cannot
/// be told.
pub(super) fn threads(
    claim: &IdleClaim,
    sockets: &PmSockets,
    depth: ScanDepth,
) -> Option<ThreadEvidence> {
    let IdleClaim { pid, adapters, ref thread_slots } = *claim;
    let tasks = proc_threads::threads_of(pid)?;
    let tids: HashSet<u32> = tasks.iter().map(|task| task.tid).collect();
    // A slot whose thread is gone belongs to somebody who did not end as threads do.
    if !thread_slots.iter().all(|thread_slot| tids.contains(&thread_slot.tid)) {
        return None;
    }
    let live = LiveProcess::new(pid, sockets, tids, adapters);
    let slot_of = |task: &Task| thread_slots.iter().find(|thread_slot| thread_slot.tid == task.tid);
    let states: Vec<ThreadState> =
        tasks.iter().map(|task| classify_thread(task, slot_of(task), &live)).collect();
    let polling_count = states.iter().filter(|state| **state == ThreadState::Polling).count();
    // Empty polls are counted for the process, so that one thread can account for them.
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
