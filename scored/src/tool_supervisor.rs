//! The supervisor of a tool (`scored -tool`). For each tool of a job, each host of the tool runs
//! one supervisor, which starts the tool and watches it. The supervisor runs as the user of the
//! job, but outside of the job's PID namespace. It is a child of the daemon, or of the keeper in
//! multi-user mode.
//!
//! The supervisor adopts orphaned processes of the tool. It kills all processes of the tool in
//! these cases:
//!
//! - The tool's first process has ended. The supervisor kills this process if the daemon orders it,
//!   or if the tool's time to clean up has passed.
//! - The connection to the daemon is lost.
//!
//! The daemon never blocks on a supervisor.
#![forbid(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::pipe2;
use score_client::FramedSocket;
use score_job::host::rate_limit::TokenBucket;
use score_proto::exit_code::{EXIT_FAILED, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND};
use score_proto::job_control::{Owner, Status};
use score_proto::message::OsBytes;
use score_proto::tool_start::{
    JOB_ID_ENV, MAX_TOOL_LINE, SupervisedTool, SupervisorOrder, TOOL_DIR_ENV, TOOL_FILES_ENV,
    TOOL_ID_ENV, ToolEventKind, directory_of,
};

use crate::owner_arg;
use crate::sys::cgroup::{self, Group};
use crate::sys::namespace::{self, Containment};
use crate::sys::new_file::write_new;
use crate::sys::pdeathsig::{set_pdeathsig, unblock_signals};
use crate::sys::process::{self, WaitResult};
use crate::sys::{credentials, descriptor, realtime};

/// The name of the process.
const PROCESS_NAME: &std::ffi::CStr = c"scored-tool";
/// How often the supervisor checks the tool's status file after the end of the job.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the daemon may take to read the last reports. Also limits the time in which the
/// supervisor kills the remaining processes.
const LAST_REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// The reads of a tool's output, each of 4 KiB, between which the supervisor handles orders.
const READS_PER_TURN: usize = 16;
/// The reads after the end of a tool. A pipe holds at most 1 MiB, unless root has changed
/// fs.pipe-max-size.
const LAST_READS: usize = 257;
/// The supervisor forwards this many output lines of a tool at once, then one line in each
/// interval.
const LINE_BURST: u32 = 256;
const LINE_INTERVAL: Duration = Duration::from_millis(50);
/// Limit of the bytes that wait for the daemon. The supervisor drops further lines.
const MAX_BACKLOG: usize = 256 << 10;

/// The options of a supervisor.
#[derive(Debug)]
pub struct SupervisorOptions {
    /// The socket to the daemon.
    pub control: OwnedFd,
    /// The user of the job, if it is not the user that started scored.
    pub owner: Option<Owner>,
    /// The files through which the supervisor joins the job's cgroup.
    pub membership_files: Vec<PathBuf>,
}

/// Starts a supervisor and returns its process id. The calling process must have only one thread.
///
/// # Errors
/// The error of a failed system call.
pub fn start(job: Option<(&Owner, &Group)>, control: &OwnedFd) -> io::Result<i32> {
    let number = control.as_raw_fd().to_string();
    let mut args: Vec<OsString> = ["scored", "-tool", "-control", &number].map(Into::into).into();
    let mut start_dir = None;
    if let Some((owner, group)) = job {
        args.extend(["-owner".into(), owner_arg::write(owner)]);
        let (dir, files) = group.for_tools();
        args.extend(files.into_iter().flat_map(|file| ["-cgroup".into(), file.into_os_string()]));
        start_dir = dir.map(File::open).transpose()?;
    }
    let args: Result<Vec<CString>, _> =
        args.into_iter().map(|arg| CString::new(arg.into_vec())).collect();
    let (args, start_dir) = (args?, start_dir.as_ref());
    realtime::run_unpinned(|| {
        namespace::start_self(Containment::Subreaper, &args, &[control], start_dir)
    })
}

