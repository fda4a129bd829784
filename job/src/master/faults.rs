//! The master's part of the response to processes that are about to die of a fault, or that have
//! called sc_inspectme.

use score_proto::job_control::ElementOrder;
use score_proto::nodeset::NodeSet;
use score_proto::server_message::{JobAnswer, ReportedStacks};
use score_proto::tool_command::ToolRequest;

use super::{JobMaster, StageElement};
use crate::cluster::MonotonicTime;
use crate::deadlock_response::DeadlockResponse;
use crate::fault_response::{FaultAction, FaultResponse, READ_TIMEOUT};
use crate::tool_commands::Asker;

impl JobMaster {
    /// These nodes are about to die of a signal.
    pub(super) fn on_faulted(&mut self, number: u32, nodes: &NodeSet, signal: i32) {
        let nodes = nodes.within(0..self.placement.nodes());
        // The user knows the origin of a signal that the user has sent.
        if self.expected_signals.contains(&signal) {
            return self.send_order(ElementOrder::ReleaseFaults { nodes }.to(number));
        }
        self.update_response(number, DeadlockResponse::on_busy);
        self.update_faults(number, |faults, running, now| {
            faults.on_fault(&nodes, signal, running, now)
        });
    }

    /// A node has called sc_inspectme.
    pub(super) fn on_inspect(&mut self, number: u32, node: u32, signal: i32, text: String) {
        self.update_response(number, DeadlockResponse::on_busy);
        self.update_faults(number, |faults, running, now| {
            faults.on_inspect(node, signal, text, running, now)
        });
    }

    /// Time has passed.
    pub(super) fn tick_faults(&mut self) {
        self.element_numbers().for_each(|number| {
            self.update_faults(number, |faults, _, now| faults.on_tick(now));
        });
    }

    pub(super) fn on_stacks_read(&mut self, number: u32) {
        let name = self.element_name(number);
        self.update_faults(number, |faults, _, now| faults.on_stacks_read(&name, now));
    }

    /// The last debugger of an element has ended.
    pub(super) fn on_debugged(&mut self, number: u32) {
        self.update_faults(number, |faults, _, now| faults.on_debugged(now));
    }

    /// Passes an event to the fault response of an element, with the element's running nodes.
    fn update_faults(
        &mut self,
        number: u32,
        handler: impl FnOnce(&mut FaultResponse, &NodeSet, MonotonicTime) -> Vec<FaultAction>,
    ) {
        let part = self.elements.get(number as usize);
        let Some(part) = part.filter(|part| part.element.may_go_on()) else { return };
        let running = part.element.running_nodes();
        let steps = handler(&mut self.elements[number as usize].faults, &running, self.now);
        steps.into_iter().for_each(|step| self.apply_fault_step(number, step));
    }

    fn apply_fault_step(&mut self, number: u32, step: FaultAction) {
        match step {
            FaultAction::ReadStacks(nodes) => {
                let (asker, request) = (Asker::Fault(number), ToolRequest::FaultStack);
                if self.read_stacks(asker, number, &nodes, &request, READ_TIMEOUT).is_err() {
                    self.on_stacks_read(number);
                }
            }
            FaultAction::Title(title) => {
                self.send_to_client(JobAnswer::Stacks(ReportedStacks::End { title }));
            }
            FaultAction::Hold => self.hold_for_debuggers(number),
            FaultAction::Release(nodes) => {
                self.send_order(ElementOrder::ReleaseFaults { nodes }.to(number));
            }
            FaultAction::EndInspected { signal, text } => {
                let StageElement { element, .. } = &mut self.elements[number as usize];
                element.on_inspect(signal, text, &mut self.actions);
            }
            FaultAction::EndKilled { node, signal } => {
                let StageElement { element, .. } = &mut self.elements[number as usize];
                element.on_killed(node, signal, &mut self.actions);
            }
        }
    }
}
