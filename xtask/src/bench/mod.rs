//! `cargo xtask bench`: checks the speed targets, and measures other libraries in the same run. On
//! a shared machine absolute values change from hour to hour. Therefore rounds are interleaved, and
//! results are ratios with their ranges.

mod command;
mod competitors;
mod daemon;
mod ethernet;
mod gang;
mod hosts;
mod jobs;
mod latency;
mod launch;
mod message_cost;
mod mpi;
mod processes;
mod remote;
mod report;
mod stacks;
mod svg_chart;
mod tools;
mod verbs;

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bench::command::split_words;
use crate::bench::competitors::Competitors;
use crate::bench::report::{
    BenchResult, format_csv, format_markdown, format_table, update_sections,
};
use crate::run;

const USAGE: &str = "\
usage: cargo xtask bench [-quick] [-table] [-rounds N] [-seconds N] [-mib N] [NAME...]

  latency         8 B, 64 B, 1 KiB, 4 KiB one way; also of the floor, Open MPI, MPICH and UCX
  rate            messages of 8 B per second; also of Open MPI, MPICH and UCX
  silent          latency of 2 processes, alone and among 62 silent ones
  launch          4 and 256 x true: scrun, mpiexec, and a bare spawn-and-wait
  oversubscribed  round trips per second of 4 pairs on 2 cores
  ethernet        wires and device, TCP and iperf3, loss, two links, composite (needs root)
  hosts-launch    2 to 64 virtual hosts: from the last namespace to the start barrier
  idle            processor time of the daemons of 64 idle virtual hosts, for -seconds (60)
  scatter         -mib (256) MiB to 8 and to 2 hosts on links of 200 Mbit/s (needs namespaces)
  jobs            jobs of `true` per second: 4 in flight, one scrun each, a bare loop
  gang            two jobs in time slices on two cores, and under plain Linux; shares, switches,
                  deadlocks (needs root)
  daemon          requests, turns of the loop and switches of one user during attacks of another;
                  memory of idle logins (needs root)
  remote          puts of 8 B, the floor, UCX and MPI_Put; 4 MiB, memcpy and the kernel
  mpi             messages, collectives and starts of MPICH and Open MPI over PM, and over their
                  own transports
  verbs           RDMA and perftest, and hits and misses of the pin-down cache, in the virtual
                  machine (emulated)
  stacks          stacks of 64 processes of 1 and 8 threads; also eu-stack and gdb
  tools           launch under a debugger, stacks of 64 ranks, memory through tool control
  proof           system calls and instructions of a message (strace, callgrind)

Without a NAME, all of them run. Results go to bench-results/ as text, CSV and SVG. -quick runs two
rounds. -table also writes the results to docs/benchmarks.md, where they replace earlier ones.
HARNESS_BIN_DIR names a directory with finished programs. No other program should run on the machine
meanwhile.
";

/// The directory for compiled programs and traces, relative to the top of the tree.
const WORK_DIR: &str = "bench-results/programs";

/// The document with the results.
const DOCUMENT: &str = "docs/benchmarks.md";

/// The rows of one measurement.
type BenchOutcome = Result<Vec<BenchResult>, String>;
type Measurement = fn(&Bench) -> BenchOutcome;

const BENCHMARKS: [(&str, Measurement); 18] = [
    ("latency", latency::latency),
    ("rate", latency::rate),
    ("silent", latency::silent),
    ("launch", launch::launch),
    ("oversubscribed", latency::oversubscribed),
    ("ethernet", ethernet::ethernet),
    ("hosts-launch", hosts::launch),
    ("idle", hosts::idle),
    ("scatter", hosts::scatter),
    ("jobs", jobs::jobs),
    ("gang", gang::gang),
    ("daemon", daemon::daemon),
    ("remote", remote::remote),
    ("mpi", mpi::mpi),
    ("verbs", verbs::verbs),
    ("stacks", stacks::stacks),
    ("tools", tools::tools),
    ("proof", message_cost::proof),
];

/// The input of each measurement.
pub struct Bench {
    program_dir: PathBuf,
    work_dir: PathBuf,
    competitors: Competitors,
    round_count: u32,
    /// How long the bench observes idle hosts.
    window: Duration,
    /// The MiB that `scatter` distributes.
    scatter_mib: u32,
    cores: [u32; 2],
}

impl Bench {
    /// The words of a command line of this project, with the full path of the program in this
    /// build.
    fn command_words(&self, line: &str) -> Vec<String> {
        let mut words = split_words(line);
        if let Some(program) = words.first_mut() {
            *program = self.program_dir.join(&*program).to_string_lossy().into_owned();
        }
        words
    }

    fn progress(&self, label: &str, round: u32) {
        println!("  {label}: round {}", round + 1);
    }
}

