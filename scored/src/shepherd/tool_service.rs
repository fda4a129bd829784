//! The tool control service of this host, `scored-toolctl`. The first command of a tool, or the
//! first tool that connects to its socket, starts the service. It ends after an idle time.
//!
//! This module passes commands on to the service, and the answers of the service on to the tools.
//! It waits for the service no longer than a command allows. The shepherd keeps the listening
//! socket for tools open, so that a tool may connect at any time.

mod breakpoint_list;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use score_client::FramedSocket;
use score_proto::ids::ElementIndex;
use score_proto::job_control::{ElementReport, Status};
use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::{
    CommandId, EventBody, MAX_TOOL_BODY, MergedEvent, ToolCommand, ToolResult,
};
use score_proto::tool_start::TOOL_SOCKET;
use score_proto::toolctl::{ToolProcess, ToolctlJob, ToolctlOrder, ToolctlReport};

use super::gang_switch::RunGate;
use super::job_info::{JobInfo, ProcessKey, ShepherdContext};
use super::processes::ProcessTable;
use crate::sys::pdeathsig::unblock_signals;
use crate::sys::process;
use breakpoint_list::BreakpointList;

/// The service's program, in the directory of scored.
const SERVICE_NAME: &str = "scored-toolctl";
/// How long an idle service keeps running. It caches the data that it has read from programs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that the service gets in addition to the waiting time of a command.
const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// The shepherd kills a service that has not answered a command in time, and then sends nothing for
/// this time. The kill is a last resort: if the kernel detaches a thread in the middle of a step,
/// or at a breakpoint, SIGTRAP ends its process. A service on a loaded host is only late.
const STUCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The shepherd kills an idle service that has not exited within this time.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the service may take to notify tools of exits when the job ends.
const END_TIMEOUT: Duration = Duration::from_millis(300);
/// Largest number of tools that have connected and are not accepted yet.
const BACKLOG: i32 = 64;

/// A command that the service is carrying out.
#[derive(Debug)]
struct PendingCommand {
    /// Nodes that have not answered.
    unanswered: NodeSet,
    deadline: Instant,
}

/// Why the service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServiceUse {
    /// Tools are connected.
    Tools,
    /// The service has been idle since this time, unless a command is pending.
    Idle(Instant),
    /// The service was ordered to exit at this time.
    Leaving(Instant),
    /// The job has been ending since this time, and the service notifies tools of the exits.
    Ending(Instant),
}

/// The service while it runs.
#[derive(Debug)]
struct RunningService {
    socket: FramedSocket,
    pid: i32,
    purpose: ServiceUse,
    /// The time at which a command was not answered, if the service has sent nothing since.
    silent_since: Option<Instant>,
}

impl RunningService {
    /// When the service is considered stuck, unless it sends something.
    fn stuck_at(&self) -> Option<Instant> {
        self.silent_since.map(|since| since + STUCK_TIMEOUT)
    }
}

/// The socket to which tools connect.
#[derive(Debug)]
struct ToolControlListener {
    socket: OwnedFd,
    is_registered: bool,
    /// mio has reported a connection of a tool, and no service runs yet.
    has_connection: bool,
}

/// The data that the service needs when it starts.
pub struct ServedJob<'a> {
    /// The job.
    pub job_info: Option<&'a JobInfo>,
    /// State of the shepherd.
    pub context: &'a ShepherdContext,
    /// The processes of the running stage.
    pub processes: &'a mut ProcessTable,
}

/// An answer, and the element to which it belongs.
pub type ToolReport = (ElementIndex, ElementReport);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ToolService {
    service: Option<RunningService>,
    listener: Option<ToolControlListener>,
    /// Breakpoints that would stay in the processes if the service were killed.
    breakpoints: BreakpointList,
    /// [`RunGate::job_time`] at the start of the job.
    job_time_at_start: Option<Duration>,
    /// Commands without complete answers, by element and command id.
    pending: BTreeMap<(ElementIndex, CommandId), PendingCommand>,
    /// Orders that have not been queued for the service yet.
    unsent: Vec<ToolctlOrder>,
}

