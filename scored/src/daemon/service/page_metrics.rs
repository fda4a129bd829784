//! Metrics of jobs for the status page. The server subscribes to the metrics of a job while a
//! reader of the page who may see the job sends requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use score_job::cluster::MonotonicTime;
use score_job::jobs::Jobs;
use score_monitor::{JobView, Metric, Process};
use score_proto::ids::JobId;
use score_proto::observation::Metrics;

use super::{Role, Service};
use crate::http::status_json::Shares;

/// How often metrics are sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of mean values that are kept: one minute.
const HISTORY_SAMPLES: usize = 60;

/// The metrics of a job that a reader of the page sees.
#[derive(Debug, Default)]
pub struct JobMetrics {
    /// The processes of the job.
    pub view: JobView,
    /// The mean values of the processes, the oldest first.
    pub trend: VecDeque<Shares>,
}

/// The metrics of all jobs that readers of the page may see.
#[derive(Debug, Default)]
pub struct PageMetrics {
    jobs: BTreeMap<JobId, JobMetrics>,
    /// The time until which each reader counts as present, by uid.
    readers: BTreeMap<u32, MonotonicTime>,
    /// The time at which the set of watched jobs is determined again.
    next_tick: MonotonicTime,
}

impl PageMetrics {
    /// Records that a user has requested the page. The next request is expected within `ttl`.
    pub fn on_page_request(&mut self, uid: u32, now: MonotonicTime, ttl: Duration) {
        let until = now + ttl;
        let previous_until = self.readers.insert(uid, until);
        match previous_until {
            Some(later_until) if later_until > until => _ = self.readers.insert(uid, later_until),
            Some(_) => {}
            // The next tick is due at once, so that a new reader gets metrics soon.
            None => self.next_tick = now,
        }
    }

    /// The metrics of a job.
    pub fn job(&self, job: JobId) -> Option<&JobMetrics> {
        self.jobs.get(&job)
    }

    /// The time until the next tick, if one is needed.
    pub fn deadline(&self, now: MonotonicTime) -> Option<Duration> {
        let is_idle = self.readers.is_empty() && self.jobs.is_empty();
        (!is_idle).then(|| self.next_tick.saturating_sub(now))
    }

    /// Stores new metrics of a job.
    pub fn update(&mut self, job: JobId, metrics: &Metrics, now: MonotonicTime) {
        self.jobs
            .get_mut(&job)
            .into_iter()
            .for_each(|job_metrics| job_metrics.view.apply_report(metrics, now));
    }

    /// Drops readers that have stopped sending requests, and records the mean values of the last
    /// period.
    fn tick(&mut self, now: MonotonicTime) {
        self.next_tick = now + SAMPLE_INTERVAL;
        self.readers.retain(|_, until| *until > now);
        for metrics in self.jobs.values_mut() {
            metrics.view.drop_stale(now, SAMPLE_INTERVAL);
            metrics.record_means();
        }
    }

    /// Sets the jobs to be watched. Returns the added jobs and the removed jobs.
    fn set_watched_jobs(&mut self, wanted: &BTreeSet<JobId>) -> (Vec<JobId>, Vec<JobId>) {
        let added: Vec<_> =
            wanted.iter().copied().filter(|job| !self.jobs.contains_key(job)).collect();
        let removed: Vec<_> =
            self.jobs.keys().copied().filter(|job| !wanted.contains(job)).collect();
        removed.iter().for_each(|job| _ = self.jobs.remove(job));
        added.iter().for_each(|job| _ = self.jobs.insert(*job, JobMetrics::default()));
        (added, removed)
    }
}

impl JobMetrics {
    /// The values of a process that the page shows as bars, in units of 1/1000.
    pub fn shares(&self, process: &Process) -> Shares {
        Metric::ALL.map(|kind| permille(self.view.share(process, kind)))
    }

    fn record_means(&mut self) {
        let processes = self.view.processes();
        let count = u32::try_from(processes.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return;
        }
        let mut sums = [0u32; Metric::ALL.len()];
        for process in &processes {
            let shares = self.shares(process);
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += u32::from(share));
        }
        if self.trend.len() == HISTORY_SAMPLES {
            self.trend.pop_front();
        }
        self.trend.push_back(sums.map(|sum| u16::try_from(sum / count).unwrap_or(1000)));
    }
}

fn permille(share: f32) -> u16 {
    (share.clamp(0.0, 1.0) * 1000.0).round() as u16
}