/// Runs the selected measurements.
///
/// # Errors
/// One line for each measurement that failed.
pub fn run(args: &[String]) -> Result<(), String> {
    let mut parameters =
        BenchParameters { round_count: 7, window_s: 60, scatter_mib: 256, is_documented: false };
    let mut selected = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-quick" | "--quick" => {
                (parameters.round_count, parameters.window_s) = (2, 20);
                parameters.scatter_mib = 64;
            }
            "-table" | "--table" => parameters.is_documented = true,
            // The minimum is two rounds, because the first launch only warms caches.
            "-rounds" => parameters.round_count = number(word, words.next(), 2)?,
            "-seconds" => parameters.window_s = number(word, words.next(), 1)?,
            "-mib" => parameters.scatter_mib = number(word, words.next(), 1)?,
            "-help" | "--help" | "-h" => {
                print!("{USAGE}");
                return Ok(());
            }
            "-spawn-and-wait" => {
                return launch::spawn_and_wait(
                    words.next().ok_or("-spawn-and-wait needs a number")?,
                );
            }
            name => {
                let entry = BENCHMARKS.iter().find(|(known, _)| *known == name);
                let (_, bench) = entry.ok_or_else(|| {
                    let names = BENCHMARKS.map(|(name, _)| name).join(", ");
                    format!("unknown measurement {name:?} (valid: {names})")
                })?;
                selected.push((name, *bench));
            }
        }
    }
    if selected.is_empty() {
        selected = BENCHMARKS.to_vec();
    }
    measure(&parameters, &selected)
}

/// The extent of the measurements.
struct BenchParameters {
    round_count: u32,
    window_s: u32,
    scatter_mib: u32,
    /// Whether the results are written to [`DOCUMENT`].
    is_documented: bool,
}

fn number(option: &str, word: Option<&String>, min: u32) -> Result<u32, String> {
    let count = word.and_then(|count| count.parse().ok()).filter(|count| *count >= min);
    count.ok_or_else(|| format!("{option}: needs a number of at least {min}"))
}

fn measure(parameters: &BenchParameters, selected: &[(&str, Measurement)]) -> Result<(), String> {
    let program_dir = match std::env::var_os("HARNESS_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => {
            println!("building (cargo build --release)");
            run::build_release()?
        }
    };
    let results_dir = run::source_root().join("bench-results");
    std::fs::create_dir_all(&results_dir)
        .map_err(|error| format!("{}: {error}", results_dir.display()))?;
    let work_dir = run::source_root().join(WORK_DIR);
    std::fs::create_dir_all(&work_dir)
        .map_err(|error| format!("{}: {error}", work_dir.display()))?;
    let competitors = Competitors::find(&work_dir);
    let BenchParameters { round_count, window_s, scatter_mib, is_documented } = *parameters;
    let window = Duration::from_secs(u64::from(window_s));
    let cores = first_two_cores()?;
    let bench =
        Bench { program_dir, work_dir, competitors, round_count, window, scatter_mib, cores };
    let header = report_header(&bench);
    println!("{header}");
    let (mut rows, mut errors, mut sections) = (Vec::new(), Vec::new(), Vec::new());
    for (name, measurement) in selected {
        match measurement(&bench) {
            Ok(results) => {
                sections.push((*name, section(&header, &results)));
                rows.extend(results);
            }
            // After a failed measurement the others still run. The failure is reported at the end.
            Err(error) => errors.push(format!("{name}: {error}")),
        }
    }
    let text = format!("{header}\n{}", format_table(&rows));
    println!("{}", format_table(&rows));
    #[expect(clippy::disallowed_methods, reason = "the date of the report")]
    let timestamp_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    for (extension, content) in
        [("txt", text), ("csv", format_csv(&rows)), ("svg", svg_chart::bar_chart(&rows, &header))]
    {
        let path = results_dir.join(format!("bench-{timestamp_s}.{extension}"));
        std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("written: {}", path.display());
    }
    if is_documented {
        update_document(&sections)?;
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// The section of a measurement in the document: machine and date, and the table.
fn section(header: &str, rows: &[BenchResult]) -> String {
    let date = std::process::Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let machine = header.replace('\n', "\n- ");
    format!("- {}: {machine}\n\n{}", date.unwrap_or_default(), format_markdown(rows))
}

/// Writes the sections of the measurements of this run to the document.
fn update_document(sections: &[(&str, String)]) -> Result<(), String> {
    let path = run::source_root().join(DOCUMENT);
    let old = std::fs::read_to_string(&path).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let text = update_sections(&old, sections, &BENCHMARKS.map(|(name, _)| name));
    std::fs::write(&path, text).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    println!("written: {}", path.display());
    Ok(())
}

/// Describes the machine and the other libraries.
fn report_header(bench: &Bench) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let machine = format!(
        "{}, {} processors, kernel {}",
        model.trim_start_matches([' ', '\t', ':']),
        info.matches("model name").count(),
        kernel.split(['-', '\n']).next().unwrap_or_default(),
    );
    let load = load.split(' ').next().unwrap_or_default();
    let mut lines = vec![machine, format!("{} rounds, load {load}", bench.round_count)];
    lines.extend(bench.competitors.version_lines.iter().cloned());
    lines.join("\n")
}

/// The first two processors that this process may use, on which pmtest and the other libraries run.
fn first_two_cores() -> Result<[u32; 2], String> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("/proc/self/status: {error}"))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let mut cores = list.unwrap_or_default().trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |word: &str| word.parse::<u32>().unwrap_or(0);
        number(first)..=number(last)
    });
    match (cores.next(), cores.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => Err("needs two processors".into()),
    }
}
