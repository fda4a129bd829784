//! Schedules the samples for monitors, and sums busy time. This module reads no clocks and no
//! processes.

use std::time::{Duration, Instant};

/// Number of samples of the idle flags in a period.
const SAMPLES_PER_REPORT: u32 = 10;
/// Shortest mean interval between two samples. Each sample wakes this process.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// Range of valid periods in milliseconds.
const REPORT_INTERVAL_RANGE_MS: (u32, u32) = (50, 60_000);
/// Period without subscribers, if `stat` needs the busy fractions at the end.
const UNSUBSCRIBED_INTERVAL: Duration = Duration::from_secs(1);

/// The time for which a process was observed, and the time for which it was busy, by its idle flag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BusyTime {
    /// The observed part of the job's running time, in nanoseconds.
    pub watched_ns: u64,
    /// The busy part of `watched_ns`.
    pub busy_ns: u64,
}

impl BusyTime {
    /// The busy fraction in thousandths. None: the process was not observed.
    pub fn permille(&self) -> Option<u16> {
        let busy = u128::from(self.busy_ns.min(self.watched_ns));
        (self.watched_ns > 0).then(|| (busy * 1000 / u128::from(self.watched_ns)) as u16)
    }

    /// Adds the result of a sample, taken `elapsed` after the last one.
    pub fn add_sample(&mut self, elapsed: Duration, idle: bool) {
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(0);
        self.watched_ns = self.watched_ns.saturating_add(elapsed_ns);
        if !idle {
            self.busy_ns = self.busy_ns.saturating_add(elapsed_ns);
        }
    }
}

/// The schedule of samples and reports.
#[derive(Debug, Default)]
pub struct Sampler {
    period: Option<Duration>,
    /// Whether the busy fractions are needed at the end, even without subscribers.
    report_at_end: bool,
    next_sample: Option<Instant>,
    next_report: Option<Instant>,
    /// Number of samples so far, which is the seed of the jitter.
    sample_count: u32,
    /// Running time of the job at the last sample.
    last_run_time: Option<Duration>,
}

impl Sampler {
    /// Samples even without subscribers, because the busy fraction of each process is needed at its
    /// exit.
    pub fn keep_sampling(&mut self, now: Instant) {
        self.report_at_end = true;
        self.schedule(now);
    }

    /// Sets the period of the reports in milliseconds. 0 ends the reports.
    pub fn set_period(&mut self, period_ms: u32, now: Instant) {
        let period = period_ms.clamp(REPORT_INTERVAL_RANGE_MS.0, REPORT_INTERVAL_RANGE_MS.1);
        self.period = (period_ms > 0).then(|| Duration::from_millis(period.into()));
        self.schedule(now);
        // The first report is due at once, so that monitors can show memory and disk.
        self.next_report = self.period.map(|_| now);
        self.next_sample = self.next_report.or(self.next_sample);
    }

