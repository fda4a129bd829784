//! The soak: jobs started, killed and flooded for as long as one likes, with a seed that replays.
//! Started by `cargo xtask soak`.
#![forbid(unsafe_code)]

mod deadlock;
mod gang;
mod kill;
mod memory;
mod messages;
mod random;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use score_tests::Scene;

const USAGE: &str = "\
usage: cargo xtask soak [kill|messages|memory|deadlock|gang] [-count N] [-minutes N] [-seed S]
       [-quick] [-rdma]

  kill      SIGKILLs at random moments of random victims (a node, the shepherd, scored, scrun) of
            short jobs of random shape; after each, nothing may be left (10,000 by default)
  messages  random sizes, senders and kills; every byte, order and count is checked (3 minutes)
  memory    regions that change under remote writes and reads, in short slices; what is around
            them, or no longer locked, stays as it was (3 minutes; needs root)
  deadlock  random patterns of communication: none that goes on is called deadlocked, each that does
            not is (3 minutes)
  gang      the same messages, and a pipeline, in jobs that take turns in short slices: 100,000
            stops (needs root)
  machines  alone: time slices on two virtual machines at once, and one that is lost
  -count N  that many jobs, or stops        -minutes N  for so long
  -quick    a taste, for every test run
  -rdma     memory alone: over a soft RDMA adapter, in the virtual machine
  -seed S   replays: job I of seed S is job 0 of seed S + I

without a kind: all
";

/// How long to go on, and from which seed.
pub struct Plan {
    /// At most so many jobs.
    pub count: u64,
    /// At most so long.
    pub limit: Option<Duration>,
    /// Seed of the first job.
    pub seed: u64,
    /// Jobs use an RDMA adapter.
    pub rdma: bool,
    begin: Instant,
}

impl Plan {
    /// The seeds of the jobs to run, one after the other, until count or time is used up.
    pub fn seeds(&self) -> impl Iterator<Item = (u64, u64)> {
        let more = |_: &u64| self.limit.is_none_or(|limit| self.begin.elapsed() < limit);
        (0..self.count).take_while(more).map(|index| (index, self.seed.wrapping_add(index)))
    }
}

/// A test program where every user may run it, wherever the build is. None, and a line: there is no
/// C compiler.
fn for_every_user(scene: &Scene, kind: &str, name: &str) -> Result<Option<PathBuf>, String> {
    let Some(built) = scene.program(name) else {
        println!("{kind}: skipped, no C compiler");
        return Ok(None);
    };
    let program = scene.dir().join(name);
    std::fs::copy(&built, &program).map_err(|error| format!("{}: {error}", built.display()))?;
    Ok(Some(program))
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg.trim_start_matches('-') == "help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (kinds, plan) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(fault) => {
            eprint!("soak: {fault}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    for kind in kinds {
        let plan = plan(&kind);
        let done = match kind.as_str() {
            "kill" => kill::run(&plan),
            "gang" => gang::run(&plan),
            "deadlock" => deadlock::run(&plan),
            "memory" => memory::run(&plan),
            _ => messages::run(&plan),
        };
        if let Err(fault) = done {
            eprintln!("soak {kind}: {fault}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The kinds to run, and what gives the plan for one of them.
fn parse(args: &[String]) -> Result<(Vec<String>, impl Fn(&str) -> Plan), String> {
    let (mut kinds, mut count, mut minutes, mut seed) = (vec![], None, None, None);
    let (mut quick, mut rdma) = (false, false);
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or(format!("{word} needs a number"))?;
            text.parse().map_err(|_| format!("{word} {text}: no number"))
        };
        match word.as_str() {
            "kill" | "messages" | "memory" | "deadlock" | "gang" => kinds.push(word.clone()),
            "-count" => count = Some(number()?),
            "-minutes" => minutes = Some(number()?),
            "-seed" => seed = Some(number()?),
            "-quick" => quick = true,
            "-rdma" => rdma = true,
            _ => return Err(format!("what is {word:?}?")),
        }
    }
    if rdma && kinds != ["memory"] {
        return Err("-rdma is for memory alone".to_owned());
    }
    if kinds.is_empty() {
        kinds = ["kill", "messages", "memory", "deadlock", "gang"].map(String::from).into();
    }
    #[expect(clippy::disallowed_methods, reason = "another seed at each time")]
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = seed.unwrap_or(clock.map_or(1, |since| since.as_secs()));
    let plan = move |kind: &str| {
        let (usual, taste) = match kind {
            "kill" => (10_000, 60),
            "gang" => (100_000, 2_000),
            "deadlock" => (u64::MAX, 40),
            "memory" => (u64::MAX, 9),
            _ => (u64::MAX, 8),
        };
        let count = count.unwrap_or(match (minutes, quick) {
            (Some(_), _) => u64::MAX,
            (None, true) => taste,
            (None, false) => usual,
        });
        let minutes = minutes.or((count == u64::MAX).then_some(3));
        let limit = minutes.map(|minutes| Duration::from_secs(minutes * 60));
        Plan { count, limit, seed, rdma, begin: Instant::now() }
    };
    Ok((kinds, plan))
}
