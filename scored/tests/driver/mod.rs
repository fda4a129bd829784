//! A small replacement of scrun. It starts the real scored with a socket pair, submits a job, and
//! records the messages.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod service;

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use score_client::{Connection, ConnectionError, Received};
use score_proto::client_session::JobMessage;
use score_proto::ids::SessionJobId;
use score_proto::job_control::ProcessBlock;
use score_proto::message::*;
use score_proto::server_message::JobAnswer;

/// Held while a forked child could inherit a socket.
static FORK_LOCK: Mutex<()> = Mutex::new(());

/// The longest time that a test waits for an event.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a step waits for a message.
pub const STEP_TIMEOUT: Duration = Duration::from_millis(20);

pub fn bytes(text: &str) -> OsBytes {
    OsBytes(text.as_bytes().to_vec())
}

pub fn element(kind: ProgramKind, words: &[&str]) -> ElementSpec {
    ElementSpec::new(bytes(words[0]), words.iter().map(|word| bytes(word)).collect(), kind)
}

pub fn system(words: &[&str]) -> ElementSpec {
    element(ProgramKind::System { per_host: false }, words)
}

pub fn sh(script: &str) -> ElementSpec {
    system(&["sh", "-c", script])
}

pub fn file(name: &str) -> FileName {
    FileName(bytes(name))
}

/// A job with one stage of these elements on this many nodes.
pub fn job(nodes: u32, elements: Vec<ElementSpec>) -> JobSpec {
    sequence(nodes, vec![elements])
}

pub fn sequence(nodes: u32, stages: Vec<Vec<ElementSpec>>) -> JobSpec {
    JobSpec {
        hosts: vec![HostSpec::local(nodes)],
        stages: stages.into_iter().map(|elements| StageSpec { elements }).collect(),
        environment: std::env::vars()
            .map(|(name, value)| bytes(&format!("{name}={value}")))
            .collect(),
        directory: bytes(std::env::current_dir().unwrap().to_str().unwrap()),
        umask: 0o022,
        options: vec![("nodes".to_owned(), Some(nodes.to_string()))],
        ..JobSpec::default()
    }
}

/// The recorded results of a job.
#[derive(Debug, Default)]
pub struct Outcome {
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub notices: Vec<(Level, String)>,
    pub refused: Option<(String, u8)>,
    pub end: Option<JobEnd>,
    pub dir: String,
    pub stdin_closed: bool,
    /// The lists of processes for debuggers.
    pub processes: Vec<ProcessBlock>,
}

impl Outcome {
    pub fn code(&self) -> u8 {
        self.end.as_ref().unwrap_or_else(|| panic!("the job did not finish: {self:?}")).code
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    pub fn notices(&self) -> String {
        self.notices.iter().map(|(_, text)| format!("{text}\n")).collect()
    }
}

/// A scored under test, and the client's end of its socket.
pub struct Driver {
    pub child: Child,
    pub connection: Connection,
    pub outcome: Outcome,
    /// Whether output is acknowledged as it arrives.
    pub taking: bool,
    /// Whether `Flush` is answered.
    pub flushing: bool,
    /// The bytes of output that have arrived but have not been acknowledged.
    pub untaken: u64,
    /// Input that has not been sent yet because the window is full.
    pub input: Vec<u8>,
    stdin_window: u64,
    stdin_ended: bool,
    /// Whether scored has closed the connection.
    pub closed: bool,
}

/// The number of the driver's job in its session.
const JOB: SessionJobId = SessionJobId(1);

/// Options for starting scored.
#[derive(Default, Clone)]
pub struct ScoredOptions {
    pub no_namespace: bool,
    pub user: Option<u32>,
    pub runtime_dir: Option<String>,
    pub descriptors: Option<u64>,
}

impl ScoredOptions {
    /// The path of scored. Another user gets a copy, because the build directory may not be
    /// accessible.
    fn program(&self) -> PathBuf {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_scored"));
        let (Some(_), Some(dir)) = (self.user, &self.runtime_dir) else { return built };
        let copy = Path::new(dir).join("program");
        if !copy.exists() {
            // Another process makes the copy. If this process wrote the file, a child that another
            // test has just forked could hold the descriptor, and executing the file would fail.
            let copied = Command::new("cp").arg(&built).arg(&copy).status();
            assert!(copied.is_ok_and(|status| status.success()), "cp scored");
        }
        copy
    }
}

impl Driver {
    pub fn start(spec: JobSpec) -> Self {
        Self::start_as(spec, ScoredOptions::default())
    }

