//! The lifecycle of a job: stages that run one after the other, each a pipeline of parallel
//! processes. A job has one master, independent of the number of its hosts.
//!
//! | file | contents |
//! |---|---|
//! | `master.rs` | [`JobMaster`]: the state of the job, and which part handles an event |
//! | `master/action.rs` | the actions for the daemon, and the [`Outbox`] that collects them |
//! | `master/programs.rs` | the programs of each stage |
//! | `master/stage_elements.rs` | the parallel processes of the stage |
//! | `master/deadlocks.rs`, `faults.rs` | the responses to their deadlocks and faults |
//! | `master/transfers.rs` | what hosts request from scrun: bytes of programs, flushes |
//! | `master/tools.rs`, `debuggers.rs` | requests of tools, debuggers of processes with a fault |
//! | `master/stage_hold.rs` | requests of debuggers of the whole job |

mod action;
mod deadlocks;
mod debuggers;
mod faults;
mod programs;
mod stage_elements;
mod stage_hold;
mod tools;
mod transfers;

use std::sync::Arc;

use score_proto::ids::{ElementIndex, JobId};
use score_proto::job_control::{
    ElementReport, FileRequest, JobOrder, JobReport, JobStart, Order, OutputReport, Placement,
    ProgramAnswer, Report, StopCondition, SwitchOrder, SwitchReport, SwitchSeq,
};
use score_proto::message::{JobEnd, JobRequest, Level, NodeUsage, ToolCall, ToolSession};
use score_proto::server_message::JobAnswer;
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::{ToolAction, ToolProgram};

use crate::cluster::MonotonicTime;
use crate::debuggers::{DebuggedNode, Debuggers};
use crate::exit_code;
use crate::gang::HoldReason;
use crate::job_tools::{JobTools, ToolRequester};
use crate::jobs::SessionKey;
use crate::metrics_subscribers::{Subscriber, Subscribers};
pub use crate::scheduling::GangRequest;
use crate::scheduling::Scheduling;
use crate::signal;
use crate::stage_hold::StageHold;
use crate::tool_commands::ToolCommands;
pub use action::{MasterAction, Outbox, PageStacks};
use programs::Programs;
use stage_elements::{StageElements, StageRequest};
use transfers::ClientTransfers;

/// An event of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MasterEvent {
    /// A message of scrun.
    FromClient(JobRequest),
    /// A report of the hosts.
    Report(Report),
    /// The gang scheduler runs the job: at its start, after each stop, and also to change the
    /// interval of the idle check or the next stop.
    Run {
        /// The interval at which the hosts check whether all processes are idle, in microseconds.
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
    /// A subscriber requests metrics with this period in milliseconds. A period of 0 unsubscribes.
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
    /// A session of a tool, or a session that sends files, has ended.
    ToolSessionEnded(SessionKey),
    /// A session requests the list of processes.
    ListProcesses(SessionKey),
}

/// The state of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The hosts prepare. Then the job's own tool is started, if the job has one.
    Starting { own_tool: Option<ToolProgram> },
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

impl State {
    fn is_starting(&self) -> bool {
        matches!(self, Self::Starting { .. })
    }

    fn is_in_stage(&self) -> bool {
        matches!(self, Self::StageDue | Self::Running)
    }

    /// Whether all hosts are ready, and have not been ordered to finish.
    fn has_hosts(&self) -> bool {
        matches!(self, Self::ToolDue | Self::StageDue | Self::Running | Self::Draining)
    }
}

/// A job.
#[derive(Debug)]
pub struct JobMaster {
    number: JobId,
    placement: Arc<Placement>,
    programs: Programs,
    state: State,
    elements: StageElements,
    scheduling: Scheduling,
    /// The time of the current event.
    now: MonotonicTime,
    /// The job is ended early, with at least this exit code.
    kill_code: Option<u8>,
    transfers: ClientTransfers,
    usage: Vec<NodeUsage>,
    subscribers: Subscribers,
    tool_commands: ToolCommands,
    tools: JobTools,
    /// Debuggers of processes with a fault, if the user has requested debuggers.
    debuggers: Debuggers,
    /// The requests of a debugger of the whole job.
    hold: StageHold,
    actions: Outbox,
}

