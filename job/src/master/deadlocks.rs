//! The master's part of deadlock detection: it carries out the actions that the detection of each
//! parallel process requests.

use std::time::Duration;

use score_proto::exit_code::EXIT_DEADLOCK;
use score_proto::message::Level;
use score_proto::server_message::{JobAnswer, ReportedStacks};
use score_proto::tool_command::ToolRequest;

use super::{JobMaster, StageElement, notice};
use crate::cluster::MonotonicTime;
use crate::deadlock_response::{self, DeadlockResponse, ResponseAction};
use crate::gang::HoldReason;
use crate::scheduling::GangRequest;
use crate::tool_commands::Asker;

/// How long the stacks of a deadlock may take. The processes wait in any case. A stack service on a
/// busy host first reads the symbols of an MPI library.
const STACKS_TIMEOUT: Duration = Duration::from_secs(10);

impl StageElement {
    /// When the next tick for this element is due.
    pub(super) fn deadline(&self) -> Option<MonotonicTime> {
        match self.element.is_ended() {
            true => None,
            false if self.faults.is_active() => self.faults.deadline(),
            false => self.deadlock_response.deadline(),
        }
    }
}

impl JobMaster {
    /// Whether a parallel process of the job seems to hang, but no deadlock can be proved.
    pub fn suspects_hang(&self, now: MonotonicTime) -> bool {
        let suspects = |part: &StageElement| part.deadlock_response.suspects_hang(now);
        self.elements.iter().any(|part| !part.element.is_ended() && suspects(part))
    }

    /// Passes an event to the deadlock detection of an element.
    pub(super) fn update_response(
        &mut self,
        number: u32,
        handler: impl FnOnce(&mut DeadlockResponse, MonotonicTime) -> Vec<ResponseAction>,
    ) {
        let part = self.elements.get_mut(number as usize);
        // A process that waits after a fault is neither busy nor deadlocked.
        let is_watched =
            |part: &&mut StageElement| !part.element.is_ended() && !part.faults.is_active();
        let Some(part) = part.filter(is_watched) else { return };
        for step in handler(&mut part.deadlock_response, self.now) {
            match step {
                ResponseAction::Order(order) => self.send_order(order.to(number)),
                ResponseAction::StopGang => {
                    self.elements[number as usize].holds_job = true;
                    self.send_to_gang(GangRequest::Hold(HoldReason::Inspection));
                }
                ResponseAction::Release => self.release_hold(number),
                ResponseAction::DeclareDeadlock(waits) => {
                    let name = self.element_name(number);
                    let lines = deadlock_response::deadlock_report(
                        self.number,
                        &name,
                        &waits,
                        &self.placement,
                    );
                    self.actions.extend(lines.into_iter().map(|text| notice(Level::Error, text)));
                    self.elements[number as usize].element.mark_failed(EXIT_DEADLOCK);
                }
                ResponseAction::ReadStacks => self.read_deadlock_stacks(number),
                ResponseAction::ReportSuspicion(waits) => {
                    let name = self.element_name(number);
                    let lines = deadlock_response::suspicion_report(
                        self.number,
                        &name,
                        &waits,
                        &self.placement,
                    );
                    self.actions.extend(lines.into_iter().map(|text| notice(Level::Warning, text)));
                }
                ResponseAction::Kill => {
                    self.elements[number as usize].element.end(EXIT_DEADLOCK, &mut self.actions)
                }
            }
        }
    }

    fn read_deadlock_stacks(&mut self, number: u32) {
        let nodes = self.elements[number as usize].element.running_nodes();
        let (asker, request) = (Asker::Deadlock(number), ToolRequest::Stacks { lines: true });
        if self.read_stacks(asker, number, &nodes, &request, STACKS_TIMEOUT).is_err() {
            self.update_response(number, DeadlockResponse::on_stacks_read);
        }
    }

    /// The stacks of an element with a deadlock have been read.
    pub(super) fn on_deadlock_stacks_read(&mut self, number: u32) {
        let title = format!("stacks of {}", self.element_name(number));
        self.send_to_client(JobAnswer::Stacks(ReportedStacks::End { title }));
        if let Some(part) = self.elements.get_mut(number as usize) {
            part.faults.on_stacks_shown();
        }
        self.update_response(number, DeadlockResponse::on_stacks_read);
    }

    /// Releases the element's hold of the job.
    pub(super) fn release_hold(&mut self, number: u32) {
        let held = std::mem::take(&mut self.elements[number as usize].holds_job);
        if held && !self.elements.iter().any(|part| part.holds_job) {
            self.send_to_gang(GangRequest::Release(HoldReason::Inspection));
        }
    }

    /// Reports to the gang scheduler when all running elements become idle, and when that ends.
    pub(super) fn report_idle(&mut self) {
        let mut running = self.elements.iter().filter(|part| !part.element.is_ended()).peekable();
        let all_idle = running.peek().is_some()
            && running.all(|part| part.deadlock_response.needs_no_processor());
        self.with_gang(|scheduling| scheduling.report_idle(all_idle));
    }
}
