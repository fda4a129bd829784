//! The parallel processes of the running stage. Each has a response to deadlocks (`deadlocks.rs`)
//! and a response to faults (`faults.rs`). This file contains the code for all elements: reports,
//! ends, the exit code of the stage, and whether the job needs its processors.

use std::sync::Arc;
use std::time::Duration;

use score_proto::ids::{ElementIndex, JobId};
use score_proto::job_control::{ElementOrder, ElementReport, Placement};
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::ToolRequest;

use super::Outbox;
use crate::cluster::MonotonicTime;
use crate::deadlock_response::DeadlockResponse;
use crate::element::{Element, code_of_pipeline};
use crate::fault_response::FaultResponse;
use crate::gang::HoldReason;
use crate::scheduling::GangRequest;
use crate::tool_commands::Asker;

/// A request that the master carries out after the event.
#[derive(Debug)]
pub enum StageRequest {
    /// Read the stacks of these ranks; [`StageElements::on_stacks_read`] follows.
    ReadStacks {
        /// The element, and why its stacks are read.
        asker: Asker,
        /// Ranks: rows of the process table.
        ranks: NodeSet,
        /// The command to the stack services.
        request: ToolRequest,
        /// The time for the answers.
        timeout: Duration,
    },
    /// Stop the job while processes of this element have debuggers;
    /// [`StageElements::on_debugged`] follows.
    HoldForDebuggers(ElementIndex),
}

/// A parallel process of the stage.
#[derive(Debug)]
pub(super) struct StageElement {
    pub(super) element: Element,
    pub(super) deadlock_response: DeadlockResponse,
    pub(super) faults: FaultResponse,
    /// The job is held while this element is inspected for a deadlock.
    pub(super) holds_job: bool,
}

