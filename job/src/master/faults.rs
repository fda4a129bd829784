//! Processes that are about to die of a fault, or that have called sc_inspectme. The functions pass
//! events to the fault response of the element, and carry out its actions.

use score_proto::ids::ElementIndex;
use score_proto::job_control::ElementOrder;
use score_proto::nodeset::NodeSet;
use score_proto::server_message::{JobAnswer, ReportedStacks};
use score_proto::tool_command::ToolRequest;

use super::Outbox;
use super::stage_elements::{StageElements, StageRequest};
use crate::cluster::MonotonicTime;
use crate::deadlock_response::DeadlockResponse;
use crate::fault_response::{FaultAction, FaultResponse, READ_TIMEOUT};
use crate::tool_commands::Asker;

impl StageElements {
    /// These nodes are about to die of a signal.
    pub(super) fn on_faulted(
        &mut self,
        number: ElementIndex,
        nodes: &NodeSet,
        signal: i32,
        out: &mut Outbox,
    ) {
        let nodes = nodes.within(0..self.placement.nodes());
        // The user knows the origin of a signal that the user has sent.
        if self.expected_signals.contains(&signal) {
            return out.element_order(number, ElementOrder::ReleaseFaults { nodes });
        }
        self.update_response(number, out, DeadlockResponse::on_busy);
        self.update_faults(number, out, |faults, running, now| {
            faults.on_fault(&nodes, signal, running, now)
        });
    }

    /// A node has called sc_inspectme.
    pub(super) fn on_inspect(
        &mut self,
        number: ElementIndex,
        node: u32,
        signal: i32,
        text: String,
        out: &mut Outbox,
    ) {
        self.update_response(number, out, DeadlockResponse::on_busy);
        self.update_faults(number, out, |faults, running, now| {
            faults.on_inspect(node, signal, text, running, now)
        });
    }

    /// Time has passed.
    pub fn tick_faults(&mut self, out: &mut Outbox) {
        for number in self.numbers() {
            self.update_faults(number, out, |faults, _, now| faults.on_tick(now));
        }
    }

    /// Whether a node waits after a fault, so that a debugger can be started for it.
    pub fn waits_for_debugger(&self, number: ElementIndex, node: u32) -> bool {
        let part = self.elements.get(number.index());
        part.is_some_and(|part| part.element.may_go_on() && part.faults.waits(node))
    }

    /// The last debugger of an element has ended, or no process of the element has a debugger.
    pub fn on_debugged(&mut self, number: ElementIndex, out: &mut Outbox) {
        self.update_faults(number, out, |faults, _, now| faults.on_debugged(now));
    }

    /// The stacks of the nodes with a fault have been read.
    pub(super) fn on_fault_stacks_read(&mut self, number: ElementIndex, out: &mut Outbox) {
        let name = self.name(number);
        self.update_faults(number, out, |faults, _, now| faults.on_stacks_read(&name, now));
    }

    /// Passes an event to the fault response of an element, with the element's running nodes.
    fn update_faults(
        &mut self,
        number: ElementIndex,
        out: &mut Outbox,
        handler: impl FnOnce(&mut FaultResponse, &NodeSet, MonotonicTime) -> Vec<FaultAction>,
    ) {
        let part = self.elements.get_mut(number.index());
        let Some(part) = part.filter(|part| part.element.may_go_on()) else { return };
        let running = part.element.running_nodes();
        let steps = handler(&mut part.faults, &running, self.now);
        steps.into_iter().for_each(|step| self.apply_fault_step(number, step, out));
    }

    fn apply_fault_step(&mut self, number: ElementIndex, step: FaultAction, out: &mut Outbox) {
        let element = &mut self.elements[number.index()].element;
        match step {
            FaultAction::ReadStacks(nodes) => {
                let (asker, request) = (Asker::Fault(number), ToolRequest::FaultStack);
                self.read_stacks(asker, number, &nodes, request, READ_TIMEOUT);
            }
            FaultAction::Title(title) => {
                out.to_client(JobAnswer::Stacks(ReportedStacks::End { title }));
            }
            FaultAction::Hold => self.requests.push(StageRequest::HoldForDebuggers(number)),
            FaultAction::Release(nodes) => {
                out.element_order(number, ElementOrder::ReleaseFaults { nodes });
            }
            FaultAction::EndInspected { signal, text } => element.on_inspect(signal, text, out),
            FaultAction::EndKilled { node, signal } => element.on_killed(node, signal, out),
        }
    }
}
