//! When the processes are looked at for monitors, and what adds up. No clocks and no processes
//! here.

use std::time::{Duration, Instant};

/// Looks at the idle flags in a period.
const LOOKS: u32 = 10;
/// Between two looks at least, by the mean: each wakes this process.
const PAUSE: Duration = Duration::from_millis(20);
/// Periods that may be asked for.
const PERIODS: (u32, u32) = (50, 60_000);
/// The period while nobody watches but `stat` wants shares at the end.
const UNWATCHED: Duration = Duration::from_secs(1);

/// How long a process was watched and busy, by its idle flag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Nanoseconds of the job's running time.
    pub watched_ns: u64,
    /// Of these it was busy.
    pub busy_ns: u64,
}

impl Tally {
    /// The share in thousandths.
    pub fn permille(&self) -> Option<u16> {
        let busy = u128::from(self.busy_ns.min(self.watched_ns));
        (self.watched_ns > 0).then(|| (busy * 1000 / u128::from(self.watched_ns)) as u16)
    }

    /// What a look has found, so long after the last.
    pub fn count(&mut self, step: Duration, idle: bool) {
        let step = u64::try_from(step.as_nanos()).unwrap_or(0);
        self.watched_ns = self.watched_ns.saturating_add(step);
        if !idle {
            self.busy_ns = self.busy_ns.saturating_add(step);
        }
    }
}

/// Who is watched, and when next.
#[derive(Debug, Default)]
pub struct Gauge {
    period: Option<Duration>,
    /// Shares are wanted at the end, watched or not.
    always: bool,
    look: Option<Instant>,
    report: Option<Instant>,
    /// Looks so far: what makes the pause between them uneven.
    looks: u32,
    /// Running time of the job at the last look.
    ran: Option<Duration>,
}

impl Gauge {
    /// Shares are wanted at the end of each process.
    pub fn keep(&mut self, now: Instant) {
        self.always = true;
        self.plan(now);
    }

    /// Figures are wanted so often; 0 for never again.
    pub fn watch(&mut self, period_ms: u32, now: Instant) {
        let period = period_ms.clamp(PERIODS.0, PERIODS.1);
        self.period = (period_ms > 0).then(|| Duration::from_millis(period.into()));
        self.plan(now);
        // The first ones at once: there is memory and disk to be shown.
        self.report = self.period.map(|_| now);
        self.look = self.report.or(self.look);
    }

    /// When the processes are to be looked at.
    pub fn deadline(&self) -> Option<Instant> {
        self.look
    }

    /// Between two looks, by the mean.
    fn pause(&self) -> Option<Duration> {
        let period = self.period.or(self.always.then_some(UNWATCHED));
        period.map(|period| (period / LOOKS).max(PAUSE))
    }

    fn plan(&mut self, now: Instant) {
        // Uneven, so that what a program does regularly is not met at the same point every time.
        let mixed = self.looks.wrapping_mul(0x9e37_79b9) >> 24;
        self.look = self.pause().map(|pause| now + pause * (192 + mixed / 2) / 256);
    }

    /// Whether the processes are to be looked at now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.look.is_some_and(|due| due <= now)
    }

    /// They are looked at now: their job's running time since the last look, of which `ran` is all;
    /// none if it has not run.
    pub fn look(&mut self, now: Instant, ran: Duration) -> Option<Duration> {
        self.looks = self.looks.wrapping_add(1);
        self.plan(now);
        let before = self.ran.replace(ran);
        before.map(|before| ran.saturating_sub(before)).filter(|step| !step.is_zero())
    }

    /// Whether figures are to be reported with this look: the one that is nearest to their time, so
    /// that they wake nobody.
    pub fn is_report_due(&mut self, now: Instant) -> bool {
        let (Some(due), Some(period), Some(pause)) = (self.report, self.period, self.pause())
        else {
            return false;
        };
        if due > now + pause / 2 {
            return false;
        }
        // Kept in step, unless this process was held up.
        let next = due + period;
        self.report = Some(if next > now { next } else { now + period });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Runs for so long; the process is idle half of the time, in turns of 70 ms. Looks, reports,
    /// and what adds up.
    fn run(gauge: &mut Gauge, start: Instant, length: Duration) -> (u32, u32, Tally) {
        let (mut looks, mut reports, mut tally) = (0, 0, Tally::default());
        let mut now = start;
        while let Some(due) = gauge.deadline().filter(|due| *due < start + length) {
            assert!(due >= now && gauge.is_due(due));
            now = due;
            if let Some(step) = gauge.look(now, now - start) {
                let idle = ((now - start).as_millis() / 70).is_multiple_of(2);
                tally.count(step, idle);
            }
            looks += 1;
            reports += u32::from(gauge.is_report_due(now));
        }
        (looks, reports, tally)
    }

    #[test]
    fn nobody_watching_costs_nothing() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        assert_eq!(gauge.deadline(), None);
        gauge.watch(100, now);
        assert!(gauge.deadline().is_some());
        gauge.watch(0, now);
        assert_eq!((gauge.deadline(), Tally::default().permille()), (None, None));
        assert!(!gauge.is_due(now + UNWATCHED) && !gauge.is_report_due(now + UNWATCHED));
    }

    #[test]
    fn shares_are_met_within_a_few_percent_and_looks_are_not_too_many() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        gauge.watch(100, now);
        let (looks, reports, tally) = run(&mut gauge, now, ms(20_000));
        assert!((800..1300).contains(&looks) && reports == 200, "{looks} {reports}");
        let permille = tally.permille().unwrap();
        assert!((480..520).contains(&permille), "{permille}");
    }

    #[test]
    fn periods_are_bounded_and_shares_for_the_end_need_no_watcher() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        gauge.watch(1, now);
        assert_eq!(run(&mut gauge, now, ms(5000)).1, 100);
        let mut gauge = Gauge::default();
        gauge.keep(now);
        let (looks, reports, _) = run(&mut gauge, now, ms(10_000));
        assert!((80..130).contains(&looks) && reports == 0, "{looks} {reports}");
    }

    #[test]
    fn while_the_job_is_stopped_nothing_counts() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        gauge.watch(100, now);
        assert_eq!(gauge.look(now + ms(50), ms(50)), None, "the first one");
        assert_eq!(gauge.look(now + ms(100), ms(60)), Some(ms(10)));
        assert_eq!(gauge.look(now + ms(150), ms(60)), None);
    }
}