impl StageElement {
    /// When the next tick for this element is due.
    fn deadline(&self) -> Option<MonotonicTime> {
        match self.element.is_ended() {
            true => None,
            false if self.faults.is_active() => self.faults.deadline(),
            false => self.deadlock_response.deadline(),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct StageElements {
    pub(super) job: JobId,
    pub(super) placement: Arc<Placement>,
    pub(super) elements: Vec<StageElement>,
    /// Signals that the user has sent. The death of a process by one of them is not an error.
    pub(super) expected_signals: Vec<i32>,
    /// Processes with a fault get debuggers.
    has_debuggers: bool,
    pub(super) requests: Vec<StageRequest>,
    /// The time of the current event.
    pub(super) now: MonotonicTime,
}

impl StageElements {
    /// The state of a job that has not begun its first stage. It has no elements.
    pub fn new(job: JobId, placement: Arc<Placement>, has_debuggers: bool) -> Self {
        Self {
            job,
            placement,
            elements: Vec::new(),
            expected_signals: Vec::new(),
            has_debuggers,
            requests: Vec::new(),
            now: MonotonicTime::ZERO,
        }
    }

    /// Sets the current time before each event.
    pub fn set_time(&mut self, now: MonotonicTime) {
        self.now = now;
    }

    /// A stage is due, with these elements.
    pub fn begin_stage(&mut self, elements: Vec<Element>) {
        let nodes = self.placement.nodes();
        let with_responses = |element| StageElement {
            element,
            deadlock_response: DeadlockResponse::new(nodes),
            faults: FaultResponse::new(self.has_debuggers),
            holds_job: false,
        };
        self.elements = elements.into_iter().map(with_responses).collect();
    }

    /// Whether the stage has an element of this number.
    pub fn contains(&self, number: ElementIndex) -> bool {
        number.index() < self.elements.len()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = ElementIndex> + use<> {
        ElementIndex::all(self.elements.len())
    }

    /// The name of an element for the user.
    pub fn name(&self, number: ElementIndex) -> String {
        let part = self.elements.get(number.index());
        part.map_or_else(String::new, |part| part.element.name().to_owned())
    }

    /// The names of all elements.
    pub fn names(&self) -> Vec<String> {
        self.numbers().map(|number| self.name(number)).collect()
    }

    /// The requests since the last call.
    pub fn take_requests(&mut self) -> Vec<StageRequest> {
        std::mem::take(&mut self.requests)
    }

    /// When [`StageElements::on_tick`] and [`StageElements::tick_faults`] are due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.elements.iter().filter_map(StageElement::deadline).min()
    }

    /// Whether all elements have ended.
    pub fn are_ended(&self) -> bool {
        self.elements.iter().all(|part| part.element.is_ended())
    }

    /// The elements that have ended.
    pub fn ended(&self) -> Vec<ElementIndex> {
        let is_ended = |number: &ElementIndex| self.elements[number.index()].element.is_ended();
        self.numbers().filter(is_ended).collect()
    }

    /// The exit code of the stage, as far as known.
    pub fn code(&self) -> u8 {
        code_of_pipeline(self.elements.iter().map(|part| part.element.code()))
    }

    /// Whether some element runs, and no running element needs a processor.
    pub fn are_idle(&self) -> bool {
        let mut running = self.elements.iter().filter(|part| !part.element.is_ended()).peekable();
        running.peek().is_some() && running.all(|part| part.deadlock_response.needs_no_processor())
    }

    /// The user has sent this signal to the processes, or has caused it.
    pub fn expect_signal(&mut self, signal: i32) {
        self.expected_signals.push(signal);
    }

    /// Ends all elements with at least this exit code.
    pub fn end(&mut self, code: u8, out: &mut Outbox) {
        self.elements.iter_mut().for_each(|part| part.element.end(code, out));
    }

    /// The hosts of these nodes are lost.
    pub fn on_nodes_lost(&mut self, nodes: &NodeSet) {
        self.elements.iter_mut().for_each(|part| part.element.on_skipped(nodes));
    }

    /// Lets the job run again if this element was the last one that was inspected.
    pub fn release_hold(&mut self, number: ElementIndex, out: &mut Outbox) {
        let held = std::mem::take(&mut self.elements[number.index()].holds_job);
        if held && !self.elements.iter().any(|part| part.holds_job) {
            out.gang(GangRequest::Release(HoldReason::Inspection));
        }
    }

    /// The stacks have been read as far as possible.
    pub fn on_stacks_read(&mut self, asker: Asker, out: &mut Outbox) {
        match asker {
            Asker::Fault(number) => self.on_fault_stacks_read(number, out),
            Asker::Deadlock(number) => self.on_deadlock_stacks_read(number, out),
            Asker::Session(_) | Asker::Page => {}
        }
    }

    /// Handles a report of the hosts about an element of the stage.
    pub fn on_report(&mut self, number: ElementIndex, report: ElementReport, out: &mut Outbox) {
        let Some(StageElement { element, .. }) = self.elements.get_mut(number.index()) else {
            return;
        };
        match report {
            ElementReport::Attached { nodes, addresses } => {
                element.on_attached(&nodes, addresses, out)
            }
            ElementReport::InBarrier { nodes } => {
                if element.on_in_barrier(&nodes, out) {
                    self.update_response(number, out, DeadlockResponse::on_disturbed);
                }
            }
            ElementReport::InFence { nodes, entries } => element.on_in_fence(&nodes, entries, out),
            ElementReport::InSubsetFence { fence, nodes, entries } => {
                element.on_in_subset_fence(fence, &nodes, entries, out)
            }
            ElementReport::ModexRequest { asker, node } => {
                if let Some(host) = self.placement.host_of(node) {
                    out.element_order(number, ElementOrder::ModexRequest { host, asker, node });
                }
            }
            ElementReport::ModexAnswer { asker, node, entries } => {
                out.element_order(number, ElementOrder::ModexAnswer { asker, node, entries });
            }
            ElementReport::Ended { nodes, status } => {
                element.on_ended(&nodes, status, &self.expected_signals, out);
                // Nodes on other hosts that send to the ended nodes must not wait for them.
                if self.placement.hosts.len() > 1 && element.is_communicating() {
                    out.element_order(number, ElementOrder::NodesExited { nodes });
                }
            }
            ElementReport::Skipped { nodes } => element.on_skipped(&nodes),
            ElementReport::NotStarted { nodes, code, reason } => {
                element.on_not_started(&nodes, code, &reason, out)
            }
            ElementReport::Exit { code } => element.on_exit(code, out),
            ElementReport::Broadcast { node, signal } => element.on_broadcast(node, signal, out),
            ElementReport::Sent { serial, nodes } => element.on_broadcast_sent(serial, &nodes, out),
            ElementReport::Faulted { nodes, signal } => {
                self.on_faulted(number, &nodes, signal, out)
            }
            ElementReport::Inspect { node, signal, text } => {
                self.on_inspect(number, node, signal, text, out)
            }
            ElementReport::Failed { code, reason } => element.on_broken(code, &reason, out),
            // The master handles these reports.
            ElementReport::DebuggerWanted { .. }
            | ElementReport::Sleep { .. }
            | ElementReport::Yield
            | ElementReport::ToolEvent(_)
            | ElementReport::ProtocolViolation { .. }
            | ElementReport::SampleResult { .. }
            | ElementReport::WaitStates { .. } => {}
        }
    }
}
