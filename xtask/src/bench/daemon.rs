//! Measures how much one hostile user of a multi-user scored delays others: the time of requests,
//! the longest turn of the server's loop, and switches of jobs. Each value is measured alone and
//! during an attack. Each attack is also measured at another service on the same processors. The
//! delay there is the floor, because that service shares only processors with the attacked
//! service. Also measures the memory of idle logins.

use nix::unistd::geteuid;
use serde_json::Value;

use crate::bench::command::command_stdout;
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

/// The contenders of `score-daemon`: none, a user who only computes, and the attacks.
const ATTACKS: [&str; 13] = [
    "none",
    "computing",
    "messages",
    "signals",
    "connections",
    "reconnects",
    "frames",
    "bytes",
    "elements",
    "logins",
    "leftovers",
    "stops",
    "program",
];
/// The number of contenders that are no attacks. All are compared with the first one.
const CONTROLS: usize = 2;
/// The target of a value during an attack, divided by the value alone.
const TARGET_RATIO: f64 = 1.5;
/// The seconds of each measurement in a round.
const SECONDS: u32 = 2;
const IDLE_SESSIONS: u32 = 1000;
/// The last word of a measurement at a service without attacks.
const ELSEWHERE: &str = " elsewhere";

const MS: (&str, Direction) = ("ms", Direction::LowerIsBetter);
const SHARE: (&str, Direction) = ("of what is due", Direction::HigherIsBetter);
const KIB: (&str, Direction) = ("KiB", Direction::LowerIsBetter);

/// A number in the output of `score-daemon`.
struct Metric {
    bench: &'static str,
    case: &'static str,
    /// The measurement that prints the number, and the key of the number in its output.
    measurement: &'static str,
    key: &'static str,
    /// The factor by which the number is multiplied.
    scale: f64,
    unit: (&'static str, Direction),
}

/// A metric that is printed in microseconds and shown in milliseconds.
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

/// Measures requests, turns and switches during each attack, and the memory of sessions.
///
/// # Errors
/// Returns an error if a measurement failed.
pub fn daemon(bench: &Bench) -> BenchOutcome {
    if !geteuid().is_root() {
        println!("  daemon: SKIPPED: multi-user mode needs root");
        return Ok(Vec::new());
    }
    let mut samples = [const { [const { PlaceSamples::new() }; METRICS.len()] }; ATTACKS.len()];
    for round in 0..bench.round_count {
        bench.progress("daemon", round);
        for (attack, samples) in ATTACKS.iter().zip(&mut samples) {
            for measurement in ["waits", "switches"] {
                let at_attacked = measure(bench, &command_line(measurement, attack, ""))?;
                let elsewhere = measure(bench, &command_line(measurement, attack, ELSEWHERE))?;
                let metrics = METRICS.iter().zip(samples.iter_mut());
                for (metric, samples) in metrics.filter(|(one, _)| one.measurement == measurement) {
                    samples.at_attacked.push(number(&at_attacked, metric.key)? * metric.scale);
                    samples.elsewhere.push(number(&elsewhere, metric.key)? * metric.scale);
                }
            }
        }
    }
    let mut rows = Vec::new();
    for (index, metric) in METRICS.iter().enumerate() {
        rows.extend(rows_of(metric, samples.iter().map(|samples| &samples[index])));
    }
    rows.extend(idle_sessions(bench)?);
    Ok(rows)
}

/// The values of one metric during one attack, one for each round.
struct PlaceSamples {
    /// At the service that is attacked.
    at_attacked: Vec<f64>,
    /// At a service without attacks.
    elsewhere: Vec<f64>,
}

impl PlaceSamples {
    const fn new() -> Self {
        Self { at_attacked: Vec::new(), elsewhere: Vec::new() }
    }
}

fn command_line(measurement: &str, attack: &str, place: &str) -> String {
    format!("score-daemon {measurement} {SECONDS} {attack}{place}")
}

fn measure(bench: &Bench, line: &str) -> Result<Value, String> {
    let output = command_stdout(&bench.command_words(line))?;
    println!("  {line}: {}", output.trim_end());
    serde_json::from_str(&output).map_err(|error| format!("{line}: {error}: {output:?}"))
}

fn number(output: &Value, key: &str) -> Result<f64, String> {
    output[key].as_f64().ok_or_else(|| format!("score-daemon: no {key} in {output}"))
}

/// Makes two rows for each attack: at the attacked service and elsewhere. The first row is compared
/// with the value without an attack, and with the second row, which is the floor.
fn rows_of<'a>(
    metric: &Metric,
    samples: impl Iterator<Item = &'a PlaceSamples>,
) -> Vec<BenchResult> {
    let row = |attack: &str, place: &str, samples: &[f64]| {
        let command = command_line(metric.measurement, attack, place);
        let contender = format!("{attack}{place}");
        let samples = samples.to_vec();
        BenchResult::new(metric.bench, metric.case, &contender, metric.unit, samples, &command)
    };
    let target = match metric.unit.1 {
        Direction::LowerIsBetter => TARGET_RATIO,
        Direction::HigherIsBetter => 1.0 / TARGET_RATIO,
    };
    let mut rows: Vec<BenchResult> = Vec::new();
    for (index, (attack, samples)) in ATTACKS.iter().zip(samples).enumerate() {
        let mut at_attacked = row(attack, "", &samples.at_attacked);
        let elsewhere = row(attack, ELSEWHERE, &samples.elsewhere);
        if let Some(alone) = rows.first() {
            let target = (index >= CONTROLS).then_some(target);
            at_attacked.comparisons = vec![
                Comparison::new(&at_attacked, alone, target),
                Comparison::new(&at_attacked, &elsewhere, None),
            ];
        }
        rows.extend([at_attacked, elsewhere]);
    }
    rows
}

/// Measures the memory of the daemons for each idle login of one user.
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
