//! The tools of a job on this host (docs/dev/tools.md). The daemon has a socket to the supervisor
//! of each tool ([`crate::tool_supervisor`]). A supervisor runs as the job's user, so the daemon
//! does not trust it: the daemon only accepts reports, and waits for a supervisor only for a
//! bounded time.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_client::FramedSocket;
use score_proto::exit_code::EXIT_FAILED;
use score_proto::ids::{JobHostId, JobId};
use score_proto::job_control::{JobStart, Status};
use score_proto::message::OsBytes;
use score_proto::tool_files::{self, ToolFilesKind, ToolFilesOrder};
use score_proto::tool_start::{
    MAX_TOOL_LINE, SupervisedTool, SupervisorOrder, TOOL_FILES_DIR, ToolEventKind, ToolId,
    ToolOrder, ToolOrderKind, ToolProgram, ToolReport,
};

use super::shepherd_handle::KnownChildren;
use crate::sys::process;

/// After the end of the job, a tool must touch its status file at least this often.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The default time in which a tool may clean up after the end of the job.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(600);
/// Environment variables for tests: values in milliseconds that replace the two time-outs.
const SILENCE_ENV: &str = "SCORE_TEST_TOOL_SILENCE_MS";
const CLEANUP_ENV: &str = "SCORE_TEST_TOOL_CLEANUP_MS";
/// How long a supervisor may run after the time limit of its tool has passed.
const SUPERVISOR_GRACE: Duration = Duration::from_secs(3);
/// The maximum number of reports of one tool that the daemon receives in a turn of the loop.
const REPORTS_PER_TURN: usize = 64;

/// The time limits of tools after the end of their job.
#[derive(Debug, Clone, Copy)]
pub struct ToolTimes {
    silence: Duration,
    cleanup: Duration,
}

impl ToolTimes {
    /// `cleanup` is the operator's setting (`-cleanup`).
    pub fn new(cleanup: Option<Duration>) -> Self {
        let from_test = |name: &str| {
            let text = std::env::var(name).ok()?;
            Some(Duration::from_millis(text.parse().ok()?))
        };
        Self {
            silence: from_test(SILENCE_ENV).unwrap_or(SILENCE_TIMEOUT),
            cleanup: cleanup.or_else(|| from_test(CLEANUP_ENV)).unwrap_or(CLEANUP_TIMEOUT),
        }
    }
}

/// The state of the directory in which tools find the job. The job's shepherd creates it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DirectoryState {
    Unknown,
    Requested,
    /// The shepherd has created the directory. The job's directory has this path.
    Made(OsBytes),
    Failed(String),
}

/// A tool that was started.
#[derive(Debug)]
struct HostTool {
    id: ToolId,
    link: FramedSocket,
    /// The process id of the supervisor in single-user mode, in which it is a child of this daemon.
    child: Option<i32>,
    has_started: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct HostTools {
    job_start: Arc<JobStart>,
    host: JobHostId,
    times: ToolTimes,
    known_children: KnownChildren,
    directory: DirectoryState,
    /// Tools that cannot start before the directory exists.
    waiting: Vec<(ToolId, ToolProgram)>,
    tools: Vec<HostTool>,
    /// Waiting and running tools that have their own files on this host.
    with_files: BTreeSet<ToolId>,
    /// The tool whose files the shepherd receives or forwards.
    in_transfer: Option<ToolId>,
    /// After the end of the job: the time at which the daemon gives up the supervisors.
    deadline: Option<Instant>,
    reports: Vec<ToolReport>,
}

impl HostTools {
    /// Creates a job without tools.
    pub fn new(
        job_start: Arc<JobStart>,
        host: JobHostId,
        times: ToolTimes,
        known_children: KnownChildren,
    ) -> Self {
        Self {
            job_start,
            host,
            times,
            known_children,
            directory: DirectoryState::Unknown,
            waiting: Vec::new(),
            tools: Vec::new(),
            with_files: BTreeSet::new(),
            in_transfer: None,
            deadline: None,
            reports: Vec::new(),
        }
    }

    /// The job's number.
    pub fn job(&self) -> JobId {
        self.job_start.job
    }

