//! A scored with time slices, or none, and jobs that can be suspended and read.

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

use crate::{Result, quiet};

const PATIENCE: Duration = Duration::from_secs(30);

fn own_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_path_buf())
}

/// Waits for something that does not take long.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let limit = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if Instant::now() > limit {
            return Err(format!("{what}: not within {} s", PATIENCE.as_secs()));
        }
        sleep(Duration::from_millis(2));
    }
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Play {
    /// Two processes of one host bounce a message.
    Turns,
    /// One process on each of two hosts notes when it runs.
    Gaps,
    /// Two processes of one host do.
    GapsOfOne,
}

/// Where jobs run.
pub struct Bed {
    folder: PathBuf,
    /// The server first; none where each job has a scored of its own.
    services: Vec<Child>,
    jobs: u32,
    /// The two that are used.
    pub processors: Vec<usize>,
}

impl Bed {
    /// With slices of so many milliseconds, or `plain`, on the first two processors: hosts with so
    /// many of them.
    pub fn new(slice: &str, hosts: &[u32]) -> Result<Self> {
        let processors = use_two_processors()?;
        let folder = std::env::temp_dir().join(format!("score-gang-{}", std::process::id()));
        let named = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(named)?;
        let mut bed = Self { folder: folder.clone(), services: Vec::new(), jobs: 0, processors };
        if slice != "plain" {
            let record = |(cores, at): (&u32, u32)| {
                format!("h{at} address=127.0.0.{} cores={cores} group=all\n", at + 1)
            };
            let database: String = hosts.iter().zip(0..).map(record).collect();
            fs::write(folder.join("db"), database).map_err(named)?;
            let mut make = Command::new(own_folder()?.join("scored"));
            let made = make.arg("-makekey").arg(folder.join("key")).status();
            made.map_err(|error| format!("scored -makekey: {error}"))?;
            let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
            let port = free.map_err(|error| format!("a port: {error}"))?.port().to_string();
            (0..hosts.len()).try_for_each(|host| bed.start_service(host, slice, &port))?;
            let all = |number: usize| bed.log().contains(&format!("host h{number} is up"));
            until("all hosts are up", || (1..hosts.len()).all(all).then_some(()))?;
        }
        Ok(bed)
    }

    fn start_service(&mut self, host: usize, slice: &str, port: &str) -> Result<()> {
        let log = self.folder.join(format!("log-{host}"));
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(own_folder()?.join("scored"));
        let name = format!("h{host}");
        command.args(["-host", &name, "-server", "h0", "-group", "all", "-port", port]);
        command.args(["-ts", slice, "-v"]).arg("-file").arg(self.folder.join("db"));
        command.arg("-key").arg(self.folder.join("key"));
        command.arg("-socket").arg(self.folder.join(format!("socket-{host}")));
        let child = command.stdin(Stdio::null()).stderr(file).env_remove("JOURNAL_STREAM").spawn();
        self.services.push(child.map_err(|error| format!("scored: {error}"))?);
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let ready = until("scored becomes ready", || said().contains("ready").then_some(()));
        ready.map_err(|fault| format!("{fault}: {}", said()))
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket-0")
    }