fn answer(id: CommandId, ranks: NodeSet, body: Vec<u8>) -> ElementReport {
    let body = EventBody::Answer(body);
    ElementReport::ToolEvent(MergedEvent { command: id, ranks, body })
}

/// The answer for nodes whose command failed.
fn failure(id: CommandId, nodes: NodeSet, reason: &str) -> ElementReport {
    let result = ToolResult::Failed(reason.to_owned());
    answer(id, nodes, result.encode())
}

impl ToolService {
    /// Takes a command of a tool for `local_nodes` of this host. `processes`: those of the nodes
    /// that run. Returns the answer for the nodes that do not run. [`ToolService::serve`] sends the
    /// command to the others.
    pub fn on_command(
        &mut self,
        element: ElementIndex,
        command: ToolCommand,
        local_nodes: NodeSet,
        processes: Vec<ToolProcess>,
    ) -> Option<ToolReport> {
        let ToolCommand { id, wait_ms, body, .. } = command;
        let running: NodeSet = processes.iter().map(|process| process.node).collect();
        let not_running = local_nodes.difference(&running);
        if !running.is_empty() {
            let wait = Duration::from_millis(wait_ms.into());
            let deadline = Instant::now() + wait + ANSWER_GRACE;
            let pending = PendingCommand { unanswered: running, deadline };
            self.pending.insert((element, id), pending);
            self.unsent.push(ToolctlOrder::Command { element, id, processes, wait_ms, body });
        }
        let reason = "it has ended, or has not started";
        (!not_running.is_empty()).then(|| (element, failure(id, not_running, reason)))
    }

    /// Creates the socket to which tools connect, once.
    ///
    /// # Errors
    /// One line with the path.
    pub fn listen(&mut self, job_directory: &Path) -> Result<(), String> {
        if self.listener.is_some() {
            return Ok(());
        }
        let path = job_directory.join(TOOL_SOCKET);
        let socket = listen_at(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let listener = ToolControlListener { socket, is_registered: false, has_connection: false };
        self.listener = Some(listener);
        Ok(())
    }

    /// Handles the start of a stage. `job_time` is that of the start, from [`RunGate::job_time`].
    /// The processes and the commands of the previous stage have ended. The service continues,
    /// because tools stay connected from stage to stage.
    pub fn begin_stage(&mut self, job_time: Duration) {
        self.job_time_at_start.get_or_insert(job_time);
        self.unsent.clear();
        self.pending.clear();
        self.breakpoints = BreakpointList::default();
    }

    /// Handles the start of a process of the running stage.
    pub fn on_process_start(&mut self, job_info: &JobInfo, key: ProcessKey, pid: i32) {
        if let Some(service) = &mut self.service {
            service.socket.queue(&started(job_info, key, pid));
        }
    }

    /// Handles the exit of a process of the running stage.
    pub fn on_process_exit(&mut self, job_info: &JobInfo, key: ProcessKey, status: Status) {
        self.breakpoints.clear(rank_of(job_info, key));
        if let Some(service) = &mut self.service {
            let status = match status {
                Status::Exited(code) => i32::from(code) << 8,
                Status::Signaled(signal) => signal & 0x7f,
            };
            service.socket.queue(&ToolctlOrder::Exited { rank: rank_of(job_info, key), status });
        }
    }

    /// Passes new commands on to the service. Starts the service if it does not run.
    fn send(
        &mut self,
        registry: &Registry,
        token: Token,
        run_gate: &RunGate,
        view: ServedJob<'_>,
    ) -> Result<(), String> {
        let connects = self.listener.as_ref().is_some_and(|listener| listener.has_connection);
        let is_left = self.service.is_none() && !self.breakpoints.is_empty();
        if self.unsent.is_empty() && !connects && !is_left {
            return Ok(());
        }
        if self.service.is_none() {
            // The service inherits the socket, because a tool that has read the socket's path may
            // connect. Without a socket, the service still carries out commands.
            _ = self.listen(&view.context.directory);
        }
        let service = match &mut self.service {
            // The next service carries out the commands.
            Some(RunningService { purpose: ServiceUse::Leaving(_), .. }) => return Ok(()),
            Some(service) => service,
            none => {
                let listener = self.listener.as_ref().map(|listener| listener.socket.as_fd());
                let service =
                    none.insert(start(registry, token, run_gate, listener, view.context)?);
                first_orders(view).iter().for_each(|order| service.socket.queue(order));
                self.breakpoints.orders().iter().for_each(|order| service.socket.queue(order));
                service.socket.queue(&ToolctlOrder::ServeTools);
                service
            }
        };
        if let Some(listener) = &mut self.listener {
            listener.has_connection = false;
        }
        self.unsent.drain(..).for_each(|order| service.socket.queue(&order));
        if service.purpose != ServiceUse::Tools {
            service.purpose = ServiceUse::Idle(Instant::now());
        }
        Ok(())
    }

    /// Records that mio has reported an event of the service's socket.
    pub fn mark_readable(&mut self) {
        if let Some(service) = &mut self.service {
            service.socket.mark_readable();
        }
    }

    /// Records that mio has reported a connection of a tool. If the service runs, the service
    /// accepts the connection.
    pub fn mark_connection(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.has_connection = self.service.is_none();
        }
    }

