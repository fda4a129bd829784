//! Starts daemons if the measurement has time slices, and jobs that can be suspended and observed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{BenchResult, interference};

const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

fn program_dir() -> BenchResult<PathBuf> {
    let program_path =
        std::env::current_exe().map_err(|error| format!("path of this program: {error}"))?;
    Ok(program_path.parent().unwrap_or(Path::new("/")).to_path_buf())
}

/// Polls until `check` returns a value. Returns an error after [`EVENT_TIMEOUT`].
fn wait_until<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> BenchResult<T> {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        if let Some(found) = check() {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("{what}: not within {} s", EVENT_TIMEOUT.as_secs()));
        }
        sleep(Duration::from_millis(2));
    }
}

/// The kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Two processes on one host exchange a message.
    PingPong,
    /// One process on each of two hosts records when it runs.
    Gaps,
    /// Two processes on one host record when they run.
    GapsOnOneHost,
}

/// The environment of jobs.
pub struct GangTestbed {
    folder: PathBuf,
    /// The daemons, the server first. Empty if each job has its own scored.
    daemons: Vec<Child>,
    job_count: u32,
    /// The two processors that are used.
    pub processors: Vec<usize>,
}

impl GangTestbed {
    /// Starts a testbed on the first two processors, with slices of `slice` milliseconds, or with
    /// `plain`. Each host has the given number of processors.
    pub fn new(slice: &str, hosts: &[u32]) -> BenchResult<Self> {
        let processors = use_two_processors()?;
        let folder = std::env::temp_dir().join(format!("score-gang-{}", std::process::id()));
        let io_error = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(io_error)?;
        let mut testbed =
            Self { folder: folder.clone(), daemons: Vec::new(), job_count: 0, processors };
        if slice != "plain" {
            let host_record = |(cores, index): (&u32, u32)| {
                format!("h{index} address=127.0.0.{} cores={cores} group=all\n", index + 1)
            };
            let database: String = hosts.iter().zip(0..).map(host_record).collect();
            fs::write(folder.join("db"), database).map_err(io_error)?;
            let mut makekey_command = Command::new(program_dir()?.join("scored"));
            let result = makekey_command.arg("-makekey").arg(folder.join("key")).status();
            result.map_err(|error| format!("scored -makekey: {error}"))?;
            let address = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
            let port = address.map_err(|error| format!("a port: {error}"))?.port().to_string();
            (0..hosts.len()).try_for_each(|host| testbed.start_daemon(host, slice, &port))?;
            let is_up =
                |number: usize| testbed.server_log().contains(&format!("host h{number} is up"));
            wait_until("all hosts are up", || (1..hosts.len()).all(is_up).then_some(()))?;
        }
        Ok(testbed)
    }

    fn start_daemon(&mut self, host: usize, slice: &str, port: &str) -> BenchResult<()> {
        let log = self.folder.join(format!("log-{host}"));
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(program_dir()?.join("scored"));
        let name = format!("h{host}");
        command.args(["-host", &name, "-server", "h0", "-group", "all", "-port", port]);
        // This user needs no entry in the user database.
        command.args(["-user", "61990"]);
        command.args(["-ts", slice, "-v"]).arg("-file").arg(self.folder.join("db"));
        command.arg("-key").arg(self.folder.join("key"));
        command.arg("-socket").arg(self.folder.join(format!("socket-{host}")));
        let child = command.stdin(Stdio::null()).stderr(file).env_remove("JOURNAL_STREAM").spawn();
        self.daemons.push(child.map_err(|error| format!("scored: {error}"))?);
        let log_text = || fs::read_to_string(&log).unwrap_or_default();
        let ready =
            wait_until("scored becomes ready", || log_text().contains("ready").then_some(()));
        ready.map_err(|error| format!("{error}: {}", log_text()))
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket-0")
    }

    /// The log of the server.
    fn server_log(&self) -> String {
        fs::read_to_string(self.folder.join("log-0")).unwrap_or_default()
    }

    /// Makes an scrun command for a job of this program with these options. The caller appends the
    /// program's arguments.
    fn scrun(&self, options: &str) -> BenchResult<Command> {
        let mut command = Command::new(program_dir()?.join("scrun"));
        match self.daemons.is_empty() {
            false => command.arg(format!("-scored=all,{options}")),
            true => command.arg(format!("-{options}")),
        };
        command.env("SCORED_SOCKET", self.socket()).env_remove("SCORE_OPTIONS");
        command.arg(program_dir()?.join("score-gang"));
        Ok(command)
    }

