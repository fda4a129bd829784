//! Measures remote memory on one host: compares pmtest -rma with the machine's own speed, and with
//! puts of other libraries.

use serde_json::Value;

use crate::bench::command::{command_stdout, split_words};
use crate::bench::competitors::{run_ucx_test, ucx_command_line, ucx_median_command_line};
use crate::bench::latency::{number_field, run_pmtest};
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

const PUT: &str = "put";
const MEDIAN: &str = "pmWrite, median";
const UCX_MEDIAN: &str = "UCX put, median";
const NS_ONE_WAY: (&str, Direction) = ("ns one way", Direction::LowerIsBetter);
const GBYTE_PER_S: (&str, Direction) = ("GB/s", Direction::HigherIsBetter);
/// The targets: a put divided by the floor, and by a put of UCX. The third one is a copy divided by
/// the machine's own copy.
const TARGET_VS_BASELINE: f64 = 1.3;
const TARGET_VS_UCX: f64 = 1.1;
const TARGET_VS_MEMCPY: f64 = 0.95;

/// Fields of pmtest -json: the case, the contender, and the index of the row with which the field
/// is compared.
const RATES: [(&str, &str, Option<usize>); 7] = [
    ("memory of pmAlloc, 4 MiB", "memcpy", None),
    ("memory of pmAlloc, 4 MiB", "write_pmalloc", Some(0)),
    ("memory of pmAlloc, 4 MiB", "read_pmalloc", Some(0)),
    ("other memory, 4 MiB", "process_vm_writev", None),
    ("other memory, 4 MiB", "write_other", Some(3)),
    ("other memory, 4 MiB", "process_vm_readv", None),
    ("other memory, 4 MiB", "read_other", Some(5)),
];

// Promise (speed): A put of 8 bytes over shmem: at most 1.3 × the floor and 1.1 × UCX's; 4 MiB at
// least 0.95 × memcpy (memory of pmAlloc) and process_vm_writev or readv (other memory).
/// Measures a word that is put back and forth, and large copies.
///
/// # Errors
/// Returns an error if a command failed.
pub fn remote(bench: &Bench) -> BenchOutcome {
    let mut rows = puts(bench)?;
    rows.extend(copies(bench)?);
    Ok(rows)
}

/// Adds a sample to the row of this name.
fn add(rows: &mut Vec<BenchResult>, contender: &str, command: &str, value: f64) {
    match rows.iter_mut().find(|row| row.contender == contender) {
        Some(row) => row.samples.0.push(value),
        None => rows.push(BenchResult::new(
            "remote memory",
            PUT,
            contender,
            NS_ONE_WAY,
            vec![value],
            command,
        )),
    }
}

fn puts(bench: &Bench) -> BenchOutcome {
    let pmtest_command = "scrun -nodes=2,message=quiet pmtest -rma -size 8 -json";
    let mut rows = Vec::new();
    for round in 0..bench.round_count {
        bench.progress("puts of 8 bytes", round);
        for line in run_pmtest(bench, pmtest_command)? {
            add(&mut rows, "pmWrite", pmtest_command, number_field(&line, "put_ns_min")?);
            add(&mut rows, "floor", pmtest_command, number_field(&line, "floor_ns")?);
            add(&mut rows, MEDIAN, pmtest_command, number_field(&line, "put_ns_median")?);
        }
        if bench.competitors.has_ucx {
            let line = ucx_command_line("put_lat", 8);
            add(&mut rows, "UCX put", &line, run_ucx_test(&line, bench.cores)?);
            let line = ucx_median_command_line(&line);
            add(&mut rows, UCX_MEDIAN, &line, run_ucx_test(&line, bench.cores)?);
        }
        for mpi in &bench.competitors.mpis {
            let Some(line) = mpi.pingpong_command("put 8") else { continue };
            let output = command_stdout(&split_words(&line))?;
            let best = output.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            let contender = format!("{} MPI_Put", mpi.name);
            add(&mut rows, &contender, &line, best.ok_or_else(|| format!("{line}: no result"))?);
        }
    }
    let row_index = |name: &str| rows.iter().position(|row| row.contender == name);
    let (median, ucx_median_index) = (row_index(MEDIAN), row_index(UCX_MEDIAN));
    // UCX times each trip, and pmtest times 32 trips at once. The first percentile of single trips
    // is smaller than the minimum of means. Medians do not have this bias.
    if let (Some(median), Some(ucx_median_index)) = (median, ucx_median_index) {
        rows[median].comparisons =
            vec![Comparison::new(&rows[median], &rows[ucx_median_index], Some(TARGET_VS_UCX))];
    }
    if let Some((put_row, others)) = rows.split_first_mut() {
        let is_comparable =
            |row: &&BenchResult| ![MEDIAN, UCX_MEDIAN].contains(&row.contender.as_str());
        let target_for = |row: &BenchResult| match row.contender.as_str() {
            "floor" => Some(TARGET_VS_BASELINE),
            "UCX put" => Some(TARGET_VS_UCX),
            _ => None,
        };
        put_row.comparisons = others
            .iter()
            .filter(is_comparable)
            .map(|row| Comparison::new(put_row, row, target_for(row)))
            .collect();
    }
    Ok(rows)
}

fn copies(bench: &Bench) -> BenchOutcome {
    let pmtest_command = "scrun -nodes=2,message=quiet pmtest -rma -size 4194304 -json";
    let mut all_samples = RATES.map(|_| Vec::new());
    for round in 0..bench.round_count {
        bench.progress("copies of 4 MiB", round);
        let lines: Vec<Value> = run_pmtest(bench, pmtest_command)?;
        let line = lines.first().ok_or_else(|| format!("{pmtest_command}: no figures"))?;
        for ((_, name, _), samples) in RATES.iter().zip(&mut all_samples) {
            samples.push(number_field(line, &format!("{name}_bytes_per_s"))? / 1e9);
        }
    }
    let mut rows: Vec<BenchResult> = RATES
        .iter()
        .zip(all_samples)
        .map(|((case, name, _), samples)| {
            BenchResult::new("remote memory", case, name, GBYTE_PER_S, samples, pmtest_command)
        })
        .collect();
    for (index, (_, _, baseline)) in RATES.iter().enumerate() {
        if let Some(baseline) = baseline {
            let comparison =
                Comparison::new(&rows[index], &rows[*baseline], Some(TARGET_VS_MEMCPY));
            rows[index].comparisons.push(comparison);
        }
    }
    Ok(rows)
}