    fn report(&mut self, tool: ToolId, kind: ToolEventKind) {
        self.reports.push(ToolReport { host: self.host, tool, kind });
    }

    /// Takes the reports since the last call.
    pub fn take_reports(&mut self) -> Vec<ToolReport> {
        std::mem::take(&mut self.reports)
    }

    /// Whether there are no running and no waiting tools.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty() && self.waiting.is_empty()
    }

    /// Handles an order of the job master. Returns whether the shepherd has to create the
    /// directory.
    pub fn on_order(&mut self, order: &ToolOrder) -> bool {
        if !order.hosts.contains(self.host.0) {
            return false;
        }
        match &order.kind {
            ToolOrderKind::Start { program, has_files } => {
                self.waiting.push((order.tool, program.clone()));
                if *has_files {
                    self.with_files.insert(order.tool);
                }
                if self.directory == DirectoryState::Unknown {
                    self.directory = DirectoryState::Requested;
                    return true;
                }
            }
            ToolOrderKind::Signal(signal) => {
                let tool = self.tools.iter_mut().find(|tool| tool.id == order.tool);
                if let Some(tool) = tool {
                    tool.link.queue(&SupervisorOrder::Signal(*signal));
                    tool.link.flush();
                }
                self.refuse_waiting(Some(order.tool), "it was ended before it had started");
            }
        }
        false
    }

    fn refuse_waiting(&mut self, only: Option<ToolId>, reason: &str) {
        let is_meant = |id: ToolId| only.is_none_or(|only| only == id);
        let refused: Vec<_> = self.waiting.extract_if(.., |(id, _)| is_meant(*id)).collect();
        for (id, _) in refused {
            let reason = reason.to_owned();
            self.report(id, ToolEventKind::NotStarted { code: EXIT_FAILED, reason });
        }
    }

    /// Records the path of the directory, or why the shepherd could not create it.
    pub fn on_prepared(&mut self, result: Result<OsBytes, String>) {
        if self.directory == DirectoryState::Requested {
            self.directory = match result {
                Ok(path) => DirectoryState::Made(path),
                Err(reason) => DirectoryState::Failed(reason),
            };
        }
    }

    /// Handles an order for the shepherd about the files of a tool.
    pub fn on_files_order(&mut self, order: &ToolFilesOrder) {
        self.in_transfer = matches!(order.kind, ToolFilesKind::Fetch(_)).then_some(order.tool);
    }

    /// Records whether the shepherd has the files of a tool. Ignores a report about another tool.
    /// Otherwise the job master would treat a running tool as not started.
    pub fn on_files(&mut self, tool: ToolId, result: Result<(), String>) {
        if self.in_transfer != Some(tool) {
            return;
        }
        self.report(
            tool,
            match result {
                Ok(()) => ToolEventKind::FilesReady,
                Err(reason) => ToolEventKind::NotStarted { code: EXIT_FAILED, reason },
            },
        );
    }

    /// Returns the tool if this report is the last one of a tool with its own files. The shepherd
    /// then has to remove the files.
    pub fn take_ended_files(&mut self, report: &ToolReport) -> Option<ToolId> {
        let is_last =
            matches!(report.kind, ToolEventKind::NotStarted { .. } | ToolEventKind::Ended(_));
        (is_last && self.with_files.remove(&report.tool)).then_some(report.tool)
    }

    /// The path of the files for a tool, if there are any.
    fn files_of(&self, tool: ToolId, job_directory: &OsBytes) -> Option<OsBytes> {
        let name = match self.job_start.spec.tool_files {
            _ if self.with_files.contains(&tool) => tool_files::directory_name(tool),
            Some(_) => TOOL_FILES_DIR.to_owned(),
            None => return None,
        };
        Some(OsBytes([&job_directory.0, b"/".as_slice(), name.as_bytes()].concat()))
    }

    /// Whether [`HostTools::start_waiting`] has something to do.
    pub fn has_startable(&self) -> bool {
        let is_known =
            matches!(self.directory, DirectoryState::Made(_) | DirectoryState::Failed(_));
        is_known && !self.waiting.is_empty()
    }