    /// What the server has said.
    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log-0")).unwrap_or_default()
    }

    /// A job of this program with these options; its arguments are to follow.
    fn scrun(&self, options: &str) -> Result<Command> {
        let mut command = Command::new(own_folder()?.join("scrun"));
        match self.services.is_empty() {
            false => command.arg(format!("-scored=all,{options}")),
            true => command.arg(format!("-{options}")),
        };
        command.env("SCORED_SOCKET", self.socket()).env_remove("SCORE_OPTIONS");
        command.arg(own_folder()?.join("score-gang"));
        Ok(command)
    }

    /// Starts a job of two processes that come to a deadlock, and waits until somebody says so:
    /// the time by the monotonic clock, and the files in which nodes say when they became idle.
    pub fn deadlock(&self) -> Result<(u64, [PathBuf; 2])> {
        let given = self.folder.join("deadlock");
        let mut command = self.scrun("nodes=2")?;
        command.arg("hang").arg(&given).stdin(Stdio::null()).stdout(Stdio::null());
        let mut scrun =
            command.stderr(Stdio::piped()).spawn().map_err(|e| format!("scrun: {e}"))?;
        let said = scrun.stderr.take().map(BufReader::new);
        let mut lines = said.into_iter().flat_map(BufRead::lines).map_while(std::io::Result::ok);
        let found = lines.any(|line| line.contains("deadlock:"));
        let time = crate::gaps::now()?;
        lines.for_each(drop);
        let _ = scrun.wait();
        let files = ["0", "1"].map(|node| given.with_extension(node));
        found.then_some((time, files)).ok_or_else(|| "no deadlock was found".to_owned())
    }

    /// Starts a job, and waits until it makes progress.
    pub fn start(&mut self, play: Play, priority: &str) -> Result<Job> {
        self.jobs += 1;
        let given = self.folder.join(format!("progress-{}", self.jobs));
        let (role, nodes) = match play {
            Play::Turns => ("turns", "2"),
            Play::Gaps => ("gaps", "2x1"),
            Play::GapsOfOne => ("gaps", "2"),
        };
        let file = if play == Play::Turns { given.clone() } else { given.with_extension("1") };
        File::create(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command =
            self.scrun(&format!("nodes={nodes},message=quiet,priority={priority}"))?;
        command.arg(role).arg(&given).stdin(Stdio::null()).stdout(Stdio::null());
        let scrun = command.spawn().map_err(|error| format!("scrun: {error}"))?;
        let mut job = Job { scrun, given, file, players: Vec::new() };
        until("a job makes progress", || {
            let over = job.scrun.try_wait().ok().flatten();
            over.map(Err).or_else(|| (job.progress() > 0).then_some(Ok(())))
        })?
        .map_err(|status| format!("the job has ended: {status}"))?;
        job.players = quiet::players(&job.file.to_string_lossy());
        Ok(job)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for service in self.services.iter_mut().rev() {
            let _ = kill(Pid::from_raw(service.id() as i32), Signal::SIGTERM);
            let _ = service.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A job that plays.
pub struct Job {
    scrun: Child,
    given: PathBuf,
    file: PathBuf,
    /// Its processes.
    pub players: Vec<u32>,
}

impl Job {
    /// Round trips so far.
    pub fn progress(&self) -> u64 {
        let mut count = [0; 8];
        let read = File::open(&self.file).and_then(|mut file| file.read_exact(&mut count));
        read.map_or(0, |()| u64::from_le_bytes(count))
    }

    /// What a node that notes its gaps writes.
    pub fn path(&self, node: u32) -> PathBuf {
        self.given.with_extension(node.to_string())
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.scrun.id() as i32), signal);
    }

    /// Suspends it, as ^Z does, and waits until it makes no progress.
    pub fn suspend(&self) -> Result<()> {
        self.signal(Signal::SIGTSTP);
        let (mut last, mut since) = (self.progress(), Instant::now());
        until("a job is suspended", || {
            let now = self.progress();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            // Longer than any slice that is measured.
            (since.elapsed() > Duration::from_millis(100) && self.is_stopped()).then_some(())
        })
    }

    fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.scrun.id()));
        let state = stat.ok().and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with('T')));
        state.unwrap_or(false)
    }

    /// Has it go on, as fg does, and waits until it does.
    pub fn resume(&self) -> Result<()> {
        let before = self.progress();
        self.signal(Signal::SIGCONT);
        until("a job goes on", || (self.progress() > before).then_some(()))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        self.signal(Signal::SIGTERM);
        let limit = Instant::now() + PATIENCE;
        while Instant::now() < limit {
            match self.scrun.try_wait() {
                Ok(None) => sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        let _ = self.scrun.kill();
        let _ = self.scrun.wait();
    }
}

/// Keeps this process, and all that it starts, on the first two processors that it may use.
fn use_two_processors() -> Result<Vec<usize>> {
    let fault = |errno| format!("processors: {errno}");
    let own = Pid::from_raw(0);
    let mine = sched_getaffinity(own).map_err(fault)?;
    let mut two = CpuSet::new();
    let allowed = (0..CpuSet::count()).filter(|one| mine.is_set(*one).unwrap_or(false));
    let chosen: Vec<usize> = allowed.take(2).collect();
    if chosen.len() < 2 {
        return Err("two processors are needed".to_owned());
    }
    chosen.iter().try_for_each(|one| two.set(*one)).map_err(fault)?;
    sched_setaffinity(own, &two).map_err(fault)?;
    Ok(chosen)
}
