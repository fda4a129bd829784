//! Measures the share of the same processors that each of several jobs gets.

use std::thread::sleep;
use std::time::Duration;

use crate::testbed::{GangTestbed, Job, Workload};
use crate::{BenchResult, number};

/// Prints the priority, the share, and the due share of each job.
pub fn run(slice: &str, seconds: u32, priorities: &[&str]) -> BenchResult<()> {
    let mut testbed = GangTestbed::new(slice, &[2])?;
    let jobs: Vec<Job> = priorities
        .iter()
        .map(|priority| testbed.start(Workload::PingPong, priority))
        .collect::<BenchResult<_>>()?;
    let weight = |priority: &&str| match *priority {
        "0" => Ok(1.0),
        one => number(one).map(|one| 0.5_f64.powf(f64::from(one) / 2.0)),
    };
    let weights: Vec<f64> = priorities.iter().map(weight).collect::<BenchResult<_>>()?;
    // New jobs share their first slices, which must not be measured.
    sleep(Duration::from_secs(1));
    let progress = || jobs.iter().map(Job::progress).collect::<Vec<_>>();
    let before = progress();
    sleep(Duration::from_secs(seconds.into()));
    let progress_made: Vec<f64> =
        progress().iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    let (total_progress, total_weight) =
        (progress_made.iter().sum::<f64>(), weights.iter().sum::<f64>());
    for ((priority, job_progress), own_weight) in
        priorities.iter().zip(&progress_made).zip(&weights)
    {
        println!(
            "priority {priority} share {:.5} due {:.5}",
            job_progress / total_progress,
            own_weight / total_weight
        );
    }
    Ok(())
}
