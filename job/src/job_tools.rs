//! The tools that run in addition to a job, on the side of the job's master (docs/dev/tools.md,
//! "start_tool and end_tool"). The module assigns their numbers and records their hosts. A tool
//! starts on all of its hosts or on none. Its end on one host does not affect the other hosts.
//! If start_tool sends files, the tool starts when all of its hosts have them
//! (`job_tools/transfer.rs`).

mod transfer;

use std::collections::BTreeMap;
use std::time::Duration;

use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::ids::JobHostId;
use score_proto::job_control::{FileRequest, JobOrder, Order, Placement, Status};
use score_proto::message::{FileDigest, Level};
use score_proto::nodeset::NodeSet;
use score_proto::tool_files::ToolFilesKind;
use score_proto::tool_start::{
    MAX_TOOL_HOSTS, MAX_TOOLS, SignalOutcome, ToolAction, ToolActionAnswer, ToolEventKind, ToolId,
    ToolOrder, ToolOrderKind, ToolProgram, ToolReport,
};

use crate::cluster::MonotonicTime;
use crate::debuggers::DebuggedNode;
use crate::jobs::SessionKey;
use crate::signal;
use transfer::ToolFileTransfer;

/// How long the hosts may take to start a tool, or to deliver a signal to it.
const HOST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the answer to end_tool waits for the end of the tool, after the signal was sent.
const END_GRACE: Duration = Duration::from_secs(1);

/// The origin of a request about a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolRequester {
    /// A session of start_tool or end_tool.
    Session(SessionKey),
    /// scrun, for a debugger.
    Scrun,
    /// The job itself. Its first stage waits for its own tool.
    Job,
    /// A process of the job. The tool is its debugger.
    Debugger(DebuggedNode),
}

/// An action for the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolStep {
    /// Send this to the hosts.
    Order(Order),
    /// Answer a request.
    Answer(ToolRequester, ToolActionAnswer),
    /// Request bytes of the files of a tool from start_tool.
    RequestFile(SessionKey, FileRequest),
    /// Send the user a line.
    Notice(Level, String),
    /// Send the user a line that a tool has written.
    Output(String),
    /// A tool has ended on its last host.
    Ended(ToolId, Option<Status>),
}

/// A pending request about a tool.
#[derive(Debug)]
struct Waiting {
    requester: ToolRequester,
    /// The reports of the hosts so far, if the request is a signal.
    outcome: Option<SignalOutcome>,
    /// The hosts that have not answered.
    hosts: NodeSet,
    /// None: the files of the tool are being sent.
    deadline: Option<MonotonicTime>,
}

impl Waiting {
    fn is_start(&self) -> bool {
        self.outcome.is_none()
    }

    /// Whether all hosts have sent the signal. The request then waits for the end of the tool.
    fn is_signal_sent(&self) -> bool {
        self.outcome.is_some() && self.hosts.is_empty()
    }

    /// The answer of a request that all hosts have answered. The tool runs on `running` hosts.
    fn answer(self, tool: ToolId, running: u32) -> ToolStep {
        ToolStep::Answer(
            self.requester,
            match self.outcome {
                None => ToolActionAnswer::Started(tool),
                Some(outcome) => ToolActionAnswer::Signaled(SignalOutcome { running, ..outcome }),
            },
        )
    }
}

#[derive(Debug)]
struct Tool {
    path: String,
    /// The hosts on which the tool has not ended.
    hosts: NodeSet,
    waiting: Option<Waiting>,
    /// The process that the tool debugs. None for a tool of the user.
    debugs: Option<String>,
    /// The status on the host where the tool ended last.
    status: Option<Status>,
}

