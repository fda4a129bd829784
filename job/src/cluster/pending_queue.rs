//! The queue of waiting jobs. Users take turns. The jobs of one user are ordered by priority, then
//! by submission. A user with ten thousand jobs gets one turn like any other user.

use std::collections::{BTreeMap, VecDeque};

use score_proto::ids::JobId;

/// The position of a job among the jobs of its user: priority (smaller first), then number.
type QueueKey = (u8, u64);

/// The jobs that wait.
#[derive(Debug, Default)]
pub struct PendingQueue {
    users: BTreeMap<u32, BTreeMap<QueueKey, JobId>>,
    /// Users with waiting jobs; the user in front is next.
    turns: VecDeque<u32>,
    /// Counts all jobs that ever waited.
    next_sequence: u64,
    job_count: usize,
}

impl PendingQueue {
    /// Adds a job at the end of its user's queue for this priority, and returns its key.
    pub fn push(&mut self, uid: u32, priority: u8, job: JobId) -> QueueKey {
        let key = (priority, self.next_sequence);
        self.next_sequence += 1;
        self.job_count += 1;
        let jobs = self.users.entry(uid).or_default();
        if jobs.is_empty() {
            self.turns.push_back(uid);
        }
        jobs.insert(key, job);
        key
    }

    /// Removes a job.
    pub fn remove(&mut self, uid: u32, key: QueueKey) {
        let Some(jobs) = self.users.get_mut(&uid) else { return };
        if jobs.remove(&key).is_some() {
            self.job_count -= 1;
        }
        if jobs.is_empty() {
            self.users.remove(&uid);
            self.turns.retain(|turn| *turn != uid);
        }
    }

    /// A job of this user has started. The user moves to the end of the order of turns.
    pub fn rotate_user(&mut self, uid: u32) {
        if let Some(index) = self.turns.iter().position(|turn| *turn == uid) {
            self.turns.remove(index);
            self.turns.push_back(uid);
        }
    }

