//! The places where a program runs: under the launcher of its MPI library, or under scrun on one
//! host, on several hosts, or in time slices with another job.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;
use std::time::Duration;

use score_tests::service::{ALICE, BOB, Cluster};
use score_tests::{Job, Outcome, TestEnv, binaries};

use super::library::MpiLibrary;
use super::programs::RealProgram;
use super::results::ResultLines;

/// How and where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Under mpiexec or mpirun of the MPI library.
    OwnLauncher,
    /// Under scrun on one host.
    OneHost,
    /// Under scrun on up to four virtual hosts.
    SeveralHosts,
    /// As jobs of two users on two hosts of a service, in slices of 10 ms.
    TimeSlices,
}

/// A program, the number of its ranks, and its command line.
pub struct Launch<'a> {
    /// The program.
    pub program: &'a RealProgram,
    /// Its MPI library.
    pub library: MpiLibrary,
    /// The number of ranks.
    pub ranks: u32,
    /// The command line of each rank.
    pub command_line: &'a str,
}

impl Launch<'_> {
    /// The time limit in seconds under any launcher. Ranks that share a processor take turns, and a
    /// rank that waits also uses its turns.
    fn timeout_s(&self) -> u32 {
        let processors = available_parallelism().map_or(1, |count| count.get() as u32);
        self.program.timeout_s * self.ranks.div_ceil(processors)
    }
}

/// The result of a run.
pub struct RunReport {
    /// The lines that are compared.
    pub results: ResultLines,
    /// The number of messages over PM, if scrun has counted them.
    pub messages: u64,
    /// The run time.
    pub elapsed: Duration,
    /// The complete output.
    pub output: String,
}

/// The seconds between SIGTERM and SIGKILL of timeout(1).
const KILL_GRACE_S: u32 = 20;
/// The time limit for scrun and the daemons to remove everything that belongs to a job.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);
/// The slice of the service, in milliseconds.
const SLICE_MS: &str = "10";
/// How much longer a program may take in time slices. Two jobs share the processors, and a rank
/// that waits for another rank also uses its processor.
const SLICES_TIMEOUT_FACTOR: u32 = 3;
/// The hosts of the service.
const HOSTS: [&str; 2] = ["a", "b"];
/// The maximum number of virtual hosts.
const MAX_VIRTUAL_HOSTS: u32 = 4;

impl Place {
    /// The places that use scrun.
    pub const OF_SCRUN: [Self; 3] = [Self::OneHost, Self::SeveralHosts, Self::TimeSlices];

    /// The name of the place in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::OwnLauncher => "own launcher",
            Self::OneHost => "one host",
            Self::SeveralHosts => "several hosts",
            Self::TimeSlices => "time slices",
        }
    }

    /// Parses a word of the option `-places`.
    pub fn parse(word: &str) -> Result<Self, String> {
        let has_name = |place: &Self| place.name().replace(' ', "-") == word;
        Self::OF_SCRUN
            .into_iter()
            .find(has_name)
            .ok_or_else(|| format!("-places {word:?}: not one-host, several-hosts or time-slices"))
    }

    /// Why a program cannot run in this place, if it cannot.
    pub fn reason_to_skip(self, launch: &Launch) -> Option<String> {
        if matches!(self, Self::SeveralHosts | Self::TimeSlices) && !launch.program.spans_hosts {
            return Some("the program runs on one host only".to_owned());
        }
        if self != Self::TimeSlices {
            return None;
        }
        if !launch.ranks.is_multiple_of(HOSTS.len() as u32) {
            return Some("the ranks cannot be spread evenly over two hosts".to_owned());
        }
        if !nix::unistd::geteuid().is_root() {
            return Some("a service needs root".to_owned());
        }
        let paths = launch.command_line.split(' ').filter(|word| word.starts_with('/'));
        paths.filter_map(|word| closed_folder(Path::new(word))).next()
    }

    /// Runs a program in this place. Returns two reports if two jobs run at once.
    pub fn run(self, launch: &Launch) -> Vec<RunReport> {
        let env = TestEnv::new();
        let folder = RunFolder::new(&env, "first", None);
        let Launch { library, ranks, command_line, .. } = launch;
        let program_folder = binaries::folder();
        let scrun = |shape: &str| {
            format!(
                "{}{} -statistics,{shape}{} {command_line}",
                library.scrun_variables(program_folder),
                binaries::program("scrun").display(),
                library.scrun_options()
            )
        };
        let line = match self {
            Self::OwnLauncher => format!("{} {command_line}", library.launcher(*ranks)),
            Self::OneHost => scrun(&format!("nodes={ranks}")),
            Self::SeveralHosts => {
                let hosts = host_count(*ranks);
                scrun(&format!("group=local:{hosts},nodes={hosts}x{}", ranks / hosts))
            }
            Self::TimeSlices => return run_in_slices(launch, &env),
        };
        let outcome = folder.job(&env, launch, &line, launch.timeout_s(), None).run();
        if self == Self::OwnLauncher {
            // Leftovers of other launchers are removed and not checked.
            env.processes().iter().for_each(|left| left.signal(nix::sys::signal::Signal::SIGKILL));
            env.ignore_leftovers();
            return vec![folder.report(launch, outcome)];
        }
        vec![folder.report_with_leftovers(&env, launch, outcome)]
    }
}

