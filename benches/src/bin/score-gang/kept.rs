//! How much two jobs do together of what one does alone in the same time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;
use crate::bare::Switcher;
use crate::bed::{Bed, Job, Play};
use crate::quiet::Reading;

const WINDOW: Duration = Duration::from_millis(400);
/// The first slices after a change belong to nobody's window.
const SETTLING: Duration = Duration::from_millis(100);
/// How far the ends of the interval may be from the median.
const EXACT: f64 = 0.005;

/// Measures and prints, with slices of so many milliseconds, `plain`, or `bare`-N.
pub fn run(slice: &str, rounds: u32, seconds: u32, others: u32) -> Result<()> {
    let limit = Duration::from_secs(seconds.into());
    let bare = slice.strip_prefix("bare-");
    let mut bed = Bed::new(if bare.is_some() { "plain" } else { slice }, &[2])?;
    let jobs = [bed.start(Play::Turns, "8")?, bed.start(Play::Turns, "8")?];
    let start = |slice| Switcher::start(slice, [&jobs[0], &jobs[1]], &bed.processors);
    let switcher = bare.map(start).transpose()?;
    let begin = Instant::now();
    // Not even the rounds that are wanted are worth waiting for without end.
    let mut meter = Meter { bed: &bed, until: begin + limit * 2, others, disturbed: 0 };
    let mut kept = Vec::new();
    loop {
        // Neither job is the one alone more often.
        let at = kept.len() % 2;
        let (stays, goes) = (&jobs[at], &jobs[1 - at]);
        let first = meter.rate(&[stays, goes])?;
        switcher.as_ref().map_or_else(|| goes.suspend(), |switcher| switcher.alone(at))?;
        let (second, third) = (meter.rate(&[stays])?, meter.rate(&[stays])?);
        switcher.as_ref().map_or_else(|| goes.resume(), Switcher::both)?;
        let fourth = meter.rate(&[stays, goes])?;
        kept.push((first + fourth) / (second + third));
        println!(
            "{:.4} together {:.0} alone {:.0} round trips/s",
            kept[kept.len() - 1],
            (first + fourth) / 2.0,
            (second + third) / 2.0
        );
        let [low, median, high] = interval(&kept);
        let exact = median - low <= EXACT && high - median <= EXACT;
        if kept.len() >= rounds as usize && (exact || begin.elapsed() >= limit) {
            let disturbed = meter.disturbed;
            println!("interval {low:.4} {high:.4} median {median:.4} disturbed {disturbed}");
            return Ok(());
        }
    }
}

/// Measures one window after the other.
struct Meter<'a> {
    bed: &'a Bed,
    until: Instant,
    /// What others may have, in percent of the processors.
    others: u32,
    /// Windows that were measured again.
    disturbed: u32,
}

impl Meter<'_> {
    /// Round trips per second of all of these, while nothing else ran.
    fn rate(&mut self, jobs: &[&Job]) -> Result<f64> {
        let players: Vec<u32> = jobs.iter().flat_map(|job| job.players.iter().copied()).collect();
        let reading = || Reading::take(&self.bed.processors, &players);
        let sum = || jobs.iter().map(|job| job.progress()).sum::<u64>();
        sleep(SETTLING);
        while Instant::now() < self.until {
            let quiet = reading()?;
            let (begin, before) = (Instant::now(), sum());
            sleep(WINDOW);
            let rate = sum().saturating_sub(before) as f64 / begin.elapsed().as_secs_f64();
            if reading()?.others_since(&quiet) * 100.0 <= f64::from(self.others) {
                return Ok(rate);
            }
            self.disturbed += 1;
        }
        Err(format!("other processes disturbed {} windows: there is no more time", self.disturbed))
    }
}

/// The median between the ends of its 95 % interval, by order statistics.
fn interval(figures: &[f64]) -> [f64; 3] {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() as f64 / 2.0;
    let reach = 0.98 * (sorted.len() as f64).sqrt();
    let low = (half - reach).floor().max(0.0) as usize;
    let high = ((half + reach).ceil() as usize).min(sorted.len() - 1);
    [sorted[low], sorted[sorted.len() / 2], sorted[high]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_by_rank() {
        let figures: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(interval(&figures), [40.0, 50.0, 60.0]);
        assert_eq!(interval(&[3.0]), [3.0, 3.0, 3.0]);
    }
}
