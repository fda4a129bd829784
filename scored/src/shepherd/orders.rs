//! Carries out the orders of the job master. Also handles the calls of processes that the shepherd
//! can answer without the job master.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Instant;

use score_job::signal;
use score_proto::PROTOCOL_VERSION;
use score_proto::exit_code::EXIT_FAILED;
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{
    DebuggedProcess, ElementOrder, ElementReport, HostNetworkAddress, JobOrder, JobReport,
    JobStart, ShepherdOrder, ShepherdReport,
};
use score_proto::message::{Call, Level, OsBytes, Reply, Welcome};
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::ToolCommand;
use score_proto::toolctl::ToolProcess;
use score_sys::host_name::system_host_name;

use super::call_handler::{self, CallAction, CallState, FaultingThread};
use super::inspection::InspectedElement;
use super::job_info::{JobInfo, ProcessKey};
use super::job_runner::JobRunner;
use super::limit_enforcer::LimitEnforcer;
use super::output::DrainReason;
use super::{spawn_queue, tool_transfer};
use crate::sys::process;

impl JobRunner {
    /// Carries out an order.
    pub fn on_order(&mut self, order: ShepherdOrder) {
        match order {
            ShepherdOrder::Hello { version } => {
                if version != PROTOCOL_VERSION {
                    std::process::exit(1);
                }
            }
            ShepherdOrder::SetPlacement(placement) => {
                self.outputs.host = placement.self_host;
                self.phase.set_placement(placement);
            }
            ShepherdOrder::OutputAck(bytes) => self.outputs.on_output_ack(bytes, Instant::now()),
            ShepherdOrder::Program(answer) => {
                let copied = self.copies.on_answer(&answer);
                self.refuse_if_failed(copied);
            }
            ShepherdOrder::SendFile { child, request } => {
                self.copies.on_child_request(child, request)
            }
            ShepherdOrder::PrepareTools => {
                let written = self.write_tool_directory();
                let path = self.context.directory.as_os_str().as_bytes().to_vec();
                let report = ShepherdReport::ToolsPrepared(written.map(|()| OsBytes(path)));
                self.reports.send(&report);
            }
            ShepherdOrder::RemoveToolFiles(tool) => {
                tool_transfer::remove_files(&self.context.directory, tool);
            }
            ShepherdOrder::Job(order) => self.on_job_order(order),
            ShepherdOrder::Element { element, order } => self.on_element_order(element, order),
        }
    }

    fn on_job_order(&mut self, order: JobOrder) {
        match order {
            JobOrder::StartJob(job_start) => self.start_job(Arc::unwrap_or_clone(job_start)),
            JobOrder::Debugger(order) => self.process_list.on_order(order),
            JobOrder::StartStage(stage) => self.start_stage(stage as usize),
            JobOrder::Flushed { token, host: _ } => {
                if let Some((key, id)) = self.processes.take_flush(token) {
                    self.answer_done(key, |calls| {
                        calls.on_flushed();
                        Some(id)
                    });
                }
            }
            JobOrder::Drain => {
                self.inspector.clear();
                self.outputs.drain_all(DrainReason::StageEnd, Instant::now());
            }
            JobOrder::Stdin(bytes) => {
                if !self.input.push(&bytes) {
                    self.fail_job("scrun sent more input than its window allows".to_owned());
                }
            }
            JobOrder::StdinEof => self.input.on_eof(),
            JobOrder::OutputClosed(stream) => self.outputs.close_stream(stream),
            JobOrder::Signal(signal) => self.signal_all(signal),
            JobOrder::SubscribeMetrics { period_ms } => {
                self.metrics.set_period(period_ms, Instant::now(), &mut self.processes)
            }
            // The daemon starts tools, not the shepherd.
            JobOrder::Tool(_) => {}
            JobOrder::ToolFiles(order) => {
                if let Some(job) = self.phase.job_info() {
                    self.copies.on_tool_order(&order, job, &self.context);
                }
            }
            JobOrder::Kill => self.kill(),
            JobOrder::Finish => self.begin_shutdown(),
        }
    }