/// Runs a supervisor until its tool has ended.
///
/// # Errors
/// The error of a system call that failed before the tool was started.
pub fn run(options: SupervisorOptions) -> io::Result<()> {
    process::set_name(PROCESS_NAME);
    process::default_and_block_signals()?;
    descriptor::reserve_low()?;
    descriptor::close_on_exec_from(3);
    process::leave_session();
    process::become_subreaper();
    let mut link = FramedSocket::new(options.control)?;
    if let Some(owner) = &options.owner {
        let joined = cgroup::join(&options.membership_files)
            .map_err(|error| format!("cgroup of the job: {error}"));
        if let Err(reason) = joined.and_then(|()| credentials::become_owner(owner)) {
            link.queue(&ToolEventKind::NotStarted { code: EXIT_FAILED, reason });
            link.flush();
            return Ok(());
        }
    }
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), flags)?;
    let mut supervisor = Supervisor { link, signals, tool: None, is_over: false };
    while !supervisor.is_over {
        supervisor.turn();
    }
    supervisor.finish();
    Ok(())
}

/// The time limits of a tool after the end of its job.
#[derive(Debug)]
struct Cleanup {
    /// The supervisor kills the tool at this time at the latest.
    deadline: Instant,
    silence: Duration,
    /// The last observed modification time of the status file, and when it was first observed.
    last_touch: (Option<SystemTime>, Instant),
}

impl Cleanup {
    fn begin(tool: &SupervisedTool, touched: Option<SystemTime>, now: Instant) -> Self {
        Self {
            deadline: now + Duration::from_millis(tool.cleanup_ms.into()),
            silence: Duration::from_millis(tool.silence_ms.into()),
            last_touch: (touched, now),
        }
    }

    /// Records the modification time of the status file. Returns whether the tool's time limit has
    /// passed.
    fn is_over(&mut self, touched: Option<SystemTime>, now: Instant) -> bool {
        if touched.is_some() && touched != self.last_touch.0 {
            self.last_touch = (touched, now);
        }
        now >= self.deadline || now >= self.last_touch.1 + self.silence
    }

    /// The time of the next check of the status file.
    fn next_look(&self, now: Instant) -> Instant {
        self.deadline.min(self.last_touch.1 + self.silence).min(now + STATUS_INTERVAL)
    }
}

/// A running tool.
#[derive(Debug)]
struct RunningTool {
    order: SupervisedTool,
    pid: i32,
    output: Option<File>,
    line: Vec<u8>,
    limit: TokenBucket,
    dropped_lines: u64,
    cleanup: Option<Cleanup>,
}

/// The files of a tool in the job's directory for tools.
#[derive(Debug)]
struct ToolNames {
    link: PathBuf,
    status: PathBuf,
}

impl ToolNames {
    fn new(tool: &SupervisedTool) -> Self {
        let directory = tools_directory(tool);
        let number = tool.tool.to_string();
        Self { link: directory.join(&number), status: directory.join("status").join(number) }
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.link);
        let _ = fs::remove_file(&self.status);
    }
}

fn to_path(bytes: &OsBytes) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&bytes.0))
}

fn job_directory(tool: &SupervisedTool) -> PathBuf {
    to_path(&tool.job_directory).join(directory_of(tool.job))
}

fn tools_directory(tool: &SupervisedTool) -> PathBuf {
    job_directory(tool).join("tools")
}

struct Supervisor {
    link: FramedSocket,
    signals: SignalFd,
    tool: Option<RunningTool>,
    is_over: bool,
}