    /// When [`ToolService::serve`] has work to do, even if the service sends nothing.
    pub fn next_deadline(&self) -> Option<Instant> {
        let Some(service) = &self.service else {
            // The next service removes the breakpoints.
            return (!self.breakpoints.is_empty()).then(Instant::now);
        };
        let pending = self.pending.values().map(|pending| pending.deadline);
        let due = pending.chain(service.stuck_at()).min();
        match service.purpose {
            ServiceUse::Tools => due,
            ServiceUse::Idle(since) => due.or(Some(since + IDLE_TIMEOUT)),
            ServiceUse::Leaving(since) => Some(since + LEAVE_TIMEOUT),
            ServiceUse::Ending(since) => Some(since + END_TIMEOUT),
        }
    }

    /// Passes commands on to the service, and handles its answers. Ends a service that does not
    /// answer, or that is idle. `tokens`: for the service's socket, and for the socket of tools.
    pub fn serve(
        &mut self,
        registry: &Registry,
        tokens: (Token, Token),
        run_gate: &RunGate,
        view: ServedJob<'_>,
    ) -> Vec<ToolReport> {
        let mut reports = Vec::new();
        if let Some(listener) = &mut self.listener
            && !std::mem::replace(&mut listener.is_registered, true)
        {
            let fd = listener.socket.as_raw_fd();
            // Without the socket no tool can connect, but scdb's commands still work.
            let _ = registry.register(&mut SourceFd(&fd), tokens.1, Interest::READABLE);
        }
        if let Err(reason) = self.send(registry, tokens.0, run_gate, view) {
            self.end(&reason, run_gate, &mut reports);
            self.drop_connections();
            reports.extend(self.breakpoints.give_up(&reason));
        }
        let reason = loop {
            let Some(service) = &mut self.service else { return reports };
            let socket = &mut service.socket;
            socket.flush();
            let received = socket.receive::<ToolctlReport>();
            if matches!(received, Ok(Some(_))) {
                service.silent_since = None;
            }
            match received {
                Ok(Some(ToolctlReport::Answer { element, id, node, body })) => {
                    self.on_answer(element, id, node, body, &mut reports);
                }
                Ok(Some(ToolctlReport::HasTools(has_tools))) => match service.purpose {
                    ServiceUse::Ending(_) => {}
                    _ if has_tools => service.purpose = ServiceUse::Tools,
                    _ => service.purpose = ServiceUse::Idle(Instant::now()),
                },
                Ok(Some(ToolctlReport::BreakpointSet { rank, address, original })) => {
                    self.breakpoints.add(rank, address, original);
                }
                Ok(Some(ToolctlReport::BreakpointReset { rank, address })) => {
                    self.breakpoints.remove(rank, address);
                }
                Ok(Some(ToolctlReport::NoBreakpoints { rank })) => self.breakpoints.clear(rank),
                Ok(Some(ToolctlReport::TimeQuestion)) => {
                    let started_at = self.job_time_at_start.unwrap_or_default();
                    let time = run_gate.job_time().saturating_sub(started_at);
                    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                    socket.queue(&ToolctlOrder::JobTime { ns });
                }
                Ok(None) if socket.is_closed() => break format!("{SERVICE_NAME} has ended"),
                Ok(None) => {
                    socket.update_interest(registry);
                    let now = Instant::now();
                    if self.next_deadline().is_none_or(|deadline| deadline > now) {
                        return reports;
                    }
                    let Some(service) = &mut self.service else { return reports };
                    let is_stuck = service.stuck_at().is_some_and(|time| time <= now);
                    match service.purpose {
                        ServiceUse::Idle(_) if self.pending.is_empty() && !is_stuck => {
                            service.purpose = ServiceUse::Leaving(now);
                            service.socket.queue(&ToolctlOrder::Leave);
                        }
                        ServiceUse::Idle(_) | ServiceUse::Tools if !is_stuck => {
                            service.silent_since.get_or_insert(now);
                            self.fail_late_commands(now, &mut reports);
                        }
                        _ => break format!("{SERVICE_NAME} does not answer"),
                    }
                }
                Err(error) => break format!("{SERVICE_NAME}: {error}"),
            }
        };
        match self.service.as_ref().map(|service| service.purpose) {
            Some(ServiceUse::Leaving(_)) => self.after_leave(run_gate),
            Some(ServiceUse::Ending(_)) => self.close(run_gate),
            _ => {
                self.end(&reason, run_gate, &mut reports);
                self.drop_connections();
                reports.extend(self.breakpoints.on_service_death(&reason));
            }
        }
        reports
    }