    pub fn start_as(spec: JobSpec, options: ScoredOptions) -> Self {
        let mut driver = Self::connect(options);
        driver.connection.greet();
        driver.request(JOB, &SingleUserRequest::Submit(spec));
        driver
    }

    pub fn connect(options: ScoredOptions) -> Self {
        // A child that another thread starts now would inherit the socket and keep it open.
        let fork_guard = FORK_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let number = theirs.as_raw_fd();
        let mut command = Command::new(options.program());
        command.args(["-single", "-control", &number.to_string()]);
        if options.no_namespace {
            command.arg("-nonamespace");
        }
        command.env_remove("XDG_RUNTIME_DIR");
        if let Some(dir) = &options.runtime_dir {
            command.env("XDG_RUNTIME_DIR", dir);
        }
        command.stdin(Stdio::null());
        // Clear close-on-exec, so that the child inherits the socket.
        let flags = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
        nix::fcntl::fcntl(&theirs, flags).unwrap();
        if let Some(user) = options.user {
            command.uid(user).gid(user);
        }
        if let Some(limit) = options.descriptors {
            let program = command.get_program().to_owned();
            let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
            let mut with_limit = Command::new("prlimit");
            with_limit.arg(format!("--nofile={limit}")).arg(program).args(arguments);
            command = with_limit;
        }
        let child = command.spawn().unwrap();
        drop(theirs);
        drop(fork_guard);
        Self {
            child,
            connection: Connection::new(ours, "scored").unwrap(),
            outcome: Outcome::default(),
            taking: true,
            flushing: true,
            untaken: 0,
            input: Vec::new(),
            stdin_window: 0,
            stdin_ended: false,
            closed: false,
        }
    }

    /// Sends a request about a job or about the session.
    pub fn request(&mut self, job: SessionJobId, request: &SingleUserRequest) {
        self.connection.send(job, request).unwrap();
    }

    /// Sends a request to the driver's job.
    pub fn send(&mut self, request: &JobRequest) {
        self.request(JOB, &SingleUserRequest::Job(request.clone()));
    }

    pub fn take_all(&mut self) {
        if self.untaken > 0 {
            let taken = JobRequest::OutputAck(self.untaken);
            self.untaken = 0;
            self.send(&taken);
        }
    }