impl Supervisor {
    fn turn(&mut self) {
        self.wait();
        self.link.mark_readable();
        loop {
            match self.link.receive::<SupervisorOrder>() {
                Ok(Some(order)) => self.on_order(order),
                Ok(None) if self.link.is_closed() => self.is_over = true,
                Ok(None) => break,
                Err(_) => self.is_over = true,
            }
            if self.is_over {
                return;
            }
        }
        while matches!(self.signals.read_signal(), Ok(Some(_))) {}
        self.read_output(READS_PER_TURN);
        self.reap();
        self.watch_cleanup(Instant::now());
        self.link.flush();
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let wants_write = self.link.backlog() > 0;
        let flags = PollFlags::POLLIN;
        let link_flags = if wants_write { flags | PollFlags::POLLOUT } else { flags };
        let mut polled = vec![
            PollFd::new(self.link.as_fd(), link_flags),
            PollFd::new(self.signals.as_fd(), flags),
        ];
        let output = self.tool.as_ref().and_then(|tool| tool.output.as_ref());
        polled.extend(output.map(|output| PollFd::new(output.as_fd(), flags)));
        let now = Instant::now();
        let cleanup = self.tool.as_ref().and_then(|tool| tool.cleanup.as_ref());
        let timeout = cleanup.map_or(PollTimeout::NONE, |cleanup| {
            let left = cleanup.next_look(now).saturating_duration_since(now);
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        });
        // An error such as EINTR has the effect of an early time-out.
        let _ = poll(&mut polled, timeout);
    }

    fn on_order(&mut self, order: SupervisorOrder) {
        match (order, &mut self.tool) {
            (SupervisorOrder::Start(order), None) => match spawn(order) {
                Ok(tool) => {
                    self.tool = Some(tool);
                    self.link.queue(&ToolEventKind::Started);
                }
                Err((code, reason)) => {
                    self.link.queue(&ToolEventKind::NotStarted { code, reason });
                    self.is_over = true;
                }
            },
            (SupervisorOrder::Start(_), Some(_)) => {}
            (SupervisorOrder::Signal(signal), Some(tool)) => {
                process::kill_group(tool.pid, signal);
                self.link.queue(&ToolEventKind::Signaled);
            }
            (SupervisorOrder::EndJob, Some(tool)) => {
                let touched = touched(&tool.order);
                let begin = || Cleanup::begin(&tool.order, touched, Instant::now());
                tool.cleanup.get_or_insert_with(begin);
                process::kill_group(tool.pid, libc::SIGTERM);
            }
            (SupervisorOrder::Kill, Some(tool)) => process::kill_group(tool.pid, libc::SIGKILL),
            (_, None) => self.is_over = true,
        }
    }

    /// Reaps exited children. The tool ends when its first process ends.
    fn reap(&mut self) {
        while let WaitResult::Exited(reaped) = process::reap() {
            if self.tool.as_ref().is_some_and(|tool| tool.pid == reaped.pid) {
                kill_rest();
                self.read_output(LAST_READS);
                self.end(reaped.status);
            }
        }
    }

    fn end(&mut self, status: Status) {
        self.is_over = true;
        if let Some(mut tool) = self.tool.take() {
            if !tool.line.is_empty() {
                tool.pass_line(&mut self.link);
            }
            tool.report_dropped_lines(&mut self.link);
            ToolNames::new(&tool.order).remove();
            self.link.queue(&ToolEventKind::Ended(status));
        }
    }

    fn watch_cleanup(&mut self, now: Instant) {
        let Some(tool) = &mut self.tool else { return };
        let touched = touched(&tool.order);
        let is_over = tool.cleanup.as_mut().is_some_and(|cleanup| cleanup.is_over(touched, now));
        if is_over {
            // SIGCHLD reports the tool's end.
            process::kill_group(tool.pid, libc::SIGKILL);
        }
    }

    fn read_output(&mut self, max_reads: usize) {
        let Some(tool) = &mut self.tool else { return };
        let mut bytes = [0; 4096];
        for _ in 0..max_reads {
            let Some(output) = &mut tool.output else { return };
            match output.read(&mut bytes) {
                Ok(0) => tool.output = None,
                Ok(count) => {
                    for byte in &bytes[..count] {
                        match byte {
                            b'\n' => tool.pass_line(&mut self.link),
                            _ => tool.line.push(*byte),
                        }
                        if tool.line.len() >= MAX_TOOL_LINE {
                            tool.pass_line(&mut self.link);
                        }
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => tool.output = None,
            }
            if !tool.line.is_empty() {
                tool.pass_line(&mut self.link);
            }
        }
    }

    /// Kills everything that the tool has started, and sends the last reports.
    fn finish(mut self) {
        kill_rest();
        if let Some(tool) = &self.tool {
            ToolNames::new(&tool.order).remove();
        }
        let deadline = Instant::now() + LAST_REPORT_TIMEOUT;
        self.link.flush();
        while self.link.backlog() > 0 && !self.link.is_closed() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
            self.link.flush();
        }
    }
}

impl RunningTool {
    /// Forwards the line. Drops it if the tool exceeds its rate limit or the daemon reads slowly.
    fn pass_line(&mut self, link: &mut FramedSocket) {
        let line = std::mem::take(&mut self.line);
        let now = Instant::now();
        if self.limit.next_at(now).is_some() || link.backlog() > MAX_BACKLOG {
            self.dropped_lines += 1;
            return;
        }
        self.report_dropped_lines(link);
        self.limit.take(now);
        link.queue(&ToolEventKind::Output(line));
    }