    fn on_element_order(&mut self, element: ElementIndex, order: ElementOrder) {
        match order {
            ElementOrder::End => {
                if let Some(calls) = self.processes.element_calls(element) {
                    calls.mark_ending();
                }
                self.signal(Some(element), libc::SIGKILL);
                self.skip_unstarted(Some(element));
            }
            ElementOrder::Welcome { peers } => {
                if let Err(reason) = self.welcome(element, &peers) {
                    self.reports
                        .add_about(element, ElementReport::Failed { code: EXIT_FAILED, reason });
                }
            }
            ElementOrder::NodesExited { nodes } => {
                self.shared_memory.on_nodes_exited(element, &nodes);
                self.inspector.reset_backoff();
            }
            ElementOrder::BarrierDone => {
                self.end_barrier(element);
            }
            ElementOrder::FenceEntries(entries) => {
                let failed = self.mpi.on_fence_entries(element, entries);
                self.reports.add_all_about(failed);
            }
            ElementOrder::FenceDone => self.mpi.end_fence(element),
            ElementOrder::SubsetFenceEntries { fence, entries } => {
                self.mpi.on_subset_fence_entries(element, fence, entries);
            }
            ElementOrder::SubsetFenceDone(fence) => self.mpi.end_subset_fence(element, fence),
            ElementOrder::ModexRequest { asker, node, host: _ } => {
                let answer = self.mpi.on_modex_request(ProcessKey { element, node }, asker);
                self.reports.add_all_about(answer);
            }
            ElementOrder::ModexAnswer { node, entries, asker: _ } => {
                let next = self.mpi.on_modex_answer(ProcessKey { element, node }, entries);
                self.reports.add_all_about(next);
            }
            ElementOrder::Broadcast { serial, signal } => {
                if signal != 0 {
                    self.signal(Some(element), signal);
                }
                if let Some(job_info) = self.phase.job_info() {
                    let nodes = NodeSet::from(job_info.local_host.node_range());
                    self.reports.add_about(element, ElementReport::Sent { serial, nodes });
                }
            }
            ElementOrder::BroadcastDone { node } => {
                self.answer_done(ProcessKey { element, node }, CallState::take_broadcast);
            }
            ElementOrder::Sample { round, stopped } => {
                let pmi_sockets = self.mpi.socket_activity(element);
                let sample = self.inspector.sample_round(element, round, stopped, &pmi_sockets);
                self.reports.add_about(element, ElementReport::SampleResult { round, sample });
            }
            ElementOrder::ToolCommand(command) => self.on_tool_command(element, command),
            ElementOrder::ReleaseFaults { nodes } => self.release_faults(element, &nodes),
            ElementOrder::QueryWaits => {
                let job_time_ns =
                    u64::try_from(self.run_gate.job_time().as_nanos()).unwrap_or(u64::MAX);
                let waits = self.inspector.wait_states(element, job_time_ns);
                self.reports.add_about(element, ElementReport::WaitStates { waits });
            }
        }
    }

    /// Handles a command of a tool for some nodes, which may be on several hosts.
    fn on_tool_command(&mut self, element: ElementIndex, command: ToolCommand) {
        let Some(job_info) = self.phase.job_info() else { return };
        let nodes = command.nodes.within(job_info.local_host.node_range());
        let process = |node| {
            let process = self.processes.get_mut(ProcessKey { element, node })?;
            let faulting_thread = process.calls.faulting_thread().map(|fault| fault.thread);
            Some(ToolProcess { node, pid: process.pid, faulting_thread })
        };
        let processes = nodes.iter().filter_map(process).collect();
        if let Some((element, report)) = self.tools.on_command(element, command, nodes, processes) {
            self.reports.add_about(element, report);
        }
    }

    /// Ends the processes of these nodes that wait after a fault, by the signal of that fault.
    /// Their stacks have been read.
    fn release_faults(&mut self, element: ElementIndex, nodes: &NodeSet) {
        for (key, process) in self.processes.running_mut(Some(element)) {
            if let Some(FaultingThread { thread, signal: Some(signal) }) =
                process.calls.faulting_thread()
                && nodes.contains(key.node)
                && !process::signal_thread(process.pid, thread, signal)
            {
                // The process has named a thread that is not its own.
                process::kill(process.pid, libc::SIGKILL);
            }
        }
    }