    /// Gives up the commands that the service has not answered in time. It may still answer them,
    /// which has no effect.
    fn fail_late_commands(&mut self, now: Instant, reports: &mut Vec<ToolReport>) {
        let reason = format!("{SERVICE_NAME} does not answer in time");
        self.pending.retain(|(element, id), pending| {
            let is_late = pending.deadline <= now;
            if is_late {
                reports.push((*element, failure(*id, pending.unanswered.clone(), &reason)));
            }
            !is_late
        });
    }

    /// Handles the exit of a service that was ordered to exit. If a tool has connected or a command
    /// has arrived in the meantime, another service is started.
    fn after_leave(&mut self, run_gate: &RunGate) {
        if let Some(service) = self.service.take() {
            run_gate.exempt_tool_service(0);
            process::kill(service.pid, libc::SIGKILL);
        }
        if let Some(listener) = &mut self.listener {
            let mut fds = [PollFd::new(listener.socket.as_fd(), PollFlags::POLLIN)];
            listener.has_connection =
                poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        }
    }

    /// Closes the connections of tools for which there is no service.
    fn drop_connections(&mut self) {
        let Some(listener) = &mut self.listener else { return };
        listener.has_connection = false;
        let Ok(socket) = listener.socket.try_clone().map(UnixListener::from) else { return };
        while socket.accept().is_ok() {}
    }

    fn on_answer(
        &mut self,
        element: ElementIndex,
        id: CommandId,
        node: u32,
        body: Vec<u8>,
        reports: &mut Vec<ToolReport>,
    ) {
        let Some(pending) = self.pending.get_mut(&(element, id)) else { return };
        if !pending.unanswered.remove(node) {
            return;
        }
        if pending.unanswered.is_empty() {
            self.pending.remove(&(element, id));
        }
        let ranks = NodeSet::one(node);
        reports.push((
            element,
            match body.len() <= MAX_TOOL_BODY {
                true => answer(id, ranks, body),
                false => {
                    let events = 1;
                    let body = EventBody::Dropped { events };
                    ElementReport::ToolEvent(MergedEvent { command: id, ranks, body })
                }
            },
        ));
    }

    /// Kills the service. Its pending commands fail for this reason.
    fn end(&mut self, reason: &str, run_gate: &RunGate, reports: &mut Vec<ToolReport>) {
        if let Some(service) = self.service.take() {
            run_gate.exempt_tool_service(0);
            // The loop of this process reaps the service. The kernel detaches the processes that
            // the service traces.
            process::kill(service.pid, libc::SIGKILL);
        }
        self.unsent.clear();
        for ((element, id), pending) in std::mem::take(&mut self.pending) {
            reports.push((element, failure(id, pending.unanswered, reason)));
        }
    }

