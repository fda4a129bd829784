//! MPI over PM, compared with the same MPI over its own transports, with the system's MPIs, and
//! with PM alone.

use std::path::Path;
use std::process::Command;

use crate::bench::command::{command_stdout, run_time_ms, split_words};
use crate::bench::competitors::SOURCE;
use crate::bench::latency::{Collected, number_field, run_pmtest};
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome, WORK_DIR};
use crate::run;

const OVER_PM: &str = "MPICH over PM";
const OWN: &str = "MPICH (the same)";
const NS: (&str, Direction) = ("ns", Direction::LowerIsBetter);
const MESSAGES_PER_S: (&str, Direction) = ("messages/s", Direction::HigherIsBetter);
const MS: (&str, Direction) = ("ms", Direction::LowerIsBetter);

/// A measurement of the ping-pong.
struct Case {
    name: &'static str,
    args: &'static str,
    processes: u32,
    unit: (&'static str, Direction),
    sizes: &'static [u32],
    /// The target of the ratio to the same MPI over its own transports, for the first size.
    own_target: f64,
}

const CASES: [Case; 4] = [
    Case {
        name: "MPI one way",
        args: "latency 8 1024 65536 1048576",
        processes: 2,
        unit: NS,
        sizes: &[8, 1024, 65536, 1_048_576],
        own_target: 0.3,
    },
    Case {
        name: "MPI rate",
        args: "rate 8",
        processes: 2,
        unit: MESSAGES_PER_S,
        sizes: &[8],
        own_target: 1.0,
    },
    Case {
        name: "MPI allreduce",
        args: "allreduce 8 65536",
        processes: 2,
        unit: NS,
        sizes: &[8, 65536],
        own_target: 1.0,
    },
    Case {
        name: "MPI alltoall",
        args: "alltoall 8 65536",
        processes: 2,
        unit: NS,
        sizes: &[8, 65536],
        own_target: 1.0,
    },
];
/// Ranks of a program that only starts and ends.
const START_COUNTS: [u32; 3] = [2, 16, 64];

/// Messages, collectives and starts.
///
/// # Errors
/// If MPICH of PyPI is not there (`cargo xtask test` installs it), or a command failed.
pub fn mpi(bench: &Bench) -> BenchOutcome {
    let contenders = Contenders::find(bench)?;
    let mut rows = Vec::new();
    for case in &CASES {
        rows.extend(contenders.compare(bench, case)?);
    }
    for count in START_COUNTS {
        rows.extend(contenders.compare_starts(bench, count)?);
    }
    Ok(rows)
}

/// The ping-pong of MPICH of PyPI, and its launcher.
struct Contenders {
    program: String,
    mpiexec: String,
}

impl Contenders {
    fn find(bench: &Bench) -> Result<Self, String> {
        let folder = run::target_dir()?.join("mpich");
        if !folder.join(".complete").exists() {
            return Err(
                "MPICH of PyPI is not installed below the target folder: cargo xtask test \
                        does that"
                    .to_owned(),
            );
        }
        let (source, name) = (bench.work_dir.join("pingpong.c"), "pingpong.pypi-mpich");
        std::fs::write(&source, SOURCE)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        let mut mpicc = Command::new(folder.join("bin/mpicc"));
        mpicc.arg("-O2").arg("-o").arg(bench.work_dir.join(name)).arg(&source);
        run::run_checked(&mut mpicc)?;
        let program = Path::new(WORK_DIR).join(name).display().to_string();
        Ok(Self { program, mpiexec: folder.join("bin/mpiexec").display().to_string() })
    }

    fn over_pm(&self, processes: u32, args: &str) -> String {
        format!("scrun -nodes={processes},message=quiet {} {args}", self.program)
    }

    fn own(&self, processes: u32, args: &str) -> String {
        format!("{} -n {processes} {} {args}", self.mpiexec, self.program)
    }

    fn compare(&self, bench: &Bench, case: &Case) -> BenchOutcome {
        let mut collected = Collected::default();
        let over_pm = self.over_pm(case.processes, case.args);
        let mut commands = vec![
            (OVER_PM, over_pm.clone(), bench.command_words(&over_pm)),
            (OWN, self.own(case.processes, case.args), Vec::new()),
        ];
        for mpi in &bench.competitors.mpis {
            let line = mpi.pingpong_command(case.args);
            commands.extend(line.map(|line| (mpi.name, line, Vec::new())));
        }
        let pm_command = "scrun -nodes=2,message=quiet pmtest -latency -size 8 -rounds 10 -json";
        for round in 0..bench.round_count {
            bench.progress(case.name, round);
            for (name, line, words) in &commands {
                let words = if words.is_empty() { split_words(line) } else { words.clone() };
                for output_line in command_stdout(&words)?.lines() {
                    let values: Vec<f64> = output_line
                        .split_whitespace()
                        .filter_map(|word| word.parse().ok())
                        .collect();
                    if let [size, best, ..] = values[..] {
                        collected.add(name, size as u32, best, line);
                    }
                }
            }
            if case.args.starts_with("latency") {
                for line in run_pmtest(bench, pm_command)? {
                    let one_way_ns = number_field(&line, "one_way_ns_min")?;
                    collected.add("libpm", 8, one_way_ns, pm_command);
                }
            }
        }
        let rows = case.sizes.iter().enumerate().flat_map(|(index, size)| {
            let rows = collected.rows(case.name, case.unit, *size);
            with_comparisons(rows, if index == 0 { case.own_target } else { 1.0 })
        });
        Ok(rows.collect())
    }

    fn compare_starts(&self, bench: &Bench, processes: u32) -> BenchOutcome {
        let (over_pm, own) = (self.over_pm(processes, "start"), self.own(processes, "start"));
        let (mut over_pm_ms, mut own_ms) = (Vec::new(), Vec::new());
        for round in 0..=bench.round_count {
            bench.progress(&format!("start of {processes} ranks"), round);
            let times =
                (run_time_ms(&bench.command_words(&over_pm))?, run_time_ms(&split_words(&own))?);
            // The first round of each has cold caches.
            if round > 0 {
                over_pm_ms.push(times.0);
                own_ms.push(times.1);
            }
        }
        let case = format!("{processes} ranks");
        let row = |name, samples, line: &str| {
            BenchResult::new("MPI_Init to MPI_Finalize", &case, name, MS, samples, line)
        };
        let rows = vec![row(OVER_PM, over_pm_ms, &over_pm), row(OWN, own_ms, &own)];
        Ok(with_comparisons(rows, 1.0))
    }
}

/// Compares the first row with the others. Times are better if they are small, rates if they are
/// large.
fn with_comparisons(mut rows: Vec<BenchResult>, own_target: f64) -> Vec<BenchResult> {
    let Some((first, others)) = rows.split_first() else { return rows };
    let comparisons = others.iter().map(|other| {
        let target = match other.contender.as_str() {
            OWN => Some(own_target),
            "libpm" => Some(1.5),
            _ => Some(1.0),
        };
        Comparison::new(first, other, target)
    });
    let comparisons = comparisons.collect();
    rows[0].comparisons = comparisons;
    rows
}
