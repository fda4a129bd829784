//! Jobs that wait for room: users take turns, and the jobs of one user go by priority, then in
//! the order of their submission. A user with ten thousand jobs has one turn like any other.

use std::collections::{BTreeMap, VecDeque};

use super::JobId;

/// Where a job stands among those of its user: priority (smaller first), then number.
type Rank = (u8, u64);

/// The jobs that wait.
#[derive(Debug, Default)]
pub struct Waiting {
    users: BTreeMap<u32, BTreeMap<Rank, JobId>>,
    /// Users with waiting jobs; who is in front is next.
    turns: VecDeque<u32>,
    /// Counts all that ever waited.
    count: u64,
    total: usize,
}

impl Waiting {
    /// Adds a job at the end of its user's queue for this priority; gives its rank.
    pub fn push(&mut self, uid: u32, priority: u8, job: JobId) -> Rank {
        let rank = (priority, self.count);
        self.count += 1;
        self.total += 1;
        let jobs = self.users.entry(uid).or_default();
        if jobs.is_empty() {
            self.turns.push_back(uid);
        }
        jobs.insert(rank, job);
        rank
    }

    /// Takes a job out.
    pub fn remove(&mut self, uid: u32, rank: Rank) {
        let Some(jobs) = self.users.get_mut(&uid) else { return };
        if jobs.remove(&rank).is_some() {
            self.total -= 1;
        }
        if jobs.is_empty() {
            self.users.remove(&uid);
            self.turns.retain(|turn| *turn != uid);
        }
    }

    /// A job of this user has started: the next turn is another's.
    pub fn took_turn(&mut self, uid: u32) {
        if let Some(at) = self.turns.iter().position(|turn| *turn == uid) {
            self.turns.remove(at);
            self.turns.push_back(uid);
        }
    }

    /// The first job of each user, in the order of turns.
    pub fn heads(&self) -> impl Iterator<Item = JobId> + '_ {
        self.turns.iter().filter_map(|uid| self.users.get(uid)?.values().next().copied())
    }

    /// How many jobs go before this one, when each user has one turn after the other.
    pub fn ahead(&self, uid: u32, rank: Rank) -> usize {
        let own = self.users.get(&uid).map_or(0, |jobs| jobs.range(..rank).count());
        let turn = self.turns.iter().position(|turn| *turn == uid).unwrap_or(self.turns.len());
        let others = (0..).zip(&self.turns).filter(|(_, other)| **other != uid);
        let before =
            |(place, other): (usize, &u32)| self.of(*other).min(own + usize::from(place < turn));
        own + others.map(before).sum::<usize>()
    }

    /// Jobs of this user that wait.
    pub fn of(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, BTreeMap::len)
    }

    /// Jobs that wait.
    pub fn len(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_whatever_the_length_of_their_queues() {
        let mut waiting = Waiting::default();
        let mut ranks = BTreeMap::new();
        for job in 0..1000 {
            ranks.insert(job, (1, waiting.push(1, 8, job)));
        }
        for job in 1000..1003 {
            ranks.insert(job, (job, waiting.push(job, 8, job)));
        }
        let mut started = Vec::new();
        for _ in 0..6 {
            let job = waiting.heads().next().unwrap();
            let (uid, rank) = ranks[&job];
            waiting.took_turn(uid);
            waiting.remove(uid, rank);
            started.push(job);
        }
        assert_eq!(started, [0, 1000, 1001, 1002, 1, 2]);
        assert_eq!((waiting.len(), waiting.of(1), waiting.of(1000)), (997, 997, 0));
    }

    #[test]
    fn how_many_go_before_is_counted_in_turns() {
        let mut waiting = Waiting::default();
        let ranks: Vec<_> = (0..10).map(|job| waiting.push(1, 8, job)).collect();
        let other = waiting.push(2, 8, 100);
        assert_eq!(waiting.ahead(1, ranks[0]), 0);
        assert_eq!(waiting.ahead(2, other), 1);
        // The second of the first user comes after the other's only one.
        assert_eq!(waiting.ahead(1, ranks[1]), 2);
        assert_eq!(waiting.ahead(1, ranks[9]), 10);
        waiting.took_turn(1);
        assert_eq!((waiting.ahead(1, ranks[0]), waiting.ahead(2, other)), (1, 0));
    }

    #[test]
    fn within_a_user_priority_comes_before_order() {
        let mut waiting = Waiting::default();
        waiting.push(1, 8, 10);
        let urgent = waiting.push(1, 2, 11);
        waiting.push(1, 8, 12);
        assert_eq!(waiting.heads().collect::<Vec<_>>(), [11]);
        waiting.remove(1, urgent);
        waiting.remove(1, urgent);
        assert_eq!(waiting.heads().collect::<Vec<_>>(), [10]);
        assert_eq!(waiting.len(), 2);
    }
}
