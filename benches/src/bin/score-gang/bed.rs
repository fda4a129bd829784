//! A scored with time slices, or none, and jobs that can be suspended and read.

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;

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

/// Where jobs run.
pub struct Bed {
    folder: PathBuf,
    /// None: each job has a scored of its own.
    service: Option<Child>,
    jobs: u32,
}

impl Bed {
    /// With slices of so many milliseconds, or `plain`, on the first two processors.
    pub fn new(slice: &str) -> Result<Self> {
        use_two_processors()?;
        let folder = std::env::temp_dir().join(format!("score-gang-{}", std::process::id()));
        let named = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir(&folder).map_err(named)?;
        let mut bed = Self { folder: folder.clone(), service: None, jobs: 0 };
        if slice != "plain" {
            fs::write(folder.join("db"), "here address=127.0.0.1 cores=2\n").map_err(named)?;
            bed.start_service(slice)?;
        }
        Ok(bed)
    }

    fn start_service(&mut self, slice: &str) -> Result<()> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = free.map_err(|error| format!("a port: {error}"))?.port().to_string();
        let log = self.folder.join("log");
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(own_folder()?.join("scored"));
        command.args(["-host", "here", "-port", &port, "-ts", slice, "-v"]);
        command.arg("-file").arg(self.folder.join("db"));
        command.arg("-socket").arg(self.socket()).env_remove("JOURNAL_STREAM");
        let child = command.stdin(Stdio::null()).stderr(file).spawn();
        self.service = Some(child.map_err(|error| format!("scored: {error}"))?);
        let ready = || self.log().contains("ready").then_some(());
        until("scored becomes ready", ready).map_err(|fault| format!("{fault}: {}", self.log()))
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// What scored has said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Starts a job, and waits until it makes progress.
    pub fn start(&mut self, priority: &str) -> Result<Job> {
        self.jobs += 1;
        let file = self.folder.join(format!("progress-{}", self.jobs));
        File::create(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let program = own_folder()?.join("score-gang");
        let mut command = Command::new(own_folder()?.join("scrun"));
        match self.service {
            Some(_) => {
                let options = format!("-scored=here,nodes=2,message=quiet,priority={priority}");
                command.arg(options).env("SCORED_SOCKET", self.socket());
            }
            None => _ = command.arg("-nodes=2,message=quiet"),
        }
        command.env_remove("SCORE_OPTIONS").arg(program).arg("turns").arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let scrun = command.spawn().map_err(|error| format!("scrun: {error}"))?;
        let mut job = Job { scrun, file };
        until("a job makes progress", || {
            let over = job.scrun.try_wait().ok().flatten();
            over.map(Err).or_else(|| (job.progress() > 0).then_some(Ok(())))
        })?
        .map_err(|status| format!("the job has ended: {status}"))?;
        Ok(job)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(service) = &mut self.service {
            let _ = kill(Pid::from_raw(service.id() as i32), Signal::SIGTERM);
            let _ = service.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A job that plays.
pub struct Job {
    scrun: Child,
    file: PathBuf,
}

impl Job {
    /// Round trips so far.
    pub fn progress(&self) -> u64 {
        let mut count = [0; 8];
        let read = File::open(&self.file).and_then(|mut file| file.read_exact(&mut count));
        read.map_or(0, |()| u64::from_le_bytes(count))
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
fn use_two_processors() -> Result<()> {
    let fault = |errno| format!("processors: {errno}");
    let own = Pid::from_raw(0);
    let mine = sched_getaffinity(own).map_err(fault)?;
    let mut two = CpuSet::new();
    let allowed = (0..CpuSet::count()).filter(|one| mine.is_set(*one).unwrap_or(false));
    let mut count = 0;
    for one in allowed.take(2) {
        two.set(one).map_err(fault)?;
        count += 1;
    }
    if count < 2 {
        return Err("two processors are needed".to_owned());
    }
    sched_setaffinity(own, &two).map_err(fault)
}