/// The largest number of hosts, up to four, that get the same number of ranks each.
fn host_count(ranks: u32) -> u32 {
    (1..=MAX_VIRTUAL_HOSTS).rev().find(|count| ranks.is_multiple_of(*count)).unwrap_or(1)
}

/// Returns an error text if there is a directory on the way to a file that not all users may enter.
pub fn closed_folder(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mut folders = path.ancestors();
    let is_closed = |path: &&Path| path.metadata().is_ok_and(|it| it.permissions().mode() & 1 == 0);
    folders
        .find(|folder| folder.is_dir() && is_closed(folder))
        .map(|folder| format!("other users may not enter {}", folder.display()))
}

/// Starts the same program as two users at once. Each host has as many processors as one job needs.
fn run_in_slices(launch: &Launch, env: &TestEnv) -> Vec<RunReport> {
    let per_host = launch.ranks / HOSTS.len() as u32;
    let database = HOSTS.iter().zip(1..).map(|(name, number)| {
        format!("{name} address=127.0.0.{number} cores={per_host} group=all\n")
    });
    let options = ["-ts", SLICE_MS];
    let database: String = database.collect();
    let cluster = Cluster::start_with_options(env, &HOSTS, &database, &options)
        .expect("root can start a service");
    binaries::copy_mpi_files(env.dir());
    // The daemons start this program for `scdb JOB stacks`, which shows where a slow job waits.
    cluster.program("scored-toolctl");
    let last_host = HOSTS[HOSTS.len() - 1];
    let line = format!(
        "SCORED_SOCKET={} {} -scored=all,statistics,nodes={}x{per_host}{} {}",
        cluster.socket(last_host).display(),
        cluster.program("scrun").display(),
        HOSTS.len(),
        launch.library.scrun_options(),
        launch.command_line
    );
    let timeout_s = launch.timeout_s() * SLICES_TIMEOUT_FACTOR;
    let start = |(name, uid)| {
        let folder = RunFolder::new(env, name, Some(uid));
        let running = folder.job(env, launch, &line, timeout_s, Some(uid)).start();
        (folder, running)
    };
    let jobs = [("first", ALICE), ("second", BOB)].map(start);
    let outcomes = jobs.map(|(folder, running)| (folder, running.wait()));
    drop(cluster);
    let reports =
        outcomes.map(|(folder, outcome)| folder.report_with_leftovers(env, launch, outcome));
    reports.into()
}

/// The working directory of a run, with a directory for temporary files.
struct RunFolder(PathBuf);

impl RunFolder {
    /// Creates the directory for the user `uid`, or for the current user.
    fn new(env: &TestEnv, name: &str, uid: Option<u32>) -> Self {
        let folder = env.dir().join(name);
        for path in [folder.clone(), folder.join("temporary")] {
            std::fs::create_dir_all(&path).expect("the directory of a test can be written");
            chown(&path, uid, uid).expect("root may change the owner");
        }
        Self(folder)
    }

    /// Makes a job that runs a command line in this directory, as the user `uid` if it is given.
    fn job(
        &self,
        env: &TestEnv,
        launch: &Launch,
        line: &str,
        timeout_s: u32,
        uid: Option<u32>,
    ) -> Job {
        let variables = launch.program.variables;
        let script = format!("exec timeout -k {KILL_GRACE_S} {timeout_s} env {variables} {line}");
        let mut command = Command::new("/bin/sh");
        env.configure(&mut command);
        command.args(["-c", &script]).current_dir(&self.0);
        command.env("TMPDIR", self.0.join("temporary")).env("HOME", &self.0);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid).env_remove("XDG_RUNTIME_DIR");
        }
        let watchdog = Duration::from_secs(u64::from(timeout_s + 2 * KILL_GRACE_S));
        Job::new(env.marker().to_owned(), command).timeout(watchdog)
    }

    fn report(&self, launch: &Launch, outcome: Outcome) -> RunReport {
        RunReport {
            results: launch.program.output.results(&outcome, &self.0),
            messages: messages_over_pm(&outcome.stderr),
            elapsed: outcome.elapsed,
            output: outcome.to_string() + &outcome.text(),
        }
    }

    /// Reports a job of scrun. The job must leave no process and no file, and its messages must go
    /// over PM.
    fn report_with_leftovers(&self, env: &TestEnv, launch: &Launch, outcome: Outcome) -> RunReport {
        let mut report = self.report(launch, outcome);
        if let Err(left) = env.wait_until_clean(CLEANUP_TIMEOUT) {
            env.ignore_leftovers();
            report.results.extend(left.into_iter().map(|it| format!("leaves behind: {it}")));
        }
        if report.messages < u64::from(launch.ranks) {
            report.results.insert("its messages do not go over PM".to_owned());
        }
        report
    }
}

/// Returns the number of messages that `scrun -statistics` prints.
fn messages_over_pm(stderr: &str) -> u64 {
    let counts = stderr.lines().filter_map(|line| {
        let (before, _) = line.strip_prefix("scrun: job ")?.split_once(" messages (")?;
        before.rsplit(' ').next()?.parse::<u64>().ok()
    });
    counts.sum()
}
