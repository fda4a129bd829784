//! RDMA in the virtual machine of `vm`, all in one boot: messages and remote writes beside
//! perftest, and what the pin-down cache is worth, as a picture. Emulated: only ratios mean much.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::{Bench, Rows, picture};
use crate::{run, vm};

/// What each round does, in the machine's own shell: a line that begins with @ says whose figures
/// come next.
const SCRIPT: &str = include_str!("verbs.sh");
const SECONDS: &str = "900";
const MEMORY: &str = "1024";
const OURS: [&str; 4] = ["score-verbs", "scrun", "scored", "pmtest"];
const BESIDE: [&str; 3] = ["ib_send_lat", "ib_send_bw", "ib_write_bw"];
/// Processes that share the adapter in `score-verbs shares`.
const WRITERS: f64 = 4.0;
const MIB: (&str, Better) = ("MiB/s", Better::More);

/// One comparison: what it is called, the word of `score-verbs`, the program beside it, by how much
/// ours is divided for the unit, the column of the other's table, and the aim.
type Pair = (&'static str, &'static str, &'static str, f64, usize, (&'static str, Better), f64);
const PAIRS: [Pair; 3] = [
    ("8 B one way", "latency", "ib_send_lat", 1e3, 4, ("us", Better::Less), 1.1),
    ("messages of 16 KiB", "messages", "ib_send_bw", 1.0, 3, MIB, 0.9),
    ("remote writes of 64 KiB", "writes", "ib_write_bw", 1.0, 3, MIB, 0.9),
];

/// Everything.
///
/// # Errors
/// The machine cannot be had, or something failed in it.
pub fn verbs(bench: &Bench) -> Rows {
    vm::prepare()?;
    let text = told(bench)?;
    let mut rows = Vec::new();
    for (what, word, other, scale, column, unit, aim) in PAIRS {
        let ours = ours(&text, word, scale);
        let theirs = figures(&text, &format!("@{other}"), |line| row_of_perftest(line, column));
        let row = |who: &str, figures| Row::new("verbs", what, who, unit, figures, "score-verbs");
        let theirs = row(other, theirs);
        let mut ours = row("libpm", ours);
        ours.beside = vec![Comparison::of(&ours, &theirs, Some(aim))];
        rows.extend([ours, theirs]);
    }
    rows.extend(shares(&text));
    rows.extend(pins(&text)?);
    Ok(rows)
}

/// Our figures of one kind, divided by `scale`.
fn ours(text: &str, word: &str, scale: f64) -> Vec<f64> {
    figures(text, "@ours", |line| {
        let (name, value) = line.split_once(' ')?;
        (name == word).then(|| value.parse().ok())?.map(|value: f64| value / scale)
    })
}

/// What the slowest of four has that write at once, as if all were like it, beside one alone.
fn shares(text: &str) -> [Row; 2] {
    let what = "remote writes of 64 KiB, several";
    let row = |who: &str, figures| Row::new("verbs", what, who, MIB, figures, "score-verbs");
    let alone = row("one alone", ours(text, "writes", 1.0));
    let mut four = row("four times the slowest of four", ours(text, "shares", 1.0 / WRITERS));
    four.beside = vec![Comparison::of(&four, &alone, Some(0.5))];
    [four, alone]
}

/// What the cache is worth, one row for each size and kind.
fn pins(text: &str) -> Rows {
    let json = text.split("@pins").nth(1).and_then(|rest| rest.split('@').next());
    let json = json.ok_or("pmtest -pin was not run")?;
    let lines: Vec<serde_json::Value> = serde_json::from_str(json.trim())
        .map_err(|error| format!("pmtest -pin gives no figures: {error}"))?;
    let mut rows = Vec::new();
    let mut curves = [("all hits", Vec::new()), ("all misses", Vec::new())];
    for line in &lines {
        let size = line["size"].as_f64().unwrap_or(f64::NAN);
        for ((who, points), field) in curves.iter_mut().zip(["hits", "misses"]) {
            let rate =
                line[format!("{field}_bytes_per_s")].as_f64().unwrap_or(f64::NAN) / 1048576.0;
            points.push((size, rate));
            let (what, who) = (format!("locked writes of {size} B"), format!("libpm, {who}"));
            rows.push(Row::new("verbs pins", &what, &who, MIB, vec![rate], "pmtest -pin"));
        }
    }
    let title = "Remote writes that lock and unlock their memory, rdma_rxe under emulation";
    let path = run::root().join("bench-results/pins.svg");
    std::fs::write(&path, picture::curves(title, ("bytes", "MiB/s"), &curves))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    println!("written: {}", path.display());
    Ok(rows)
}

/// What `read` finds behind each such mark, until the next mark.
fn figures(text: &str, mark: &str, read: impl Fn(&str) -> Option<f64>) -> Vec<f64> {
    let mut ours = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with('@') {
            ours = line == mark;
        } else if ours {
            found.extend(read(line));
        }
    }
    found
}

/// A line of numbers.
fn row_of_perftest(line: &str, column: usize) -> Option<f64> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    numbers?.get(column).copied()
}

/// All that the machine prints, which is shown as it comes.
fn told(bench: &Bench) -> Result<String, String> {
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = run::target()?.join("vm").join("root").join("usr/bin");
    let files = OURS.iter().map(|name| bench.programs.join(name));
    let files: Vec<PathBuf> = files.chain(BESIDE.map(|name| folder.join(name))).collect();
    let mut command = Command::new(me);
    command.args(["vm", "-limit", SECONDS, "-memory", MEMORY]);
    for file in &files {
        command.arg("-give").arg(file);
    }
    let script = format!("ROUNDS={}\n{SCRIPT}", bench.rounds);
    command.args(["sh", "-c", &script]).stdin(Stdio::null()).stderr(Stdio::inherit());
    println!("  verbs: {} rounds in the virtual machine", bench.rounds);
    let output = command.output().map_err(|error| format!("cargo xtask vm: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("the virtual machine: {text}")) }
}

#[cfg(test)]
mod tests {
    use super::{figures, row_of_perftest};

    #[test]
    fn figures_are_those_behind_their_mark() {
        let text = "@ours\nlatency 50000\n@ib_send_lat\n #bytes t_min\n 8 1000 40.1 90 47.5 50\n\
                    @ours\nlatency 70000\nwrites 9.5\n@end\nlatency 1\n";
        let ours = figures(text, "@ours", |line| line.strip_prefix("latency ")?.parse().ok());
        assert_eq!(ours, [50_000.0, 70_000.0]);
        let theirs = figures(text, "@ib_send_lat", |line| row_of_perftest(line, 4));
        assert_eq!(theirs, [47.5]);
    }
}