    /// When the next sample is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_sample
    }

    /// Mean interval between two samples.
    fn sample_interval(&self) -> Option<Duration> {
        let period = self.period.or(self.report_at_end.then_some(UNSUBSCRIBED_INTERVAL));
        period.map(|period| (period / SAMPLES_PER_REPORT).max(MIN_SAMPLE_INTERVAL))
    }

    fn schedule(&mut self, now: Instant) {
        // Add jitter, so that a periodic program is not sampled at the same point every time.
        let jitter = self.sample_count.wrapping_mul(0x9e37_79b9) >> 24;
        self.next_sample =
            self.sample_interval().map(|interval| now + interval * (192 + jitter / 2) / 256);
    }

    /// Whether a sample is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.next_sample.is_some_and(|due| due <= now)
    }

    /// Records a sample that is taken now. Returns the job's running time since the last sample, or
    /// None if the job has not run. `run_time`: the job's total running time.
    pub fn sample(&mut self, now: Instant, run_time: Duration) -> Option<Duration> {
        self.sample_count = self.sample_count.wrapping_add(1);
        self.schedule(now);
        let previous = self.last_run_time.replace(run_time);
        previous
            .map(|previous| run_time.saturating_sub(previous))
            .filter(|elapsed| !elapsed.is_zero())
    }

    /// Whether metrics have to be reported with this sample. Reports use the sample nearest to
    /// their due time, so that they cause no additional wake-up.
    pub fn is_report_due(&mut self, now: Instant) -> bool {
        let (Some(due), Some(period), Some(interval)) =
            (self.next_report, self.period, self.sample_interval())
        else {
            return false;
        };
        if due > now + interval / 2 {
            return false;
        }
        // Reports are due at fixed intervals, unless this process was delayed.
        let next = due + period;
        self.next_report = Some(if next > now { next } else { now + period });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Runs for `duration`. The process is alternately idle and busy for 70 ms each. Returns the
    /// numbers of samples and reports, and the busy time.
    fn run(sampler: &mut Sampler, start: Instant, duration: Duration) -> (u32, u32, BusyTime) {
        let (mut samples, mut reports, mut busy_time) = (0, 0, BusyTime::default());
        let mut now = start;
        while let Some(due) = sampler.deadline().filter(|due| *due < start + duration) {
            assert!(due >= now && sampler.is_due(due));
            now = due;
            if let Some(elapsed) = sampler.sample(now, now - start) {
                let idle = ((now - start).as_millis() / 70).is_multiple_of(2);
                busy_time.add_sample(elapsed, idle);
            }
            samples += 1;
            reports += u32::from(sampler.is_report_due(now));
        }
        (samples, reports, busy_time)
    }

    // Promise of `scmon_shows_users_their_own_jobs_and_operators_all_jobs`.
    #[test]
    fn a_job_without_subscribers_is_not_sampled() {
        let now = Instant::now();
        let mut sampler = Sampler::default();
        assert_eq!(sampler.deadline(), None);
        sampler.set_period(100, now);
        assert!(sampler.deadline().is_some());
        sampler.set_period(0, now);
        assert_eq!((sampler.deadline(), BusyTime::default().permille()), (None, None));
        assert!(
            !sampler.is_due(now + UNSUBSCRIBED_INTERVAL)
                && !sampler.is_report_due(now + UNSUBSCRIBED_INTERVAL)
        );
    }

    // Promise of `scmon_shows_users_their_own_jobs_and_operators_all_jobs`.
    #[test]
    fn busy_shares_are_accurate_to_a_few_percent_with_a_bounded_number_of_samples() {
        let now = Instant::now();
        let mut sampler = Sampler::default();
        sampler.set_period(100, now);
        let (samples, reports, busy_time) = run(&mut sampler, now, ms(20_000));
        assert!((800..1300).contains(&samples) && reports == 200, "{samples} {reports}");
        let permille = busy_time.permille().unwrap();
        assert!((480..520).contains(&permille), "{permille}");
    }

    #[test]
    fn periods_are_bounded_and_final_shares_need_no_subscriber() {
        let now = Instant::now();
        let mut sampler = Sampler::default();
        sampler.set_period(1, now);
        assert_eq!(run(&mut sampler, now, ms(5000)).1, 100);
        let mut sampler = Sampler::default();
        sampler.keep_sampling(now);
        let (samples, reports, _) = run(&mut sampler, now, ms(10_000));
        assert!((80..130).contains(&samples) && reports == 0, "{samples} {reports}");
    }

    // Promise of `scmon_shows_users_their_own_jobs_and_operators_all_jobs`.
    #[test]
    fn stopped_time_is_not_counted() {
        let now = Instant::now();
        let mut sampler = Sampler::default();
        sampler.set_period(100, now);
        assert_eq!(sampler.sample(now + ms(50), ms(50)), None, "the first one");
        assert_eq!(sampler.sample(now + ms(100), ms(60)), Some(ms(10)));
        assert_eq!(sampler.sample(now + ms(150), ms(60)), None);
    }
}
