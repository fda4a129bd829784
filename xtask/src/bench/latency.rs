//! Measures latency, message rate, and the cost of silent nodes: compares pmtest with other
//! libraries.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::bench::command::{command_stdout, split_words};
use crate::bench::competitors::{run_ucx_test, ucx_command_line};
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

const NS_ONE_WAY: (&str, Direction) = ("ns one way", Direction::LowerIsBetter);
const MESSAGES_PER_S: (&str, Direction) = ("messages/s", Direction::HigherIsBetter);
const SIZES: [u32; 4] = [8, 64, 1024, 4096];
/// The target of each size: the latency divided by the floor of the same run.
const TARGETS_VS_BASELINE: [Option<f64>; 4] = [Some(1.4), None, None, Some(8.0)];

/// Samples by contender and size, in the order in which they were first added.
#[derive(Default)]
pub struct Collected {
    order: Vec<(String, u32)>,
    samples: BTreeMap<(String, u32), (Vec<f64>, String)>,
}

impl Collected {
    /// Adds a sample, which was printed by `command`.
    pub fn add(&mut self, contender: &str, size: u32, value: f64, command: &str) {
        let key = (contender.to_owned(), size);
        if !self.samples.contains_key(&key) {
            self.order.push(key.clone());
        }
        let entry = self.samples.entry(key).or_insert((Vec::new(), command.to_owned()));
        entry.0.push(value);
    }

