//! Latency, message rate, and what silent neighbours cost: pmtest beside the peers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::bench::calls::{output, words};
use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::peers::{ucx, ucx_line};
use crate::bench::{Bench, Rows};

const NS: (&str, Better) = ("ns one way", Better::Less);
const RATE: (&str, Better) = ("messages/s", Better::More);
const SIZES: [u32; 4] = [8, 64, 1024, 4096];
/// Issue 2, "How fast": by the floor of the same run.
const AIMS: [Option<f64>; 4] = [Some(1.4), None, None, Some(8.0)];

/// Figures by who and size, in the order in which they were first seen.
#[derive(Default)]
struct Collected {
    order: Vec<(String, u32)>,
    figures: BTreeMap<(String, u32), (Vec<f64>, String)>,
}

impl Collected {
    fn add(&mut self, who: &str, size: u32, figure: f64, command: &str) {
        let key = (who.to_owned(), size);
        if !self.figures.contains_key(&key) {
            self.order.push(key.clone());
        }
        let entry = self.figures.entry(key).or_insert((Vec::new(), command.to_owned()));
        entry.0.push(figure);
    }

    fn rows(&self, bench: &'static str, unit: (&'static str, Better), size: u32) -> Vec<Row> {
        let own = self.order.iter().filter(|(_, own)| *own == size);
        let row = |key: &(String, u32)| {
            let (figures, command) = &self.figures[key];
            let what = format!("{size} B");
            Row::new(bench, &what, &key.0, unit, figures.clone(), command)
        };
        own.map(row).collect()
    }
}

/// What pmtest -json prints.
///
/// # Errors
/// It failed, or printed something else.
pub fn pmtest(bench: &Bench, line: &str) -> Result<Vec<Value>, String> {
    let text = output(&bench.ours(line))?;
    serde_json::from_str(&text).map_err(|error| format!("{line}: {error}"))
}

/// A field of it.
///
/// # Errors
/// It is not there, or no number.
pub fn number(value: &Value, name: &str) -> Result<f64, String> {
    value[name].as_f64().ok_or_else(|| format!("pmtest -json has no {name}"))
}

/// Latency of each size beside the floor and the peers.
///
/// # Errors
/// A command failed.
pub fn latency(bench: &Bench) -> Rows {
    let sizes = SIZES.map(|size| size.to_string());
    let own = format!(
        "scrun -nodes=2,message=quiet pmtest -latency -size {} -rounds 10 -json",
        sizes.join(",")
    );
    let bare = own.replace("-latency", "-latency -bare");
    let mut all = Collected::default();
    for round in 0..bench.rounds {
        bench.progress("latency", round);
        for line in pmtest(bench, &own)? {
            let size = number(&line, "size")? as u32;
            all.add("floor", size, number(&line, "floor_ns")?, &own);
            all.add("libpm", size, number(&line, "one_way_ns_min")?, &own);
        }
        for line in pmtest(bench, &bare)? {
            let size = number(&line, "size")? as u32;
            all.add("bare ring", size, number(&line, "one_way_ns_min")?, &bare);
        }
        for mpi in &bench.peers.mpis {
            let Some(line) = mpi.pingpong(&format!("latency {}", sizes.join(" "))) else {
                continue;
            };
            for told in output(&words(&line))?.lines() {
                let figures: Vec<f64> =
                    told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
                if let [size, best, _] = figures[..] {
                    all.add(mpi.name, size as u32, best, &line);
                }
            }
        }
        for size in SIZES.into_iter().filter(|_| bench.peers.ucx) {
            // Beyond short messages am_lat neither writes nor reads its payload.
            let am = if size <= 64 { "UCX am" } else { "UCX am (payload untouched)" };
            for (who, test) in [(am, "am_lat"), ("UCX tag", "tag_lat")] {
                let line = ucx_line(test, size);
                all.add(who, size, ucx(&line, bench.cores)?, &line);
            }
            if size == 8 {
                let line = ucx_line("put_lat", size);
                let put = ucx(&line, bench.cores)?;
                all.add("UCX put (one-sided, no message)", size, put, &line);
            }
        }
    }
    let sizes = SIZES.iter().zip(AIMS);
    Ok(sizes.flat_map(|(size, aim)| beside(all.rows("latency", NS, *size), aim)).collect())
}

