//! The lifecycle of a job: stages that run one after the other, each a pipeline of parallel
//! processes. A job has one master, independent of the number of its hosts.

mod action;
mod deadlocks;
mod debuggers;
mod faults;
mod stage_hold;
mod tools;

use std::collections::HashMap;
use std::sync::Arc;

use score_proto::ids::JobHostId;
use score_proto::ids::JobId;
use score_proto::job_control::{
    ElementOrder, ElementReport, FileRequest, JobOrder, JobReport, JobStart, Order, OutputReport,
    Placement, ProgramAnswer, Report, StopCondition, SwitchOrder, SwitchReport, SwitchSeq,
};
use score_proto::message::{
    ElementSpec, JobEnd, JobRequest, JobSpec, Level, NodeUsage, OsBytes, ProgramKind, ToolCall,
    ToolSession,
};
use score_proto::nodeset::NodeSet;
use score_proto::observation::Metrics;
use score_proto::server_message::JobAnswer;
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::{ToolAction, ToolProgram};

use crate::cluster::MonotonicTime;
use crate::deadlock_response::DeadlockResponse;
use crate::debuggers::{DebuggedNode, Debuggers};
use crate::element::Element;
use crate::exit_code;
use crate::fault_response::FaultResponse;
use crate::gang::HoldReason;
use crate::job_tools::{JobTools, ToolRequester};
use crate::jobs::SessionKey;
use crate::metrics_subscribers::{Subscriber, Subscribers};
pub use crate::scheduling::GangRequest;
use crate::scheduling::Scheduling;
use crate::signal;
use crate::stage_hold::StageHold;
use crate::tool_commands::ToolCommands;
pub(crate) use action::notice;
pub use action::{MasterAction, PageStacks};

/// An event of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterEvent {
    /// A message of scrun.
    FromClient(JobRequest),
    /// A report of the hosts.
    Report(Report),
    /// The gang scheduler runs the job: at its start, after each stop, and also to set the poll
    /// interval.
    Run {
        /// How often the hosts check whether all processes are idle, in microseconds.
        idle_check_interval_us: u32,
        /// The condition of the next stop.
        until: StopCondition,
    },
    /// The gang scheduler stops the job.
    Stop {
        /// The number of the stop.
        switch_seq: SwitchSeq,
    },
    /// All hosts have stopped the job. It remains stopped until [`GangRequest::Release`]. After
    /// [`GangRequest::Hold`] this event can also report a stop for the user or for blocked output.
    GangStopped,
    /// Time has passed.
    Tick,
    /// A subscriber wants metrics with this period in milliseconds. A period of 0 unsubscribes.
    SubscribeMetrics(Subscriber, u32),
    /// A session sends a command of a tool.
    Tool(SessionKey, ToolCall),
    /// A reader of the status page requests the stacks of all ranks.
    PageStacks,
    /// A session starts a tool for the job, or sends a signal to a tool.
    ToolAction(SessionKey, ToolAction),
    /// A session sends bytes of the files of the tool that it starts.
    ToolFile(SessionKey, ToolFileChunk),
    /// A session of a tool begins.
    ToolSession(SessionKey, ToolSession),
    /// A session of a tool, or one that sends files, has ended.
    ToolSessionEnded(SessionKey),
    /// A session requests the list of processes.
    ListProcesses(SessionKey),
}

/// The state of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The hosts prepare.
    Starting,
    /// The job's own tool is started on all hosts.
    ToolDue,
    /// A stage is due: it starts in the job's next slice.
    StageDue,
    /// A stage runs.
    Running,
    /// Every process of the stage has ended; their output is still being read.
    Draining,
    /// The hosts release all resources. Then scrun is notified that the job was refused or has
    /// ended.
    Finishing { refusal: Option<String>, code: u8 },
    /// scrun has been notified.
    Done,
}

/// A parallel process of the stage.
#[derive(Debug)]
struct StageElement {
    element: Element,
    deadlock_response: DeadlockResponse,
    faults: FaultResponse,
    /// The job is held while this element is inspected for a deadlock.
    holds_job: bool,
}

