//! Measures RDMA in the virtual machine of `vm`, all in one boot. Compares messages and remote
//! writes with perftest, and draws the gain of the pin-down cache as a chart. The machine is
//! emulated, so only ratios are meaningful.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome, svg_chart};
use crate::{run, vm};

/// The script that runs in the machine's shell, with the steps of each round. A line of its output
/// that begins with @ names the program that prints the following values.
const SCRIPT: &str = include_str!("verbs.sh");
const VM_TIMEOUT_S: &str = "900";
const VM_MEMORY_MIB: &str = "1024";
const SCORE_PROGRAMS: [&str; 4] = ["score-verbs", "scrun", "scored", "pmtest"];
const PERFTEST_PROGRAMS: [&str; 3] = ["ib_send_lat", "ib_send_bw", "ib_write_bw"];
/// The number of processes that share the adapter in `score-verbs shares`.
const WRITERS: f64 = 4.0;
const MIB_PER_S: (&str, Direction) = ("MiB/s", Direction::HigherIsBetter);

/// A comparison: its case, the argument of `score-verbs`, the perftest program, the divisor for
/// values of `score-verbs`, the column in perftest's table, the unit, and the target.
type VerbsComparison =
    (&'static str, &'static str, &'static str, f64, usize, (&'static str, Direction), f64);
const COMPARISONS: [VerbsComparison; 3] = [
    ("8 B one way", "latency", "ib_send_lat", 1e3, 4, ("us", Direction::LowerIsBetter), 1.1),
    ("messages of 16 KiB", "messages", "ib_send_bw", 1.0, 3, MIB_PER_S, 0.9),
    ("remote writes of 64 KiB", "writes", "ib_write_bw", 1.0, 3, MIB_PER_S, 0.9),
];

/// Runs all measurements.
///
/// # Errors
/// Returns an error if the machine is not available, or if a command in it failed.
pub fn verbs(bench: &Bench) -> BenchOutcome {
    vm::prepare()?;
    let text = run_script(bench)?;
    let mut rows = Vec::new();
    for (case, word, other, scale, column, unit, target) in COMPARISONS {
        let score_values = score_samples(&text, word, scale);
        let other_values =
            marked_values(&text, &format!("@{other}"), |line| perftest_value(line, column));
        let row = |contender: &str, samples| {
            BenchResult::new("verbs", case, contender, unit, samples, "score-verbs")
        };
        let other_row = row(other, other_values);
        let mut score_row = row("libpm", score_values);
        score_row.comparisons = vec![Comparison::new(&score_row, &other_row, Some(target))];
        rows.extend([score_row, other_row]);
    }
    rows.extend(share_rows(&text));
    rows.extend(pin_cache_rows(&text)?);
    Ok(rows)
}

/// Returns the values of `score-verbs` for one measurement, divided by `scale`.
fn score_samples(text: &str, word: &str, scale: f64) -> Vec<f64> {
    marked_values(text, "@ours", |line| {
        let (name, value) = line.split_once(' ')?;
        (name == word).then(|| value.parse().ok())?.map(|value: f64| value / scale)
    })
}

/// Compares four times the rate of the slowest of four simultaneous writers with one writer alone.
fn share_rows(text: &str) -> [BenchResult; 2] {
    let case = "remote writes of 64 KiB, several";
    let row = |contender: &str, samples| {
        BenchResult::new("verbs", case, contender, MIB_PER_S, samples, "score-verbs")
    };
    let single_writer = row("one alone", score_samples(text, "writes", 1.0));
    let mut four_writers =
        row("four times the slowest of four", score_samples(text, "shares", 1.0 / WRITERS));
    four_writers.comparisons = vec![Comparison::new(&four_writers, &single_writer, Some(0.5))];
    [four_writers, single_writer]
}

/// Returns the gain of the cache, one row for each size and kind.
fn pin_cache_rows(text: &str) -> BenchOutcome {
    let json = text.split("@pins").nth(1).and_then(|rest| rest.split('@').next());
    let json = json.ok_or("pmtest -pin was not run")?;
    let lines: Vec<serde_json::Value> = serde_json::from_str(json.trim())
        .map_err(|error| format!("pmtest -pin: unexpected output: {error}"))?;
    let mut rows = Vec::new();
    let mut curves = [("all hits", Vec::new()), ("all misses", Vec::new())];
    for line in &lines {
        let size = line["size"].as_f64().unwrap_or(f64::NAN);
        for ((series_name, points), field) in curves.iter_mut().zip(["hits", "misses"]) {
            let rate =
                line[format!("{field}_bytes_per_s")].as_f64().unwrap_or(f64::NAN) / 1048576.0;
            points.push((size, rate));
            let (case, contender) =
                (format!("locked writes of {size} B"), format!("libpm, {series_name}"));
            rows.push(BenchResult::new(
                "verbs pins",
                &case,
                &contender,
                MIB_PER_S,
                vec![rate],
                "pmtest -pin",
            ));
        }
    }
    let title = "Remote writes that lock and unlock their memory, rdma_rxe under emulation";
    let path = run::source_root().join("bench-results/pins.svg");
    std::fs::write(&path, svg_chart::line_chart(title, ("bytes", "MiB/s"), &curves))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    println!("written: {}", path.display());
    Ok(rows)
}

/// Returns all values that `parse` finds after each `mark`, up to the next mark.
fn marked_values(text: &str, mark: &str, parse: impl Fn(&str) -> Option<f64>) -> Vec<f64> {
    let mut in_section = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('@') {
            in_section = line == mark;
        } else if in_section {
            found.extend(parse(line));
        }
    }
    found
}

/// Returns the value in one column of a line of numbers.
fn perftest_value(line: &str, column: usize) -> Option<f64> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    numbers?.get(column).copied()
}

/// Runs the script in the machine, and returns its output.
fn run_script(bench: &Bench) -> Result<String, String> {
    let xtask_path = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = run::target_dir()?.join("vm").join("root").join("usr/bin");
    let files = SCORE_PROGRAMS.iter().map(|name| bench.program_dir.join(name));
    let files: Vec<PathBuf> =
        files.chain(PERFTEST_PROGRAMS.map(|name| folder.join(name))).collect();
    let mut command = Command::new(xtask_path);
    command.args(["vm", "-limit", VM_TIMEOUT_S, "-memory", VM_MEMORY_MIB]);
    for file in &files {
        command.arg("-give").arg(file);
    }
    let script = format!("ROUNDS={}\n{SCRIPT}", bench.round_count);
    command.args(["sh", "-c", &script]).stdin(Stdio::null()).stderr(Stdio::inherit());
    println!("  verbs: {} rounds in the virtual machine", bench.round_count);
    let output = command.output().map_err(|error| format!("cargo xtask vm: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("the virtual machine: {text}")) }
}

#[cfg(test)]
mod tests {
    use super::{marked_values, perftest_value};

    #[test]
    fn values_are_taken_from_the_lines_after_their_mark() {
        let text = "@ours\nlatency 50000\n@ib_send_lat\n #bytes t_min\n 8 1000 40.1 90 47.5 50\n\
                    @ours\nlatency 70000\nwrites 9.5\n@end\nlatency 1\n";
        let score_values =
            marked_values(text, "@ours", |line| line.strip_prefix("latency ")?.parse().ok());
        assert_eq!(score_values, [50_000.0, 70_000.0]);
        let perftest_values = marked_values(text, "@ib_send_lat", |line| perftest_value(line, 4));
        assert_eq!(perftest_values, [47.5]);
    }
}
