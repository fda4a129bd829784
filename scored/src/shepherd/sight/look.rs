//! A look at the threads of one process, for a verdict.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::areas::Seat;
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

/// Looks at the threads of process `pid`; nothing when one of them may go on by itself, or that
/// cannot be told. `seats`: those that say something of themselves.
pub fn threads(pid: i32, seats: &[Seat], sockets: &PmSockets) -> Option<Threads> {
    let tasks = tasks::of_process(pid)?;
    let tids: HashSet<u32> = tasks.iter().map(|task| task.tid).collect();
    // A slot whose thread is gone belongs to somebody who did not end as threads do.
    if !seats.iter().all(|seat| tids.contains(&seat.tid)) || tasks::manner(pid)?.is_open() {
        return None;
    }
    let live = Live::new(pid, sockets, tids);
    let seat_of = |task: &Task| seats.iter().find(|seat| seat.tid == task.tid);
    let stands: Vec<Stand> = tasks.iter().map(|task| stand(task, seat_of(task), &live)).collect();
    let spinning = stands.iter().filter(|stand| **stand == Stand::Spins).count();
    // Empty polls are counted for the process, so that one thread can account for them.
    if stands.contains(&Stand::Open) || spinning > 1 || live.has_requests() {
        return None;
    }
    if spinning > 0 && live.may_poll_others() {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    for (task, stand) in tasks.iter().zip(&stands).filter(|(_, one)| **one != Stand::Foreign) {
        let asleep = (*stand == Stand::Sleeps).then_some(task.switches);
        (task.tid, asleep).hash(&mut hasher);
    }
    Some(Threads { spins: spinning > 0, stamp: hasher.finish() })
}
