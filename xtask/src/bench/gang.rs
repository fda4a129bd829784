//! Measures time-sharing. Two jobs share two processors in time slices, and their throughput is
//! compared with that of the same jobs under plain Linux. Also measures whether each job gets its
//! share of the processors.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use crate::bench::command::split_words;
use crate::bench::report::{BenchResult, Direction};
use crate::bench::{Bench, BenchOutcome};

const THROUGHPUT_KEPT: (&str, Direction) = ("of one job alone", Direction::HigherIsBetter);
const SHARE_ERROR: (&str, Direction) = ("off its due, % of it", Direction::LowerIsBetter);

/// The slices in ms, and for each the smallest fraction of the throughput that must be kept.
const SLICES: [(&str, Option<f64>); 4] =
    [("40", Some(0.99)), ("10", Some(0.98)), ("bare-10", None), ("plain", None)];
/// The slice, the priorities, and the largest error of each share in percent.
const SHARES: [(&str, &str, f64); 2] = [("40", "8 8", 2.0), ("10", "6 8 10", 5.0)];
/// The slices in ms with which deadlocks must be found.
const DEADLOCK: [&str; 3] = ["10", "40", "500"];
/// The number of rounds of each measurement, unless the user requests fewer.
const ROUNDS: u32 = 20;
const LATENCY_US: (&str, Direction) = ("us at 90 % (at 50 % to at 99 %)", Direction::LowerIsBetter);
/// Throughput is measured this many times as long as shares.
const THROUGHPUT_TIME_FACTOR: f64 = 2.2;

// Promise (time-sharing): Two jobs that share two processors together make 99 % of the progress of
// one job alone with slices of 40 ms, and 98 % with 10 ms; equal jobs get equal shares within 2 %,
// and jobs of priority 6, 8 and 10 their shares within 5 %.
/// Measures throughput, shares, switches and deadlocks.
///
/// # Errors
/// Returns an error if a measurement failed.
pub fn gang(bench: &Bench) -> BenchOutcome {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("  gang: SKIPPED time slices: they come with multi-user mode, which needs root");
    }
    let mut rows = Vec::new();
    let seconds = bench.window.as_secs();
    let rounds = if bench.round_count <= 2 { bench.round_count } else { ROUNDS };
    for (slice, target) in SLICES.into_iter().filter(|(slice, _)| is_root || *slice == "plain") {
        let limit = (seconds as f64 * THROUGHPUT_TIME_FACTOR).round();
        rows.push(throughput_kept(bench, slice, &format!("{rounds} {limit}"), target)?);
    }
    for (slice, priorities, target) in SHARES.into_iter().filter(|_| is_root) {
        rows.extend(cpu_shares(bench, slice, seconds, priorities, target)?);
    }
    if is_root {
        rows.extend(switch_latency(bench, seconds / 2)?);
        for slice in DEADLOCK {
            rows.extend(deadlock_latency(bench, slice)?);
        }
    }
    Ok(rows)
}

/// Measures switches of two hosts with a processor each. Shows histograms as they are printed.
fn switch_latency(bench: &Bench, seconds: u64) -> BenchOutcome {
    run_percentiles(bench, "gang switches", "-ts 10", format!("score-gang switches 10 {seconds}"))
}

/// Measures the time from the last process becoming idle to the report of the deadlock, while
/// another job runs. The target is two slices.
fn deadlock_latency(bench: &Bench, slice: &str) -> BenchOutcome {
    let command = format!("score-gang deadlock {slice} 20");
    let mut rows = run_percentiles(bench, "gang deadlock", &format!("-ts {slice}"), command)?;
    let two_slices_us = slice.parse::<f64>().map(|slice| slice * 2000.0).ok();
    rows.iter_mut().for_each(|row| row.target = two_slices_us);
    Ok(rows)
}

fn run_percentiles(
    bench: &Bench,
    part: &'static str,
    slice: &str,
    command: String,
) -> BenchOutcome {
    let output_lines = run_and_collect(bench, &command)?;
    let percentile_lines = output_lines.iter().filter(|line| line.contains(" us ("));
    let percentile_lines = percentile_lines.filter_map(|line| line.split_once(": "));
    let row = |(case, line): (&str, &str)| {
        let percentiles =
            (0..3).map(|column| nth_number(line, column)).collect::<Result<_, _>>()?;
        Ok(BenchResult::new(part, slice, case, LATENCY_US, percentiles, &command))
    };
    percentile_lines.map(row).collect()
}

fn throughput_kept(
    bench: &Bench,
    slice: &str,
    limits: &str,
    target: Option<f64>,
) -> Result<BenchResult, String> {
    let command = format!("score-gang kept {slice} {limits}");
    let (mut samples, mut interval) = (Vec::new(), String::new());
    for output_line in run_and_collect(bench, &command)? {
        match output_line.strip_prefix("interval ") {
            Some(bounds) => {
                interval = bounds.split_whitespace().take(2).collect::<Vec<_>>().join(" to ")
            }
            None => samples.push(nth_number(&output_line, 0)?),
        }
    }
    let contender = match slice {
        "plain" => format!("Linux alone, interval {interval}"),
        "bare-10" => format!("signals alone, 10 ms, interval {interval}"),
        slice => format!("scored -ts {slice}, interval {interval}"),
    };
    Ok(BenchResult {
        target,
        ..BenchResult::new(
            "gang",
            "2 jobs together",
            &contender,
            THROUGHPUT_KEPT,
            samples,
            &command,
        )
    })
}

fn cpu_shares(
    bench: &Bench,
    slice: &str,
    seconds: u64,
    priorities: &str,
    target: f64,
) -> BenchOutcome {
    let command = format!("score-gang shares {slice} {seconds} {priorities}");
    let row = |output_line: String| {
        let (share, expected) = (nth_number(&output_line, 3)?, nth_number(&output_line, 5)?);
        let deviation = vec![(share / expected - 1.0).abs() * 100.0];
        let priority = nth_number(&output_line, 1)?;
        let contender = format!("priority {priority}, share {share:.4}");
        let case = format!("-ts {slice}, priorities {priorities}");
        Ok(BenchResult {
            target: Some(target),
            ..BenchResult::new("gang shares", &case, &contender, SHARE_ERROR, deviation, &command)
        })
    };
    run_and_collect(bench, &command)?.into_iter().map(row).collect()
}

fn nth_number(line: &str, column: usize) -> Result<f64, String> {
    let word = line.split_whitespace().nth(column).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("score-gang: unexpected output {line:?}"))
}

/// Runs a measurement that takes minutes, and shows its output as it is printed. The program limits
/// its own time.
fn run_and_collect(bench: &Bench, line: &str) -> Result<Vec<String>, String> {
    let words = split_words(line);
    let io_error = |error: std::io::Error| format!("{line}: {error}");
    let mut command = Command::new(bench.program_dir.join(&words[0]));
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(io_error)?;
    let mut output_lines = Vec::new();
    for output_line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let output_line = output_line.map_err(io_error)?;
        println!("  {line}: {output_line}");
        output_lines.push(output_line);
    }
    match child.wait().map_err(io_error)? {
        status if status.success() => Ok(output_lines),
        status => Err(format!("{line}: {status}")),
    }
}
