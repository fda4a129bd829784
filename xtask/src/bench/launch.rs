//! Measures the time from the start of processes until all have ended.

use std::process::{Command, Stdio};

use crate::bench::command::{run_time_ms, split_words};
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome};

const MS: (&str, Direction) = ("ms", Direction::LowerIsBetter);

/// A contender.
struct Launcher {
    name: &'static str,
    command_line: String,
    args: Vec<String>,
    times_ms: Vec<f64>,
}

impl Launcher {
    fn new(name: &'static str, command_line: String, args: Vec<String>) -> Self {
        Self { name, command_line, args, times_ms: Vec::new() }
    }
}

// Promise (speed): `scrun -nodes=4 system true` is no slower than MPICH's `mpiexec -n 4 true`; with
// 256 nodes it is faster, and takes at most 1.7 × the time of a bare spawn.
/// Measures `true` on 4 and on 256 processes: scrun, the launchers of the MPIs, and a bare loop.
///
/// # Errors
/// Returns an error if a command failed.
pub fn launch(bench: &Bench) -> BenchOutcome {
    let mut rows = Vec::new();
    for (processes, rounds) in [(4, 3 * bench.round_count), (256, bench.round_count)] {
        rows.extend(compare_launchers(bench, processes, rounds)?);
    }
    Ok(rows)
}

fn compare_launchers(bench: &Bench, processes: u32, rounds: u32) -> BenchOutcome {
    let scrun_command = format!("scrun -nodes={processes},message=quiet system true");
    let bare_command = format!("cargo xtask bench -spawn-and-wait {processes}");
    let xtask_path =
        std::env::current_exe().map_err(|error| format!("xtask's own path: {error}"))?;
    let mut bare_args = split_words(&format!("bench -spawn-and-wait {processes}"));
    bare_args.insert(0, xtask_path.to_string_lossy().into_owned());
    let mut launchers = vec![
        Launcher::new("scrun", scrun_command.clone(), bench.command_words(&scrun_command)),
        Launcher::new("spawn and wait", bare_command, bare_args),
    ];
    // Open MPI makes a session for each process. With 256 processes this takes minutes on a small
    // machine.
    for mpi in bench.competitors.mpis.iter().filter(|mpi| processes <= 16 || mpi.name == "MPICH") {
        let line = mpi.command_line(processes, "true");
        launchers.push(Launcher::new(mpi.name, line.clone(), split_words(&line)));
    }
    for round in 0..rounds {
        bench.progress(&format!("launch of {processes}"), round);
        for launcher in &mut launchers {
            let time_ms = run_time_ms(&launcher.args)?;
            // The first round of each contender has cold caches.
            if round > 0 {
                launcher.times_ms.push(time_ms);
            }
        }
    }
    let case = format!("{processes} x true");
    let row = |launcher: &Launcher| {
        BenchResult::new(
            "launch",
            &case,
            launcher.name,
            MS,
            launcher.times_ms.clone(),
            &launcher.command_line,
        )
    };
    let mut rows: Vec<BenchResult> = launchers.iter().map(row).collect();
    let others = rows[1..].iter().map(|other| {
        let target = match (other.contender.as_str(), processes) {
            ("MPICH", _) => Some(1.0),
            ("spawn and wait", 256) => Some(1.7),
            _ => None,
        };
        Comparison::new(&rows[0], other, target)
    });
    rows[0].comparisons = others.collect();
    Ok(rows)
}

/// The bare loop: spawns `processes` times `true`, then waits for all.
///
/// # Errors
/// Returns an error if a process could not be started.
pub fn spawn_and_wait(processes: &str) -> Result<(), String> {
    let count: u32 = processes.parse().map_err(|_| format!("{processes:?}: not a number"))?;
    let spawn = |_| Command::new("true").stdin(Stdio::null()).spawn();
    let children: Result<Vec<_>, _> = (0..count).map(spawn).collect();
    for mut child in children.map_err(|error| format!("true: {error}"))? {
        child.wait().map_err(|error| format!("wait: {error}"))?;
    }
    Ok(())
}