/// A job.
#[derive(Debug)]
pub struct JobMaster {
    number: JobId,
    placement: Placement,
    /// Paths of the programs, by stage.
    program_paths: Vec<Vec<OsBytes>>,
    /// Names and kinds of the programs, by stage.
    stage_programs: Vec<Vec<(String, ProgramKind)>>,
    /// [`JobSpec::independent_nodes`]
    separate: bool,
    state: State,
    stage: usize,
    elements: Vec<StageElement>,
    scheduling: Scheduling,
    /// The time of the current event.
    now: MonotonicTime,
    /// The job is ended early, with at least this exit code.
    kill_code: Option<u8>,
    /// Signals that the user has sent. The death of a process by one of them is not an error.
    expected_signals: Vec<i32>,
    /// Flush requests to scrun that are pending: the host and its token, by the master's token.
    pending_flushes: HashMap<u64, (JobHostId, u64)>,
    next_flush: u64,
    /// Bytes of programs that the hosts have requested and that scrun has not sent.
    requested_file_bytes: u64,
    usage: Vec<NodeUsage>,
    subscribers: Subscribers,
    tool_commands: ToolCommands,
    tools: JobTools,
    /// Debuggers of processes with a fault, if the user wants them.
    debuggers: Option<Debuggers>,
    /// The job is stopped because processes have debuggers.
    is_held_for_debuggers: bool,
    /// The tool that is started before the first stage.
    own_tool: Option<ToolProgram>,
    /// The requests of a debugger of the whole job.
    hold: StageHold,
    actions: Vec<MasterAction>,
}

fn display_name(path: &OsBytes) -> String {
    let name = path.0.rsplit(|byte| *byte == b'/').next().unwrap_or(&path.0);
    String::from_utf8_lossy(name).into_owned()
}

/// Maps each element, by stage.
fn by_element<T>(spec: &JobSpec, of: impl Fn(&ElementSpec) -> T) -> Vec<Vec<T>> {
    spec.stages.iter().map(|stage| stage.elements.iter().map(&of).collect()).collect()
}

impl JobMaster {
    /// A job that has been checked (see [`super::validate`]) and placed, and the first order for
    /// its hosts.
    pub fn begin(begin: JobStart, placement: Placement) -> (Self, Order) {
        let job = Self {
            number: begin.job,
            placement,
            program_paths: by_element(&begin.spec, |element| element.path.clone()),
            stage_programs: by_element(&begin.spec, |it| (display_name(&it.path), it.kind)),
            separate: begin.spec.independent_nodes,
            state: State::Starting,
            stage: 0,
            elements: Vec::new(),
            scheduling: Scheduling::new(),
            now: MonotonicTime::ZERO,
            kill_code: None,
            expected_signals: Vec::new(),
            pending_flushes: HashMap::new(),
            next_flush: 0,
            requested_file_bytes: 0,
            usage: Vec::new(),
            subscribers: Subscribers::default(),
            tool_commands: ToolCommands::default(),
            tools: JobTools::default(),
            debuggers: begin.spec.debuggers.clone().map(|spec| Debuggers::new(*spec)),
            is_held_for_debuggers: false,
            own_tool: begin.spec.tool.clone(),
            hold: StageHold::new(begin.spec.hold),
            actions: Vec::new(),
        };
        (job, Order::Job(JobOrder::StartJob(Arc::new(begin))))
    }

    /// Whether scrun has been notified of the end of the job.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Sets the current time before each event.
    pub fn set_time(&mut self, now: MonotonicTime) {
        self.now = now;
    }