    /// Handles the end of the job. If tools are connected, the service exits after it has notified
    /// them.
    pub fn end_job(&mut self, run_gate: &RunGate) {
        self.listener = None;
        match &mut self.service {
            Some(service) if service.purpose == ServiceUse::Tools => {
                service.socket.queue(&ToolctlOrder::End);
                service.socket.flush();
                service.purpose = ServiceUse::Ending(Instant::now());
            }
            Some(RunningService { purpose: ServiceUse::Ending(_), .. }) => {}
            _ => self.close(run_gate),
        }
    }

    /// Whether the job ends and the service has not notified all tools yet.
    pub fn is_ending(&self) -> bool {
        let service = self.service.as_ref();
        service.is_some_and(|service| matches!(service.purpose, ServiceUse::Ending(_)))
    }

    /// Ends the service, because the job ends.
    pub fn close(&mut self, run_gate: &RunGate) {
        self.end("", run_gate, &mut Vec::new());
        self.breakpoints = BreakpointList::default();
    }
}

/// A listening SOCK_SEQPACKET socket to which only its owner may connect.
fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(socket)
}

/// The rank of a process among all processes of the stage.
fn rank_of(job_info: &JobInfo, key: ProcessKey) -> u32 {
    key.element.first_rank(job_info.placement.nodes()) + key.node
}

fn started(job_info: &JobInfo, key: ProcessKey, pid: i32) -> ToolctlOrder {
    let number = job_info.local_host.process_of(key.node);
    ToolctlOrder::Started { rank: rank_of(job_info, key), number, pid }
}

/// The first orders for a new service, which describe the job.
fn first_orders(view: ServedJob<'_>) -> Vec<ToolctlOrder> {
    let Some(job_info) = view.job_info else { return Vec::new() };
    let job = ToolctlJob {
        job: job_info.job_start.job,
        host: job_info.placement.self_host,
        directory: OsBytes(view.context.directory.as_os_str().as_bytes().to_vec()),
    };
    let processes = view.processes.running_mut(None);
    let processes = processes.map(|(key, process)| started(job_info, key, process.pid));
    std::iter::once(ToolctlOrder::Job(job)).chain(processes).collect()
}

fn start(
    registry: &Registry,
    token: Token,
    run_gate: &RunGate,
    listener: Option<std::os::fd::BorrowedFd<'_>>,
    context: &ShepherdContext,
) -> Result<RunningService, String> {
    let program = service_program()?;
    let failed = |error: io::Error| format!("{}: {error}", program.display());
    let (own, its) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(&program);
    let inherited = |fd: Option<std::os::fd::BorrowedFd<'_>>| match fd {
        Some(fd) => fd.try_clone_to_owned().map(Stdio::from),
        None => Ok(Stdio::null()),
    };
    let outer_proc = context.outer_proc.as_ref().map(AsFd::as_fd);
    command.stdin(OwnedFd::from(its)).current_dir("/");
    command.stdout(inherited(listener).map_err(failed)?);
    command.stderr(inherited(outer_proc).map_err(failed)?);
    unblock_signals(&mut command);
    // The loop of this process reaps the service.
    let child = command.spawn().map_err(failed)?;
    let pid = i32::try_from(child.id()).unwrap_or(0);
    run_gate.exempt_tool_service(pid);
    // The switch thread may have stopped the service before the exemption.
    process::kill(pid, libc::SIGCONT);
    let mut socket = FramedSocket::new(own.into()).map_err(failed)?;
    socket.register(registry, token).map_err(failed)?;
    let purpose = ServiceUse::Idle(Instant::now());
    Ok(RunningService { socket, pid, purpose, silent_since: None })
}

fn service_program() -> Result<PathBuf, String> {
    let scored = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let program = scored.with_file_name(SERVICE_NAME);
    match program.exists() {
        true => Ok(program),
        false => Err(format!(
            "tools need {}, which is not on this host: install it next to scored",
            program.display()
        )),
    }
}

#[cfg(test)]
#[path = "tool_service_tests.rs"]
mod tests;