    /// The rows of one size.
    pub fn rows(
        &self,
        bench: &'static str,
        unit: (&'static str, Direction),
        size: u32,
    ) -> Vec<BenchResult> {
        let keys = self.order.iter().filter(|(_, key_size)| *key_size == size);
        let row = |key: &(String, u32)| {
            let (samples, command) = &self.samples[key];
            let case = format!("{size} B");
            BenchResult::new(bench, &case, &key.0, unit, samples.clone(), command)
        };
        keys.map(row).collect()
    }
}

/// Returns the output of pmtest -json.
///
/// # Errors
/// Returns an error if pmtest failed, or if its output is not JSON.
pub fn run_pmtest(bench: &Bench, line: &str) -> Result<Vec<Value>, String> {
    let text = command_stdout(&bench.command_words(line))?;
    serde_json::from_str(&text).map_err(|error| format!("{line}: {error}"))
}

/// Returns a field of pmtest's output.
///
/// # Errors
/// Returns an error if the field is missing or not a number.
pub fn number_field(value: &Value, name: &str) -> Result<f64, String> {
    value[name].as_f64().ok_or_else(|| format!("pmtest -json has no {name}"))
}

// Promise (speed): 8 bytes one way, through the C ABI and a composite: at most 1.4 × the floor of
// the same run, and faster than every other message-passing library of the run; 4 KiB: at most 8 ×
// the floor.
/// Compares the latency of each size with the floor and with other libraries.
///
/// # Errors
/// Returns an error if a command failed.
pub fn latency(bench: &Bench) -> BenchOutcome {
    let sizes = SIZES.map(|size| size.to_string());
    let libpm_command = format!(
        "scrun -nodes=2,message=quiet pmtest -latency -size {} -rounds 10 -json",
        sizes.join(",")
    );
    let bare_command = libpm_command.replace("-latency", "-latency -bare");
    let mut collected = Collected::default();
    for round in 0..bench.round_count {
        bench.progress("latency", round);
        for line in run_pmtest(bench, &libpm_command)? {
            let size = number_field(&line, "size")? as u32;
            collected.add("floor", size, number_field(&line, "floor_ns")?, &libpm_command);
            collected.add("libpm", size, number_field(&line, "one_way_ns_min")?, &libpm_command);
        }
        for line in run_pmtest(bench, &bare_command)? {
            let size = number_field(&line, "size")? as u32;
            collected.add("bare ring", size, number_field(&line, "one_way_ns_min")?, &bare_command);
        }
        for mpi in &bench.competitors.mpis {
            let Some(line) = mpi.pingpong_command(&format!("latency {}", sizes.join(" "))) else {
                continue;
            };
            for output_line in command_stdout(&split_words(&line))?.lines() {
                let values: Vec<f64> =
                    output_line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
                if let [size, best_ns, _] = values[..] {
                    collected.add(mpi.name, size as u32, best_ns, &line);
                }
            }
        }
        for size in SIZES.into_iter().filter(|_| bench.competitors.has_ucx) {
            // For longer messages UCX's am_lat neither writes nor reads the payload.
            let am = if size <= 64 { "UCX am" } else { "UCX am (payload untouched)" };
            for (contender, test) in [(am, "am_lat"), ("UCX tag", "tag_lat")] {
                let line = ucx_command_line(test, size);
                collected.add(contender, size, run_ucx_test(&line, bench.cores)?, &line);
            }
            if size == 8 {
                let line = ucx_command_line("put_lat", size);
                let put_ns = run_ucx_test(&line, bench.cores)?;
                collected.add("UCX put (one-sided, no message)", size, put_ns, &line);
            }
        }
    }
    let sizes = SIZES.iter().zip(TARGETS_VS_BASELINE);
    Ok(sizes
        .flat_map(|(size, target)| {
            compare_with_others(collected.rows("latency", NS_ONE_WAY, *size), target)
        })
        .collect())
}

/// Compares libpm's row with the floor and with each other library that passes messages.
fn compare_with_others(mut rows: Vec<BenchResult>, target: Option<f64>) -> Vec<BenchResult> {
    let Some(libpm_index) = rows.iter().position(|row| row.contender == "libpm") else {
        return rows;
    };
    let compared =
        rows.iter().filter(|row| row.contender != "libpm" && !row.contender.contains("put"));
    let comparisons = compared.map(|row| {
        let is_baseline = row.contender == "floor";
        // At 8 bytes, libpm must be faster than each other library. Other sizes have no target.
        let is_competitor = row.contender != "bare ring";
        let competitor_target = (is_competitor && row.case == "8 B").then_some(1.0);
        Comparison::new(
            &rows[libpm_index],
            row,
            if is_baseline { target } else { competitor_target },
        )
    });
    rows[libpm_index].comparisons = comparisons.collect();
    rows
}

// Promise (speed): 8-byte messages: at least 40 million a second.
/// Measures the rate of messages of 8 bytes in one direction.
///
/// # Errors
/// Returns an error if a command failed.
pub fn rate(bench: &Bench) -> BenchOutcome {
    let libpm_command = "scrun -nodes=2,message=quiet pmtest -rate -size 8 -json";
    let mut collected = Collected::default();
    for round in 0..bench.round_count {
        bench.progress("message rate", round);
        for line in run_pmtest(bench, libpm_command)? {
            collected.add("libpm", 8, number_field(&line, "messages_per_s")?, libpm_command);
        }
        for mpi in &bench.competitors.mpis {
            let Some(line) = mpi.pingpong_command("rate 8") else { continue };
            let output = command_stdout(&split_words(&line))?;
            let value = output.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            let value = value.ok_or_else(|| format!("{line}: no number in the output"))?;
            collected.add(mpi.name, 8, value, &line);
        }
        if bench.competitors.has_ucx {
            let line = ucx_command_line("am_bw", 8);
            collected.add("UCX am", 8, 1e9 / run_ucx_test(&line, bench.cores)?, &line);
        }
    }
    let mut rows = compare_with_others(collected.rows("message rate", MESSAGES_PER_S, 8), None);
    if let Some(libpm_row) = rows.iter_mut().find(|row| row.contender == "libpm") {
        libpm_row.target = Some(40e6);
    }
    Ok(rows)
}

// Promise (speed): With 62 other nodes that send nothing: latency at most 1.3 × that of two
// processes.
/// Measures the latency between two processes, alone and among 62 silent ones.
///
/// # Errors
/// Returns an error if a command failed.
pub fn silent(bench: &Bench) -> BenchOutcome {
    let line = |nodes: u32, options: &str| {
        format!(
            "scrun -nodes={nodes},message=quiet pmtest -latency -size 8 -rounds 10{options} -json"
        )
    };
    let cases = [
        ("2 processes", line(2, "")),
        ("64, 62 asleep", line(64, " -silent receive")),
        ("64, 62 never sent", line(64, " -silent never")),
    ];
    let mut all_samples = vec![Vec::new(); cases.len()];
    for round in 0..bench.round_count {
        bench.progress("silent neighbours", round);
        for ((_, line), samples) in cases.iter().zip(&mut all_samples) {
            for report in run_pmtest(bench, line)? {
                samples.push(number_field(&report, "one_way_ns_min")?);
            }
        }
    }
    let row = |((case, line), samples): (&(&str, String), Vec<f64>)| {
        BenchResult::new("silent neighbours", case, "libpm", NS_ONE_WAY, samples, line)
    };
    let mut rows: Vec<BenchResult> = cases.iter().zip(all_samples).map(row).collect();
    let mut baseline = rows[0].clone();
    baseline.contender = "2 processes".into();
    for row in &mut rows[1..] {
        row.comparisons = vec![Comparison::new(row, &baseline, Some(1.3))];
    }
    Ok(rows)
}

// Promise (speed): 8 processes in 4 pairs on 2 processors: each pair at least 20,000 round trips a
// second and half the mean.
/// Measures four pairs on two cores, all of which send as fast as they can.
///
/// # Errors
/// Returns an error if a command failed.
pub fn oversubscribed(bench: &Bench) -> BenchOutcome {
    let [first, second] = bench.cores;
    let pmtest_command = "scrun -nodes=8,message=quiet pmtest -pairs -json";
    let mut words = bench.command_words(pmtest_command);
    let taskset_args = ["taskset".to_owned(), "-c".to_owned(), format!("{first},{second}")];
    words.splice(0..0, taskset_args);
    let command = format!("taskset -c {first},{second} {pmtest_command}");
    let (mut slowest_rates, mut slowest_shares) = (Vec::new(), Vec::new());
    for round in 0..bench.round_count.min(5) {
        bench.progress("oversubscribed", round);
        let pairs: Vec<Value> = serde_json::from_str(&command_stdout(&words)?)
            .map_err(|error| format!("{command}: {error}"))?;
        let rates: Result<Vec<f64>, String> =
            pairs.iter().map(|pair| number_field(pair, "round_trips_per_s")).collect();
        let rates = rates?;
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        slowest_rates.push(slowest);
        slowest_shares.push(slowest / mean);
    }
    let bench = "oversubscribed: 4 pairs on 2 cores";
    let row = |case, unit, samples, target| BenchResult {
        target: Some(target),
        ..BenchResult::new(
            bench,
            case,
            "libpm",
            (unit, Direction::HigherIsBetter),
            samples,
            &command,
        )
    };
    Ok(vec![
        row("slowest pair", "round trips/s", slowest_rates, 20_000.0),
        row("slowest by mean", "share", slowest_shares, 0.5),
    ])
}
