//! How far one hostile user of a multi-user scored delays others: the time of their requests, the
//! longest turn of the server's loop, and the switches of their jobs, each alone and beside an
//! attack. Also the memory of idle logins.

use nix::unistd::geteuid;
use serde_json::Value;

use crate::bench::command::command_stdout;
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

/// The contenders of `score-daemon`: nobody, a user who only computes, and the attacks.
const ATTACKS: [&str; 11] = [
    "none",
    "computing",
    "messages",
    "signals",
    "connections",
    "frames",
    "elements",
    "logins",
    "leftovers",
    "stops",
    "program",
];
/// The first one is what the others are compared with; the second one is no attack.
const CONTROLS: usize = 2;
/// A value beside an attack, divided by the value alone.
const TARGET_RATIO: f64 = 1.5;
/// Seconds of each measurement of a round.
const SECONDS: u32 = 2;
const IDLE_SESSIONS: u32 = 1000;

const MS: (&str, Direction) = ("ms", Direction::LowerIsBetter);
const SHARE: (&str, Direction) = ("of a processor", Direction::HigherIsBetter);
const KIB: (&str, Direction) = ("KiB", Direction::LowerIsBetter);

/// A number in the output of `score-daemon`.
struct Metric {
    bench: &'static str,
    case: &'static str,
    /// The measurement that prints it, and its key there.
    measurement: &'static str,
    key: &'static str,
    /// The number is multiplied by this.
    scale: f64,
    unit: (&'static str, Direction),
}

/// A number in microseconds, which is shown in milliseconds.
const fn time(
    bench: &'static str,
    case: &'static str,
    measurement: &'static str,
    key: &'static str,
) -> Metric {
    Metric { bench, case, measurement, key, scale: 1e-3, unit: MS }
}

const METRICS: [Metric; 6] = [
    time("daemon: request of another user", "median", "waits", "median_us"),
    time("daemon: request of another user ", "99 %", "waits", "p99_us"),
    time("daemon: longest turn of the server", "longest", "waits", "server_turn_us"),
    time("daemon: lateness of switches", "median", "switches", "median_us"),
    time("daemon: lateness of switches ", "99 %", "switches", "p99_us"),
    Metric {
        bench: "daemon: both jobs of another user",
        case: "share",
        measurement: "switches",
        key: "share",
        scale: 1.0,
        unit: SHARE,
    },
];

/// Requests, turns and switches beside each attack; memory of sessions.
///
/// # Errors
/// If a measurement failed.
pub fn daemon(bench: &Bench) -> BenchOutcome {
    if !geteuid().is_root() {
        println!("  daemon: SKIPPED: multi-user mode needs root");
        return Ok(Vec::new());
    }
    let mut samples = vec![[const { Vec::new() }; METRICS.len()]; ATTACKS.len()];
    for round in 0..bench.round_count {
        bench.progress("daemon", round);
        for (attack, samples) in ATTACKS.iter().zip(&mut samples) {
            for measurement in ["waits", "switches"] {
                let output = measure(bench, &command_line(measurement, attack))?;
                let metrics = METRICS.iter().zip(samples.iter_mut());
                for (metric, samples) in metrics.filter(|(one, _)| one.measurement == measurement) {
                    samples.push(number(&output, metric.key)? * metric.scale);
                }
            }
        }
    }
    let mut rows = Vec::new();
    for (index, metric) in METRICS.iter().enumerate() {
        let samples = samples.iter().map(|samples| samples[index].clone());
        rows.extend(rows_of(metric, samples.collect()));
    }
    rows.extend(idle_sessions(bench)?);
    Ok(rows)
}

fn command_line(measurement: &str, attack: &str) -> String {
    format!("score-daemon {measurement} {SECONDS} {attack}")
}

fn measure(bench: &Bench, line: &str) -> Result<Value, String> {
    let output = command_stdout(&bench.command_words(line))?;
    println!("  {line}: {}", output.trim_end());
    serde_json::from_str(&output).map_err(|error| format!("{line}: {error}: {output:?}"))
}

fn number(output: &Value, key: &str) -> Result<f64, String> {
    output[key].as_f64().ok_or_else(|| format!("score-daemon: no {key} in {output}"))
}

/// The row of each attack, compared with the first one.
fn rows_of(metric: &Metric, samples: Vec<Vec<f64>>) -> Vec<BenchResult> {
    let row = |(attack, samples): (&&str, Vec<f64>)| {
        let command = command_line(metric.measurement, attack);
        BenchResult::new(metric.bench, metric.case, attack, metric.unit, samples, &command)
    };
    let mut rows: Vec<BenchResult> = ATTACKS.iter().zip(samples).map(row).collect();
    let alone = rows[0].clone();
    let target = match metric.unit.1 {
        Direction::LowerIsBetter => TARGET_RATIO,
        Direction::HigherIsBetter => 1.0 / TARGET_RATIO,
    };
    for (index, row) in rows.iter_mut().enumerate().skip(1) {
        let target = (index >= CONTROLS).then_some(target);
        row.comparisons = vec![Comparison::new(row, &alone, target)];
    }
    rows
}

/// Memory of the daemons for each idle login of one user.
fn idle_sessions(bench: &Bench) -> BenchOutcome {
    let line = format!("score-daemon sessions {IDLE_SESSIONS}");
    let output = measure(bench, &line)?;
    let row = |(case, contender, key): (&str, &str, &str)| {
        let samples = vec![number(&output, key)?];
        Ok(BenchResult::new("daemon: idle login", case, contender, KIB, samples, &line))
    };
    let rows = [
        ("at the server", "server", "hostb_kib_of_logins_at_hostb"),
        ("at another host", "that host", "hosta_kib_of_logins_at_hosta"),
        ("at another host", "server", "hostb_kib_of_logins_at_hosta"),
    ];
    rows.into_iter().map(row).collect()
}
