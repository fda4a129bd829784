//! Runs tools that attach to the processes of two jobs, stop them, step them, and are killed at
//! random. Meanwhile the jobs take turns in slices of 10 ms and check each message
//! (tests/programs/traffic.c). The tools must not affect a job: each message arrives once,
//! unchanged and in order, and the job ends by itself.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::test_env::is_installed;
use score_tests::{Job, Running, TestEnv};

use crate::SoakOptions;
use crate::random::Random;
use crate::random_tool::{self, ATTACHED, DEEDS, EXIT_CLOSED};

/// The number of nodes of a job, and of processors.
const NODES: usize = 2;
/// The maximum number of tools of a job at the same time. The service serves four.
const MAX_TOOLS: usize = 3;
/// Time limit of a job. Only a job that a tool has left stopped exceeds it.
const JOB_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit of a tool. Before that, each tool is killed or ends by itself.
const TOOL_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum time after which a tool is killed.
const TOOL_TTL: Duration = Duration::from_secs(2);
/// How long processes of a job may exist after its end.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// The exit code of a program of this project that reports why it cannot continue.
const EXIT_REFUSED: i32 = 1;

/// The environment variable that contains the directory of a job.
const JOB_DIRECTORY_ENV: &str = "SCORE_JOB_DIR=";

/// The commands for the console.
const CONSOLE_SCRIPT: &str = "where\nthreads\nhold\nwhere\nrelease\n";
/// The commands for gdb, after it has connected.
const GDB_SCRIPT: &str =
    "info threads\nbt\nstepi 50\nx/4i $pc\ntbreak pmReceive\ncontinue\ndetach\n";

/// The programs that attach to jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Client {
    RandomTool,
    Stacks,
    Console,
    Gdb,
}

impl Client {
    fn name(self) -> &'static str {
        match self {
            Self::RandomTool => "random tools",
            Self::Stacks => "scdb stacks",
            Self::Console => "consoles",
            Self::Gdb => "gdb",
        }
    }

    fn choose(random: &mut Random, has_gdb: bool) -> Self {
        match random.below(10) {
            0..6 => Self::RandomTool,
            6 | 7 => Self::Stacks,
            8 if has_gdb => Self::Gdb,
            _ => Self::Console,
        }
    }
}

/// Statistics of the run.
#[derive(Default)]
struct ToolStats {
    jobs: u64,
    messages: u64,
    started: BTreeMap<Client, u64>,
    killed: u64,
    refused: u64,
    deeds: BTreeMap<char, u64>,
}

impl ToolStats {
    fn tool_count(&self) -> u64 {
        self.started.values().sum()
    }

    fn describe(&self) -> String {
        let started =
            self.started.iter().map(|(client, count)| format!("{count} {}", client.name()));
        let deeds = DEEDS.iter().map(|(letter, name)| {
            format!("{} {name}", self.deeds.get(letter).copied().unwrap_or_default())
        });
        format!(
            "{} jobs, {} messages in order; {}; {} killed, {} refused; {}",
            self.jobs,
            self.messages,
            started.collect::<Vec<_>>().join(", "),
            self.killed,
            self.refused,
            deeds.collect::<Vec<_>>().join(", ")
        )
    }
}

/// A running tool.
struct RunningTool {
    client: Client,
    running: Running,
    started_at: Instant,
    killed_after: Duration,
    is_killed: bool,
}

/// A job and its tools.
struct TooledJob {
    uid: u32,
    running: Running,
    messages: u64,
    /// The job's number, once scrun has printed it.
    number: Option<String>,
    /// The arguments in the command lines of the job's processes.
    arguments: String,
    tools: Vec<RunningTool>,
    /// The time at which a tool detected that the job ends.
    closed_at: Option<Instant>,
}

/// Programs and files that all jobs use.
struct Workshop<'a> {
    env: &'a TestEnv,
    cluster: Cluster<'a>,
    traffic: PathBuf,
    /// A copy of this program that every user may run.
    soak: PathBuf,
    has_gdb: bool,
}

/// Runs the soak. Its count is the number of tools.
///
/// # Errors
/// Returns an error if a message was lost, altered or out of order, if a job did not end, or a tool
/// failed.
pub fn run(soak_options: &SoakOptions) -> Result<(), String> {
    let env = TestEnv::new();
    let Some(traffic) = crate::copy_program_for_users(&env, "tools", "traffic")? else {
        return Ok(());
    };
    let database = "a address=127.0.0.1 cores=2 group=all\n";
    let Some(cluster) = Cluster::start_with_options(&env, &["a"], database, &["-ts", "10"]) else {
        return Ok(());
    };
    for name in ["scored-toolctl", "scdb"] {
        cluster.program(name);
    }
    env.write_file("console.script", CONSOLE_SCRIPT);
    let soak = env.dir().join("soak");
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    fs::copy(&program, &soak).map_err(|error| format!("{}: {error}", program.display()))?;
    let workshop = Workshop { env: &env, cluster, traffic, soak, has_gdb: is_installed("gdb") };
    let mut stats = ToolStats::default();
    let result = workshop.keep_running(soak_options, &mut stats);
    println!("\rtools: {}", stats.describe());
    let result = result.and_then(|()| match stats.deeds.contains_key(&ATTACHED) {
        true => Ok(()),
        false => Err("no tool has attached".to_owned()),
    });
    result.map_err(|text| {
        env.ignore_leftovers();
        format!("{text}\nagain: cargo xtask soak tools -seed {}", soak_options.seed)
    })
}

