//! The local part of a job: starts its processes, handles their calls and their exits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_job::exit_code;
use score_job::limits::LimitKind;
use score_proto::exit_code::EXIT_FAILED;
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{ElementReport, JobReport, OutputReport, ShepherdReport, Status};
use score_proto::message::{ElementSpec, NodeUsage, Stream};
use score_proto::nodeset::NodeSet;
use score_sys::host_name::system_host_name;

use super::call_handler::ElementCalls;
use super::file_copies::FileCopies;
use super::gang_switch::RunGate;
use super::input::Input;
use super::inspection::ProcessInspector;
use super::job_info::{JobInfo, ProcessKey, ShepherdContext};
use super::job_phase::JobPhase;
use super::limit_enforcer::LimitEnforcer;
use super::metrics::{MeasuredJob, MetricsCollector};
use super::mpi_services::MpiServices;
use super::output::{DrainReason, OutputMux};
use super::process_list::{ListedStage, ProcessList};
use super::processes::{ControlEvent, ProcessTable};
use super::reports::ScoredLink;
use super::shared_memory::SharedMemory;
use super::spawn_queue::{SpawnQueue, SpawnedProcess, StartError};
use super::tool_service::ServedJob;
use super::tools::ToolAccess;
use super::{FIRST_DYNAMIC_TOKEN, INPUT, NETWORKS, PMIX};
use crate::sys::process::{self, Reaped, WaitResult};
use crate::sys::{mounts, remove};

/// Number of processes started in one tick of the loop.
const SPAWNS_PER_TICK: usize = 16;
/// How long killed processes may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The local part of a job.
pub struct JobRunner {
    pub(super) context: ShepherdContext,
    pub(super) phase: JobPhase,
    pub reports: ScoredLink,
    pub outputs: OutputMux,
    pub input: Input,
    /// The processes of the running stage.
    pub processes: ProcessTable,
    /// The services for the MPI programs of the running stage.
    pub mpi: MpiServices,
    /// The access of tools to the job.
    pub tools: ToolAccess,
    pub(super) copies: FileCopies,
    pub(super) spawn_queue: SpawnQueue,
    pub(super) shared_memory: SharedMemory,
    /// Inspects the processes from outside.
    pub inspector: ProcessInspector,
    /// Whether the job is stopped.
    pub run_gate: Arc<RunGate>,
    pub(super) limit_enforcer: LimitEnforcer,
    pub(super) metrics: MetricsCollector,
    /// The list of processes for a debugger, and the orders of the debugger.
    pub(super) process_list: ProcessList,
}

/// Kinds of event sources that have many instances. Each kind numbers its sources itself.
const SOURCE_KINDS: usize = 3;

fn output_token(index: usize) -> Token {
    Token(FIRST_DYNAMIC_TOKEN + SOURCE_KINDS * index)
}

fn control_token(index: usize) -> Token {
    Token(FIRST_DYNAMIC_TOKEN + SOURCE_KINDS * index + 1)
}

fn pmi_token(index: usize) -> Token {
    Token(FIRST_DYNAMIC_TOKEN + SOURCE_KINDS * index + 2)
}

impl JobRunner {
    pub fn new(
        context: ShepherdContext,
        reports: ScoredLink,
        run_gate: Arc<RunGate>,
        inspector: ProcessInspector,
    ) -> Self {
        Self {
            context,
            phase: JobPhase::Waiting(None),
            reports,
            outputs: OutputMux::default(),
            input: Input::default(),
            processes: ProcessTable::default(),
            mpi: MpiServices::default(),
            tools: ToolAccess::default(),
            copies: FileCopies::default(),
            spawn_queue: SpawnQueue::default(),
            shared_memory: SharedMemory::default(),
            inspector,
            run_gate,
            limit_enforcer: LimitEnforcer::default(),
            metrics: MetricsCollector::default(),
            process_list: ProcessList::default(),
        }
    }

    /// Records that mio has reported an event of one of the dynamic sources.
    pub fn mark_ready(&mut self, Token(number): Token) {
        let source = number - FIRST_DYNAMIC_TOKEN;
        let index = source / SOURCE_KINDS;
        match source % SOURCE_KINDS {
            0 => self.outputs.mark_ready(index),
            1 => self.processes.mark_ready(index),
            _ => self.mpi.mark_socket_ready(index),
        }
    }

    /// Whether the job has ended and everything has been reported.
    pub fn is_done(&self) -> bool {
        self.phase.is_done()
    }

