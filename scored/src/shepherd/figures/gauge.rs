//! When the processes are looked at for monitors, and what adds up. No clocks and no processes
//! here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::work::At;

/// Looks at the idle flags in a period.
const LOOKS: u32 = 10;
/// Between two looks at least, by the mean: 64 processes that are looked at every 10 ms cost more
/// than a hundredth of a processor, since each look wakes this process and finds all of it cold.
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
    tallies: HashMap<At, Tally>,
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
        // The first ones at once: there is memory and disk to be shown.
        self.report = self.period.map(|_| now);
        self.plan(now);
    }

    /// When something is to be done.
    pub fn deadline(&self) -> Option<Instant> {
        [self.look, self.report].into_iter().flatten().min()
    }

    fn plan(&mut self, now: Instant) {
        let period = self.period.or(self.always.then_some(UNWATCHED));
        // Uneven, so that what a program does regularly is not met at the same point every time.
        let mixed = self.looks.wrapping_mul(0x9e37_79b9) >> 24;
        let uneven = |pause: Duration| pause * (192 + mixed / 2) / 256;
        self.look = period.map(|period| now + uneven((period / LOOKS).max(PAUSE)));
    }

    /// Whether the processes are to be looked at now. If so, their job's running time since the
    /// last look; `ran`: in all.
    pub fn is_look_due(&mut self, now: Instant, ran: Duration) -> Option<Duration> {
        self.look.filter(|due| *due <= now)?;
        self.looks = self.looks.wrapping_add(1);
        self.plan(now);
        let before = self.ran.replace(ran);
        before.map(|before| ran.saturating_sub(before)).filter(|step| !step.is_zero())
    }

    /// What a look has found.
    pub fn count(&mut self, at: At, step: Duration, idle: bool) {
        let step = u64::try_from(step.as_nanos()).unwrap_or(0);
        let tally = self.tallies.entry(at).or_default();
        tally.watched_ns = tally.watched_ns.saturating_add(step);
        if !idle {
            tally.busy_ns = tally.busy_ns.saturating_add(step);
        }
    }

    /// Whether figures are to be reported now.
    pub fn is_report_due(&mut self, now: Instant) -> bool {
        let (Some(due), Some(period)) = (self.report, self.period) else { return false };
        if due > now {
            return false;
        }
        // Kept in step, unless this process was held up.
        let next = due + period;
        self.report = Some(if next > now { next } else { now + period });
        true
    }

    /// What was counted of a process.
    pub fn tally(&self, at: At) -> Tally {
        self.tallies.get(&at).copied().unwrap_or_default()
    }

    /// A process has ended.
    pub fn ended(&mut self, at: At) -> Tally {
        self.tallies.remove(&at).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: At = At { element: 0, node: 3 };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Runs for so long; the process is idle half of the time, in turns of 70 ms.
    fn run(gauge: &mut Gauge, start: Instant, length: Duration) -> (u32, u32) {
        let (mut looks, mut reports) = (0, 0);
        let mut now = start;
        while let Some(due) = gauge.deadline().filter(|due| *due < start + length) {
            assert!(due >= now);
            now = due;
            if let Some(step) = gauge.is_look_due(now, now - start) {
                let idle = ((now - start).as_millis() / 70).is_multiple_of(2);
                gauge.count(AT, step, idle);
            }
            looks += 1;
            reports += u32::from(gauge.is_report_due(now));
        }
        (looks - reports, reports)
    }

    #[test]
    fn nobody_watching_costs_nothing() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        assert_eq!(gauge.deadline(), None);
        gauge.watch(100, now);
        assert!(gauge.deadline().is_some());
        gauge.watch(0, now);
        assert_eq!((gauge.deadline(), gauge.tally(AT).permille()), (None, None));
    }

    #[test]
    fn shares_are_met_within_a_few_percent_and_looks_are_not_too_many() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        gauge.watch(100, now);
        let (looks, reports) = run(&mut gauge, now, ms(20_000));
        assert!((800..1300).contains(&looks) && reports == 200, "{looks} {reports}");
        let permille = gauge.tally(AT).permille().unwrap();
        assert!((480..520).contains(&permille), "{permille}");
        assert_eq!(gauge.ended(AT).permille(), Some(permille));
        assert_eq!(gauge.tally(AT), Tally::default());
    }

    #[test]
    fn periods_are_bounded_and_shares_for_the_end_need_no_watcher() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        gauge.watch(1, now);
        assert_eq!(run(&mut gauge, now, ms(5000)).1, 100);
        let mut gauge = Gauge::default();
        gauge.keep(now);
        let (looks, reports) = run(&mut gauge, now, ms(10_000));
        assert!((80..130).contains(&looks) && reports == 0, "{looks} {reports}");
    }

    #[test]
    fn while_the_job_is_stopped_nothing_counts() {
        let now = Instant::now();
        let mut gauge = Gauge::default();
        gauge.watch(100, now);
        assert_eq!(gauge.is_look_due(now + ms(50), ms(50)), None, "the first one");
        assert_eq!(gauge.is_look_due(now + ms(100), ms(60)), Some(ms(10)));
        assert_eq!(gauge.is_look_due(now + ms(150), ms(60)), None);
    }
}