    /// Starts the waiting tools if the directory is ready. `start` starts a supervisor, and returns
    /// its process id if the supervisor is a child of this daemon.
    pub fn start_waiting(
        &mut self,
        registry: &Registry,
        token: Token,
        mut start: impl FnMut(&OwnedFd) -> Result<Option<i32>, String>,
    ) {
        let path = match self.directory.clone() {
            DirectoryState::Made(path) => path,
            DirectoryState::Failed(reason) => return self.refuse_waiting(None, &reason),
            DirectoryState::Unknown | DirectoryState::Requested => return,
        };
        for (id, program) in std::mem::take(&mut self.waiting) {
            match self.start(id, program, &path, (registry, token), &mut start) {
                Ok(tool) => self.tools.push(tool),
                Err(reason) => {
                    self.report(id, ToolEventKind::NotStarted { code: EXIT_FAILED, reason });
                }
            }
        }
    }

    fn start(
        &self,
        id: ToolId,
        program: ToolProgram,
        job_directory: &OsBytes,
        (registry, token): (&Registry, Token),
        start: &mut impl FnMut(&OwnedFd) -> Result<Option<i32>, String>,
    ) -> Result<HostTool, String> {
        let to_text = |error: io::Error| format!("a tool cannot be started: {error}");
        let (local, its) = UnixStream::pair().map_err(to_text)?;
        let mut link = FramedSocket::new(local.into()).map_err(to_text)?;
        link.register(registry, token).map_err(to_text)?;
        let spec = &self.job_start.spec;
        let milliseconds = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        link.queue(&SupervisorOrder::Start(SupervisedTool {
            job: self.job_start.job,
            tool: id,
            program,
            environment: spec.environment.clone(),
            directory: spec.directory.clone(),
            job_directory: job_directory.clone(),
            files: self.files_of(id, job_directory),
            umask: spec.umask,
            silence_ms: milliseconds(self.times.silence),
            cleanup_ms: milliseconds(self.times.cleanup),
        }));
        let child = start(&its.into())?;
        self.known_children.borrow_mut().extend(child);
        link.flush();
        Ok(HostTool { id, link, child, has_started: false })
    }

    /// Records that mio has reported one of the sockets as readable.
    pub fn mark_readable(&mut self) {
        self.tools.iter_mut().for_each(|tool| tool.link.mark_readable());
    }

    /// Whether there may be reports without a further report of mio.
    pub fn may_have_more(&self) -> bool {
        self.tools.iter().any(|tool| tool.link.may_have_more())
    }

    /// Writes as much as the sockets accept.
    pub fn flush(&mut self, registry: &Registry) {
        for tool in &mut self.tools {
            tool.link.flush();
            tool.link.update_interest(registry);
        }
    }

    /// Receives a bounded number of reports of each supervisor.
    pub fn receive(&mut self) {
        let host = self.host;
        let reports = &mut self.reports;
        self.tools.retain_mut(|tool| {
            for _ in 0..REPORTS_PER_TURN {
                let kind = match tool.link.receive::<ToolEventKind>() {
                    Ok(Some(kind)) => kind,
                    Ok(None) if tool.link.is_closed() => tool.unreported_end(),
                    Ok(None) => return true,
                    // The supervisor violates the protocol. It ends when its socket is closed.
                    Err(_) => tool.unreported_end(),
                };
                let is_last =
                    matches!(kind, ToolEventKind::NotStarted { .. } | ToolEventKind::Ended(_));
                tool.has_started |= kind == ToolEventKind::Started;
                let kind = match kind {
                    ToolEventKind::Output(mut line) => {
                        line.truncate(MAX_TOOL_LINE);
                        ToolEventKind::Output(line)
                    }
                    kind => kind,
                };
                reports.push(ToolReport { host, tool: tool.id, kind });
                if is_last {
                    return false;
                }
            }
            true
        });
    }

    fn send_all(&mut self, order: &SupervisorOrder) {
        for tool in &mut self.tools {
            tool.link.queue(order);
            tool.link.flush();
        }
    }

    /// Orders the tools to clean up, because the job has ended.
    pub fn end_job(&mut self, now: Instant) {
        self.refuse_waiting(None, "the job has ended");
        self.send_all(&SupervisorOrder::EndJob);
        self.deadline.get_or_insert(now + self.times.cleanup + SUPERVISOR_GRACE);
    }

