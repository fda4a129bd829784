//! No system call on the way of a message, and how many instructions it takes.

use std::process::Command;

use crate::bench::calls::words;
use crate::bench::figures::{Better, Row};
use crate::bench::{Bench, Rows};
use crate::run;

/// Messages in a round of `pmtest -latency`: 50 batches of 32 round trips and 500 single ones.
const MESSAGES_PER_ROUND: f64 = 2.0 * (50.0 * 32.0 + 500.0);
const ROUNDS: [u32; 2] = [2, 42];
/// Messages of `pmtest -alone`.
const ALONE: [u32; 2] = [1_000, 101_000];

/// Counts system calls with strace and instructions with callgrind, of a short and a long run each:
/// the difference is what messages cost.
///
/// # Errors
/// A command failed.
pub fn proof(bench: &Bench) -> Rows {
    let mut rows = Vec::new();
    if run::have("strace") {
        rows.extend(system_calls(bench)?);
    } else {
        println!("  strace is not installed: apt-get install strace");
    }
    if run::have("valgrind") {
        rows.push(instructions(bench)?);
    } else {
        println!("  valgrind is not installed: apt-get install valgrind");
    }
    Ok(rows)
}

fn system_calls(bench: &Bench) -> Rows {
    bench.progress("system calls", 0);
    let line = |rounds: u32| {
        format!("scrun -nodes=2,message=quiet pmtest -latency -size 8 -rounds {rounds} -json")
    };
    let mut counts = [(0.0, 0.0); 2];
    for (rounds, counts) in ROUNDS.into_iter().zip(&mut counts) {
        let told = bench.folder.join(format!("strace.{rounds}.txt"));
        let mut traced = words("strace -f -c -o");
        traced.push(told.to_string_lossy().into_owned());
        traced.extend(bench.ours(&line(rounds)));
        crate::bench::calls::output(&traced)?;
        let text = std::fs::read_to_string(&told)
            .map_err(|error| format!("{}: {error}", told.display()))?;
        *counts = summary(&text);
    }
    let messages = MESSAGES_PER_ROUND * f64::from(ROUNDS[1] - ROUNDS[0]);
    let [(calls, yields), (more_calls, more_yields)] = counts;
    let command = format!("strace -f -c {} (and -rounds {})", line(ROUNDS[0]), ROUNDS[1]);
    let row = |what, figure: f64, aim| Row {
        aim,
        ..Row::new(
            "system calls",
            what,
            "libpm",
            ("a message", Better::Less),
            vec![figure],
            &command,
        )
    };
    Ok(vec![
        // What is left is the daemons' waking now and then while the longer run lasts.
        row("but sched_yield", (more_calls - calls) / messages, Some(0.001)),
        row("empty polls' yield", (more_yields - yields) / messages, None),
    ])
}

/// All calls but sched_yield, and sched_yield, of a table of `strace -c`.
fn summary(text: &str) -> (f64, f64) {
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

fn instructions(bench: &Bench) -> Result<Row, String> {
    bench.progress("instructions", 0);
    let pmtest = bench.programs.join("pmtest");
    let mut counts = [0.0; 2];
    for (messages, count) in ALONE.into_iter().zip(&mut counts) {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(&pmtest)
            .args(["-alone", &messages.to_string()])
            .output()
            .map_err(|error| format!("valgrind: {error}"))?;
        let told = String::from_utf8_lossy(&output.stderr);
        let line = told.lines().find_map(|line| line.split_once("Collected :"));
        let figure = line.and_then(|(_, figure)| figure.trim().parse().ok());
        *count = figure.ok_or_else(|| {
            format!("callgrind counted nothing: {}", told.lines().last().unwrap_or_default())
        })?;
    }
    let each = (counts[1] - counts[0]) / f64::from(ALONE[1] - ALONE[0]);
    let command =
        format!("valgrind --tool=callgrind pmtest -alone {} (and {})", ALONE[0], ALONE[1]);
    let unit = ("instructions a message", Better::Less);
    let what = "send and receive";
    Ok(Row::new("instructions", what, "libpm, 8 B", unit, vec![each], &command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_are_counted_apart() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    60.00    0.000600           1       600           sched_yield\n\
                    40.00    0.000400           1        40         3 read\n\
                    ------ ----------- ----------- --------- --------- ----------------\n\
                    100.00    0.001000                   640         3 total\n";
        assert_eq!(summary(text), (40.0, 600.0));
    }
}
