//! Compares MPI over PM with the same MPI over its own transports, with the system's MPIs, and with
//! PM alone.

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

/// A measurement with the ping-pong.
struct Case {
    name: &'static str,
    args: &'static str,
    processes: u32,
    unit: (&'static str, Direction),
    sizes: &'static [u32],
    /// The route of the messages.
    route: Route,
    targets: Targets,
}

/// The location of the processes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// All processes are on one host.
    Host,
    /// The processes are on two hosts. PM uses two virtual hosts, the other libraries use TCP.
    Network,
}

/// The targets of the ratios of a case.
#[derive(Clone, Copy)]
struct Targets {
    /// The target compared with the same library over its own transports.
    own: f64,
    /// The target that replaces `own` for MPICH at the first size.
    mpich: f64,
}

/// Targets that require at least the same speed.
const LEVEL: Targets = Targets { own: 1.0, mpich: 1.0 };

/// A measurement on one host. The tuple has the number of processes and the arguments.
const fn on_host(
    name: &'static str,
    (processes, args): (u32, &'static str),
    unit: (&'static str, Direction),
    sizes: &'static [u32],
    targets: Targets,
) -> Case {
    Case { name, args, processes, unit, sizes, route: Route::Host, targets }
}

const CASES: [Case; 10] = [
    on_host(
        "MPI one way",
        (2, "latency 8 1024 65536 1048576"),
        NS,
        &[8, 1024, 65536, 1_048_576],
        Targets { own: 1.0, mpich: 0.3 },
    ),
    on_host("MPI rate", (2, "rate 8 65536 4194304"), MESSAGES_PER_S, &[8, 65536, 4_194_304], LEVEL),
    on_host("MPI behind 1000 posted receives", (2, "posted 1000"), NS, &[8], BEHIND),
    on_host("MPI behind 1000 unexpected messages", (2, "unexpected 1000"), NS, &[8], BEHIND),
    on_host("MPI allreduce", (2, "allreduce 8 65536"), NS, &[8, 65536], LEVEL),
    on_host("MPI alltoall", (2, "alltoall 8 65536"), NS, &[8, 65536], LEVEL),
    on_host("MPI allreduce of 4", (4, "allreduce 8 65536"), NS, &[8, 65536], LEVEL),
    on_host("MPI alltoall of 4", (4, "alltoall 8 65536"), NS, &[8, 65536], LEVEL),
    Case {
        name: "MPI between hosts",
        args: "latency 8",
        processes: 2,
        unit: NS,
        sizes: &[8],
        route: Route::Network,
        targets: Targets { own: 0.8, mpich: 0.8 },
    },
    Case {
        name: "MPI rate between hosts",
        args: "rate 1048576",
        processes: 2,
        unit: MESSAGES_PER_S,
        sizes: &[1_048_576],
        route: Route::Network,
        targets: Targets { own: 1.2, mpich: 1.2 },
    },
];
const BEHIND: Targets = Targets { own: 1.2, mpich: 1.2 };
/// The ping-pong that calls libfabric directly.
const FI_SOURCE: &str = include_str!("fi_pingpong.c");
const PM_COMMAND: &str = "scrun -nodes=2,message=quiet pmtest -latency -size 8 -rounds 10 -json";
/// The numbers of ranks of a program that only starts and ends.
const START_COUNTS: [u32; 3] = [2, 16, 64];

// Promise (speed): `MPI_Init` to `MPI_Finalize` of MPICH and Open MPI, 2, 16 and 64 ranks: no
// slower than under their own launchers.
/// Measures messages, collectives and starts.
///
/// # Errors
/// Returns an error if MPICH of PyPI is not installed (`cargo xtask test` installs it), or a
/// command failed.
pub fn mpi(bench: &Bench) -> BenchOutcome {
    let contenders = find_contenders(bench)?;
    let mut rows = Vec::new();
    match compile_libfabric_pingpong(bench) {
        Ok(program) => rows.extend(compare_libfabric(bench, &program)?),
        Err(reason) => println!("  libfabric alone is not measured: {reason}"),
    }
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
    /// The ping-pong, compiled by the library's compiler.
    program: String,
    /// The command line of the library's launcher, in front of the number of processes.
    launcher: String,
    /// The command line of the launcher for messages over TCP.
    tcp_launcher: String,
}

impl Contender {
    /// The library in a virtual environment below the target directory.
    fn of_wheel(
        bench: &Bench,
        (folder, over_pm, own): (&str, &'static str, &'static str),
        (launcher, tcp_variables): (&str, &str),
    ) -> Result<Self, String> {
        let environment = run::target_dir()?.join(folder);
        if !environment.join(".complete").exists() {
            return Err(format!(
                "{}: not found; run cargo xtask test, which installs it",
                environment.display()
            ));
        }
        let name = format!("pingpong.pypi-{folder}");
        let program = compile(bench, &environment.join("bin/mpicc"), &name)?;
        let launcher = format!("{}/bin/{launcher}", environment.display());
        let tcp_launcher = format!("env {tcp_variables} {launcher}");
        let program = program.display().to_string();
        Ok(Self { over_pm, own, program, launcher, tcp_launcher })
    }

    fn over_pm_line(&self, route: Route, processes: u32, args: &str) -> String {
        let nodes = match route {
            Route::Host => format!("-nodes={processes}"),
            Route::Network => format!("-group=local:{processes},nodes={processes}x1"),
        };
        format!("scrun {nodes},message=quiet {} {args}", self.program)
    }

    fn own_line(&self, route: Route, processes: u32, args: &str) -> String {
        let launcher = match route {
            Route::Host => &self.launcher,
            Route::Network => &self.tcp_launcher,
        };
        format!("{launcher} {processes} {} {args}", self.program)
    }
}

/// Compiles the ping-pong. Returns its path relative to the top of the tree, as a user types it
/// there.
fn compile(bench: &Bench, compiler: &Path, name: &str) -> Result<PathBuf, String> {
    let source = bench.work_dir.join("pingpong.c");
    std::fs::write(&source, SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut command = Command::new(compiler);
    command.arg("-O2").arg("-o").arg(bench.work_dir.join(name)).arg(&source);
    run::run_checked(&mut command)?;
    Ok(Path::new(WORK_DIR).join(name))
}

/// MPICH, which is required, and each Open MPI that is installed.
fn find_contenders(bench: &Bench) -> Result<Vec<Contender>, String> {
    let mpich = ("mpich", "MPICH over PM", "MPICH (the same)");
    let open_mpi = ("openmpi", "Open MPI 5 over PM", "Open MPI 5 (the same)");
    // With these variables MPICH uses no shared memory, and the UCX of its wheel uses only TCP.
    let mpich_tcp = "MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_NETMOD=ucx UCX_TLS=tcp";
    let open_mpi_tcp = "OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self";
    let mut contenders = vec![Contender::of_wheel(bench, mpich, ("mpiexec -n", mpich_tcp))?];
    let mpirun = "mpirun --bind-to none --map-by :oversubscribe -n";
    match Contender::of_wheel(bench, open_mpi, (mpirun, open_mpi_tcp)) {
        Ok(contender) => contenders.push(contender),
        Err(reason) => println!("  Open MPI 5 is not measured: {reason}"),
    }
    let compiler = "mpicc.openmpi";
    if !builds_programs(&[compiler], &bench.work_dir) || !run::is_installed("mpiexec.openmpi") {
        println!("  Open MPI 4: skipped: no working {compiler}, or no mpiexec.openmpi");
    } else {
        let program = compile(bench, Path::new(compiler), "pingpong.mpicc.openmpi")?;
        let launcher = "mpiexec.openmpi --bind-to none --oversubscribe -n".to_owned();
        let tcp_launcher = format!("env {open_mpi_tcp} {launcher}");
        contenders.push(Contender {
            over_pm: "Open MPI 4 over PM",
            own: "Open MPI 4 (the same)",
            program: program.display().to_string(),
            launcher,
            tcp_launcher,
        });
    }
    Ok(contenders)
}

fn compare(bench: &Bench, contenders: &[Contender], case: &Case) -> BenchOutcome {
    let mut collected = Collected::default();
    let mut commands = Vec::new();
    for contender in contenders {
        let over_pm = contender.over_pm_line(case.route, case.processes, case.args);
        let words = bench.command_words(&over_pm);
        commands.push((contender.over_pm, over_pm, words));
        let own = contender.own_line(case.route, case.processes, case.args);
        let words = split_words(&own);
        commands.push((contender.own, own, words));
    }
    // Debian's MPICH does not use libfabric, so it is measured only for pairs on one host.
    let is_pair = case.processes == 2 && case.route == Route::Host;
    let debian = bench.competitors.mpis.iter().filter(|mpi| is_pair && mpi.name == "MPICH");
    for mpi in debian {
        let line = mpi.pingpong_command(case.args);
        let command = line.map(|line| ("MPICH 4", line.clone(), split_words(&line)));
        commands.extend(command);
    }
    let pm_command = PM_COMMAND;
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
        if case.args.starts_with("latency") && is_pair {
            for line in run_pmtest(bench, pm_command)? {
                let one_way_ns = number_field(&line, "one_way_ns_min")?;
                collected.add("libpm", 8, one_way_ns, pm_command);
            }
        }
    }
    let rows = case.sizes.iter().enumerate().flat_map(|(index, size)| {
        let rows = collected.rows(case.name, case.unit, *size);
        let Targets { own, mpich } = case.targets;
        with_comparisons(
            rows,
            contenders,
            Targets { own, mpich: if index == 0 { mpich } else { own } },
        )
    });
    Ok(rows.collect())
}

/// Compares 8 bytes through libfabric with libpm alone.
fn compare_libfabric(bench: &Bench, program: &Path) -> BenchOutcome {
    let folder = bench.program_dir.join("libfabric");
    let line = |mode: &str| {
        format!("scrun -nodes=2,message=quiet -mpi=none {} {mode} 8", program.display())
    };
    let variables = ["FI_PROVIDER=pm".to_owned(), format!("FI_PROVIDER_PATH={}", folder.display())];
    let measure = |mode: &str| {
        let words = [vec!["env".to_owned()], variables.to_vec(), bench.command_words(&line(mode))];
        let output = command_stdout(&words.concat())?;
        let value = output.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        value.ok_or_else(|| format!("{}: prints no number", line(mode)))
    };
    let (mut latencies, mut rates) = (Collected::default(), Collected::default());
    for round in 0..bench.round_count {
        bench.progress("libfabric alone", round);
        latencies.add("libfabric over PM", 8, measure("latency")?, &line("latency"));
        for output in run_pmtest(bench, PM_COMMAND)? {
            latencies.add("libpm", 8, number_field(&output, "one_way_ns_min")?, PM_COMMAND);
        }
        rates.add("libfabric over PM", 8, measure("rate")?, &line("rate"));
    }
    let mut rows = latencies.rows("libfabric one way", NS, 8);
    let comparison = Comparison::new(&rows[0], &rows[1], Some(1.5));
    rows[0].comparisons.push(comparison);
    rows.extend(rates.rows("libfabric rate", MESSAGES_PER_S, 8));
    Ok(rows)
}

fn compile_libfabric_pingpong(bench: &Bench) -> Result<PathBuf, String> {
    let target = run::target_dir()?;
    let prefixes = [target.join("testbeds/usr"), PathBuf::from("/usr")];
    let Some(prefix) = prefixes.iter().find(|prefix| prefix.join("include/rdma/fabric.h").exists())
    else {
        return Err("libfabric-dev is neither installed nor unpacked (cargo xtask test)".into());
    };
    // The wheel of MPICH contains its own libfabric.
    let library = target.join("mpich/lib/mpich");
    let (source, name) = (bench.work_dir.join("fi_pingpong.c"), "fi_pingpong.bench");
    std::fs::write(&source, FI_SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-o"]).arg(bench.work_dir.join(name)).arg(&source);
    gcc.arg("-I").arg(prefix.join("include")).arg("-L").arg(&library);
    gcc.arg("-l:libfabric.so.1").arg(format!("-Wl,-rpath,{}", library.display()));
    run::run_checked(&mut gcc)?;
    Ok(Path::new(WORK_DIR).join(name))
}

fn compare_starts(bench: &Bench, contenders: &[Contender], processes: u32) -> BenchOutcome {
    let mut commands = Vec::new();
    for contender in contenders {
        let (over_pm, own) = (
            contender.over_pm_line(Route::Host, processes, "start"),
            contender.own_line(Route::Host, processes, "start"),
        );
        let (pm_words, own_words) = (bench.command_words(&over_pm), split_words(&own));
        commands.push((contender.over_pm, over_pm, pm_words, Vec::new()));
        commands.push((contender.own, own, own_words, Vec::new()));
    }
    for round in 0..=bench.round_count {
        bench.progress(&format!("start of {processes} ranks"), round);
        for (_, _, words, samples) in &mut commands {
            let time_ms = run_time_ms(words)?;
            // The first round of each contender has cold caches.
            if round > 0 {
                samples.push(time_ms);
            }
        }
    }
    let case = format!("{processes} ranks");
    let rows = commands.into_iter().map(|(name, line, _, samples)| {
        BenchResult::new("MPI_Init to MPI_Finalize", &case, name, MS, samples, &line)
    });
    Ok(with_comparisons(rows.collect(), contenders, LEVEL))
}

/// Compares each library over PM with the same library over its own transports. Also compares MPICH
/// over PM with all rows that are not over PM.
fn with_comparisons(
    mut rows: Vec<BenchResult>,
    contenders: &[Contender],
    targets: Targets,
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
                own if own == mpich.own => targets.mpich,
                own if own == contender.own => targets.own,
                // libpm is the floor.
                "libpm" => return Comparison::new(row, other, None),
                _ => 1.0,
            };
            Comparison::new(row, other, Some(target))
        });
        row.comparisons = comparisons.collect();
    }
    rows
}
