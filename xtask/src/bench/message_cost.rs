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
        let mut args = split_words("strace -f -Y -o");
        args.push(trace_path.to_string_lossy().into_owned());
        args.extend(bench.command_words(&line(rounds)));
        crate::bench::command::command_stdout(&args)?;
        let text = std::fs::read_to_string(&trace_path)
            .map_err(|error| format!("{}: {error}", trace_path.display()))?;
        *counts = count_calls(&text, "pmtest");
    }
    let messages = MESSAGES_PER_ROUND * f64::from(ROUNDS[1] - ROUNDS[0]);
    let [(calls, yields), (more_calls, more_yields)] = counts;
    let command = format!("strace -f -Y {} (and -rounds {})", line(ROUNDS[0]), ROUNDS[1]);
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
        row("but sched_yield", (more_calls - calls) / messages, Some(0.001)),
        row("empty polls' yield", (more_yields - yields) / messages, None),
    ])
}

/// The calls in a log of `strace -f -Y` that processes of this name have made: all calls except
/// sched_yield, and sched_yield. The daemons of the job do not count, because their calls depend on
/// the time and not on the messages.
fn count_calls(log: &str, program: &str) -> (f64, f64) {
    let (mut calls, mut yields) = (0.0, 0.0);
    let process = format!("<{program}>");
    for line in log.lines() {
        let Some((id, call)) = line.split_once(' ') else { continue };
        // Other lines are the rest of an interrupted call, a signal or an exit.
        if !id.ends_with(&process) || !call.starts_with(char::is_alphabetic) {
            continue;
        }
        match call.starts_with("sched_yield(") {
            true => yields += 1.0,
            false => calls += 1.0,
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
    fn only_calls_of_the_program_count_and_sched_yield_counts_separately() {
        let log = "11<scrun> read(3, \"\", 1) = 0\n\
                   12<pmtest> sched_yield( <unfinished ...>\n\
                   11<scrun> sched_yield() = 0\n\
                   12<pmtest> <... sched_yield resumed>) = 0\n\
                   13<pmtest> read(0, \"\", 1) = 0\n\
                   12<pmtest> sched_yield() = 0\n\
                   12<pmtest> +++ exited with 0 +++\n";
        assert_eq!(count_calls(log, "pmtest"), (1.0, 2.0));
    }
}
