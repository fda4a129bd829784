//! Checks that a message needs no system call, and counts the instructions of a message.

use std::process::Command;

use crate::bench::command::split_words;
use crate::bench::report::{BenchResult, Direction};
use crate::bench::{Bench, BenchOutcome};
use crate::run;

/// Messages in a round of `pmtest -latency`: 50 batches of 32 round trips and 500 single ones.
const MESSAGES_PER_ROUND: f64 = 2.0 * (50.0 * 32.0 + 500.0);
const ROUNDS: [u32; 2] = [2, 42];
/// The numbers of messages for `pmtest -alone`.
const SINGLE_NODE_MESSAGES: [u32; 2] = [1_000, 101_000];

// Promise (speed): No allocation, shared lock or system call on success nor in the first 10,000
// empty polls.
/// Counts system calls with strace and instructions with callgrind, in a short and in a long run.
/// The difference between the runs is the cost of the messages.
///
/// # Errors
/// Returns an error if a command failed.
pub fn proof(bench: &Bench) -> BenchOutcome {
    let mut rows = Vec::new();
    if run::is_installed("strace") {
        rows.extend(system_calls(bench)?);
    } else {
        println!("  strace is not installed: apt-get install strace");
    }
    if run::is_installed("valgrind") {
        rows.push(instructions(bench)?);
    } else {
        println!("  valgrind is not installed: apt-get install valgrind");
    }
    Ok(rows)
}

fn system_calls(bench: &Bench) -> BenchOutcome {
    bench.progress("system calls", 0);
    let line = |rounds: u32| {
        format!("scrun -nodes=2,message=quiet pmtest -latency -size 8 -rounds {rounds} -json")
    };
    let mut counts = [(0.0, 0.0); 2];
    for (rounds, counts) in ROUNDS.into_iter().zip(&mut counts) {
        let trace_path = bench.work_dir.join(format!("strace.{rounds}.txt"));
        let mut args = split_words("strace -f -c -o");
        args.push(trace_path.to_string_lossy().into_owned());
        args.extend(bench.command_words(&line(rounds)));
        crate::bench::command::command_stdout(&args)?;
        let text = std::fs::read_to_string(&trace_path)
            .map_err(|error| format!("{}: {error}", trace_path.display()))?;
        *counts = parse_strace_summary(&text);
    }
    let messages = MESSAGES_PER_ROUND * f64::from(ROUNDS[1] - ROUNDS[0]);
    let [(calls, yields), (more_calls, more_yields)] = counts;
    let command = format!("strace -f -c {} (and -rounds {})", line(ROUNDS[0]), ROUNDS[1]);
    let row = |case, value: f64, target| BenchResult {
        target,
        ..BenchResult::new(
            "system calls",
            case,
            "libpm",
            ("a message", Direction::LowerIsBetter),
            vec![value],
            &command,
        )
    };
    Ok(vec![
        // The remaining calls are occasional wake-ups of the daemons during the longer run.
        row("but sched_yield", (more_calls - calls) / messages, Some(0.001)),
        row("empty polls' yield", (more_yields - yields) / messages, None),
    ])
}

/// Reads a table of `strace -c`. Returns the number of all calls except sched_yield, and of
/// sched_yield.
fn parse_strace_summary(text: &str) -> (f64, f64) {
    let (mut calls, mut yields) = (0.0, 0.0);
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(name), Some(count)) = (fields.last(), fields.get(3)) else { continue };
        let Ok(count) = count.parse::<f64>() else { continue };
        match *name {
            "total" => {}
            "sched_yield" => yields += count,
            _ => calls += count,
        }
    }
    (calls, yields)
}

fn instructions(bench: &Bench) -> Result<BenchResult, String> {
    bench.progress("instructions", 0);
    let pmtest = bench.program_dir.join("pmtest");
    let mut counts = [0.0; 2];
    for (messages, count) in SINGLE_NODE_MESSAGES.into_iter().zip(&mut counts) {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(&pmtest)
            .args(["-alone", &messages.to_string()])
            .output()
            .map_err(|error| format!("valgrind: {error}"))?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let line = stderr.lines().find_map(|line| line.split_once("Collected :"));
        let instruction_count = line.and_then(|(_, count)| count.trim().parse().ok());
        *count = instruction_count.ok_or_else(|| {
            format!(
                "callgrind: no instruction count: {}",
                stderr.lines().last().unwrap_or_default()
            )
        })?;
    }
    let per_message =
        (counts[1] - counts[0]) / f64::from(SINGLE_NODE_MESSAGES[1] - SINGLE_NODE_MESSAGES[0]);
    let command = format!(
        "valgrind --tool=callgrind pmtest -alone {} (and {})",
        SINGLE_NODE_MESSAGES[0], SINGLE_NODE_MESSAGES[1]
    );
    let unit = ("instructions a message", Direction::LowerIsBetter);
    let case = "send and receive";
    Ok(BenchResult::new("instructions", case, "libpm, 8 B", unit, vec![per_message], &command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sched_yield_is_counted_separately() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    60.00    0.000600           1       600           sched_yield\n\
                    40.00    0.000400           1        40         3 read\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    100.00    0.001000                   640         3 total\n";
        assert_eq!(parse_strace_summary(text), (40.0, 600.0));
    }
}