/// libpm's row compares itself with the floor and with every message-passing peer.
fn beside(mut rows: Vec<Row>, aim: Option<f64>) -> Vec<Row> {
    let Some(own) = rows.iter().position(|row| row.who == "libpm") else { return rows };
    let compared = rows.iter().filter(|row| row.who != "libpm" && !row.who.contains("put"));
    let comparisons = compared.map(|row| {
        let floor = row.who == "floor";
        // Ahead of every peer at 8 bytes; elsewhere it is told and not promised.
        let peer = row.who != "bare ring";
        let ahead = (peer && row.what == "8 B").then_some(1.0);
        Comparison::of(&rows[own], row, if floor { aim } else { ahead })
    });
    rows[own].beside = comparisons.collect();
    rows
}

/// Messages of 8 bytes in one direction.
///
/// # Errors
/// A command failed.
pub fn rate(bench: &Bench) -> Rows {
    let own = "scrun -nodes=2,message=quiet pmtest -rate -size 8 -json";
    let mut all = Collected::default();
    for round in 0..bench.rounds {
        bench.progress("message rate", round);
        for line in pmtest(bench, own)? {
            all.add("libpm", 8, number(&line, "messages_per_s")?, own);
        }
        for mpi in &bench.peers.mpis {
            let Some(line) = mpi.pingpong("rate 8") else { continue };
            let told = output(&words(&line))?;
            let figure = told.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            let figure = figure.ok_or_else(|| format!("{line}: no figure"))?;
            all.add(mpi.name, 8, figure, &line);
        }
        if bench.peers.ucx {
            let line = ucx_line("am_bw", 8);
            all.add("UCX am", 8, 1e9 / ucx(&line, bench.cores)?, &line);
        }
    }
    let mut rows = beside(all.rows("message rate", RATE, 8), None);
    if let Some(own) = rows.iter_mut().find(|row| row.who == "libpm") {
        own.aim = Some(40e6);
    }
    Ok(rows)
}

/// Two processes that measure, alone and among 62 that are silent.
///
/// # Errors
/// A command failed.
pub fn silent(bench: &Bench) -> Rows {
    let line = |nodes: u32, how: &str| {
        format!("scrun -nodes={nodes},message=quiet pmtest -latency -size 8 -rounds 10{how} -json")
    };
    let ways = [
        ("2 processes", line(2, "")),
        ("64, 62 asleep", line(64, " -silent receive")),
        ("64, 62 never sent", line(64, " -silent never")),
    ];
    let mut figures = vec![Vec::new(); ways.len()];
    for round in 0..bench.rounds {
        bench.progress("silent neighbours", round);
        for ((_, line), figures) in ways.iter().zip(&mut figures) {
            for told in pmtest(bench, line)? {
                figures.push(number(&told, "one_way_ns_min")?);
            }
        }
    }
    let row = |((what, line), figures): (&(&str, String), Vec<f64>)| {
        Row::new("silent neighbours", what, "libpm", NS, figures, line)
    };
    let mut rows: Vec<Row> = ways.iter().zip(figures).map(row).collect();
    let mut alone = rows[0].clone();
    alone.who = "2 processes".into();
    for row in &mut rows[1..] {
        row.beside = vec![Comparison::of(row, &alone, Some(1.3))];
    }
    Ok(rows)
}

/// Four pairs on two cores, each as fast as it is let.
///
/// # Errors
/// A command failed.
pub fn oversubscribed(bench: &Bench) -> Rows {
    let [first, second] = bench.cores;
    let own = "scrun -nodes=8,message=quiet pmtest -pairs -json";
    let mut words = bench.ours(own);
    let pin = ["taskset".to_owned(), "-c".to_owned(), format!("{first},{second}")];
    words.splice(0..0, pin);
    let command = format!("taskset -c {first},{second} {own}");
    let (mut least, mut share) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds.min(5) {
        bench.progress("oversubscribed", round);
        let pairs: Vec<Value> = serde_json::from_str(&output(&words)?)
            .map_err(|error| format!("{command}: {error}"))?;
        let rates: Result<Vec<f64>, String> =
            pairs.iter().map(|pair| number(pair, "round_trips_per_s")).collect();
        let rates = rates?;
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let slowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        least.push(slowest);
        share.push(slowest / mean);
    }
    let bench = "oversubscribed: 4 pairs on 2 cores";
    let row = |what, unit, rounds, aim| Row {
        aim: Some(aim),
        ..Row::new(bench, what, "libpm", (unit, Better::More), rounds, &command)
    };
    Ok(vec![
        row("slowest pair", "round trips/s", least, 20_000.0),
        row("slowest by mean", "share", share, 0.5),
    ])
}
