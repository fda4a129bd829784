//! The running processes of the job on this host, by rank and by process id.

use std::collections::{BTreeMap, HashMap};

use score_proto::ids::ProcessIndex;
use score_toolctl::tracer::Pid;

/// A process of the job on this host.
#[derive(Debug, Clone, Copy)]
struct RankProcess {
    pid: Pid,
    /// Its number among the processes of its element on this host.
    number: ProcessIndex,
}

/// The running processes.
#[derive(Debug, Default)]
pub struct RankProcesses {
    by_rank: BTreeMap<u32, RankProcess>,
    ranks: HashMap<Pid, u32>,
}

impl RankProcesses {
    /// Adds a process that has been started. `number` is its number among the processes of its
    /// element on this host.
    pub fn insert(&mut self, rank: u32, number: ProcessIndex, pid: Pid) {
        self.by_rank.insert(rank, RankProcess { pid, number });
        self.ranks.insert(pid, rank);
    }

    /// Removes the process of a rank. Returns its id.
    pub fn remove(&mut self, rank: u32) -> Option<Pid> {
        let process = self.by_rank.remove(&rank)?;
        self.ranks.remove(&process.pid);
        Some(process.pid)
    }

    /// Removes a process. Returns its rank.
    pub fn remove_pid(&mut self, pid: Pid) -> Option<u32> {
        let rank = self.ranks.remove(&pid)?;
        self.by_rank.remove(&rank);
        Some(rank)
    }

    /// The process of a rank.
    pub fn pid(&self, rank: u32) -> Option<Pid> {
        self.by_rank.get(&rank).map(|process| process.pid)
    }

    /// The rank of a process.
    pub fn rank(&self, pid: Pid) -> Option<u32> {
        self.ranks.get(&pid).copied()
    }

    /// The number of a rank's process among the processes of its element on this host.
    pub fn number(&self, rank: u32) -> Option<ProcessIndex> {
        self.by_rank.get(&rank).map(|process| process.number)
    }

    /// All processes.
    pub fn pids(&self) -> impl Iterator<Item = Pid> {
        self.by_rank.values().map(|process| process.pid)
    }
}