impl Tool {
    /// The outcome of the signal for which a request waits.
    fn outcome(&mut self) -> Option<&mut SignalOutcome> {
        self.waiting.as_mut()?.outcome.as_mut()
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct JobTools {
    tools: BTreeMap<ToolId, Tool>,
    last_id: ToolId,
    /// The transfer of the files of a tool that has not started.
    transfer: Option<ToolFileTransfer>,
}

fn order(tool: ToolId, hosts: NodeSet, kind: ToolOrderKind) -> Order {
    Order::Job(JobOrder::Tool(ToolOrder { tool, hosts, kind }))
}

fn host_name(placement: &Placement, host: u32) -> &str {
    placement.hosts.get(host as usize).map_or("?", |host| host.name.as_str())
}

/// The hosts with these names. An empty list means all hosts of the job.
fn hosts_of_names(placement: &Placement, names: &[String]) -> Result<NodeSet, String> {
    let all = 0..placement.hosts.len() as u32;
    if names.is_empty() {
        return Ok(NodeSet::from(all));
    }
    if names.len() > MAX_TOOL_HOSTS {
        return Err(format!("more than {MAX_TOOL_HOSTS} names of hosts"));
    }
    let by_name: BTreeMap<&str, u32> =
        placement.hosts.iter().map(|host| host.name.as_str()).zip(all).collect();
    let number = |name: &String| {
        let unknown = || format!("host {name} is not a host of the job");
        by_name.get(name.as_str()).copied().ok_or_else(unknown)
    };
    names.iter().map(number).collect()
}

impl JobTools {
    /// A request of the job's user. `placement`: the hosts of the job, if they are ready.
    pub fn on_action(
        &mut self,
        requester: ToolRequester,
        action: ToolAction,
        placement: Option<&Placement>,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        let begun = match (placement, action) {
            (None, _) => Err("the job has not started, or is ending".to_owned()),
            (Some(placement), ToolAction::Start { program, hosts, files }) => {
                self.begin_start(requester, (program, files), &hosts, placement, now, out)
            }
            (Some(_), ToolAction::Signal { tool, signal }) => {
                self.begin_signal(requester, tool, signal, now, out)
            }
        };
        if let Err(reason) = begun {
            let answer = ToolActionAnswer::Refused { code: EXIT_REFUSED, reason };
            out.push(ToolStep::Answer(requester, answer));
        }
    }

    fn begin_start(
        &mut self,
        requester: ToolRequester,
        (program, files): (ToolProgram, Option<FileDigest>),
        names: &[String],
        placement: &Placement,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) -> Result<(), String> {
        program.check()?;
        let hosts = hosts_of_names(placement, names)?;
        let of_users = self.tools.iter().filter(|(_, tool)| tool.debugs.is_none());
        let numbers: Vec<String> = of_users.map(|(id, _)| id.to_string()).collect();
        if numbers.len() >= MAX_TOOLS {
            return Err(format!(
                "the job has {MAX_TOOLS} tools already ({}); end_tool ends one",
                numbers.join(", ")
            ));
        }
        match files {
            None => self.start(requester, None, program, hosts, now, out),
            Some(content) => self.begin_transfer(requester, content, program, hosts, out)?,
        }
        Ok(())
    }

    /// Starts the debugger of a process on its host. The user knows the process as `label`.
    pub fn start_debugger(
        &mut self,
        node: DebuggedNode,
        label: String,
        program: ToolProgram,
        host: JobHostId,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        let (requester, hosts) = (ToolRequester::Debugger(node), NodeSet::one(host.0));
        self.start(requester, Some(label), program, hosts, now, out);
    }

    fn start(
        &mut self,
        requester: ToolRequester,
        debugs: Option<String>,
        program: ToolProgram,
        hosts: NodeSet,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        let deadline = Some(now + HOST_TIMEOUT);
        let id = self.add_tool(requester, debugs, &program, &hosts, deadline);
        let start = ToolOrderKind::Start { program, has_files: false };
        out.push(ToolStep::Order(order(id, hosts, start)));
    }

    /// Assigns a number to a tool whose start is requested.
    fn add_tool(
        &mut self,
        requester: ToolRequester,
        debugs: Option<String>,
        program: &ToolProgram,
        hosts: &NodeSet,
        deadline: Option<MonotonicTime>,
    ) -> ToolId {
        self.last_id.0 += 1;
        let path = String::from_utf8_lossy(&program.path.0).into_owned();
        let waiting = Some(Waiting { requester, outcome: None, hosts: hosts.clone(), deadline });
        let tool = Tool { path, hosts: hosts.clone(), waiting, debugs, status: None };
        self.tools.insert(self.last_id, tool);
        self.last_id
    }

    fn begin_signal(
        &mut self,
        requester: ToolRequester,
        id: ToolId,
        signal: i32,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) -> Result<(), String> {
        if !(1..=64).contains(&signal) {
            return Err(format!("there is no signal {signal}"));
        }
        let tool = self.tools.get_mut(&id).ok_or_else(|| {
            format!("the job has no tool {id}: it was not started, or has ended on all hosts")
        })?;
        if let Some(sent) = tool.waiting.take_if(|waiting| waiting.is_signal_sent()) {
            out.push(sent.answer(id, tool.hosts.len()));
        }
        if tool.waiting.is_some() {
            return Err(format!("tool {id}: another request is not done yet"));
        }
        let (hosts, deadline) = (tool.hosts.clone(), Some(now + HOST_TIMEOUT));
        let outcome = Some(SignalOutcome::default());
        let waiting = Waiting { requester, outcome, hosts: hosts.clone(), deadline };
        tool.waiting = Some(waiting);
        out.push(ToolStep::Order(order(id, hosts, ToolOrderKind::Signal(signal))));
        Ok(())
    }

    /// A host reports on a tool.
    pub fn on_report(
        &mut self,
        report: ToolReport,
        placement: &Placement,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        let ToolReport { host, tool: id, kind } = report;
        if self.is_in_transfer(id) {
            return self.on_transfer_report(host, kind, placement, now, out);
        }
        let Some(tool) = self.tools.get_mut(&id) else { return };
        if !tool.hosts.contains(host.0) {
            return;
        }
        let name = host_name(placement, host.0);
        match kind {
            ToolEventKind::FilesReady => return,
            ToolEventKind::Started | ToolEventKind::Signaled => {}
            ToolEventKind::NotStarted { code, reason } => {
                tool.hosts.remove(host.0);
                self.refuse_start(id, code, format!("host {name}: {reason}"), out);
            }
            ToolEventKind::Output(line) => {
                let line = String::from_utf8_lossy(&line).into_owned();
                return out.push(ToolStep::Output(match &tool.debugs {
                    None => format!("tool {id} on {name}: {line}"),
                    Some(label) => format!("{label}: {line}"),
                }));
            }
            ToolEventKind::Ended(status) => {
                tool.hosts.remove(host.0);
                tool.status = Some(status);
                if let Some(outcome) = tool.outcome() {
                    outcome.add_end(status);
                }
                if let Status::Signaled(signal) = status
                    && tool.debugs.is_none()
                    && tool.waiting.as_ref().is_none_or(|waiting| !waiting.is_start())
                {
                    let path = &tool.path;
                    let signal = signal::name(signal);
                    let line = format!("tool {id} ({path}) on {name} was ended by {signal}");
                    out.push(ToolStep::Notice(Level::Warning, line));
                }
            }
        }
        self.on_answer(id, host.0, now, out);
    }

    /// A host has answered a pending request, or will not answer it.
    fn on_answer(&mut self, id: ToolId, host: u32, now: MonotonicTime, out: &mut Vec<ToolStep>) {
        let Some(tool) = self.tools.get_mut(&id) else { return };
        if let Some(waiting) = &mut tool.waiting
            && waiting.hosts.remove(host)
            && waiting.is_signal_sent()
        {
            waiting.deadline = Some(now + END_GRACE);
        }
        let running = tool.hosts.len();
        let is_done = |waiting: &mut Waiting| {
            waiting.hosts.is_empty() && (waiting.is_start() || running == 0)
        };
        if let Some(done) = tool.waiting.take_if(is_done) {
            out.push(done.answer(id, running));
        }
        if tool.hosts.is_empty() {
            out.push(ToolStep::Ended(id, tool.status));
            self.tools.remove(&id);
        }
    }

    /// A tool has not started on one host. Ends the tool on the other hosts.
    fn refuse_start(&mut self, id: ToolId, code: u8, reason: String, out: &mut Vec<ToolStep>) {
        let Some(tool) = self.tools.get_mut(&id) else { return };
        if let Some(waiting) = tool.waiting.take() {
            let answer = ToolActionAnswer::Refused { code, reason };
            out.push(ToolStep::Answer(waiting.requester, answer));
        }
        if let Some(transfer) = self.transfer.take_if(|transfer| transfer.tool() == id) {
            // No host has been ordered to start the tool.
            out.push(ToolStep::Order(transfer.order(ToolFilesKind::Cancel)));
            self.tools.remove(&id);
        } else if !tool.hosts.is_empty() {
            let kill = ToolOrderKind::Signal(signal::SIGKILL);
            out.push(ToolStep::Order(order(id, tool.hosts.clone(), kill)));
        }
    }

    /// These hosts are lost: their tools have ended.
    pub fn on_hosts_lost(
        &mut self,
        hosts: std::ops::Range<u32>,
        placement: &Placement,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        let ids: Vec<ToolId> = self.tools.keys().copied().collect();
        for (id, host) in ids.iter().flat_map(|id| hosts.clone().map(|host| (*id, host))) {
            let Some(tool) = self.tools.get_mut(&id) else { continue };
            if !tool.hosts.remove(host) {
                continue;
            }
            if let Some(outcome) = tool.outcome() {
                outcome.lost += 1;
            }
            if tool.waiting.as_ref().is_some_and(Waiting::is_start) {
                let reason = format!("host {} is lost", host_name(placement, host));
                self.refuse_start(id, EXIT_FAILED, reason, out);
            }
            self.on_answer(id, host, now, out);
        }
    }

    /// The job ends. Requesters that still wait get an answer.
    pub fn end(&mut self, out: &mut Vec<ToolStep>) {
        // The files of the tool are removed with the job.
        self.transfer = None;
        for (id, tool) in &mut self.tools {
            let Some(waiting) = tool.waiting.take() else { continue };
            if waiting.is_signal_sent() {
                out.push(waiting.answer(*id, tool.hosts.len()));
            } else {
                let reason = "the job has ended".to_owned();
                let answer = ToolActionAnswer::Refused { code: EXIT_FAILED, reason };
                out.push(ToolStep::Answer(waiting.requester, answer));
            }
        }
    }

    /// When [`JobTools::on_tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        let of_tools = self.tools.values().filter_map(|tool| tool.waiting.as_ref()?.deadline);
        of_tools.chain(self.transfer.as_ref().and_then(ToolFileTransfer::deadline)).min()
    }

    /// Gives up hosts that do not answer, and tools that do not end.
    pub fn on_tick(&mut self, placement: &Placement, now: MonotonicTime, out: &mut Vec<ToolStep>) {
        self.tick_transfer(now, out);
        let ids: Vec<ToolId> = self.tools.keys().copied().collect();
        for id in ids {
            let Some(tool) = self.tools.get_mut(&id) else { continue };
            let Some(late) =
                tool.waiting.take_if(|waiting| waiting.deadline.is_some_and(|due| due <= now))
            else {
                continue;
            };
            if late.is_signal_sent() {
                out.push(late.answer(id, tool.hosts.len()));
                continue;
            }
            let name = late.hosts.first().map_or("?", |host| host_name(placement, host));
            let reason = format!("host {name} has not answered in {} s", HOST_TIMEOUT.as_secs());
            if late.is_start() {
                tool.waiting = Some(late);
                self.refuse_start(id, EXIT_FAILED, reason, out);
            } else {
                let answer = ToolActionAnswer::Refused { code: EXIT_FAILED, reason };
                out.push(ToolStep::Answer(late.requester, answer));
            }
        }
    }
}

#[cfg(test)]
#[path = "job_tools_tests.rs"]
mod tests;