    /// Starts a job of two processes that deadlock, and waits until the deadlock is reported.
    /// Returns the time of the report by the monotonic clock, and the files with the times at which
    /// the nodes became idle.
    pub fn deadlock(&self) -> BenchResult<(u64, [PathBuf; 2])> {
        let path_prefix = self.folder.join("deadlock");
        let mut command = self.scrun("nodes=2")?;
        command.arg("hang").arg(&path_prefix).stdin(Stdio::null()).stdout(Stdio::null());
        let mut scrun =
            command.stderr(Stdio::piped()).spawn().map_err(|e| format!("scrun: {e}"))?;
        let stderr = scrun.stderr.take().map(BufReader::new);
        let mut lines = stderr.into_iter().flat_map(BufRead::lines).map_while(std::io::Result::ok);
        let was_found = lines.any(|line| line.contains("deadlock:"));
        let found_at_ns = crate::clock::now_ns()?;
        lines.for_each(drop);
        let _ = scrun.wait();
        let files = ["0", "1"].map(|node| path_prefix.with_extension(node));
        was_found.then_some((found_at_ns, files)).ok_or_else(|| "no deadlock was found".to_owned())
    }

    /// Starts a job, and waits until it makes progress.
    pub fn start(&mut self, workload: Workload, priority: &str) -> BenchResult<Job> {
        self.job_count += 1;
        let path_prefix = self.folder.join(format!("progress-{}", self.job_count));
        let (role, nodes) = match workload {
            Workload::PingPong => ("turns", "2"),
            Workload::Gaps => ("gaps", "2x1"),
            Workload::GapsOnOneHost => ("gaps", "2"),
        };
        let progress_file = if workload == Workload::PingPong {
            path_prefix.clone()
        } else {
            path_prefix.with_extension("1")
        };
        File::create(&progress_file)
            .map_err(|error| format!("{}: {error}", progress_file.display()))?;
        let mut command =
            self.scrun(&format!("nodes={nodes},message=quiet,priority={priority}"))?;
        command.arg(role).arg(&path_prefix).stdin(Stdio::null()).stdout(Stdio::null());
        let scrun = command.spawn().map_err(|error| format!("scrun: {error}"))?;
        let mut job = Job { scrun, path_prefix, progress_file, process_ids: Vec::new() };
        wait_until("a job makes progress", || {
            let exit_status = job.scrun.try_wait().ok().flatten();
            exit_status.map(Err).or_else(|| (job.progress() > 0).then_some(Ok(())))
        })?
        .map_err(|status| format!("the job has ended: {status}"))?;
        job.process_ids = interference::pids_of_job(&job.progress_file.to_string_lossy());
        Ok(job)
    }
}

impl Drop for GangTestbed {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = kill(Pid::from_raw(daemon.id() as i32), Signal::SIGTERM);
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A running job.
pub struct Job {
    scrun: Child,
    path_prefix: PathBuf,
    progress_file: PathBuf,
    /// The process ids of the job.
    pub process_ids: Vec<u32>,
}

impl Job {
    /// Returns the number of round trips so far. A job that records gaps has its start time here.
    pub fn progress(&self) -> u64 {
        let mut count = [0; 8];
        let read = File::open(&self.progress_file).and_then(|mut file| file.read_exact(&mut count));
        read.map_or(0, |()| u64::from_le_bytes(count))
    }

    /// Returns the file in which a node records its gaps.
    pub fn gaps_path(&self, node: u32) -> PathBuf {
        self.path_prefix.with_extension(node.to_string())
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.scrun.id() as i32), signal);
    }

    /// Suspends the job, as ^Z does, and waits until it makes no progress.
    pub fn suspend(&self) -> BenchResult<()> {
        self.signal(Signal::SIGTSTP);
        let (mut last, mut changed_at) = (self.progress(), Instant::now());
        wait_until("a job is suspended", || {
            let current = self.progress();
            if current != last {
                (last, changed_at) = (current, Instant::now());
            }
            // This time is longer than the slices with which throughput is measured.
            (changed_at.elapsed() > Duration::from_millis(100) && self.is_stopped()).then_some(())
        })
    }

    fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.scrun.id()));
        let state = stat.ok().and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with('T')));
        state.unwrap_or(false)
    }

    /// Continues the job, as fg does, and waits until it makes progress.
    pub fn resume(&self) -> BenchResult<()> {
        let before = self.progress();
        self.signal(Signal::SIGCONT);
        wait_until("a job goes on", || (self.progress() > before).then_some(()))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while Instant::now() < deadline {
            match self.scrun.try_wait() {
                Ok(None) => sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        let _ = self.scrun.kill();
        let _ = self.scrun.wait();
    }
}

/// Binds this process and all its descendants to the first two processors that it may use.
fn use_two_processors() -> BenchResult<Vec<usize>> {
    let error_text = |errno| format!("processors: {errno}");
    let self_pid = Pid::from_raw(0);
    let allowed_set = sched_getaffinity(self_pid).map_err(error_text)?;
    let mut cpu_set = CpuSet::new();
    let allowed =
        (0..CpuSet::count()).filter(|processor| allowed_set.is_set(*processor).unwrap_or(false));
    let chosen: Vec<usize> = allowed.take(2).collect();
    if chosen.len() < 2 {
        return Err("two processors are needed".to_owned());
    }
    chosen.iter().try_for_each(|processor| cpu_set.set(*processor)).map_err(error_text)?;
    sched_setaffinity(self_pid, &cpu_set).map_err(error_text)?;
    Ok(chosen)
}