    fn start_job(&mut self, job_start: JobStart) {
        let Some(placement) = self.phase.take_placement() else { return };
        let Some(local_host) = placement.self_placement().cloned() else { return };
        process::set_umask(job_start.spec.umask);
        let limits = job_start.spec.terms.limits.in_mode(self.context.multi_user);
        let cgroup_counters = self.context.cgroup_counters.clone();
        self.limit_enforcer = LimitEnforcer::new(limits, cgroup_counters, Instant::now());
        if job_start.spec.statistics {
            self.metrics.keep_sampling(Instant::now());
        }
        if job_start.spec.terms.ignores_idle_flags {
            self.inspector.disable();
        }
        if placement.self_host > JobHostId::FIRST {
            self.input.disable();
        } else if !spawn_queue::receives_stdin(
            &job_start.spec,
            0,
            ProcessKey { element: ElementIndex(0), node: 0 },
        ) {
            self.input.close();
        }
        let begun = self.copies.begin(&job_start.spec, &placement, &self.context);
        self.phase.start(JobInfo { job_start, placement, local_host, stage: 0 });
        self.refuse_if_failed(begun);
    }

    /// Handles a call of a process.
    pub(super) fn on_call(&mut self, key: ProcessKey, call: Call) {
        let Some((element, caller)) = self.processes.calls(key) else { return };
        for action in element.on_call(caller, key.node, call) {
            self.execute_action(key, action);
        }
    }

    /// Replies to the calls of sc_barrier, because all nodes on all hosts have called it.
    fn end_barrier(&mut self, element: ElementIndex) {
        let running = self.processes.running_mut(Some(element));
        let callers: Vec<(ProcessKey, u32)> = running
            .filter_map(|(key, process)| Some((key, process.calls.take_barrier()?)))
            .collect();
        let nodes: Vec<u32> = callers.iter().map(|(key, _)| key.node).collect();
        self.inspector.add_barriers(element, &nodes, 0, 1);
        for (key, id) in callers {
            self.send_reply(key, &call_handler::done(id, 0));
        }
    }

    /// Replies to a call of a process; `take_call` returns the id of the call. A process that has
    /// exited gets no reply.
    fn answer_done(
        &mut self,
        key: ProcessKey,
        take_call: impl FnOnce(&mut CallState) -> Option<u32>,
    ) {
        let process = self.processes.get_mut(key);
        if let Some(id) = process.and_then(|process| take_call(&mut process.calls)) {
            self.send_reply(key, &call_handler::done(id, 0));
        }
    }

    /// Opens the networks of an element when its first node attaches on this host. Returns the
    /// addresses for other hosts.
    fn open_networks(&mut self, element: ElementIndex) -> Result<Vec<HostNetworkAddress>, String> {
        let Some(job_info) = self.phase.job_info() else { return Ok(Vec::new()) };
        self.shared_memory.open(element, job_info, self.context.raw_client.as_ref())
    }

    /// The report that a node has attached. `first`: it is the first node of the element to attach
    /// on this host.
    fn attachment(
        &mut self,
        ProcessKey { element, node }: ProcessKey,
        first: bool,
    ) -> ElementReport {
        let addresses = if first { self.open_networks(element) } else { Ok(Vec::new()) };
        match addresses {
            Ok(addresses) => ElementReport::Attached { nodes: NodeSet::one(node), addresses },
            Err(reason) => ElementReport::Failed { code: EXIT_FAILED, reason },
        }
    }

    fn execute_action(&mut self, key: ProcessKey, action: CallAction) {
        let ProcessKey { element, node } = key;
        match action {
            CallAction::Answer(reply) => self.send_reply(key, &reply),
            CallAction::Report(report) => self.reports.add_about(element, report),
            CallAction::Attach { is_first } => {
                let report = self.attachment(key, is_first);
                self.reports.add_about(element, report);
            }
            CallAction::EnterBarrier => {
                self.inspector.add_barriers(element, &[node], 1, 0);
                let report = ElementReport::InBarrier { nodes: NodeSet::one(node) };
                self.reports.add_about(element, report);
            }
            CallAction::RefuseBarrier(id) => {
                self.inspector.add_barriers(element, &[node], 1, 1);
                self.send_reply(key, &call_handler::done(id, libc::EBUSY));
            }
            CallAction::Flush(id) => {
                let stage = self.phase.job_info().map_or(0, |job_info| job_info.stage);
                let owner = Some((stage, element));
                self.outputs.drain(DrainReason::Flush(key, id), owner);
            }
            CallAction::OfferDebugger(display) => self.offer_debugger(key, display),
            CallAction::Inspect(signal, display) => {
                let text = self.inspection_text(key, signal, display);
                self.reports.add_about(element, ElementReport::Inspect { node, signal, text });
            }
        }
    }

