//! The soak: starts jobs, kills them and floods them with messages, for as long as requested. A
//! seed repeats a run. `cargo xtask soak` runs this program.
#![forbid(unsafe_code)]

mod deadlock;
mod gang;
mod kill;
mod memory;
mod messages;
mod mpi;
mod mpi_deadlock;
mod random;
mod random_tool;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use score_tests::TestEnv;

const USAGE: &str = "\
usage: cargo xtask soak [kill|messages|memory|deadlock|gang|tools] [-count N] [-minutes N] [-seed S]
       [-quick] [-rdma]

  kill      sends SIGKILL at random moments to random victims (a node, the shepherd, scored, scrun)
            of short jobs of random shape; after each, nothing may be left (10,000 jobs)
  messages  random sizes, senders and kills; every byte, order and count is checked (3 minutes)
  memory    regions that change under remote writes and reads, in short slices; memory around
            them, or no longer locked, stays unchanged (3 minutes; needs root)
  deadlock  random patterns of communication: each deadlock is reported, and no other pattern;
            some are programs of MPI in time slices (3 minutes)
  gang      checked messages, and a pipeline, in jobs that take turns in short slices: 100,000
            stops (needs root)
  tools     tools that attach, stop, step and are killed at random, in two jobs that take turns in
            slices of 10 ms and check their messages (3 minutes; needs root)
  mutants PACKAGE  alone: finds changes of a package that its tests do not notice
  mpi ...   alone: runs programs of MPI, compared with their own launchers (mpi -help)
  machines  alone: time slices on two virtual machines at once, and a lost machine
  -count N  number of jobs, stops or tools     -minutes N  time limit
  -quick    a short run, as in every test run
  -rdma     only for memory: over a soft RDMA adapter, in the virtual machine
  -seed S   repeats a run: job I of seed S is job 0 of seed S + I

Without a kind, the first six kinds run.
";

/// The length of the run, and its first seed.
pub struct SoakOptions {
    /// The maximum number of jobs.
    pub count: u64,
    /// The maximum run time.
    pub time_limit: Option<Duration>,
    /// The seed of the first job.
    pub seed: u64,
    /// Whether jobs use an RDMA adapter.
    pub rdma: bool,
    started_at: Instant,
}

impl SoakOptions {
    /// Whether there is time left.
    pub fn is_within_time(&self) -> bool {
        self.time_limit.is_none_or(|limit| self.started_at.elapsed() < limit)
    }

    /// The numbers and seeds of the jobs to run, one after the other, until the count or the time
    /// is used up.
    pub fn seeds(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.count)
            .take_while(|_| self.is_within_time())
            .map(|index| (index, self.seed.wrapping_add(index)))
    }
}

/// Copies a test program so that every user may run it, wherever the build is. Returns the path of
/// the copy. Without a C compiler, returns `None` and prints a line.
fn copy_program_for_users(
    env: &TestEnv,
    kind: &str,
    name: &str,
) -> Result<Option<PathBuf>, String> {
    let Some(built) = env.test_program(name) else {
        println!("{kind}: skipped, no C compiler");
        return Ok(None);
    };
    let program = env.dir().join(name);
    std::fs::copy(&built, &program).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(Some(program))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, options @ ..] = &args[..]
        && kind == "mpi"
    {
        return match mpi::run(options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("soak mpi: {error}");
                ExitCode::FAILURE
            }
        };
    }
    if let [kind, options @ ..] = &args[..]
        && kind == random_tool::COMMAND
    {
        return random_tool::run(options);
    }
    if args.iter().any(|arg| arg.trim_start_matches('-') == "help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (kinds, options_for) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprint!("soak: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    for kind in kinds {
        let soak_options = options_for(&kind);
        let result = match kind.as_str() {
            "kill" => kill::run(&soak_options),
            "gang" => gang::run(&soak_options),
            "deadlock" => deadlock::run(&soak_options),
            "memory" => memory::run(&soak_options),
            "tools" => tools::run(&soak_options),
            _ => messages::run(&soak_options),
        };
        if let Err(error) = result {
            eprintln!("soak {kind}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Returns the kinds of soak to run, and a function that returns the options of one kind.
fn parse(args: &[String]) -> Result<(Vec<String>, impl Fn(&str) -> SoakOptions), String> {
    let (mut kinds, mut count, mut minutes, mut seed) = (vec![], None, None, None);
    let (mut quick, mut rdma) = (false, false);
    let mut remaining = args.iter();
    while let Some(arg) = remaining.next() {
        let mut next_number = || -> Result<u64, String> {
            let text = remaining.next().ok_or(format!("{arg} needs a number"))?;
            text.parse().map_err(|_| format!("{arg} {text}: not a number"))
        };
        match arg.as_str() {
            "kill" | "messages" | "memory" | "deadlock" | "gang" | "tools" => {
                kinds.push(arg.clone());
            }
            "-count" => count = Some(next_number()?),
            "-minutes" => minutes = Some(next_number()?),
            "-seed" => seed = Some(next_number()?),
            "-quick" => quick = true,
            "-rdma" => rdma = true,
            _ => return Err(format!("unknown argument {arg:?}")),
        }
    }
    if rdma && kinds != ["memory"] {
        return Err("-rdma: only memory can use it".to_owned());
    }
    if kinds.is_empty() {
        let all = ["kill", "messages", "memory", "deadlock", "gang", "tools"];
        kinds = all.map(String::from).into();
    }
    #[expect(clippy::disallowed_methods, reason = "each run has another seed")]
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = seed.unwrap_or(clock.map_or(1, |elapsed| elapsed.as_secs()));
    let options_for = move |kind: &str| {
        let (full_count, quick_count) = match kind {
            "kill" => (10_000, 60),
            "gang" => (100_000, 2_000),
            "deadlock" => (u64::MAX, 40),
            "memory" => (u64::MAX, 9),
            "tools" => (u64::MAX, 20),
            _ => (u64::MAX, 8),
        };
        let count = count.unwrap_or(match (minutes, quick) {
            (Some(_), _) => u64::MAX,
            (None, true) => quick_count,
            (None, false) => full_count,
        });
        let minutes = minutes.or((count == u64::MAX).then_some(3));
        let time_limit = minutes.map(|minutes| Duration::from_secs(minutes * 60));
        SoakOptions { count, time_limit, seed, rdma, started_at: Instant::now() }
    };
    Ok((kinds, options_for))
}