    fn report_dropped_lines(&mut self, link: &mut FramedSocket) {
        if let dropped @ 1.. = std::mem::take(&mut self.dropped_lines) {
            let text = format!("({dropped} lines are not shown: the tool wrote too fast)");
            link.queue(&ToolEventKind::Output(text.into_bytes()));
        }
    }
}

/// Kills the tool's remaining processes.
fn kill_rest() {
    let deadline = Instant::now() + LAST_REPORT_TIMEOUT;
    while process::kill_descendants_except(&Default::default()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The last modification time of the tool's status file.
fn touched(tool: &SupervisedTool) -> Option<SystemTime> {
    fs::symlink_metadata(ToolNames::new(tool).status).ok()?.modified().ok()
}

/// Returns the path of the tool's program. A name without a slash is searched in `PATH`.
fn program_path(tool: &SupervisedTool) -> Option<PathBuf> {
    let path = to_path(&tool.program.path);
    let directory = to_path(&tool.directory);
    if tool.program.path.0.contains(&b'/') {
        return Some(directory.join(path));
    }
    let search_path =
        tool.environment.iter().find_map(|variable| variable.0.strip_prefix(b"PATH="));
    let search_path = OsStr::from_bytes(search_path.unwrap_or(b"/usr/local/bin:/bin:/usr/bin"));
    let candidates = std::env::split_paths(search_path).map(|dir| directory.join(dir).join(&path));
    let mut files = candidates.filter(|candidate| candidate.is_file());
    files.next()
}

/// Starts a tool. An error contains the exit code for the command that requested the tool.
fn spawn(mut order: SupervisedTool) -> Result<RunningTool, (u8, String)> {
    if let Some(files) = &order.files {
        order.program = order.program.with_files(&files.0);
    }
    let shown = String::from_utf8_lossy(&order.program.path.0).into_owned();
    let failed = |what: &dyn std::fmt::Display| (EXIT_FAILED, format!("{shown}: {what}"));
    let program = program_path(&order).ok_or((EXIT_NOT_FOUND, format!("{shown}: not found")))?;
    let directory = to_path(&order.directory);
    if let Err(error) = fs::read_dir(&directory)
        && error.kind() == io::ErrorKind::NotFound
    {
        return Err(failed(&format!("cannot enter {}: {error}", directory.display())));
    }
    let names = ToolNames::new(&order);
    let make_names = || -> io::Result<()> {
        names.remove();
        write_new(&names.status, b"")?;
        std::os::unix::fs::symlink(&program, &names.link)
    };
    make_names().map_err(|error| failed(&format!("{}: {error}", names.status.display())))?;
    let spawned = spawn_program(&order, &program, &directory);
    let (pid, output) = spawned.map_err(|error| {
        names.remove();
        match error.kind() {
            io::ErrorKind::NotFound => {
                (EXIT_NOT_FOUND, format!("{shown}: not found, or its interpreter is not"))
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => {
                (EXIT_NOT_EXECUTABLE, format!("{shown}: {error}"))
            }
            _ if error.raw_os_error() == Some(libc::ENOEXEC) => {
                (EXIT_NOT_EXECUTABLE, format!("{shown}: {error}"))
            }
            _ => failed(&error),
        }
    })?;
    let limit = TokenBucket::new(LINE_BURST, LINE_INTERVAL, Instant::now());
    Ok(RunningTool {
        order,
        pid,
        output: Some(output),
        line: Vec::new(),
        limit,
        dropped_lines: 0,
        cleanup: None,
    })
}

/// Starts the program of a tool. Returns its process id and the pipe with its output.
fn spawn_program(
    tool: &SupervisedTool,
    program: &Path,
    directory: &Path,
) -> io::Result<(i32, File)> {
    let (output, its_output) = pipe2(OFlag::O_CLOEXEC)?;
    descriptor::set_nonblocking(output.as_fd())?;
    let mut command = Command::new(program);
    command.arg0(OsStr::from_bytes(&tool.program.path.0));
    command.args(tool.program.arguments.iter().map(|word| OsStr::from_bytes(&word.0)));
    command.env_clear();
    let variables = tool.environment.iter().filter_map(|variable| {
        let at = variable.0.iter().position(|byte| *byte == b'=')?;
        let (name, value) = variable.0.split_at(at);
        Some((OsStr::from_bytes(name), OsStr::from_bytes(&value[1..])))
    });
    command.envs(variables.filter(|(name, _)| !name.is_empty()));
    command.env(JOB_ID_ENV, tool.job.to_string()).env(TOOL_ID_ENV, tool.tool.to_string());
    command.env(TOOL_DIR_ENV, job_directory(tool));
    if let Some(files) = &tool.files {
        command.env(TOOL_FILES_ENV, to_path(files));
    }
    command.current_dir(directory).stdin(Stdio::null());
    command.stdout(its_output.try_clone()?).stderr(its_output).process_group(0);
    set_pdeathsig(&mut command, libc::SIGKILL);
    unblock_signals(&mut command);
    process::set_umask(tool.umask);
    // The supervisor reaps all of its children, so the handle of the child can be dropped.
    let child = command.spawn()?;
    Ok((i32::try_from(child.id()).unwrap_or(0), File::from(output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(program: &str, path: &str) -> SupervisedTool {
        SupervisedTool {
            job: score_proto::ids::JobId(1),
            tool: score_proto::tool_start::ToolId(1),
            program: score_proto::tool_start::ToolProgram {
                path: OsBytes(program.into()),
                arguments: Vec::new(),
            },
            environment: vec![OsBytes(format!("PATH={path}").into_bytes())],
            directory: OsBytes(b"/".to_vec()),
            job_directory: OsBytes(b"/none".to_vec()),
            files: None,
            umask: 0o022,
            silence_ms: 60_000,
            cleanup_ms: 600_000,
        }
    }

    // Promise (tools): After the end of a job its tools may clean up as long as they touch their
    // status file every 60 s, for ten minutes or the time that the operator sets.
    #[test]
    fn a_tool_has_sixty_seconds_from_each_touch_and_ten_minutes_in_all() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let time = |seconds: u64| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let begin = || Cleanup::begin(&tool("t", ""), time(1), start);
        let mut silent = begin();
        assert!(!silent.is_over(time(1), after(59)));
        assert!(silent.is_over(time(1), after(60)));
        // The modification time of the file may jump, and the file may be removed.
        let mut active = begin();
        for second in (10..600).step_by(50) {
            assert!(!active.is_over(time(1_000_000 - second), after(second)), "{second}");
            assert!(!active.is_over(None, after(second + 1)), "{second}");
        }
        assert!(active.is_over(time(7), after(600)));
        assert!(begin().is_over(None, after(60)));
        assert!(begin().next_look(after(1)) <= after(2));
    }

    #[test]
    fn a_program_without_a_slash_is_searched() {
        let found = |program: &str, path: &str| program_path(&tool(program, path));
        assert_eq!(found("sh", "/none:/bin"), Some("/bin/sh".into()));
        assert_eq!(found("sh", "none:bin"), Some("/bin/sh".into()));
        assert_eq!(found("no-such-program", "/bin"), None);
        assert_eq!(found("none/sh", "/bin"), Some("/none/sh".into()));
    }
}
