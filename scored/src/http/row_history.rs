//! The history of the scheduled rows, and the share of each job in the last minute.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use score_job::cluster::MonotonicTime;
use score_proto::ids::JobId;

/// The maximum number of rows that are kept.
const MAX_ROWS: usize = 4096;
/// The period over which shares are computed.
const SHARE_WINDOW: Duration = Duration::from_secs(60);

/// The jobs that had their processors from a certain time on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The time at which the row began.
    pub began: MonotonicTime,
    /// The jobs of the row, in ascending order.
    pub jobs: Vec<JobId>,
}

/// The most recent rows.
#[derive(Debug, Default)]
pub struct History {
    rows: VecDeque<Row>,
    /// The number of times that the row has changed.
    pub switches: u64,
}

impl History {
    /// Records the jobs that have their processors now, in ascending order.
    pub fn record(&mut self, running: impl Iterator<Item = JobId>, now: MonotonicTime) {
        let jobs: Vec<JobId> = running.collect();
        if self.rows.back().is_some_and(|last| last.jobs == jobs) {
            return;
        }
        self.switches += 1;
        self.rows.push_back(Row { began: now, jobs });
        // The first row that is kept began before the window, because its end is inside.
        let is_expired =
            |rows: &VecDeque<Row>| rows.get(1).is_some_and(|next| next.began + SHARE_WINDOW < now);
        while self.rows.len() > MAX_ROWS || is_expired(&self.rows) {
            self.rows.pop_front();
        }
    }

    /// The rows that lasted beyond `start`, the oldest first.
    pub fn rows_since(&self, start: MonotonicTime) -> impl Iterator<Item = &Row> {
        let first_later = self.rows.partition_point(|row| row.began <= start);
        self.rows.range(first_later.saturating_sub(1)..)
    }

    /// For each job, the fraction of the last minute in which it had its processors, in units of
    /// 1/1000. For a younger job, the period begins at its start, which `started_at` returns.
    pub fn shares(
        &self,
        now: MonotonicTime,
        started_at: impl Fn(JobId) -> Option<MonotonicTime>,
    ) -> BTreeMap<JobId, u16> {
        let oldest = self.rows.front().map_or(now, |row| row.began);
        let window_start = oldest.max(now.saturating_sub(SHARE_WINDOW));
        let mut run_time: BTreeMap<JobId, Duration> = BTreeMap::new();
        let ends = self.rows.iter().skip(1).map(|row| row.began).chain([now]);
        for (row, end) in self.rows.iter().zip(ends) {
            let duration = end.saturating_sub(row.began.max(window_start));
            for job in &row.jobs {
                *run_time.entry(*job).or_default() += duration;
            }
        }
        let share = |(job, run_time): (JobId, Duration)| {
            let lifetime = now.saturating_sub(started_at(job)?.max(window_start)).as_millis();
            let share = (run_time.as_millis() * 1000).checked_div(lifetime)?.min(1000);
            Some((job, u16::try_from(share).unwrap_or(1000)))
        };
        run_time.into_iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> MonotonicTime {
        Duration::from_millis(ms)
    }

    fn note(history: &mut History, jobs: &[JobId], ms: u64) {
        history.record(jobs.iter().copied(), at(ms));
    }

    // Promise of `time_slices_are_shown_as_they_were_given`.
    #[test]
    fn shares_are_of_the_last_minute_or_of_a_jobs_lifetime() {
        let mut history = History::default();
        note(&mut history, &[JobId(1)], 0);
        // Job 1 runs alone for half a minute, then alternately with job 2.
        for turn in 0..60 {
            note(&mut history, &[JobId(1 + turn % 2)], 30_000 + u64::from(turn) * 500);
        }
        let started_at = |job| Some(at(if job == JobId(1) { 0 } else { 30_000 }));
        let shares = history.shares(at(60_000), started_at);
        assert_eq!(shares, BTreeMap::from([(JobId(1), 750), (JobId(2), 500)]));
        let shares = history.shares(at(90_000), |_| Some(MonotonicTime::ZERO));
        assert_eq!(shares, BTreeMap::from([(JobId(1), 250), (JobId(2), 750)]));
        assert!(history.shares(at(90_000), |_| None).is_empty());
        assert!(History::default().shares(at(1), started_at).is_empty());
    }

    #[test]
    fn only_changes_are_kept_and_they_expire() {
        let mut history = History::default();
        for ms in 0..100_000 {
            note(&mut history, &[JobId(1 + ms as u32 % 2)], ms);
            note(&mut history, &[JobId(1 + ms as u32 % 2)], ms);
        }
        assert_eq!((history.rows.len(), history.switches), (MAX_ROWS, 100_000));
        let recent: Vec<_> = history.rows_since(at(99_997)).map(|row| row.began).collect();
        assert_eq!(recent, [at(99_997), at(99_998), at(99_999)]);
        assert_eq!(history.rows_since(at(200_000)).count(), 1);
        note(&mut history, &[JobId(7)], 300_000);
        note(&mut history, &[JobId(8)], 300_001);
        assert_eq!(history.rows.len(), 3, "the last earlier row lasted until then");
    }
}
