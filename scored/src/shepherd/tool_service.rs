//! The tool control service of this host, `scored-toolctl`: started by the first command of a tool,
//! and ended when there has been none for a while. This module passes commands on to it, and its
//! answers to the tools. It waits for the service no longer than the command says.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::job_control::ElementReport;
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::{
    CommandId, EventBody, MAX_TOOL_BODY, MergedEvent, ToolCommand, ToolResult,
};
use score_proto::toolctl::{ToolProcess, ToolctlOrder, ToolctlReport};

use super::gang_switch::RunGate;
use crate::framed_socket::FramedSocket;
use crate::sys::pdeathsig::unblock_signals;
use crate::sys::process;

/// The service's program, beside scored.
const SERVICE_NAME: &str = "scored-toolctl";
/// How long the service stays without a command: it keeps what it has read of programs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The service has this time in addition to that of the command.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// A command that the service carries out.
#[derive(Debug)]
struct PendingCommand {
    /// Nodes without an answer.
    unanswered: NodeSet,
    deadline: Instant,
}

/// The service while it runs.
#[derive(Debug)]
struct RunningService {
    socket: FramedSocket,
    pid: i32,
    /// It ends at this time if no command waits.
    idle_deadline: Instant,
}

/// An answer, and the parallel process that it is about.
pub type ToolReport = (u32, ElementReport);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ToolService {
    service: Option<RunningService>,
    /// By parallel process and number.
    pending: BTreeMap<(u32, CommandId), PendingCommand>,
    /// Orders that have not been queued for the service.
    unsent: Vec<ToolctlOrder>,
}

fn answer(id: CommandId, ranks: NodeSet, body: Vec<u8>) -> ElementReport {
    let body = EventBody::Answer(body);
    ElementReport::ToolEvent(MergedEvent { command: id, ranks, body })
}

/// The answer of nodes for which a command failed.
fn failure(id: CommandId, nodes: NodeSet, reason: &str) -> ElementReport {
    let result = ToolResult::Failed(reason.to_owned());
    answer(id, nodes, result.encode())
}

impl ToolService {
    /// A tool sends a command. `processes`: those of its nodes that run on this host.
    /// `local_nodes`: its nodes of this host. Returns the answer of those that do not run. The
    /// others get the command by [`ToolService::serve`].
    pub fn on_command(
        &mut self,
        element: u32,
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

    /// Passes new commands on to the service, which is started if it does not run.
    fn send(
        &mut self,
        registry: &Registry,
        token: Token,
        run_gate: &RunGate,
    ) -> Result<(), String> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let service = match &mut self.service {
            Some(service) => service,
            none => none.insert(start(registry, token, run_gate)?),
        };
        self.unsent.drain(..).for_each(|order| service.socket.queue(&order));
        service.idle_deadline = Instant::now() + IDLE_TIMEOUT;
        Ok(())
    }

    /// mio has reported on the socket of the service.
    pub fn mark_readable(&mut self) {
        if let Some(service) = &mut self.service {
            service.socket.mark_readable();
        }
    }

    /// When [`ToolService::serve`] has something to do, whatever the service does.
    pub fn next_deadline(&self) -> Option<Instant> {
        let service = self.service.as_ref()?;
        let pending = self.pending.values().map(|pending| pending.deadline).min();
        Some(pending.unwrap_or(service.idle_deadline))
    }

    /// Passes commands on to the service, and takes its answers. Ends a service that does not
    /// answer, or that is idle.
    pub fn serve(
        &mut self,
        registry: &Registry,
        token: Token,
        run_gate: &RunGate,
    ) -> Vec<ToolReport> {
        let mut reports = Vec::new();
        if let Err(reason) = self.send(registry, token, run_gate) {
            self.end(&reason, run_gate, &mut reports);
        }
        let reason = loop {
            let Some(service) = &mut self.service else { return reports };
            let socket = &mut service.socket;
            socket.flush();
            match socket.receive::<ToolctlReport>() {
                Ok(Some(ToolctlReport::Answer { element, id, node, body })) => {
                    self.on_answer(element, id, node, body, &mut reports);
                }
                Ok(None) if socket.is_closed() => break format!("{SERVICE_NAME} has ended"),
                Ok(None) => {
                    socket.update_interest(registry);
                    let now = Instant::now();
                    match self.next_deadline().filter(|deadline| *deadline <= now) {
                        Some(_) if self.pending.is_empty() => break String::new(),
                        Some(_) => break format!("{SERVICE_NAME} does not answer"),
                        None => return reports,
                    }
                }
                Err(error) => break format!("{SERVICE_NAME}: {error}"),
            }
        };
        self.end(&reason, run_gate, &mut reports);
        reports
    }

    fn on_answer(
        &mut self,
        element: u32,
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

    /// The service is of no use any more.
    fn end(&mut self, reason: &str, run_gate: &RunGate, reports: &mut Vec<ToolReport>) {
        if let Some(service) = self.service.take() {
            run_gate.exempt_tool_service(0);
            // This process reaps all of its children. The kernel lets go of what it has traced.
            process::kill(service.pid, libc::SIGKILL);
        }
        self.unsent.clear();
        for ((element, id), pending) in std::mem::take(&mut self.pending) {
            reports.push((element, failure(id, pending.unanswered, reason)));
        }
    }

    /// A further stage begins, or the job ends: the last stage's processes have ended.
    pub fn close(&mut self, run_gate: &RunGate) {
        self.end("", run_gate, &mut Vec::new());
    }
}

fn start(registry: &Registry, token: Token, run_gate: &RunGate) -> Result<RunningService, String> {
    let program = service_program()?;
    let failed = |error: io::Error| format!("{}: {error}", program.display());
    let (own, its) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(&program);
    command.stdin(std::os::fd::OwnedFd::from(its));
    command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    unblock_signals(&mut command);
    // This process reaps all of its children.
    let child = command.spawn().map_err(failed)?;
    let pid = i32::try_from(child.id()).unwrap_or(0);
    run_gate.exempt_tool_service(pid);
    // The job may have been stopped just now.
    process::kill(pid, libc::SIGCONT);
    let mut socket = FramedSocket::new(own.into()).map_err(failed)?;
    socket.register(registry, token).map_err(failed)?;
    Ok(RunningService { socket, pid, idle_deadline: Instant::now() + IDLE_TIMEOUT })
}

fn service_program() -> Result<PathBuf, String> {
    let scored = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let program = scored.with_file_name(SERVICE_NAME);
    match program.exists() {
        true => Ok(program),
        false => Err(format!(
            "tools need {}, which is not on this host: install it beside scored",
            program.display()
        )),
    }
}
