//! A job that records when it does not run, and the computation of switch times from two such jobs.

use std::fs::{self, File};
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use crate::clock::now_ns;
use crate::testbed::{GangTestbed, Job, Workload};
use crate::{BenchResult, number};

/// A shorter gap is not another job's slice.
const MIN_GAP_INTERVAL_NS: u64 = 1_000_000;

/// Acts as the job. Each node writes to its own file when it last ran before a gap, and when it ran
/// again. The first entry is twice the start time.
pub fn record(path: &str) -> BenchResult<()> {
    score_runtime::initialize();
    let path = format!("{path}.{}", score_runtime::self_node());
    let io_error = |error: std::io::Error| format!("{path}: {error}");
    let mut file = File::create(&path).map_err(io_error)?;
    let mut write = |from: u64, to: u64| {
        let [from, to] = [from, to].map(u64::to_le_bytes);
        file.write_all(&[from, to].concat()).map_err(io_error)
    };
    let mut last = now_ns()?;
    write(last, last)?;
    loop {
        let previous = std::mem::replace(&mut last, now_ns()?);
        if last - previous >= MIN_GAP_INTERVAL_NS {
            write(previous, last)?;
        }
    }
}

/// Lets two jobs take turns on one or two hosts, and prints how long switches took.
pub fn run(slice: &str, seconds: u32, hosts: u32) -> BenchResult<()> {
    let half_slice_ns = u64::from(number(slice)?) * 500_000;
    let (testbed, workload) = match hosts {
        1 => (GangTestbed::new(slice, &[2]), Workload::GapsOnOneHost),
        _ => (GangTestbed::new(slice, &[1, 1]), Workload::Gaps),
    };
    let mut testbed = testbed?;
    let jobs = [testbed.start(workload, "8")?, testbed.start(workload, "8")?];
    // New jobs share their first slices.
    sleep(Duration::from_secs(1));
    let begin = now_ns()?;
    sleep(Duration::from_secs(seconds.into()));
    let gaps_of = |job: &Job, node| read_gaps(&job.gaps_path(node), begin, half_slice_ns);
    let first_job_gaps = [gaps_of(&jobs[0], 0)?, gaps_of(&jobs[0], 1)?];
    let second_job_gaps = [gaps_of(&jobs[1], 0)?, gaps_of(&jobs[1], 1)?];
    let (mut stops, mut starts, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    for [first_node_gaps, second_node_gaps] in [&first_job_gaps, &second_job_gaps] {
        for gap in first_node_gaps {
            if let Some(other_gap) = second_node_gaps
                .iter()
                .find(|candidate| gap.0.abs_diff(candidate.0) < half_slice_ns)
            {
                stops.push(gap.0.abs_diff(other_gap.0));
                starts.push(gap.1.abs_diff(other_gap.1));
            }
        }
    }
    let mut overlap_count = 0;
    for (job_gaps, other_gaps) in
        [(&first_job_gaps, &second_job_gaps), (&second_job_gaps, &first_job_gaps)]
    {
        for (node_gaps, next_gaps) in job_gaps.iter().zip(other_gaps) {
            // The next start is the end of the other job's gap at the stop of this job.
            let next_start =
                |stop: u64| next_gaps.iter().find(|gap| gap.1.abs_diff(stop) < half_slice_ns);
            for (stop, start) in
                node_gaps.iter().filter_map(|gap| Some((gap.0, next_start(gap.0)?.1)))
            {
                match start.checked_sub(stop) {
                    Some(duration) => switches.push(duration),
                    None => overlap_count += 1,
                }
            }
        }
    }
    print_distribution("switch", switches);
    print_distribution("skew of stops", stops);
    print_distribution("skew of starts", starts);
    // The number is 0, unless other processes cause gaps.
    println!("two jobs at once on a processor: {overlap_count} times");
    Ok(())
}

/// Returns the gaps since `begin_ns` that last at least `min_len_ns`.
fn read_gaps(
    path: &std::path::Path,
    begin_ns: u64,
    min_len_ns: u64,
) -> BenchResult<Vec<(u64, u64)>> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let gaps = bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    Ok(gaps.filter(|(from, to)| *from >= begin_ns && to - from >= min_len_ns).collect())
}

/// Prints a line of percentiles, then a histogram.
pub fn print_distribution(label: &str, mut times_ns: Vec<u64>) {
    times_ns.sort_unstable();
    let percentile = |part: usize| times_ns.get(times_ns.len() * part / 100).or(times_ns.last());
    let percentile_us = |part| percentile(part).map_or(0.0, |nanos| *nanos as f64 / 1e3);
    let (count, max_us) =
        (times_ns.len(), times_ns.last().map_or(0.0, |max_ns| *max_ns as f64 / 1e3));
    let [p50, p90, p99] = [50, 90, 99].map(percentile_us);
    println!("{label}: {p50:.0} {p90:.0} {p99:.0} {max_us:.0} us (50, 90, 99, 100 %) of {count}");
    let mut rest = &times_ns[..];
    let mut bound_us = 8;
    while !rest.is_empty() {
        let within_count = rest.partition_point(|time_ns| *time_ns <= bound_us * 1000);
        if within_count > 0 {
            println!(
                "  <= {bound_us:>7} us {within_count:>7} {}",
                "#".repeat(within_count * 50 / count + 1)
            );
        }
        (rest, bound_us) = (&rest[within_count..], bound_us * 2);
    }
}
