//! Measures the throughput of two jobs together, divided by the throughput of one job alone.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::BenchResult;
use crate::interference::CpuUsage;
use crate::signal_switcher::Switcher;
use crate::testbed::{GangTestbed, Job, Workload};

const MEASURE_WINDOW: Duration = Duration::from_millis(400);
/// The first slices after a change are not measured.
const WARM_UP_WINDOW: Duration = Duration::from_millis(100);
/// The maximum distance of the interval's ends from the median ratio.
const MAX_HALF_INTERVAL: f64 = 0.005;

/// Measures with slices of `slice` milliseconds, `plain`, or `bare`-N, and prints the results.
pub fn run(slice: &str, rounds: u32, seconds: u32, max_others_percent: u32) -> BenchResult<()> {
    let limit = Duration::from_secs(seconds.into());
    let signal_slice = slice.strip_prefix("bare-");
    let mut testbed = GangTestbed::new(if signal_slice.is_some() { "plain" } else { slice }, &[2])?;
    let jobs = [testbed.start(Workload::PingPong, "8")?, testbed.start(Workload::PingPong, "8")?];
    let start_switcher = |slice| Switcher::start(slice, [&jobs[0], &jobs[1]], &testbed.processors);
    let switcher = signal_slice.map(start_switcher).transpose()?;
    let begin = Instant::now();
    // The time limit applies even if the requested rounds are not complete.
    let mut meter = ThroughputMeter {
        testbed: &testbed,
        deadline: begin + limit * 2,
        max_others_percent,
        disturbed_windows: 0,
    };
    let mut ratios = Vec::new();
    loop {
        // Each job runs alone equally often.
        let index = ratios.len() % 2;
        let (running, suspended) = (&jobs[index], &jobs[1 - index]);
        let first = meter.rate(&[running, suspended])?;
        switcher
            .as_ref()
            .map_or_else(|| suspended.suspend(), |switcher| switcher.run_one(index))?;
        let (second, third) = (meter.rate(&[running])?, meter.rate(&[running])?);
        switcher.as_ref().map_or_else(|| suspended.resume(), Switcher::alternate)?;
        let fourth = meter.rate(&[running, suspended])?;
        ratios.push((first + fourth) / (second + third));
        println!(
            "{:.4} together {:.0} alone {:.0} round trips/s",
            ratios[ratios.len() - 1],
            (first + fourth) / 2.0,
            (second + third) / 2.0
        );
        let [low, median, high] = median_interval(&ratios);
        let is_exact = median - low <= MAX_HALF_INTERVAL && high - median <= MAX_HALF_INTERVAL;
        if ratios.len() >= rounds as usize && (is_exact || begin.elapsed() >= limit) {
            let disturbed = meter.disturbed_windows;
            println!("interval {low:.4} {high:.4} median {median:.4} disturbed {disturbed}");
            return Ok(());
        }
    }
}

/// Measures one window after the other.
struct ThroughputMeter<'a> {
    testbed: &'a GangTestbed,
    deadline: Instant,
    /// The maximum processor time of other processes, in percent of the processors.
    max_others_percent: u32,
    /// The number of windows that were measured again.
    disturbed_windows: u32,
}

impl ThroughputMeter<'_> {
    /// Returns the round trips per second of all these jobs, in a window without interference.
    fn rate(&mut self, jobs: &[&Job]) -> BenchResult<f64> {
        let process_ids: Vec<u32> =
            jobs.iter().flat_map(|job| job.process_ids.iter().copied()).collect();
        let read_usage = || CpuUsage::sample(&self.testbed.processors, &process_ids);
        let total_progress = || jobs.iter().map(|job| job.progress()).sum::<u64>();
        sleep(WARM_UP_WINDOW);
        while Instant::now() < self.deadline {
            let usage_before = read_usage()?;
            let (begin, before) = (Instant::now(), total_progress());
            sleep(MEASURE_WINDOW);
            let rate =
                total_progress().saturating_sub(before) as f64 / begin.elapsed().as_secs_f64();
            if read_usage()?.share_of_others_since(&usage_before) * 100.0
                <= f64::from(self.max_others_percent)
            {
                return Ok(rate);
            }
            self.disturbed_windows += 1;
        }
        Err(format!(
            "other processes disturbed {} windows: the time limit is reached",
            self.disturbed_windows
        ))
    }
}

/// Returns the median between the ends of its 95 % interval, by order statistics.
fn median_interval(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() as f64 / 2.0;
    let half_width = 0.98 * (sorted.len() as f64).sqrt();
    let low = (half - half_width).floor().max(0.0) as usize;
    let high = ((half + half_width).ceil() as usize).min(sorted.len() - 1);
    [sorted[low], sorted[sorted.len() / 2], sorted[high]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_by_rank() {
        let values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(median_interval(&values), [40.0, 50.0, 60.0]);
        assert_eq!(median_interval(&[3.0]), [3.0, 3.0, 3.0]);
    }
}