    /// Whether the job has ended on this host.
    pub fn is_ending(&self) -> bool {
        self.deadline.is_some()
    }

    /// Kills all tools at once.
    pub fn kill(&mut self, now: Instant) {
        self.refuse_waiting(None, "the job has ended");
        self.send_all(&SupervisorOrder::Kill);
        let soon = now + SUPERVISOR_GRACE;
        self.deadline = Some(self.deadline.map_or(soon, |deadline| deadline.min(soon)));
    }

    /// The time at which the daemon gives up the supervisors.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| !self.tools.is_empty())
    }

    /// Gives up the supervisors if they have not ended in time.
    pub fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.abandon();
        }
    }

    /// Gives up all tools. Each supervisor ends its tool when its socket is closed. A supervisor
    /// that is a child of this process is also killed.
    pub fn abandon(&mut self) {
        self.refuse_waiting(None, "the job has ended");
        for tool in std::mem::take(&mut self.tools) {
            let is_running = |pid: &i32| self.known_children.borrow().contains(pid);
            if let Some(pid) = tool.child.filter(is_running) {
                process::kill(pid, libc::SIGKILL);
            }
            self.report(tool.id, ToolEventKind::Ended(Status::Signaled(libc::SIGKILL)));
        }
    }
}

impl HostTool {
    /// The event for a supervisor that has ended without a last report.
    fn unreported_end(&self) -> ToolEventKind {
        match self.has_started {
            true => ToolEventKind::Ended(Status::Signaled(libc::SIGKILL)),
            false => {
                let reason = "the process that starts it was killed".to_owned();
                ToolEventKind::NotStarted { code: EXIT_FAILED, reason }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::message::JobSpec;
    use score_proto::nodeset::NodeSet;

    fn host_tools() -> HostTools {
        let spec = JobSpec::default();
        let job_start = JobStart { job: JobId(1), secret: 0, spec, owner: None };
        let times = ToolTimes::new(None);
        HostTools::new(Arc::new(job_start), JobHostId(0), times, KnownChildren::default())
    }

    #[test]
    fn a_report_about_files_counts_only_for_the_tool_whose_files_are_transferred() {
        let mut tools = host_tools();
        let mut report = |order: Option<ToolFilesKind>, tool| {
            let hosts = NodeSet::one(0);
            let order = order.map(|kind| ToolFilesOrder { tool: ToolId(2), hosts, kind });
            order.iter().for_each(|order| tools.on_files_order(order));
            tools.on_files(ToolId(tool), Ok(()));
            tools.take_reports().len()
        };
        let content = score_proto::message::FileDigest { hash: [1; 32], size: 1 };
        assert_eq!(report(None, 2), 0);
        assert_eq!(report(Some(ToolFilesKind::Fetch(content)), 1), 0);
        assert_eq!(report(None, 2), 1);
        assert_eq!(report(Some(ToolFilesKind::Cancel), 2), 0);
    }

    #[test]
    fn the_files_of_a_tool_are_removed_once_when_the_tool_has_ended() {
        let mut tools = host_tools();
        for (tool, has_files) in [(1, true), (2, false)] {
            let program = ToolProgram { path: OsBytes(b"/t".to_vec()), arguments: Vec::new() };
            let kind = ToolOrderKind::Start { program, has_files };
            tools.on_order(&ToolOrder { tool: ToolId(tool), hosts: NodeSet::one(0), kind });
        }
        let job = OsBytes(b"/job".to_vec());
        assert_eq!(tools.files_of(ToolId(1), &job).unwrap().0, b"/job/.tool-files-1");
        assert_eq!(tools.files_of(ToolId(2), &job), None);
        let mut ended = |tool, kind| {
            tools.take_ended_files(&ToolReport { host: JobHostId(0), tool: ToolId(tool), kind })
        };
        assert_eq!(ended(1, ToolEventKind::Started), None);
        let exited = || ToolEventKind::Ended(Status::Exited(0));
        assert_eq!(ended(2, exited()), None);
        assert_eq!(ended(1, exited()), Some(ToolId(1)));
        assert_eq!(ended(1, exited()), None);
    }
}