    /// When [`MasterEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        let responses = self.elements.iter().filter_map(StageElement::deadline);
        responses.chain(self.tool_commands.deadline()).chain(self.tools.deadline()).min()
    }

    /// Handles one event and returns the actions.
    pub fn on(&mut self, event: MasterEvent) -> Vec<MasterAction> {
        match event {
            _ if self.is_done() => {}
            MasterEvent::FromClient(request) => self.on_client_request(request),
            MasterEvent::Report(report) => self.on_report(report),
            MasterEvent::Run { idle_check_interval_us: poll_interval_us, until } => {
                self.on_run(poll_interval_us, until)
            }
            MasterEvent::Stop { switch_seq } => {
                self.scheduling.set_has_slice(false);
                self.on_stopped(switch_seq);
                self.send_order(Order::Switch(SwitchOrder::Stop { switch_seq }));
            }
            MasterEvent::GangStopped => {
                for number in self.element_numbers() {
                    if self.elements[number as usize].holds_job {
                        self.update_response(number, DeadlockResponse::on_gang_stopped);
                    }
                }
            }
            MasterEvent::Tick => {
                self.element_numbers()
                    .for_each(|number| self.update_response(number, DeadlockResponse::on_tick));
                self.tool_commands.on_tick(self.now, &mut self.actions);
                self.tick_tools();
                self.tick_faults();
            }
            MasterEvent::Tool(session_key, call) => self.on_tool_call(session_key, call),
            MasterEvent::PageStacks => self.on_page_stacks(),
            MasterEvent::ToolAction(key, action) => self.on_session_tool_action(key, action),
            MasterEvent::ToolFile(key, chunk) => self.on_tool_file(key, chunk),
            MasterEvent::ToolSession(key, session) => self.on_tool_session(key, session),
            MasterEvent::ToolSessionEnded(key) => self.on_tool_session_end(key),
            MasterEvent::ListProcesses(key) => self.on_session_list(key),
            MasterEvent::SubscribeMetrics(subscriber, period_ms) => {
                self.on_subscribe(subscriber, period_ms)
            }
        }
        self.advance_state();
        std::mem::take(&mut self.actions)
    }

    fn send_order(&mut self, order: Order) {
        self.actions.push(MasterAction::Order(order));
    }

    fn send_job_order(&mut self, order: JobOrder) {
        self.send_order(Order::Job(order));
    }

    fn send_to_client(&mut self, answer: JobAnswer) {
        self.actions.push(MasterAction::ToClient(answer));
    }

    fn with_gang(&mut self, change: impl FnOnce(&mut Scheduling) -> Option<GangRequest>) {
        let request = change(&mut self.scheduling);
        self.actions.extend(request.map(MasterAction::Gang));
    }

    fn send_to_gang(&mut self, request: GangRequest) {
        self.actions.push(MasterAction::Gang(request));
    }

    /// The gang scheduler runs the job. Processes are started only during a slice.
    fn on_run(&mut self, poll_interval_us: u32, until: StopCondition) {
        self.scheduling.set_has_slice(true);
        self.start_if_due();
        self.send_order(Order::Switch(SwitchOrder::Run {
            idle_check_interval_us: poll_interval_us,
            stop_condition: until,
        }));
    }

    fn on_stopped(&mut self, switch_seq: SwitchSeq) {
        self.element_numbers().for_each(|element| {
            self.update_response(element, |response, now| response.on_stopped(switch_seq, now));
        });
    }

    fn element_numbers(&self) -> std::ops::Range<u32> {
        0..self.elements.len() as u32
    }

    fn on_client_request(&mut self, request: JobRequest) {
        match request {
            JobRequest::FileChunk { hash, offset, bytes } => {
                self.on_file_chunk(ProgramAnswer::Chunk { hash, offset, bytes });
            }
            JobRequest::Stdin(bytes) => self.send_job_order(JobOrder::Stdin(bytes)),
            JobRequest::StdinEof => self.send_job_order(JobOrder::StdinEof),
            JobRequest::OutputAck(bytes) => self.send_order(Order::OutputAck(bytes)),
            JobRequest::Flushed(token) => {
                if let Some((host, token)) = self.pending_flushes.remove(&token) {
                    self.send_job_order(JobOrder::Flushed { host, token });
                }
            }
            JobRequest::OutputClosed(stream) => {
                self.expected_signals.push(signal::SIGPIPE);
                self.send_job_order(JobOrder::OutputClosed(stream));
            }
            JobRequest::Signal(signal) => {
                self.expected_signals.push(signal);
                self.send_job_order(JobOrder::Signal(signal));
                self.resume_for_end();
                // The job must be able to handle the signal, even if its output is blocked.
                if self.scheduling.has_entered() {
                    self.send_to_gang(GangRequest::Release(HoldReason::OutputBlocked));
                }
            }
            JobRequest::Debugger(request) => self.on_debugger_request(request),
            JobRequest::Suspend => self.with_gang(Scheduling::suspend),
            JobRequest::Resume => self.with_gang(Scheduling::resume),
            JobRequest::SubscribeMetrics(period_ms) => {
                self.on_subscribe(Subscriber::Scrun, period_ms)
            }
            JobRequest::ToolAction(action) => self.on_tool_action(ToolRequester::Scrun, action),
            JobRequest::DebuggerEnded { element, node, is_refused } => {
                self.on_debugger_ended(DebuggedNode { element, node }, is_refused)
            }
            JobRequest::Kill => {
                self.send_job_order(JobOrder::Kill);
                self.end_all(exit_code::of_signal(signal::SIGKILL));
            }
        }
    }

    /// scrun sends a piece of a program. Bytes that the hosts have not requested are dropped.
    fn on_file_chunk(&mut self, answer: ProgramAnswer) {
        if let Some(left) = self.requested_file_bytes.checked_sub(answer.charge()) {
            self.requested_file_bytes = left;
            self.send_order(Order::Program(answer));
        }
    }

    fn on_subscribe(&mut self, subscriber: Subscriber, period_ms: u32) {
        let period_ms = self.subscribers.set(subscriber, period_ms);
        // Hosts that prepare get the period with the first stage.
        if let Some(period_ms) = period_ms.filter(|_| self.state != State::Starting) {
            self.send_job_order(JobOrder::SubscribeMetrics { period_ms });
        }
    }

    fn publish_metrics(&mut self, metrics: Metrics) {
        let (scrun, others) = self.subscribers.client_and_others();
        if scrun {
            self.send_to_client(JobAnswer::Metrics(metrics.clone()));
        }
        if others {
            self.actions.push(MasterAction::Metrics(metrics));
        }
    }

    fn on_report(&mut self, report: Report) {
        match report {
            Report::FileRequest(request) => self.on_file_request(request),
            Report::HostsLost { code, hosts, reason } => self.on_hosts_lost(code, hosts, reason),
            Report::Output(report) => self.on_output_report(report),
            Report::Job(report) => self.on_job_report(report),
            Report::Element { element, report } => self.on_element_report(element, report),
            Report::Switch(SwitchReport::Stopped { switch_seq }) => {
                self.on_stopped(switch_seq);
                self.send_to_gang(GangRequest::Stopped(switch_seq));
            }
            Report::Switch(SwitchReport::IdleSummary { element, summary }) => {
                self.update_response(element, |response, now| {
                    response.on_idle_report(summary, now)
                });
            }
        }
    }

    fn on_file_request(&mut self, request: FileRequest) {
        if self.state != State::Starting {
            return self.on_tool_file_request(request);
        }
        let FileRequest { hash, offset, length } = request;
        self.requested_file_bytes = self.requested_file_bytes.saturating_add(length);
        self.send_to_client(JobAnswer::FileRequest { hash, offset, length });
    }

    fn on_output_report(&mut self, report: OutputReport) {
        match report {
            OutputReport::Text { host, stream, bytes, is_partial_line: _ } => {
                self.send_to_client(JobAnswer::Output { host, stream, bytes });
            }
            OutputReport::Flush { host, token } => {
                self.pending_flushes.insert(self.next_flush, (host, token));
                self.send_to_client(JobAnswer::Flush(self.next_flush));
                self.next_flush += 1;
            }
            OutputReport::Drained => {
                if self.state == State::Draining {
                    self.end_stage();
                }
            }
        }
    }

    fn on_job_report(&mut self, report: JobReport) {
        match report {
            JobReport::Ready => {
                if self.state == State::Starting {
                    self.on_ready();
                }
            }
            JobReport::Refused { code, reason } => {
                if self.state == State::Starting {
                    self.finish(Some(reason), code);
                }
            }
            JobReport::JobFailed { code, reason } => self.on_lost(code, reason),
            JobReport::Notice { level, text } => {
                self.send_to_client(JobAnswer::Notice { level, text })
            }
            JobReport::StdinWindow(bytes) => self.send_to_client(JobAnswer::StdinWindow(bytes)),
            JobReport::StdinClosed => self.send_to_client(JobAnswer::StdinClosed),
            JobReport::Metrics(metrics) => self.publish_metrics(metrics),
            JobReport::Tool(report) => self.on_tool_report(report),
            JobReport::Usage(usage) => self.usage.extend(usage),
            JobReport::Processes { stage, blocks } => self.on_processes(stage, blocks),
            JobReport::Finished { elapsed_ns } => self.on_finished(elapsed_ns),
        }
    }

    /// All hosts can start processes.
    fn on_ready(&mut self) {
        let hosts = self.placement.hosts.len() as u32;
        let nodes = self.placement.nodes();
        self.send_to_client(JobAnswer::Accepted { job: self.number, nodes, hosts });
        let period_ms = self.subscribers.min_period_ms();
        if period_ms > 0 {
            self.send_job_order(JobOrder::SubscribeMetrics { period_ms });
        }
        // The job's own tool is started first.
        match self.own_tool.take() {
            None => self.begin_stage(0),
            Some(program) => {
                self.state = State::ToolDue;
                let action = ToolAction::Start { program, hosts: Vec::new(), files: None };
                self.on_tool_action(ToolRequester::Job, action);
            }
        }
    }

    fn on_element_report(&mut self, number: u32, report: ElementReport) {
        // Otherwise the report is about an earlier stage.
        let Some(StageElement { element, .. }) = self.elements.get_mut(number as usize) else {
            return;
        };
        let out = &mut self.actions;
        match report {
            ElementReport::Attached { nodes, addresses } => {
                element.on_attached(&nodes, addresses, out)
            }
            ElementReport::InBarrier { nodes } => {
                if element.on_in_barrier(&nodes, out) {
                    self.update_response(number, DeadlockResponse::on_disturbed);
                }
            }
            ElementReport::InFence { nodes, entries } => element.on_in_fence(&nodes, entries, out),
            ElementReport::InSubsetFence { fence, nodes, entries } => {
                element.on_in_subset_fence(fence, &nodes, entries, out)
            }
            ElementReport::ModexRequest { asker, node } => {
                if let Some(host) = self.placement.host_of(node) {
                    let order = ElementOrder::ModexRequest { host, asker, node };
                    self.send_order(order.to(number));
                }
            }
            ElementReport::ModexAnswer { asker, node, entries } => {
                let order = ElementOrder::ModexAnswer { asker, node, entries };
                self.send_order(order.to(number));
            }
            ElementReport::Ended { nodes, status } => {
                element.on_ended(&nodes, status, &self.expected_signals, out);
                // Nodes on other hosts that send to the ended nodes must not wait for them.
                if self.placement.hosts.len() > 1 && element.is_communicating() {
                    self.send_order(ElementOrder::NodesExited { nodes }.to(number));
                }
            }
            ElementReport::Skipped { nodes } => element.on_skipped(&nodes),
            ElementReport::NotStarted { nodes, code, reason } => {
                element.on_not_started(&nodes, code, &reason, out)
            }
            ElementReport::Exit { code } => element.on_exit(code, out),
            ElementReport::Broadcast { node, signal } => element.on_broadcast(node, signal, out),
            ElementReport::Sent { serial, nodes } => element.on_broadcast_sent(serial, &nodes, out),
            ElementReport::Faulted { nodes, signal } => self.on_faulted(number, &nodes, signal),
            ElementReport::DebuggerWanted { node, process } => {
                self.on_debugger_wanted(number, node, process)
            }
            ElementReport::Inspect { node, signal, text } => {
                self.on_inspect(number, node, signal, text)
            }
            ElementReport::Failed { code, reason } => element.on_broken(code, &reason, out),
            ElementReport::Sleep { seconds } => self.send_to_gang(GangRequest::Sleep(seconds)),
            ElementReport::Yield => self.send_to_gang(GangRequest::Yield),
            ElementReport::SampleResult { round, sample } => {
                self.update_response(number, |response, now| {
                    response.on_round_done(round, sample, now)
                });
            }
            ElementReport::WaitStates { waits } => {
                self.update_response(number, |response, _| response.on_explanations(waits));
            }
            ElementReport::ToolEvent(event) => {
                let first_rank = number.saturating_mul(self.placement.nodes());
                self.tool_commands.on_event(first_rank, event, out);
            }
            ElementReport::ProtocolViolation { node, violation } => {
                let name = self.element_name(number);
                self.on_lost(1, format!("node {node} of {name}: {violation}; the job is ended"));
            }
        }
    }

    fn element_name(&self, element: u32) -> String {
        let program = self.stage_programs[self.stage].get(element as usize);
        program.map_or_else(String::new, |(name, _)| name.clone())
    }

    fn begin_stage(&mut self, stage: usize) {
        self.state = State::StageDue;
        self.stage = stage;
        self.tool_commands.finish_all(&mut self.actions);
        self.pending_flushes.clear();
        let nodes = self.placement.nodes();
        let last = self.stage_programs[stage].len() - 1;
        self.elements = (0..)
            .zip(&self.stage_programs[stage])
            .map(|(index, (name, kind))| {
                let element =
                    Element::new(index, name.clone(), *kind, nodes, (index as usize) < last);
                let element =
                    if self.separate { element.with_independent_nodes() } else { element };
                let deadlock_response = DeadlockResponse::new(nodes);
                let faults = FaultResponse::new(self.debuggers.is_some());
                StageElement { element, deadlock_response, faults, holds_job: false }
            })
            .collect();
        self.with_gang(Scheduling::on_stage_due);
        self.start_if_due();
    }

    /// The processes of a stage are started in a slice of the job.
    fn start_if_due(&mut self) {
        if self.scheduling.has_slice() && self.state == State::StageDue {
            self.state = State::Running;
            let processes = self.elements.len() as u64 * u64::from(self.placement.nodes());
            let (before, after) = self.hold.on_stage_start(processes);
            self.send_debugger_order(before);
            self.send_job_order(JobOrder::StartStage(self.stage as u32));
            self.send_debugger_order(after);
            self.announce_list();
        }
    }

    fn on_lost(&mut self, code: u8, reason: String) {
        if self.kill_code.is_none() {
            self.actions.push(notice(Level::Error, reason));
        }
        self.end_all(code);
    }

    fn on_hosts_lost(&mut self, code: u8, hosts: std::ops::Range<u32>, reason: String) {
        self.actions.push(notice(Level::Error, reason));
        let host_placements = self.placement.hosts.get(hosts.start as usize..hosts.end as usize);
        let lost_ranges: Vec<_> =
            host_placements.unwrap_or_default().iter().map(|host| host.node_range()).collect();
        self.on_tools_lost(hosts.clone());
        self.end_lists();
        if self.separate && self.is_in_stage() {
            // The commands on other hosts are independent of it.
            self.kill_code.get_or_insert(code);
        } else {
            self.end_all(code);
        }
        for range in lost_ranges {
            let nodes = NodeSet::from(range);
            self.elements.iter_mut().for_each(|part| part.element.on_skipped(&nodes));
        }
    }

    fn end_all(&mut self, code: u8) {
        self.kill_code.get_or_insert(code);
        match &mut self.state {
            // No process of the stage has been started, and none will be.
            State::Starting | State::ToolDue | State::StageDue => self.finish(None, code),
            State::Running => {
                for StageElement { element, .. } in &mut self.elements {
                    element.end(code, &mut self.actions);
                }
            }
            State::Finishing { code: so_far, .. } if *so_far == 0 => *so_far = code,
            _ => {}
        }
    }

    fn advance_state(&mut self) {
        self.finish_reading_stacks();
        for number in self.element_numbers() {
            if self.elements[number as usize].element.is_ended() {
                self.release_hold(number);
                self.end_debuggers_of(number);
            }
        }
        self.report_idle();
        if self.is_in_stage() && self.elements.iter().all(|part| part.element.is_ended()) {
            self.state = State::Draining;
            self.end_hold();
            self.send_job_order(JobOrder::Drain);
        }
    }

    fn is_in_stage(&self) -> bool {
        matches!(self.state, State::StageDue | State::Running)
    }

    fn end_stage(&mut self) {
        let code = exit_code::of_pipeline(self.elements.iter().map(|part| part.element.code()));
        match self.kill_code {
            None if code == 0 && self.stage + 1 < self.stage_programs.len() => {
                self.begin_stage(self.stage + 1);
            }
            None => self.finish(None, code),
            Some(kill_code) => self.finish(None, if code == 0 { kill_code } else { code }),
        }
    }

    fn finish(&mut self, refusal: Option<String>, code: u8) {
        self.state = State::Finishing { refusal, code };
        self.with_tools(|tools, _, out| tools.end(out));
        self.end_lists();
        self.with_gang(Scheduling::leave);
        self.send_job_order(JobOrder::Finish);
    }

    /// Every host has reclaimed everything, or is lost.
    fn on_finished(&mut self, elapsed_ns: u64) {
        // Services report the results for their processes until now.
        self.tool_commands.finish_all(&mut self.actions);
        self.tool_commands.finish_sessions(&mut self.actions);
        let State::Finishing { refusal, code } = std::mem::replace(&mut self.state, State::Done)
        else {
            // The hosts were not ordered to finish: this state machine is inconsistent.
            return self.send_to_client(JobAnswer::Finished(JobEnd {
                code: 1,
                usage: Vec::new(),
                elapsed_ns,
            }));
        };
        let usage = std::mem::take(&mut self.usage);
        self.send_to_client(match refusal {
            Some(reason) => JobAnswer::Refused { reason, code },
            None => JobAnswer::Finished(JobEnd { code, usage, elapsed_ns }),
        });
    }
}

#[cfg(test)]
#[path = "master_tests.rs"]
mod tests;