impl Workshop<'_> {
    fn keep_running(
        &self,
        soak_options: &SoakOptions,
        stats: &mut ToolStats,
    ) -> Result<(), String> {
        let random = &mut Random(soak_options.seed);
        let mut jobs: Vec<TooledJob> = Vec::new();
        loop {
            let goes_on = stats.tool_count() < soak_options.count && soak_options.is_within_time();
            for uid in [ALICE, BOB] {
                if goes_on && jobs.iter().all(|job| job.uid != uid) {
                    jobs.push(self.start_job(uid, random, soak_options.count));
                }
            }
            if jobs.is_empty() {
                return self.wait_for_services();
            }
            let mut index = 0;
            while index < jobs.len() {
                let job = &mut jobs[index];
                self.look_after(job, goes_on, random, stats)?;
                if job.running.has_ended() {
                    check_job(jobs.remove(index), stats)?;
                    print!("\rtools: {} tools, {}   ", stats.tool_count(), stats.describe());
                    let _ = std::io::stdout().flush();
                } else {
                    index += 1;
                }
            }
            sleep(Duration::from_millis(2));
        }
    }

    fn start_job(&self, uid: u32, random: &mut Random, tools: u64) -> TooledJob {
        // A short run needs only short jobs.
        let base = if tools < 1000 { 200_000 } else { 1_000_000 };
        let count = base + random.below(base);
        let block = if random.below(3) == 0 { "block" } else { "spin" };
        let arguments = format!("{count} {} {block}", random.next() % 1_000_000_000);
        let job = self.cluster.command(uid, "scrun", "a");
        let job = job.args(&[&format!("-scored=all,nodes={NODES}"), path_text(&self.traffic)]);
        let words: Vec<&str> = arguments.split(' ').collect();
        let running = job.args(&words).timeout(JOB_TIMEOUT).start();
        let messages = (count * NODES) as u64;
        TooledJob {
            uid,
            running,
            messages,
            number: None,
            arguments,
            tools: Vec::new(),
            closed_at: None,
        }
    }

    /// Starts a tool of a job, kills the tools whose time limit has passed, and reads the output of
    /// the others.
    fn look_after(
        &self,
        job: &mut TooledJob,
        goes_on: bool,
        random: &mut Random,
        stats: &mut ToolStats,
    ) -> Result<(), String> {
        if job.number.is_none() {
            let line = job.running.stderr();
            let number = line.split("job ").nth(1).and_then(|rest| rest.split(':').next());
            job.number = number.map(str::to_owned);
        }
        if goes_on
            && job.tools.len() < MAX_TOOLS
            && random.below(20) == 0
            && let Some(tool) = self.start_tool(job, random)
        {
            *stats.started.entry(tool.client).or_default() += 1;
            job.tools.push(tool);
        }
        for mut tool in std::mem::take(&mut job.tools) {
            if tool.running.has_ended() {
                if tool.check(stats)? == i32::from(EXIT_CLOSED) {
                    job.closed_at.get_or_insert_with(Instant::now);
                }
                continue;
            }
            if !tool.is_killed && tool.started_at.elapsed() > tool.killed_after {
                tool.running.signal(Signal::SIGKILL);
                tool.is_killed = true;
                stats.killed += 1;
            }
            job.tools.push(tool);
        }
        match job.closed_at {
            Some(closed_at) if closed_at.elapsed() > CLEANUP_TIMEOUT => {
                job.running.kill_all();
                Err("the connection of a tool was closed, and the job goes on".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn start_tool(&self, job: &TooledJob, random: &mut Random) -> Option<RunningTool> {
        let number = job.number.as_deref()?;
        let client = Client::choose(random, self.has_gdb);
        let command = match client {
            Client::RandomTool => self.random_tool(job, number, random)?,
            Client::Stacks => self.cluster.command(job.uid, "scdb", "a").args(&[number, "stacks"]),
            Client::Console => {
                let script = self.env.dir().join("console.script");
                let words = [number, "-batch", path_text(&script)];
                self.cluster.command(job.uid, "scdb", "a").args(&words)
            }
            Client::Gdb => self.gdb(job, number, random),
        };
        // Most tools are killed. A tool that ends by itself earlier has finished its work.
        let killed_after = TOOL_TTL.mul_f64(random.below(1000) as f64 / 1000.0);
        Some(RunningTool {
            client,
            running: command.timeout(TOOL_TIMEOUT).start(),
            started_at: Instant::now(),
            killed_after,
            is_killed: false,
        })
    }

    /// Starts a tool as the job's user. It connects to the socket in the job's directory.
    fn random_tool(&self, job: &TooledJob, number: &str, random: &mut Random) -> Option<Job> {
        let processes = self.env.processes();
        let rank = processes.iter().find(|process| {
            process.program() == "traffic" && process.command.ends_with(&job.arguments)
        })?;
        let environment = fs::read(format!("/proc/{}/environ", rank.pid)).ok()?;
        let directory = environment
            .split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(JOB_DIRECTORY_ENV.as_bytes()))?;
        let directory = PathBuf::from(str::from_utf8(directory).ok()?);
        let mut command = Command::new("setpriv");
        self.env.configure(&mut command);
        let seed = (random.next() % 1_000_000_000).to_string();
        command
            .args([&format!("--reuid={}", job.uid), &format!("--regid={}", job.uid)])
            .args(["--clear-groups", path_text(&self.soak), random_tool::COMMAND])
            .arg(directory.join(format!(".jobs/{number}/toolctl_node/0")))
            .args([number, &seed]);
        Some(Job::new(self.env.marker().to_owned(), command))
    }

    fn gdb(&self, job: &TooledJob, number: &str, random: &mut Random) -> Job {
        let text = format!(
            "set pagination off\nset confirm off\ntarget remote | setpriv --reuid={uid} \
             --regid={uid} --clear-groups {} {number} gdb {} -socket {}\n{GDB_SCRIPT}",
            self.cluster.program("scdb").display(),
            random.below(NODES),
            self.cluster.socket("a").display(),
            uid = job.uid,
        );
        let script = self.env.write_file(&format!("gdb-{}.script", job.uid), text);
        self.env.command("gdb").args(&["-nx", "-q", "-batch", "-x", path_text(&script)])
    }

    /// Waits until the services of tool control have ended with their jobs.
    fn wait_for_services(&self) -> Result<(), String> {
        let started_at = Instant::now();
        loop {
            let processes = self.env.processes();
            let left: Vec<_> = processes
                .iter()
                .filter(|process| ["scored-toolctl", "traffic"].contains(&&*process.program()))
                .collect();
            if left.is_empty() {
                return Ok(());
            }
            if started_at.elapsed() > CLEANUP_TIMEOUT {
                return Err(format!("left after the last job: {left:#?}"));
            }
            sleep(Duration::from_millis(20));
        }
    }
}

impl RunningTool {
    /// Checks how a tool has ended. Returns the exit code of the tool.
    fn check(self, stats: &mut ToolStats) -> Result<i32, String> {
        let outcome = self.running.wait();
        if self.client == Client::RandomTool {
            for letter in outcome.text().chars() {
                *stats.deeds.entry(letter).or_default() += 1;
            }
        }
        let killed = Some(Signal::SIGKILL as i32);
        let is_right = match self.client {
            _ if self.is_killed && outcome.signal == killed => true,
            Client::RandomTool => outcome.code == i32::from(EXIT_CLOSED),
            // These clients may fail because the job ends or another tool has control.
            Client::Stacks | Client::Console => {
                stats.refused += u64::from(outcome.code == EXIT_REFUSED);
                outcome.code == 0
                    || outcome.code == EXIT_REFUSED && outcome.stderr.contains("scdb: ")
            }
            Client::Gdb => {
                stats.refused += u64::from(outcome.code == EXIT_REFUSED);
                [0, EXIT_REFUSED].contains(&outcome.code)
            }
        };
        match is_right {
            true => Ok(outcome.code),
            false => Err(format!("{}: {outcome}", self.client.name())),
        }
    }
}

/// Checks a job that has ended. Its tools have ended with it, or end now.
fn check_job(mut job: TooledJob, stats: &mut ToolStats) -> Result<(), String> {
    let outcome = job.running.wait();
    for tool in job.tools.drain(..) {
        tool.running.signal(Signal::SIGKILL);
        RunningTool { is_killed: true, ..tool }.check(stats)?;
        stats.killed += 1;
    }
    let is_right = outcome.code == 0 && outcome.text() == "all in order\n".repeat(NODES);
    if !is_right {
        return Err(format!("traffic {}: {outcome}", job.arguments));
    }
    stats.jobs += 1;
    stats.messages += job.messages;
    Ok(())
}

fn path_text(path: &std::path::Path) -> &str {
    path.to_str().unwrap_or_default()
}