    /// Whether there is something to do without waiting.
    pub fn is_runnable(&self) -> bool {
        let is_waiting = self.mpi.is_helper_starting() && !self.mpi.is_helper_due();
        let can_spawn = self.spawn_queue.is_pending() && !is_waiting && !self.run_gate.is_stopped();
        can_spawn
            || self.process_list.is_release_possible(&self.run_gate)
            || self.outputs.is_runnable()
            || self.processes.is_runnable()
            || self.mpi.is_runnable()
            || self.copies.is_runnable()
    }

    /// The earliest of all deadlines.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_done() {
            // Only the last reports are left, and they wait until scored reads.
            return None;
        }
        let is_stopped = self.run_gate.is_stopped();
        let while_running = |deadline: Option<Instant>| deadline.filter(|_| !is_stopped);
        [
            while_running(self.outputs.next_deadline()),
            while_running(self.mpi.next_check()),
            self.process_list.next_check(),
            self.phase.kill_deadline(),
            self.outputs.kill_deadline(),
            self.limit_enforcer.deadline(),
            self.metrics.deadline(),
            self.tools.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// One tick of the loop: handles everything that is ready, a bounded amount of each kind.
    pub fn tick(&mut self, registry: &Registry, now: Instant) {
        if let Err(error) = self.shared_memory.register(registry, NETWORKS) {
            self.fail_job(format!("cannot register the networks: {error}"));
        }
        self.copy_files();
        self.spawn_pending(registry);
        self.update_process_list(now);
        self.outputs.pump(&mut self.reports, now);
        if !self.run_gate.is_stopped() {
            self.outputs.expire(&mut self.reports, now);
        }
        self.input.pump(&mut self.reports);
        self.receive_calls();
        self.serve_mpi(registry, now);
        if self.tools.is_directory_due(now) {
            // Tools cannot start without the directory. Before a tool starts, `PrepareTools` writes
            // the directory again and reports the error.
            let _ = self.write_tool_directory();
        }
        // The call above creates the socket that this call registers.
        self.serve_tools(registry);
        self.measure(now);
        if let Some(kind) = self.limit_enforcer.check(now, &self.context.directory) {
            self.on_limit_exceeded(kind);
        }
        self.outputs.check_user_kill(now);
        loop {
            self.continue_shutdown(now);
            match self.outputs.drained(&mut self.reports) {
                Some(purpose) => self.on_drained(purpose),
                None => break,
            }
        }
    }

    /// Samples the processes and sends metrics, if these are due.
    fn measure(&mut self, now: Instant) {
        let Some(job_info) = self.phase.job_info() else { return };
        let job = MeasuredJob {
            job_info,
            directory: &self.context.directory,
            limits: self.limit_enforcer.limits(),
            run_gate: &self.run_gate,
            inspector: &self.inspector,
            shared_memory: &self.shared_memory,
            processes: &mut self.processes,
        };
        if let Some(metrics) = self.metrics.measure(now, !self.reports.is_slow(), job) {
            self.reports.add(JobReport::Metrics(metrics));
        }
    }

    /// Continues to copy the job's programs, and the files of a tool.
    fn copy_files(&mut self) {
        let (reports, copied) = self.copies.pump();
        reports.iter().for_each(|report| self.reports.send(report));
        self.refuse_if_failed(copied);
    }

    /// Refuses the job if one of its programs could not be copied.
    pub(super) fn refuse_if_failed(&mut self, copied: Result<(), String>) {
        let Err(reason) = copied else { return };
        self.copies.close_programs();
        let reason = self.with_host_name(reason);
        self.reports.add(JobReport::Refused { code: EXIT_FAILED, reason });
    }

    /// Prefixes a text with the name of this host if the job has several hosts.
    fn with_host_name(&self, reason: String) -> String {
        match self.phase.job_info() {
            Some(job_info) if job_info.placement.hosts.len() > 1 => {
                format!("host {}: {reason}", job_info.local_host.name)
            }
            _ => reason,
        }
    }

    /// Postpones the job's deadlines by the time for which it was stopped.
    pub fn on_stop_time(&mut self, stop_time: Duration) {
        if !stop_time.is_zero() {
            self.outputs.postpone(stop_time);
            self.mpi.postpone(stop_time);
            // The networks were not served while the job was stopped.
            self.serve_networks();
        }
    }

    /// Continues to deliver the messages that exited processes have sent.
    pub fn serve_networks(&self) {
        if !self.run_gate.is_stopped() {
            self.shared_memory.serve();
        }
    }

    /// Handles a kill of the job by the user.
    pub(super) fn kill(&mut self) {
        self.mpi.close();
        self.outputs.on_user_kill(Instant::now());
        self.tools.end_job(&self.run_gate);
        self.kill_processes();
    }

    /// Kills the remaining processes of the job. Spares the tool service while it reports the end
    /// of the job to tools.
    fn kill_processes(&mut self) {
        match self.tools.is_ending() {
            true => self.signal(None, libc::SIGKILL),
            false => _ = process::kill_all_descendants(),
        }
    }

    /// Kills all remaining processes. `finish` reports the end of the job later.
    pub(super) fn begin_shutdown(&mut self) {
        self.input.close();
        self.copies.close();
        self.spawn_queue.cancel(None);
        self.mpi.close();
        self.tools.close(&self.run_gate);
        self.phase.begin_killing(Instant::now() + KILL_TIMEOUT);
        self.kill_processes();
    }

    pub(super) fn start_stage(&mut self, stage: usize) {
        let Some(job) = self.phase.job_mut() else { return };
        let job_info = &mut job.info;
        let Some(stage_spec) = job_info.job_start.spec.stages.get(stage) else { return };
        job_info.stage = stage;
        job.started_at.get_or_insert_with(Instant::now);
        self.copies.close_programs();
        if stage > 0 {
            self.input.close();
        }
        self.shared_memory.clear();
        self.tools.begin_stage(self.run_gate.job_time(), Instant::now());
        let new_calls = |element: &ElementSpec| {
            let name = element.path.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            ElementCalls::new(String::from_utf8_lossy(name).into_owned())
        };
        let elements = stage_spec.elements.iter().map(new_calls).collect();
        self.processes.reset(elements, job_info.local_nodes());
        self.mpi.begin_stage(job_info, &self.context.directory);
        let hold = self.process_list.on_stage_start();
        let begun = self.spawn_queue.begin(&self.context, job_info, hold);
        begun.unwrap_or_else(|reason| self.fail_job(reason));
    }

    fn spawn_pending(&mut self, registry: &Registry) {
        let run_gate = Arc::clone(&self.run_gate);
        for _ in 0..SPAWNS_PER_TICK {
            let Some(mut run_guard) = run_gate.acquire() else { return };
            if self.mpi.is_helper_due()
                && let Err(reason) = self.start_pmix_helper(registry)
            {
                return self.fail_job(reason);
            }
            if self.mpi.is_helper_starting() {
                return;
            }
            let Some(key) = self.spawn_queue.next() else { return };
            let Some(job_info) = self.phase.job_info() else { return };
            let stage = job_info.stage;
            let result =
                self.spawn_queue.start(&self.context, job_info, key, self.mpi.environment(key));
            if let Ok(started) = &result
                && self.process_list.is_holding()
            {
                run_guard.hold(started.pid);
            }
            drop(run_guard);
            match result {
                Ok(started) => {
                    if let Err(error) = self.register_process(started, stage, key, registry) {
                        self.fail_job(format!("node {}: {error}", key.node));
                    }
                }
                Err(error) => self.on_spawn_error(key, error),
            }
            self.spawn_queue.on_process_handled();
        }
    }

    fn register_process(
        &mut self,
        started: SpawnedProcess,
        stage: usize,
        key: ProcessKey,
        registry: &Registry,
    ) -> std::io::Result<()> {
        self.processes.start(key, started.pid, started.child_files);
        if let Some(job_info) = self.phase.job_info() {
            self.tools.on_process_start(job_info, key, started.pid);
        }
        for signal in self.spawn_queue.early_signals() {
            process::kill_group(started.pid, *signal);
        }
        let owner = (stage, key.element);
        if let Some(stdin) = started.stdin {
            self.input.open(stdin, &mut self.reports, registry, INPUT)?;
        }
        if let Some(stdout) = started.stdout {
            self.outputs.add(stdout, Stream::Stdout, owner, registry, output_token)?;
        }
        self.outputs.add(started.stderr, Stream::Stderr, owner, registry, output_token)?;
        if let Some(socket) = started.pmi_socket {
            self.mpi.open_socket(key, socket, registry, pmi_token)?;
        }
        self.processes.open_control(key, started.control, registry, control_token)
    }

    fn start_pmix_helper(&mut self, registry: &Registry) -> Result<(), String> {
        let Some((logged, element)) = self.mpi.start_helper(registry, PMIX)? else {
            return Ok(());
        };
        let stage = self.phase.job_info().map_or(0, |job_info| job_info.stage);
        self.outputs
            .add(logged, Stream::Stderr, (stage, element), registry, output_token)
            .map_err(|error| format!("cannot read the output of scored-pmix: {error}"))
    }

    fn on_spawn_error(&mut self, ProcessKey { element, node }: ProcessKey, error: StartError) {
        let nodes = NodeSet::one(node);
        match error {
            StartError::Skipped => {
                self.reports.add_about(element, ElementReport::Skipped { nodes })
            }
            StartError::Program(code, reason) => {
                self.reports.add_about(element, ElementReport::NotStarted { nodes, code, reason });
            }
            StartError::Job(reason) => {
                self.fail_job(reason);
                self.reports.add_about(element, ElementReport::Skipped { nodes });
            }
        }
    }

    /// Reports the reason why the job cannot continue, and starts no further process.
    pub(super) fn fail_job(&mut self, reason: String) {
        let reason = self.with_host_name(reason);
        self.reports.add(JobReport::JobFailed { code: EXIT_FAILED, reason });
        self.skip_unstarted(None);
    }

    /// Removes the unstarted processes of one element, or of all elements, from the queue.
    pub(super) fn skip_unstarted(&mut self, element: Option<ElementIndex>) {
        for ProcessKey { element, node } in self.spawn_queue.cancel(element) {
            self.reports.add_about(element, ElementReport::Skipped { nodes: NodeSet::one(node) });
        }
    }

    /// Handles an exceeded limit: kills all processes of the job on this host.
    fn on_limit_exceeded(&mut self, kind: LimitKind) {
        let host = self.phase.job_info().map_or_else(system_host_name, JobInfo::host_name);
        let (code, reason) = kind.exceeded_message(self.limit_enforcer.limits(), &host);
        self.reports.add(JobReport::JobFailed { code, reason });
        self.skip_unstarted(None);
        process::kill_all_descendants();
    }

    fn receive_calls(&mut self) {
        for event in self.processes.receive_events() {
            match event {
                ControlEvent::Call(key, call) => self.on_call(key, call),
                ControlEvent::Malformed(ProcessKey { element, node }, violation) => {
                    let report = ElementReport::ProtocolViolation { node, violation };
                    self.reports.add_about(element, report);
                }
            }
        }
    }

    fn serve_mpi(&mut self, registry: &Registry, now: Instant) {
        let reports = self.mpi.serve(registry);
        self.reports.add_all_about(reports);
        if !self.run_gate.is_stopped() {
            let reports = self.mpi.check_helper(registry, now);
            self.reports.add_all_about(reports);
        }
    }

    /// Writes the directory that describes the job to tools.
    ///
    /// # Errors
    /// One line with the reason.
    pub(super) fn write_tool_directory(&mut self) -> Result<(), String> {
        let job_info = self.phase.job_info().ok_or("the job has not started, or has ended")?;
        let programs = self.spawn_queue.programs(&self.context, job_info)?;
        self.tools.write_directory(&self.context.directory, job_info, &programs)
    }

    fn serve_tools(&mut self, registry: &Registry) {
        let (job_info, processes) = (self.phase.job_info(), &mut self.processes);
        let job = ServedJob { job_info, context: &self.context, processes };
        let reports = self.tools.serve(registry, &self.run_gate, job);
        self.reports.add_all_about(reports);
    }

    /// Carries out the debugger's orders that are due.
    fn update_process_list(&mut self, now: Instant) {
        let stage = ListedStage {
            job_info: self.phase.job_info(),
            context: &self.context,
            processes: &mut self.processes,
            spawn_queue: &mut self.spawn_queue,
        };
        let reports = self.process_list.update(now, &self.run_gate, stage);
        reports.into_iter().for_each(|report| self.reports.add(report));
    }

    fn on_drained(&mut self, reason: DrainReason) {
        match reason {
            DrainReason::Flush(key, id) => {
                let token = self.processes.add_flush(key, id);
                let host = self
                    .phase
                    .job_info()
                    .map_or(JobHostId::FIRST, |job_info| job_info.placement.self_host);
                let report = OutputReport::Flush { host, token };
                self.reports.send(&ShepherdReport::Output(report));
            }
            DrainReason::StageEnd => {
                self.reports.send(&ShepherdReport::Output(OutputReport::Drained))
            }
            DrainReason::JobEnd => self.finish(),
        }
    }

    /// Reaps every child that has exited.
    pub fn reap(&mut self, registry: &Registry) {
        while let WaitResult::Exited(reaped) = process::reap() {
            self.on_process_exit(reaped, registry);
        }
        self.tick(registry, Instant::now());
    }

    fn on_process_exit(&mut self, reaped: Reaped, registry: &Registry) {
        self.run_gate.on_process_exit(reaped.pid);
        // Other children are helpers, or orphans that the shepherd has inherited.
        let Some(key) = self.processes.key_of(reaped.pid) else { return };
        if let Some(job) = self.phase.job_mut() {
            job.last_exit_at = Some(Instant::now());
        }
        if reaped.status == Status::Signaled(libc::SIGKILL) && self.limit_enforcer.was_oom_killed()
        {
            self.on_limit_exceeded(LimitKind::Memory);
        }
        // First handle the calls that the process made before its exit.
        self.processes.queue_control(key);
        self.receive_calls();
        let reports = self.mpi.on_process_exit(key, reaped.status, registry);
        self.reports.add_all_about(reports);
        let Some((ProcessKey { element, node }, ended)) = self.processes.end(reaped.pid) else {
            return;
        };
        let Some(job_info) = self.phase.job_info() else { return };
        let process = job_info.local_host.process_of(node);
        self.tools.on_process_exit(job_info, key, reaped.status);
        let counters = self.shared_memory.counters(element, process).unwrap_or_default();
        self.shared_memory.on_process_exit(element, process);
        self.inspector.on_process_exit(element, node);
        if job_info.job_start.spec.statistics {
            self.reports.add(JobReport::Usage(vec![NodeUsage {
                stage: job_info.stage as u32,
                element,
                node,
                user_ns: reaped.user_ns,
                system_ns: reaped.system_ns,
                max_rss_kib: reaped.max_rss_kib,
                code: exit_code::of_status(reaped.status),
                sent: counters.sent,
                received: counters.received,
                sent_bytes: counters.sent_bytes,
                received_bytes: counters.received_bytes,
                busy_permille: ended.measurement.busy_time.permille(),
            }]));
        }
        match self.spawn_queue.spawn_failure(key, &ended.child_files) {
            Some(error) => self.on_spawn_error(key, error),
            None => {
                let nodes = NodeSet::one(node);
                let report = ElementReport::Ended { nodes, status: reaped.status };
                self.reports.add_about(element, report);
            }
        }
    }

    /// Sends the user's signal to the job, also to processes of the stage that start later. If no
    /// process runs, the processes of the next stage receive the signal.
    pub(super) fn signal_all(&mut self, signal: i32) {
        if self.spawn_queue.is_pending() || self.processes.running_count() == 0 {
            self.spawn_queue.add_early_signal(signal);
        }
        self.signal(None, signal);
    }

    /// Sends a signal to the process group of every running process of one element, or of all
    /// elements.
    pub(super) fn signal(&mut self, element: Option<ElementIndex>, signal: i32) {
        for (_, running) in self.processes.running_mut(element) {
            process::kill_group(running.pid, signal);
        }
        self.process_list.on_signal(signal, element, &mut self.processes);
    }

    fn continue_shutdown(&mut self, now: Instant) {
        let Some(deadline) = self.phase.kill_deadline() else { return };
        let all_exited = loop {
            match process::reap() {
                WaitResult::Exited(_) => {}
                WaitResult::NoChildren => break true,
                WaitResult::AllRunning => break false,
            }
        };
        if all_exited || deadline <= now {
            self.phase.begin_draining();
            self.outputs.drain_all(DrainReason::JobEnd, now);
        } else {
            // Orphans may have become children of this process since the last kill.
            self.kill_processes();
        }
    }

    /// Removes the shared memory that the MPI libraries of killed processes have left.
    pub fn remove_shared_memory(&self) {
        self.mpi.remove_shared_memory();
    }

    fn finish(&mut self) {
        let Some(elapsed) = self.phase.finish() else { return };
        self.mpi.remove_shared_memory();
        if self.context.multi_user
            && !self.tools.has_tools()
            && let Ok(directory) = mounts::open_directory(&self.context.directory)
        {
            // This process removes the files with the user's rights, so that root has fewer files
            // to remove. scored reports files that remain.
            let _ = remove::empty(&directory.into());
        }
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.reports.add(JobReport::Finished { elapsed_ns });
    }
}