    /// The first job of each user, in the order of turns.
    pub fn heads(&self) -> impl Iterator<Item = JobId> + '_ {
        self.turns.iter().filter_map(|uid| self.users.get(uid)?.values().next().copied())
    }

    /// The number of jobs that start before this job if users take turns. It passes all jobs of the
    /// user: for all of them, use [`PendingQueue::jobs_ahead_of_each`].
    pub fn jobs_ahead(&self, uid: u32, key: QueueKey) -> usize {
        let own_ahead = self.users.get(&uid).map_or(0, |jobs| jobs.range(..key).count());
        let own_position =
            self.turns.iter().position(|turn| *turn == uid).unwrap_or(self.turns.len());
        let others = (0..).zip(&self.turns).filter(|(_, other)| **other != uid);
        let started_before = |(position, other): (usize, &u32)| {
            self.user_job_count(*other).min(own_ahead + usize::from(position < own_position))
        };
        own_ahead + others.map(started_before).sum::<usize>()
    }

    /// The waiting jobs of a user, each with the number of jobs that start before it. Passes each
    /// user once, and then each job of this user once.
    pub fn jobs_ahead_of_each(&self, uid: u32) -> impl Iterator<Item = (JobId, usize)> + '_ {
        let own_position = self.turns.iter().position(|turn| *turn == uid);
        // The users in front start one job before the first job of this user.
        let mut others_ahead = own_position.unwrap_or(self.turns.len());
        let others = (0..).zip(&self.turns).filter(|(_, other)| **other != uid);
        // The number of further jobs of each other user, the smallest one last.
        let mut left: Vec<usize> = others
            .map(|(position, other)| {
                self.user_job_count(*other) - usize::from(position < others_ahead)
            })
            .collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        let jobs = self.users.get(&uid).into_iter().flat_map(BTreeMap::values);
        jobs.enumerate().map(move |(own_ahead, job)| {
            let ahead = own_ahead + others_ahead;
            // Each user with further jobs starts one between this job and the next one.
            while left.pop_if(|count| *count <= own_ahead).is_some() {}
            others_ahead += left.len();
            (*job, ahead)
        })
    }

    /// The number of waiting jobs of this user.
    pub fn user_job_count(&self, uid: u32) -> usize {
        self.users.get(&uid).map_or(0, BTreeMap::len)
    }

    /// The number of waiting jobs.
    pub fn len(&self) -> usize {
        self.job_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_with_queues_of_any_length() {
        let mut waiting = PendingQueue::default();
        let mut keys = BTreeMap::new();
        for job in (0..1000).map(JobId) {
            keys.insert(job, (1, waiting.push(1, 8, job)));
        }
        for uid in 1000..1003 {
            keys.insert(JobId(uid), (uid, waiting.push(uid, 8, JobId(uid))));
        }
        let mut started = Vec::new();
        for _ in 0..6 {
            let job = waiting.heads().next().unwrap();
            let (uid, key) = keys[&job];
            waiting.rotate_user(uid);
            waiting.remove(uid, key);
            started.push(job);
        }
        assert_eq!(started, [0, 1000, 1001, 1002, 1, 2].map(JobId));
        assert_eq!(
            (waiting.len(), waiting.user_job_count(1), waiting.user_job_count(1000)),
            (997, 997, 0)
        );
    }

    #[test]
    fn the_jobs_ahead_are_counted_in_turns() {
        let mut waiting = PendingQueue::default();
        let keys: Vec<_> = (0..10).map(JobId).map(|job| waiting.push(1, 8, job)).collect();
        let other = waiting.push(2, 8, JobId(100));
        assert_eq!(waiting.jobs_ahead(1, keys[0]), 0);
        assert_eq!(waiting.jobs_ahead(2, other), 1);
        // The second job of the first user comes after the only job of the other user.
        assert_eq!(waiting.jobs_ahead(1, keys[1]), 2);
        assert_eq!(waiting.jobs_ahead(1, keys[9]), 10);
        waiting.rotate_user(1);
        assert_eq!((waiting.jobs_ahead(1, keys[0]), waiting.jobs_ahead(2, other)), (1, 0));
        let of_each: Vec<_> = waiting.jobs_ahead_of_each(1).collect();
        let one_by_one = (0..10).map(JobId).zip(keys.iter().map(|key| waiting.jobs_ahead(1, *key)));
        assert_eq!(of_each, one_by_one.collect::<Vec<_>>());
    }

    #[test]
    fn the_jobs_ahead_of_each_job_of_a_user_are_those_of_the_jobs_one_by_one() {
        let mut waiting = PendingQueue::default();
        let mut keys: BTreeMap<u32, Vec<QueueKey>> = BTreeMap::new();
        // The numbers of jobs of the users, some of which are equal.
        for (uid, count) in [(1, 3), (2, 0), (3, 7), (4, 1), (5, 7), (6, 2)] {
            for job in 0..count {
                let key = waiting.push(uid, (job % 3) as u8, JobId(uid * 100 + job));
                keys.entry(uid).or_default().push(key);
            }
        }
        for turn in 0..12 {
            for (uid, keys) in &mut keys {
                keys.sort_unstable();
                let of_each: Vec<_> =
                    waiting.jobs_ahead_of_each(*uid).map(|(_, ahead)| ahead).collect();
                let one_by_one = keys.iter().map(|key| waiting.jobs_ahead(*uid, *key));
                assert_eq!(of_each, one_by_one.collect::<Vec<_>>(), "turn {turn}, user {uid}");
            }
            let uid = waiting.turns[0];
            waiting.rotate_user(uid);
            waiting.remove(uid, keys.get_mut(&uid).unwrap().remove(0));
        }
    }

    #[test]
    fn jobs_of_one_user_start_by_priority_and_then_by_order() {
        let mut waiting = PendingQueue::default();
        waiting.push(1, 8, JobId(10));
        let urgent = waiting.push(1, 2, JobId(11));
        waiting.push(1, 8, JobId(12));
        assert_eq!(waiting.heads().collect::<Vec<_>>(), [JobId(11)]);
        waiting.remove(1, urgent);
        waiting.remove(1, urgent);
        assert_eq!(waiting.heads().collect::<Vec<_>>(), [JobId(10)]);
        assert_eq!(waiting.len(), 2);
    }
}
