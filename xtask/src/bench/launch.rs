//! How long it takes to start processes and see them end.

use std::process::{Command, Stdio};

use crate::bench::calls::{milliseconds, words};
use crate::bench::figures::{Better, Comparison, Row};
use crate::bench::{Bench, Rows};

const MS: (&str, Better) = ("ms", Better::Less);

/// One contender.
struct Contender {
    who: &'static str,
    shown: String,
    words: Vec<String>,
    times: Vec<f64>,
}

impl Contender {
    fn new(who: &'static str, shown: String, words: Vec<String>) -> Self {
        Self { who, shown, words, times: Vec::new() }
    }
}

/// `true` on 4 and on 256 processes: scrun, the launchers of the MPIs, and a bare loop.
///
/// # Errors
/// A command failed.
pub fn launch(bench: &Bench) -> Rows {
    let mut rows = Vec::new();
    for (processes, rounds) in [(4, 3 * bench.rounds), (256, bench.rounds)] {
        rows.extend(contest(bench, processes, rounds)?);
    }
    Ok(rows)
}

fn contest(bench: &Bench, processes: u32, rounds: u32) -> Rows {
    let own = format!("scrun -nodes={processes},message=quiet system true");
    let bare = format!("cargo xtask bench -spawn-and-wait {processes}");
    let itself = std::env::current_exe().map_err(|error| format!("xtask's own path: {error}"))?;
    let mut bare_words = words(&format!("bench -spawn-and-wait {processes}"));
    bare_words.insert(0, itself.to_string_lossy().into_owned());
    let mut contenders = vec![
        Contender::new("scrun", own.clone(), bench.ours(&own)),
        Contender::new("spawn and wait", bare, bare_words),
    ];
    // Open MPI makes a session per process; at 256 it takes minutes on a small machine.
    for mpi in bench.peers.mpis.iter().filter(|mpi| processes <= 16 || mpi.name == "MPICH") {
        let line = mpi.line(processes, "true");
        contenders.push(Contender::new(mpi.name, line.clone(), words(&line)));
    }
    for round in 0..rounds {
        bench.progress(&format!("launch of {processes}"), round);
        for contender in &mut contenders {
            let time = milliseconds(&contender.words)?;
            // The first of each finds cold caches.
            if round > 0 {
                contender.times.push(time);
            }
        }
    }
    let what = format!("{processes} x true");
    let row =
        |one: &Contender| Row::new("launch", &what, one.who, MS, one.times.clone(), &one.shown);
    let mut rows: Vec<Row> = contenders.iter().map(row).collect();
    let others = rows[1..].iter().map(|other| {
        let aim = match (other.who.as_str(), processes) {
            ("MPICH", _) => Some(1.0),
            ("spawn and wait", 256) => Some(1.7),
            _ => None,
        };
        Comparison::of(&rows[0], other, aim)
    });
    rows[0].beside = others.collect();
    Ok(rows)
}

/// The bare program: spawns that many `true`, then waits for all.
///
/// # Errors
/// One could not be started.
pub fn spawn_and_wait(processes: &str) -> Result<(), String> {
    let count: u32 = processes.parse().map_err(|_| format!("{processes:?}: not a number"))?;
    let spawn = |_| Command::new("true").stdin(Stdio::null()).spawn();
    let children: Result<Vec<_>, _> = (0..count).map(spawn).collect();
    for mut child in children.map_err(|error| format!("true: {error}"))? {
        child.wait().map_err(|error| format!("wait: {error}"))?;
    }
    Ok(())
}
