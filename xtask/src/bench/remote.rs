//! Remote memory on one host: pmtest -rma beside what the machine does, and the peers' puts.

use serde_json::Value;

use crate::bench::calls::{output, words};
use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::latency::{number, pmtest};
use crate::bench::peers::{ucx, ucx_line, ucx_median};
use crate::bench::{Bench, Rows};

const PUT: &str = "put";
const MEDIAN: &str = "pmWrite, median";
const UCX_MEDIAN: &str = "UCX put, median";
const NS: (&str, Better) = ("ns one way", Better::Less);
const RATE: (&str, Better) = ("GB/s", Better::More);
/// Issue 5, "How fast": a put by the floor and by UCX's, bytes by what the machine does.
const BY_FLOOR: f64 = 1.3;
const BY_UCX: f64 = 1.1;
const BY_MACHINE: f64 = 0.95;

/// Fields of pmtest -json: what, whose, and which of these it is compared with.
const RATES: [(&str, &str, Option<usize>); 7] = [
    ("memory of pmAlloc, 4 MiB", "memcpy", None),
    ("memory of pmAlloc, 4 MiB", "write_pmalloc", Some(0)),
    ("memory of pmAlloc, 4 MiB", "read_pmalloc", Some(0)),
    ("other memory, 4 MiB", "process_vm_writev", None),
    ("other memory, 4 MiB", "write_other", Some(3)),
    ("other memory, 4 MiB", "process_vm_readv", None),
    ("other memory, 4 MiB", "read_other", Some(5)),
];

/// A word put to and fro, and large copies.
///
/// # Errors
/// A command failed.
pub fn remote(bench: &Bench) -> Rows {
    let mut rows = puts(bench)?;
    rows.extend(copies(bench)?);
    Ok(rows)
}

/// Adds a figure to the row of this name.
fn add(rows: &mut Vec<Row>, who: &str, command: &str, figure: f64) {
    match rows.iter_mut().find(|row| row.who == who) {
        Some(row) => row.rounds.0.push(figure),
        None => rows.push(Row::new("remote memory", PUT, who, NS, vec![figure], command)),
    }
}

fn puts(bench: &Bench) -> Rows {
    let own = "scrun -nodes=2,message=quiet pmtest -rma -size 8 -json";
    let mut rows = Vec::new();
    for round in 0..bench.rounds {
        bench.progress("puts of 8 bytes", round);
        for line in pmtest(bench, own)? {
            add(&mut rows, "pmWrite", own, number(&line, "put_ns_min")?);
            add(&mut rows, "floor", own, number(&line, "floor_ns")?);
            add(&mut rows, MEDIAN, own, number(&line, "put_ns_median")?);
        }
        if bench.peers.ucx {
            let line = ucx_line("put_lat", 8);
            add(&mut rows, "UCX put", &line, ucx(&line, bench.cores)?);
            let line = ucx_median(&line);
            add(&mut rows, UCX_MEDIAN, &line, ucx(&line, bench.cores)?);
        }
        for mpi in &bench.peers.mpis {
            let Some(line) = mpi.pingpong("put 8") else { continue };
            let told = output(&words(&line))?;
            let best = told.split_whitespace().nth(1).and_then(|word| word.parse().ok());
            let who = format!("{} MPI_Put", mpi.name);
            add(&mut rows, &who, &line, best.ok_or_else(|| format!("{line}: no figure"))?);
        }
    }
    let row = |who: &str| rows.iter().position(|row| row.who == who);
    let (median, beside) = (row(MEDIAN), row(UCX_MEDIAN));
    // UCX times each trip, pmtest 32 at a time: the first percentile of trips is less than the
    // least mean of many, which medians do not mind.
    if let (Some(median), Some(beside)) = (median, beside) {
        rows[median].beside = vec![Comparison::of(&rows[median], &rows[beside], Some(BY_UCX))];
    }
    if let Some((own, others)) = rows.split_first_mut() {
        let same = |row: &&Row| ![MEDIAN, UCX_MEDIAN].contains(&row.who.as_str());
        let aim = |row: &Row| match row.who.as_str() {
            "floor" => Some(BY_FLOOR),
            "UCX put" => Some(BY_UCX),
            _ => None,
        };
        own.beside =
            others.iter().filter(same).map(|row| Comparison::of(own, row, aim(row))).collect();
    }
    Ok(rows)
}

fn copies(bench: &Bench) -> Rows {
    let own = "scrun -nodes=2,message=quiet pmtest -rma -size 4194304 -json";
    let mut figures = RATES.map(|_| Vec::new());
    for round in 0..bench.rounds {
        bench.progress("copies of 4 MiB", round);
        let lines: Vec<Value> = pmtest(bench, own)?;
        let line = lines.first().ok_or_else(|| format!("{own}: no figures"))?;
        for ((_, name, _), figures) in RATES.iter().zip(&mut figures) {
            figures.push(number(line, &format!("{name}_bytes_per_s"))? / 1e9);
        }
    }
    let mut rows: Vec<Row> = RATES
        .iter()
        .zip(figures)
        .map(|((what, name, _), figures)| Row::new("remote memory", what, name, RATE, figures, own))
        .collect();
    for (at, (_, _, with)) in RATES.iter().enumerate() {
        if let Some(with) = with {
            let comparison = Comparison::of(&rows[at], &rows[*with], Some(BY_MACHINE));
            rows[at].beside.push(comparison);
        }
    }
    Ok(rows)
}