    /// Reads the available messages. Waits at most 20 ms.
    pub fn step(&mut self) {
        let mut timeout = STEP_TIMEOUT;
        loop {
            match self.connection.wait(timeout) {
                Ok(Some(received)) => self.on_received(received),
                Ok(None) => break,
                Err(ConnectionError::Closed(_)) => {
                    self.closed = true;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            timeout = Duration::ZERO;
        }
        if self.outcome.end.is_some() || self.outcome.refused.is_some() {
            // scrun does the same after the final message.
            let _ = self.connection.shutdown(std::net::Shutdown::Write);
        }
        if self.taking {
            self.take_all();
        }
        while self.stdin_window > 0 && !self.input.is_empty() {
            let count = self.input.len().min(MAX_IO_CHUNK).min(self.stdin_window as usize);
            let remaining = self.input.split_off(count);
            let chunk = std::mem::replace(&mut self.input, remaining);
            self.stdin_window -= count as u64;
            self.send(&JobRequest::Stdin(chunk));
        }
        if self.stdin_window > 0 && self.input.is_empty() && !self.stdin_ended {
            self.stdin_ended = true;
            self.send(&JobRequest::StdinEof);
        }
    }

    fn on_received(&mut self, received: Received<JobMessage<JobAnswer>>) {
        let about_job = matches!(received, Received::Answer(_));
        assert!(self.outcome.end.is_none() || about_job, "{received:?} came after Finished");
        match received {
            Received::Answer(JobMessage { message, .. }) => self.on_answer(message),
            Received::Refused { reason, code } => self.outcome.refused = Some((reason, code)),
            Received::Notice { level, text } => self.outcome.notices.push((level, text)),
        }
    }

    fn on_answer(&mut self, answer: JobAnswer) {
        let may_follow_end = matches!(answer, JobAnswer::UnknownJob);
        assert!(self.outcome.end.is_none() || may_follow_end, "{answer:?} came after Finished");
        if self.outcome.end.is_some() {
            return;
        }
        match answer {
            JobAnswer::Accepted { .. } => {}
            JobAnswer::Refused { reason, code } => self.outcome.refused = Some((reason, code)),
            JobAnswer::StdinWindow(bytes) => self.stdin_window += bytes,
            JobAnswer::StdinClosed => {
                self.outcome.stdin_closed = true;
                self.input.clear();
            }
            JobAnswer::Output { stream, bytes, .. } => {
                self.untaken += bytes.len() as u64;
                assert!(bytes.len() <= MAX_IO_CHUNK && self.untaken <= OUTPUT_WINDOW);
                match stream {
                    Stream::Stdout => self.outcome.out.extend(bytes),
                    Stream::Stderr => self.outcome.err.extend(bytes),
                }
            }
            JobAnswer::Flush(_) if !self.flushing => {}
            JobAnswer::Flush(token) => {
                self.take_all();
                self.send(&JobRequest::Flushed(token));
            }
            JobAnswer::Notice { level, text } => self.outcome.notices.push((level, text)),
            JobAnswer::Finished(end) => self.outcome.end = Some(end),
            JobAnswer::Directory(dir) => self.outcome.dir = dir,
            // These messages may be in flight at the end of the job.
            JobAnswer::Metrics(_) | JobAnswer::UnknownJob => {
                assert!(self.outcome.refused.is_some(), "scored knows no job {JOB}")
            }
            JobAnswer::ToolAction(_) | JobAnswer::ToolOutput(_) => panic!("there is no tool"),
            JobAnswer::Processes { block, .. } => self.outcome.processes.push(block),
            // Notices contain the same information.
            JobAnswer::Stacks(_) | JobAnswer::OpenDebugger(_) => {}
            JobAnswer::FileRequest { .. } => panic!("one host fetches no program"),
        }
    }

    /// Calls [`Driver::step`] until the condition is true.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !holds(self) {
            assert!(Instant::now() < end, "{what} did not come: {:?}", self.outcome.notices);
            assert!(!self.closed, "scored has exited before {what}: {:?}", self.outcome.notices);
            self.step();
        }
    }

    /// Runs until scored has sent its final message and has exited.
    pub fn finish(mut self) -> Outcome {
        let end = Instant::now() + TEST_TIMEOUT;
        while !self.closed {
            assert!(Instant::now() < end, "scored does not end: {:?}", self.outcome.notices);
            self.step();
        }
        self.child.wait().unwrap();
        let dir = &self.outcome.dir;
        assert!(dir.is_empty() || !std::path::Path::new(dir).exists(), "{dir} is left");
        std::mem::take(&mut self.outcome)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(spec: JobSpec) -> Outcome {
    Driver::start(spec).finish()
}

/// The processes whose environment contains this text, in any session or job.
pub fn marked(mark: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.windows(mark.len()).any(|window| window == mark.as_bytes()) {
            found.push(pid);
        }
    }
    found
}

/// An environment variable that marks the processes of one test.
pub fn mark() -> String {
    format!("SCORE_TEST_MARK={:016x}", score_sys::random::random_u64())
}

/// A temporary directory of a test. It is removed when this value is dropped.
pub struct TempDir(std::path::PathBuf);

impl TempDir {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("scored-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub fn file(&self, name: &str, text: &str, mode: u32) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
