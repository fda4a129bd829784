//! Measures jobs per second: a client that uses the protocol of scrun, one scrun per job, and a
//! bare loop.

use crate::bench::command::{command_stdout, split_words};
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

const JOBS_PER_S: (&str, Direction) = ("jobs/s", Direction::HigherIsBetter);
/// The number of the client's jobs in flight.
const JOBS_IN_FLIGHT: u32 = 4;
/// The target of the rate of the client divided by the rate of the bare loop.
const TARGET_VS_BARE_LOOP: f64 = 0.5;

// Promise (speed): Four simultaneous jobs of `true` by scrun's protocol: at least half the rate of
// a bare loop.
/// Measures how many jobs of `true` run per second.
///
/// # Errors
/// Returns an error if a command failed.
pub fn jobs(bench: &Bench) -> BenchOutcome {
    let scrun = bench.program_dir.join("scrun");
    let scrun = scrun.to_string_lossy();
    let contenders = [
        ("4 in flight", format!("score-jobs flight {JOBS_IN_FLIGHT} 200")),
        ("bare loop", "score-jobs loop 400 true".to_owned()),
        ("1 in flight", "score-jobs flight 1 100".to_owned()),
        ("one scrun each", format!("score-jobs loop 50 {scrun} -message=quiet system true")),
    ];
    let mut all_samples = [const { Vec::new() }; 4];
    for round in 0..=bench.round_count {
        bench.progress("jobs", round);
        for ((_, line), samples) in contenders.iter().zip(&mut all_samples) {
            let output = command_stdout(&bench.command_words(line))?;
            let rate = split_words(&output).first().and_then(|word| word.parse().ok());
            let rate: f64 = rate.ok_or_else(|| format!("{line}: unexpected output {output:?}"))?;
            // The first round of each contender has cold caches.
            if round > 0 {
                samples.push(rate);
            }
        }
    }
    let row = |((contender, line), samples): (&(&str, String), Vec<f64>)| {
        BenchResult::new("jobs", "true", contender, JOBS_PER_S, samples, line)
    };
    let mut rows: Vec<BenchResult> = contenders.iter().zip(all_samples).map(row).collect();
    let baseline = rows[1].clone();
    for (index, target) in [(0, Some(TARGET_VS_BARE_LOOP)), (2, None), (3, None)] {
        rows[index].comparisons = vec![Comparison::new(&rows[index], &baseline, target)];
    }
    Ok(rows)
}
