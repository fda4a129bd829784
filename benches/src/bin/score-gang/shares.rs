//! What each of several jobs gets of the same processors.

use std::thread::sleep;
use std::time::Duration;

use crate::bed::{Bed, Job, Play};
use crate::{Result, number};

/// Prints for each job its priority, its share, and what its share should be.
pub fn run(slice: &str, seconds: u32, priorities: &[&str]) -> Result<()> {
    let mut bed = Bed::new(slice, &[2])?;
    let jobs: Vec<Job> =
        priorities.iter().map(|one| bed.start(Play::Turns, one)).collect::<Result<_>>()?;
    let weight = |one: &&str| match *one {
        "0" => Ok(1.0),
        one => number(one).map(|one| 0.5_f64.powf(f64::from(one) / 2.0)),
    };
    let weights: Vec<f64> = priorities.iter().map(weight).collect::<Result<_>>()?;
    // Newcomers share first slices that are no measure.
    sleep(Duration::from_secs(1));
    let progress = || jobs.iter().map(Job::progress).collect::<Vec<_>>();
    let before = progress();
    sleep(Duration::from_secs(seconds.into()));
    let done: Vec<f64> =
        progress().iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    let (all, weight) = (done.iter().sum::<f64>(), weights.iter().sum::<f64>());
    for ((priority, done), own) in priorities.iter().zip(&done).zip(&weights) {
        println!("priority {priority} share {:.5} due {:.5}", done / all, own / weight);
    }
    Ok(())
}
