//! A look at the threads of one process, for a verdict.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Claim;
use super::descriptors::{Live, PmSockets};
use super::stands::{Stand, stand};
use super::tasks::{self, Task};

/// What the threads of a process that says it is idle do in truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threads {
    /// One of them polls.
    pub spins: bool,
    /// Equal in two looks: those that sleep have not run between them.
    pub stamp: u64,
}

/// How closely it is looked. Who looks costs the processes time, and each kind of file that is read
/// more than the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// Whether they may be suspected: stopping those that are open would be in vain.
    Suspicion,
    /// Whether they have moved since they were; what else might wake them the verdict asks again.
    Moved,
    /// They stand still, and what is said is final.
    Verdict,
}

/// Looks at the threads of a process; nothing when one of them may go on by itself, or that cannot
/// be told.
pub(super) fn threads(claim: &Claim, sockets: &PmSockets, care: Care) -> Option<Threads> {
    let Claim { pid, adapters, ref seats } = *claim;
    let tasks = tasks::of_process(pid)?;
    let tids: HashSet<u32> = tasks.iter().map(|task| task.tid).collect();
    // A slot whose thread is gone belongs to somebody who did not end as threads do.
    if !seats.iter().all(|seat| tids.contains(&seat.tid)) {
        return None;
    }
    let live = Live::new(pid, sockets, tids, adapters);
    let seat_of = |task: &Task| seats.iter().find(|seat| seat.tid == task.tid);
    let stands: Vec<Stand> = tasks.iter().map(|task| stand(task, seat_of(task), &live)).collect();
    let spinning = stands.iter().filter(|stand| **stand == Stand::Spins).count();
    // Empty polls are counted for the process, so that one thread can account for them.
    if stands.contains(&Stand::Open) || spinning > 1 {
        return None;
    }
    if care != Care::Moved {
        let may_find_others = spinning > 0 && live.may_poll_others();
        if tasks::manner(pid)?.is_open() || live.has_requests() || may_find_others {
            return None;
        }
    }
    let mut hasher = DefaultHasher::new();
    for (task, stand) in tasks.iter().zip(&stands).filter(|(_, one)| **one != Stand::Foreign) {
        let asleep = (*stand == Stand::Sleeps).then_some(task.switches);
        (task.tid, asleep).hash(&mut hasher);
    }
    Some(Threads { spins: spinning > 0, stamp: hasher.finish() })
}
