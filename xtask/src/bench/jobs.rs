//! How many jobs per second: a client of scrun's protocol, one scrun for each, and a bare loop.

use crate::bench::calls::{output, words};
use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::{Bench, Rows};

const RATE: (&str, Better) = ("jobs/s", Better::More);
/// Jobs of the client in flight.
const FLIGHT: u32 = 4;
/// By the rate of the bare loop.
const AIM: f64 = 0.5;

/// Jobs of `true` per second.
///
/// # Errors
/// A command failed.
pub fn jobs(bench: &Bench) -> Rows {
    let scrun = bench.programs.join("scrun");
    let scrun = scrun.to_string_lossy();
    let contenders = [
        ("4 in flight", format!("score-jobs flight {FLIGHT} 200")),
        ("bare loop", "score-jobs loop 400 true".to_owned()),
        ("1 in flight", "score-jobs flight 1 100".to_owned()),
        ("one scrun each", format!("score-jobs loop 50 {scrun} -message=quiet system true")),
    ];
    let mut figures = [const { Vec::new() }; 4];
    for round in 0..=bench.rounds {
        bench.progress("jobs", round);
        for ((_, line), figures) in contenders.iter().zip(&mut figures) {
            let told = output(&bench.ours(line))?;
            let rate = words(&told).first().and_then(|word| word.parse().ok());
            let rate: f64 = rate.ok_or_else(|| format!("{line} says {told:?}"))?;
            // The first of each finds cold caches.
            if round > 0 {
                figures.push(rate);
            }
        }
    }
    let row = |((who, line), figures): (&(&str, String), Vec<f64>)| {
        Row::new("jobs", "true", who, RATE, figures, line)
    };
    let mut rows: Vec<Row> = contenders.iter().zip(figures).map(row).collect();
    let bare = rows[1].clone();
    for (at, aim) in [(0, Some(AIM)), (2, None), (3, None)] {
        rows[at].beside = vec![Comparison::of(&rows[at], &bare, aim)];
    }
    Ok(rows)
}
