//! Measures how long it takes to read the stacks of 64 processes, compared with eu-stack and gdb,
//! and how long each process is stopped.

use std::process::Command;

use serde_json::Value;

use crate::bench::command::command_stdout;
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome, WORK_DIR};
use crate::run;

const PROCESSES: u32 = 64;
/// The number of threads of each process.
const THREADS: [u32; 2] = [1, 8];
/// A program whose threads wait in a known chain of functions.
const SOURCE: &str = "stacks/tests/programs/threads.c";
const TARGET_VS_EU_STACK: f64 = 1.0;
const TARGET_VS_GDB: f64 = 0.25;
const TARGET_STILLNESS: f64 = 5.0;
const MS: (&str, Direction) = ("ms", Direction::LowerIsBetter);

/// Measures the time for all processes together, and the longest stop of one process.
///
/// # Errors
/// Returns an error if the program does not compile, or a measurement failed.
pub fn stacks(bench: &Bench) -> BenchOutcome {
    let program = format!("{WORK_DIR}/stacks-threads");
    let root = run::source_root();
    run::run_checked(
        Command::new("gcc")
            .args(["-O2", "-g", "-fno-optimize-sibling-calls", "-pthread", "-o"])
            .arg(root.join(&program))
            .arg(root.join(SOURCE)),
    )?;
    let mut rows = Vec::new();
    for threads in THREADS {
        let line = format!("score-stacks {program} {PROCESSES} {threads}");
        let mut rounds = Vec::new();
        for round in 0..bench.round_count {
            bench.progress(&format!("stacks, {threads} threads"), round);
            let output = command_stdout(&bench.command_words(&line))?;
            let value: Value = serde_json::from_str(&output)
                .map_err(|error| format!("{line}: {error}: {output:?}"))?;
            rounds.push(value);
        }
        rows.extend(rows_of(&rounds, threads, &line));
    }
    Ok(rows)
}

fn rows_of(rounds: &[Value], threads: u32, line: &str) -> Vec<BenchResult> {
    let case = match threads {
        1 => format!("{PROCESSES} processes"),
        more => format!("{PROCESSES} processes of {more} threads"),
    };
    let row = |bench, contender: &str, key: &str| {
        let samples: Vec<f64> = rounds.iter().filter_map(|round| round[key].as_f64()).collect();
        BenchResult::new(bench, &case, contender, MS, samples, line)
    };
    let mut own = [row("stacks", "cold", "cold_ms"), row("stacks", "warm", "warm_ms")];
    let peers = [
        (row("stacks", "eu-stack", "eu_stack_ms"), TARGET_VS_EU_STACK),
        (row("stacks", "gdb", "gdb_ms"), TARGET_VS_GDB),
    ];
    // A tool that is not installed has no samples.
    let installed: Vec<_> =
        peers.into_iter().filter(|(row, _)| !row.samples.0.is_empty()).collect();
    for row in &mut own {
        let comparisons =
            installed.iter().map(|(peer, target)| Comparison::new(row, peer, Some(*target)));
        row.comparisons = comparisons.collect();
    }
    let mut held = row("stacks: a process stands still", "longest", "held_longest_ms");
    held.target = Some(TARGET_STILLNESS);
    let median = row("stacks: a process stands still", "median", "held_median_ms");
    own.into_iter().chain(installed.into_iter().map(|(row, _)| row)).chain([held, median]).collect()
}