impl Service {
    /// Determines the jobs that readers of the page may see, if that is due. Returns the added and
    /// removed jobs, each with the period of its metrics in milliseconds, which is 0 for a removed
    /// job.
    pub fn page_subscriptions(&mut self, led_jobs: &Jobs) -> Vec<(JobId, u32)> {
        let now = self.now();
        let (Role::Server(cluster), Some(page)) = (&self.role, &mut self.page) else {
            return Vec::new();
        };
        if page.metrics.deadline(now) != Some(Duration::ZERO) {
            return Vec::new();
        }
        page.metrics.tick(now);
        let readers = &page.metrics.readers;
        let reads_all_jobs = readers.keys().any(|uid| cluster.is_operator(*uid));
        let led_jobs = cluster.list().filter(|job| led_jobs.leads(job.job));
        let visible_jobs = led_jobs.filter(|job| reads_all_jobs || readers.contains_key(&job.uid));
        let wanted: BTreeSet<JobId> = visible_jobs.map(|job| job.job).collect();
        let (added, removed) = page.metrics.set_watched_jobs(&wanted);
        let period_ms = u32::try_from(SAMPLE_INTERVAL.as_millis()).unwrap_or(u32::MAX);
        let added = added.into_iter().map(|job| (job, period_ms));
        added.chain(removed.into_iter().map(|job| (job, 0))).collect()
    }

    /// Stores new metrics of a job for the readers of the page.
    pub fn update_page_metrics(&mut self, job: JobId, metrics: &Metrics) {
        let now = self.now();
        self.page.iter_mut().for_each(|page| page.metrics.update(job, metrics, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::observation::NodeMetrics;

    fn at(seconds: u64) -> MonotonicTime {
        Duration::from_secs(seconds)
    }

    // Promise of `a_browser_shows_processes_hosts_and_slices_and_reports_no_error`.
    #[test]
    fn jobs_are_watched_as_long_as_the_page_has_readers() {
        let [three, four, five] = [3, 4, 5].map(JobId);
        let mut page_metrics = PageMetrics::default();
        assert_eq!(page_metrics.deadline(at(5)), None);
        page_metrics.on_page_request(1000, at(5), at(5));
        assert_eq!(page_metrics.deadline(at(5)), Some(Duration::ZERO));
        page_metrics.tick(at(5));
        assert_eq!(
            page_metrics.set_watched_jobs(&BTreeSet::from([three, four])),
            (vec![three, four], vec![])
        );
        assert_eq!(
            page_metrics.set_watched_jobs(&BTreeSet::from([four, five])),
            (vec![five], vec![three])
        );
        assert_eq!(page_metrics.deadline(at(5)), Some(SAMPLE_INTERVAL));
        // A scraper sends requests rarely, and the page often. The longer time takes effect.
        page_metrics.on_page_request(1000, at(6), at(60));
        page_metrics.on_page_request(1000, at(7), at(5));
        page_metrics.tick(at(65));
        assert_eq!(page_metrics.readers.len(), 1);
        page_metrics.tick(at(66));
        assert!(page_metrics.readers.is_empty() && page_metrics.deadline(at(66)).is_some());
        assert_eq!(page_metrics.set_watched_jobs(&BTreeSet::new()), (vec![], vec![four, five]));
        assert_eq!(page_metrics.deadline(at(67)), None);
    }

    // Promise of `a_browser_shows_processes_hosts_and_slices_and_reports_no_error`.
    #[test]
    fn the_trend_is_the_mean_of_all_processes_of_a_minute() {
        let mut page_metrics = PageMetrics::default();
        page_metrics.set_watched_jobs(&BTreeSet::from([JobId(3)]));
        let second_ns = 1_000_000_000;
        for now in 1..=70 {
            let node = |node: u32, busy_ns| NodeMetrics {
                node,
                sampled_at_ns: now * second_ns,
                observed_ns: now * second_ns,
                busy_ns,
                ..NodeMetrics::default()
            };
            let nodes = vec![node(0, 0), node(1, now * second_ns)];
            page_metrics.update(JobId(3), &Metrics { hosts: Vec::new(), nodes }, at(now));
            page_metrics.update(JobId(4), &Metrics::default(), at(now));
            page_metrics.tick(at(now));
        }
        let metrics = page_metrics.job(JobId(3)).unwrap();
        assert_eq!((metrics.trend.len(), metrics.trend[59][0]), (HISTORY_SAMPLES, 500));
        assert!(page_metrics.job(JobId(4)).is_none());
    }
}
