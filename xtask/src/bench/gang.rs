//! Time-sharing: how much of two processors two jobs keep that share them in time slices, beside
//! the same two jobs as Linux lets them run; and whether each gets what it is due (issue 4, "How
//! fast").

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use crate::bench::calls::words;
use crate::bench::figures::{Better, Row};
use crate::bench::{Bench, Rows};

const KEPT: (&str, Better) = ("of one job alone", Better::More);
const OFF: (&str, Better) = ("off its due, % of it", Better::Less);

/// Slices in ms, and the least that has to be kept with each.
const SLICES: [(&str, Option<f64>); 4] =
    [("40", Some(0.99)), ("10", Some(0.98)), ("bare-10", None), ("plain", None)];
/// Slice, priorities, and how far each share may be off.
const SHARES: [(&str, &str, f64); 2] = [("40", "8 8", 2.0), ("10", "6 8 10", 5.0)];
/// Slices in ms at which deadlocks are to be found.
const DEADLOCK: [&str; 3] = ["10", "40", "500"];
/// Rounds of each, unless fewer are asked for.
const ROUNDS: u32 = 20;
const MICROS: (&str, Better) = ("us: 50, 90, 99 %", Better::Less);
/// Slices are measured so many times as long as shares.
const KEPT_BY_SHARES: f64 = 2.2;

/// Both.
///
/// # Errors
/// A measurement failed.
pub fn gang(bench: &Bench) -> Rows {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("  gang: SKIPPED time slices: they come with multi-user mode, which needs root");
    }
    let mut rows = Vec::new();
    let seconds = bench.window.as_secs();
    let rounds = if bench.rounds <= 2 { bench.rounds } else { ROUNDS };
    for (slice, aim) in SLICES.into_iter().filter(|(slice, _)| is_root || *slice == "plain") {
        let limit = (seconds as f64 * KEPT_BY_SHARES).round();
        rows.push(kept(bench, slice, &format!("{rounds} {limit}"), aim)?);
    }
    for (slice, priorities, aim) in SHARES.into_iter().filter(|_| is_root) {
        rows.extend(shares(bench, slice, seconds, priorities, aim)?);
    }
    if is_root {
        rows.extend(switches(bench, seconds / 2)?);
        for slice in DEADLOCK {
            rows.extend(deadlock(bench, slice)?);
        }
    }
    Ok(rows)
}

/// Of two hosts with a processor each. Histograms are shown as they come.
fn switches(bench: &Bench, seconds: u64) -> Rows {
    microseconds(bench, "gang switches", "-ts 10", format!("score-gang switches 10 {seconds}"))
}

/// From the moment when the last process became idle, beside another job; the aim is two slices.
fn deadlock(bench: &Bench, slice: &str) -> Rows {
    let command = format!("score-gang deadlock {slice} 20");
    let mut rows = microseconds(bench, "gang deadlock", &format!("-ts {slice}"), command)?;
    let two = slice.parse::<f64>().map(|slice| slice * 2000.0).ok();
    rows.iter_mut().for_each(|row| row.aim = two);
    Ok(rows)
}

fn microseconds(bench: &Bench, part: &'static str, slice: &str, command: String) -> Rows {
    let told = told(bench, &command)?;
    let figures = told.iter().filter(|line| line.contains(" us ("));
    let figures = figures.filter_map(|line| line.split_once(": "));
    let row = |(what, line): (&str, &str)| {
        let parts = (0..3).map(|at| figure(line, at)).collect::<Result<_, _>>()?;
        Ok(Row::new(part, slice, what, MICROS, parts, &command))
    };
    figures.map(row).collect()
}

fn kept(bench: &Bench, slice: &str, amount: &str, aim: Option<f64>) -> Result<Row, String> {
    let line = format!("score-gang kept {slice} {amount}");
    let (mut figures, mut interval) = (Vec::new(), String::new());
    for told in told(bench, &line)? {
        match told.strip_prefix("interval ") {
            Some(ends) => interval = ends.split_whitespace().take(2).collect::<Vec<_>>().join(".."),
            None => figures.push(figure(&told, 0)?),
        }
    }
    let who = match slice {
        "plain" => format!("Linux alone [{interval}]"),
        "bare-10" => format!("signals alone, 10 ms [{interval}]"),
        slice => format!("scored -ts {slice} [{interval}]"),
    };
    Ok(Row { aim, ..Row::new("gang", "2 jobs together", &who, KEPT, figures, &line) })
}

fn shares(bench: &Bench, slice: &str, seconds: u64, priorities: &str, aim: f64) -> Rows {
    let line = format!("score-gang shares {slice} {seconds} {priorities}");
    let row = |told: String| {
        let (share, due) = (figure(&told, 3)?, figure(&told, 5)?);
        let off = vec![(share / due - 1.0).abs() * 100.0];
        let (what, who) = (format!("-ts {slice}, {priorities}"), format!("{told:.14} {share:.4}"));
        Ok(Row { aim: Some(aim), ..Row::new("gang shares", &what, &who, OFF, off, &line) })
    };
    told(bench, &line)?.into_iter().map(row).collect()
}

fn figure(line: &str, at: usize) -> Result<f64, String> {
    let word = line.split_whitespace().nth(at).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("score-gang says {line:?}"))
}

/// What a measurement of some minutes says, shown as it comes. It bounds its own time.
fn told(bench: &Bench, line: &str) -> Result<Vec<String>, String> {
    let words = words(line);
    let fault = |error: std::io::Error| format!("{line}: {error}");
    let mut command = Command::new(bench.programs.join(&words[0]));
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(fault)?;
    let mut all = Vec::new();
    for told in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let told = told.map_err(fault)?;
        println!("  {line}: {told}");
        all.push(told);
    }
    match child.wait().map_err(fault)? {
        status if status.success() => Ok(all),
        status => Err(format!("{line}: {status}")),
    }
}