    /// Reports that a process waits for a debugger, on this display if it has named one.
    fn offer_debugger(&mut self, key: ProcessKey, display: Option<String>) {
        let has_debuggers =
            self.phase.job_info().is_some_and(|job_info| job_info.spec().debuggers.is_some());
        if let Some(pid) = self.outer_pid(key).filter(|_| has_debuggers) {
            let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
            let boot_id = boot_id.unwrap_or_default().trim().to_owned();
            let process = DebuggedProcess { pid, display, boot_id };
            let report = ElementReport::DebuggerWanted { node: key.node, process };
            self.reports.add_about(key.element, report);
        }
    }

    fn send_reply(&mut self, key: ProcessKey, reply: &Reply) {
        if !self.processes.answer(key, reply, Vec::new()) {
            let violation = "it does not read the answers to its calls".to_owned();
            let report = ElementReport::ProtocolViolation { node: key.node, violation };
            self.reports.add_about(key.element, report);
        }
    }

    fn welcome(
        &mut self,
        element: ElementIndex,
        peers: &[HostNetworkAddress],
    ) -> Result<(), String> {
        let Some(job) = self.phase.job_mut() else { return Ok(()) };
        let job_info = &job.info;
        let (spec, local_host) = (job_info.spec(), &job_info.local_host);
        let element_count = spec.stages[job_info.stage].elements.len();
        let oversubscribed = element_count * local_host.nodes as usize > super::cpu_count();
        let network_notes = self.shared_memory.create(
            element,
            &job_info.placement,
            peers,
            oversubscribed,
            &self.run_gate,
        )?;
        if let Some(calls) = self.processes.element_calls(element) {
            calls.mark_welcomed();
        }
        // Every host has received the offers of all hosts, so one host reports for the job.
        if job_info.placement.self_host == JobHostId::FIRST
            && !std::mem::replace(&mut job.networks_reported, true)
        {
            let transports = network_notes.transports.into_iter().filter(|_| spec.statistics);
            let transports = transports.map(|text| (Level::Info, text));
            for (level, text) in network_notes.problems.into_iter().chain(transports) {
                self.reports.add(JobReport::Notice { level, text });
            }
        }
        if let Some((area, message_counters)) = self.shared_memory.inspected_memory(element) {
            let pid = |node| self.processes.pid_of(ProcessKey { element, node }).unwrap_or(0);
            let pids = local_host.node_range().map(pid).collect();
            self.inspector.add_element(
                element,
                InspectedElement {
                    first_node: local_host.first_node,
                    areas_fd: area,
                    message_counters,
                    pids,
                },
            )?;
        }
        let networks = self.shared_memory.network_sets(element, &job_info.placement);
        for node in local_host.node_range() {
            let process = local_host.process_of(node);
            let welcome = Welcome {
                job: job_info.job_start.job,
                area: process.0,
                self_node: node,
                num_node: spec.nodes(),
                self_proc: process,
                num_proc: local_host.nodes,
                self_host: job_info.placement.self_host,
                num_host: job_info.placement.hosts.len() as u32,
                networks: networks.clone(),
                options: spec.options.clone(),
                dir: self.context.directory.to_string_lossy().into_owned(),
                notify_socket_name: self.inspector.notify_name().to_vec(),
            };
            let descriptors = self.shared_memory.descriptors(element, process)?;
            let key = ProcessKey { element, node };
            self.processes.answer(key, &Reply::Welcome(Box::new(welcome)), descriptors);
        }
        Ok(())
    }

    /// The process id of a running process in the PID namespace of the host.
    fn outer_pid(&self, key: ProcessKey) -> Option<i32> {
        self.context.outer_pid(self.processes.pid_of(key)?)
    }

    fn inspection_text(&self, key: ProcessKey, signal: i32, display: Option<String>) -> String {
        let host = match self.phase.job_info() {
            Some(job_info) if job_info.placement.hosts.len() > 1 => {
                job_info.local_host.name.clone()
            }
            _ => system_host_name(),
        };
        let pid = self.outer_pid(key);
        let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let signal = signal::name(signal);
        let display_text =
            display.map_or_else(String::new, |display| format!(" on display {display}"));
        format!(
            "node {} on host {host} (process {pid}) called sc_inspectme() for \
             {signal}{display_text}: its parallel process is ended. To inspect such a process \
             while it runs: gdb -p {pid}",
            key.node
        )
    }
}