impl JobMaster {
    /// A job that has been checked (see [`super::validate`]) and placed, and the first order for
    /// its hosts.
    pub fn begin(begin: JobStart, placement: Placement) -> (Self, Order) {
        let placement = Arc::new(placement);
        let debuggers = Debuggers::new(begin.spec.debuggers.as_deref().cloned());
        let has_debuggers = debuggers.are_wanted();
        let job = Self {
            number: begin.job,
            placement: placement.clone(),
            programs: Programs::new(&begin.spec),
            state: State::Starting { own_tool: begin.spec.tool.clone() },
            elements: StageElements::new(begin.job, placement, has_debuggers),
            scheduling: Scheduling::new(),
            now: MonotonicTime::ZERO,
            kill_code: None,
            transfers: ClientTransfers::default(),
            usage: Vec::new(),
            subscribers: Subscribers::default(),
            tool_commands: ToolCommands::default(),
            tools: JobTools::default(),
            debuggers,
            hold: StageHold::new(begin.spec.hold),
            actions: Outbox::default(),
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
        self.elements.set_time(now);
    }

    /// When [`MasterEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        let deadlines =
            [self.elements.deadline(), self.tool_commands.deadline(), self.tools.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Whether a parallel process of the job seems to hang, but no deadlock can be proved.
    pub fn suspects_hang(&self, now: MonotonicTime) -> bool {
        self.elements.suspects_hang(now)
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
                self.elements.on_stopped(switch_seq, &mut self.actions);
                self.actions.order(Order::Switch(SwitchOrder::Stop { switch_seq }));
            }
            MasterEvent::GangStopped => self.elements.on_gang_stopped(&mut self.actions),
            MasterEvent::Tick => {
                self.elements.on_tick(&mut self.actions);
                self.tool_commands.on_tick(self.now, &mut self.actions);
                self.tick_tools();
                self.elements.tick_faults(&mut self.actions);
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
        self.actions.take()
    }

    fn with_gang(&mut self, change: impl FnOnce(&mut Scheduling) -> Option<GangRequest>) {
        let request = change(&mut self.scheduling);
        request.into_iter().for_each(|request| self.actions.gang(request));
    }

    /// The gang scheduler runs the job. Processes are started only during a slice.
    fn on_run(&mut self, poll_interval_us: u32, until: StopCondition) {
        self.scheduling.set_has_slice(true);
        self.start_if_due();
        self.actions.order(Order::Switch(SwitchOrder::Run {
            idle_check_interval_us: poll_interval_us,
            stop_condition: until,
        }));
    }

    fn on_client_request(&mut self, request: JobRequest) {
        let out = &mut self.actions;
        match request {
            JobRequest::FileChunk { hash, offset, bytes } => {
                self.transfers.on_file_chunk(ProgramAnswer::Chunk { hash, offset, bytes }, out);
            }
            JobRequest::Stdin(bytes) => out.job_order(JobOrder::Stdin(bytes)),
            JobRequest::StdinEof => out.job_order(JobOrder::StdinEof),
            JobRequest::OutputAck(bytes) => out.order(Order::OutputAck(bytes)),
            JobRequest::Flushed(token) => self.transfers.on_flushed(token, out),
            JobRequest::OutputClosed(stream) => {
                self.elements.expect_signal(signal::SIGPIPE);
                out.job_order(JobOrder::OutputClosed(stream));
            }
            JobRequest::Signal(signal) => {
                self.elements.expect_signal(signal);
                out.job_order(JobOrder::Signal(signal));
                self.debuggers.release(out);
                // The job must be able to handle the signal, even if its output is blocked.
                if self.scheduling.has_entered() {
                    out.gang(GangRequest::Release(HoldReason::OutputBlocked));
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
                out.job_order(JobOrder::Kill);
                self.end_all(exit_code::of_signal(signal::SIGKILL));
            }
        }
    }

    fn on_subscribe(&mut self, subscriber: Subscriber, period_ms: u32) {
        let period_ms = self.subscribers.set(subscriber, period_ms);
        // Hosts that still prepare get the period when all of them are ready.
        if let Some(period_ms) = period_ms.filter(|_| !self.state.is_starting()) {
            self.actions.job_order(JobOrder::SubscribeMetrics { period_ms });
        }
    }

    fn on_report(&mut self, report: Report) {
        match report {
            Report::FileRequest(request) => self.on_file_request(request),
            Report::HostsLost { code, hosts, reason, remains: _ } => {
                self.on_hosts_lost(code, hosts, reason)
            }
            Report::Output(report) => self.on_output_report(report),
            Report::Job(report) => self.on_job_report(report),
            Report::Element { element, report } => self.on_element_report(element, report),
            Report::Switch(SwitchReport::Stopped { switch_seq }) => {
                self.elements.on_stopped(switch_seq, &mut self.actions);
                self.actions.gang(GangRequest::Stopped(switch_seq));
            }
            Report::Switch(SwitchReport::IdleSummary { element, summary }) => {
                self.elements.on_idle_summary(element, summary, &mut self.actions);
            }
        }
    }

    fn on_file_request(&mut self, request: FileRequest) {
        if !self.state.is_starting() {
            return self.on_tool_file_request(request);
        }
        self.transfers.on_file_request(request, &mut self.actions);
    }

    fn on_output_report(&mut self, report: OutputReport) {
        match report {
            OutputReport::Text { host, stream, bytes, is_partial_line: _ } => {
                self.actions.to_client(JobAnswer::Output { host, stream, bytes });
            }
            OutputReport::Flush { host, token } => {
                self.transfers.on_flush(host, token, &mut self.actions);
            }
            OutputReport::Drained => {
                if self.state == State::Draining {
                    self.end_stage();
                }
            }
        }
    }

    fn on_job_report(&mut self, report: JobReport) {
        let out = &mut self.actions;
        match report {
            JobReport::Ready => self.on_ready(),
            JobReport::Refused { code, reason } => {
                if self.state.is_starting() {
                    self.finish(Some(reason), code);
                }
            }
            JobReport::JobFailed { code, reason } => self.on_lost(code, reason),
            JobReport::Notice { level, text } => out.notice(level, text),
            JobReport::StdinWindow(bytes) => out.to_client(JobAnswer::StdinWindow(bytes)),
            JobReport::StdinClosed => out.to_client(JobAnswer::StdinClosed),
            JobReport::Metrics(metrics) => self.subscribers.publish(metrics, out),
            JobReport::Tool(report) => self.on_tool_report(report),
            JobReport::Usage(usage) => self.usage.extend(usage),
            JobReport::Processes { stage, blocks } => self.on_processes(stage, blocks),
            JobReport::Finished { elapsed_ns } => self.on_finished(elapsed_ns),
        }
    }

    /// All hosts can start processes.
    fn on_ready(&mut self) {
        let State::Starting { own_tool } = &mut self.state else { return };
        let own_tool = own_tool.take();
        let hosts = self.placement.hosts.len() as u32;
        let nodes = self.placement.nodes();
        self.actions.to_client(JobAnswer::Accepted { job: self.number, nodes, hosts });
        let period_ms = self.subscribers.min_period_ms();
        if period_ms > 0 {
            self.actions.job_order(JobOrder::SubscribeMetrics { period_ms });
        }
        match own_tool {
            None => self.begin_stage(0),
            Some(program) => {
                self.state = State::ToolDue;
                let action = ToolAction::Start { program, hosts: Vec::new(), files: None };
                self.on_tool_action(ToolRequester::Job, action);
            }
        }
    }

    fn on_element_report(&mut self, number: ElementIndex, report: ElementReport) {
        // A report about any other number belongs to an earlier stage.
        if !self.elements.contains(number) {
            return;
        }
        match report {
            ElementReport::DebuggerWanted { node, process } => {
                self.on_debugger_wanted(number, node, process)
            }
            ElementReport::Sleep { seconds } => self.actions.gang(GangRequest::Sleep(seconds)),
            ElementReport::Yield => self.actions.gang(GangRequest::Yield),
            ElementReport::ToolEvent(event) => {
                let first_rank = number.first_rank(self.placement.nodes());
                self.tool_commands.on_event(first_rank, event, &mut self.actions);
            }
            ElementReport::ProtocolViolation { node, violation } => {
                let name = self.elements.name(number);
                self.on_lost(1, format!("node {node} of {name}: {violation}; the job is ended"));
            }
            ElementReport::SampleResult { round, sample } => {
                self.elements.on_sample(number, round, sample, &mut self.actions);
            }
            ElementReport::WaitStates { waits } => {
                self.elements.on_wait_states(number, waits, &mut self.actions);
            }
            report => self.elements.on_report(number, report, &mut self.actions),
        }
    }

    fn begin_stage(&mut self, stage: usize) {
        // Reports of stacks that are not complete name elements of the previous stage.
        self.tool_commands.finish_all(&mut self.actions);
        self.carry_out_stage_requests();
        self.transfers.forget_flushes();
        self.state = State::StageDue;
        self.elements.begin_stage(self.programs.begin_stage(stage, self.placement.nodes()));
        self.with_gang(Scheduling::on_stage_due);
        self.start_if_due();
    }

    /// The processes of a stage are started in a slice of the job.
    fn start_if_due(&mut self) {
        if self.scheduling.has_slice() && self.state == State::StageDue {
            self.state = State::Running;
            let stage = self.programs.listed_stage(&self.placement);
            let list = self.hold.before_start(&stage, &mut self.actions);
            self.actions.job_order(JobOrder::StartStage(stage.stage));
            self.hold.after_start(list, &stage, &mut self.actions);
        }
    }

    fn on_lost(&mut self, code: u8, reason: String) {
        if self.kill_code.is_none() {
            self.actions.notice(Level::Error, reason);
        }
        self.end_all(code);
    }

    fn on_hosts_lost(&mut self, code: u8, hosts: std::ops::Range<u32>, reason: String) {
        self.actions.notice(Level::Error, reason);
        let host_placements = self.placement.hosts.get(hosts.start as usize..hosts.end as usize);
        let lost_ranges: Vec<_> =
            host_placements.unwrap_or_default().iter().map(|host| host.node_range()).collect();
        self.on_tools_lost(hosts.clone());
        self.hold.refuse_sessions(self.number, &mut self.actions);
        if self.programs.has_independent_nodes() && self.state.is_in_stage() {
            // The commands of the other nodes are independent of the lost nodes.
            self.kill_code.get_or_insert(code);
        } else {
            self.end_all(code);
        }
        lost_ranges.into_iter().for_each(|range| self.elements.on_nodes_lost(&range.into()));
    }

    fn end_all(&mut self, code: u8) {
        self.kill_code.get_or_insert(code);
        match &mut self.state {
            // No process of the stage has been started, and none will be.
            State::Starting { .. } | State::ToolDue | State::StageDue => self.finish(None, code),
            State::Running => self.elements.end(code, &mut self.actions),
            State::Finishing { code: so_far, .. } if *so_far == 0 => *so_far = code,
            _ => {}
        }
    }

    fn advance_state(&mut self) {
        self.carry_out_stage_requests();
        for number in self.elements.ended() {
            self.elements.release_hold(number, &mut self.actions);
            self.debuggers.on_element_ended(number, &self.placement, &mut self.actions);
        }
        let are_idle = self.elements.are_idle();
        self.with_gang(|scheduling| scheduling.report_idle(are_idle));
        if self.state.is_in_stage() && self.elements.are_ended() {
            self.state = State::Draining;
            self.hold.on_stage_end(&mut self.actions);
            self.actions.job_order(JobOrder::Drain);
        }
    }

    /// Carries out the requests of the elements during the event. Notifies the elements whose
    /// stacks have been read.
    fn carry_out_stage_requests(&mut self) {
        for request in self.elements.take_requests() {
            match request {
                StageRequest::ReadStacks { asker, ranks, request, timeout } => {
                    if self.read_stacks(asker, ranks, &request, timeout).is_err() {
                        self.elements.on_stacks_read(asker, &mut self.actions);
                    }
                }
                StageRequest::HoldForDebuggers(number) => {
                    if !self.debuggers.hold(number, &mut self.actions) {
                        // The hosts of these processes cannot identify them for a debugger.
                        self.elements.on_debugged(number, &mut self.actions);
                    }
                }
            }
        }
        for asker in self.tool_commands.take_finished_reports() {
            self.elements.on_stacks_read(asker, &mut self.actions);
        }
    }

    fn end_stage(&mut self) {
        let code = self.elements.code();
        match (self.kill_code, self.programs.next_stage()) {
            (None, Some(next)) if code == 0 => self.begin_stage(next),
            (None, _) => self.finish(None, code),
            (Some(kill_code), _) => self.finish(None, if code == 0 { kill_code } else { code }),
        }
    }

    fn finish(&mut self, refusal: Option<String>, code: u8) {
        self.state = State::Finishing { refusal, code };
        self.with_tools(|tools, _, out| tools.end(out));
        self.hold.refuse_sessions(self.number, &mut self.actions);
        self.with_gang(Scheduling::leave);
        self.actions.job_order(JobOrder::Finish);
    }

    /// Every host has released all resources of the job, or is lost.
    fn on_finished(&mut self, elapsed_ns: u64) {
        // Until now, the services of processes could report results.
        self.tool_commands.finish_all(&mut self.actions);
        self.tool_commands.finish_sessions(&mut self.actions);
        let State::Finishing { refusal, code } = std::mem::replace(&mut self.state, State::Done)
        else {
            // The hosts were not ordered to finish: this state machine is inconsistent.
            return self.actions.to_client(JobAnswer::Finished(JobEnd {
                code: 1,
                usage: Vec::new(),
                elapsed_ns,
            }));
        };
        let usage = std::mem::take(&mut self.usage);
        self.actions.to_client(match refusal {
            Some(reason) => JobAnswer::Refused { reason, code },
            None => JobAnswer::Finished(JobEnd { code, usage, elapsed_ns }),
        });
    }
}

#[cfg(test)]
#[path = "master_tests.rs"]
mod tests;
