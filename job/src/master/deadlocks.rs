//! Deadlock detection of the elements of a stage. The functions pass events to the deadlock
//! response of each element, and carry out its actions.

use std::time::Duration;

use score_proto::exit_code::EXIT_DEADLOCK;
use score_proto::ids::ElementIndex;
use score_proto::job_control::SwitchSeq;
use score_proto::message::Level;
use score_proto::nodeset::NodeSet;
use score_proto::observation::{ActivitySample, IdleSummary, SampleRound, WaitState};
use score_proto::server_message::{JobAnswer, ReportedStacks};
use score_proto::tool_command::ToolRequest;

use super::Outbox;
use super::stage_elements::{StageElement, StageElements, StageRequest};
use crate::cluster::MonotonicTime;
use crate::deadlock_response::{self, DeadlockResponse, ResponseAction};
use crate::gang::HoldReason;
use crate::scheduling::GangRequest;
use crate::tool_commands::Asker;

/// How long the hosts may take to read the stacks of a deadlock. The processes wait in any case. A
/// stack service first reads the symbols of an MPI library, which takes long on a busy host.
const STACKS_TIMEOUT: Duration = Duration::from_secs(10);

impl StageElements {
    /// Whether an element seems to hang, but no deadlock can be proved.
    pub fn suspects_hang(&self, now: MonotonicTime) -> bool {
        let suspects = |part: &StageElement| part.deadlock_response.suspects_hang(now);
        self.elements.iter().any(|part| !part.element.is_ended() && suspects(part))
    }

    /// The job is stopped.
    pub fn on_stopped(&mut self, switch_seq: SwitchSeq, out: &mut Outbox) {
        for number in self.numbers() {
            self.update_response(number, out, |response, now| response.on_stopped(switch_seq, now));
        }
    }

    /// All hosts have stopped the job, possibly for another reason than the inspection of an
    /// element.
    pub fn on_gang_stopped(&mut self, out: &mut Outbox) {
        for number in self.numbers() {
            if self.elements[number.index()].holds_job {
                self.update_response(number, out, DeadlockResponse::on_gang_stopped);
            }
        }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, out: &mut Outbox) {
        for number in self.numbers() {
            self.update_response(number, out, DeadlockResponse::on_tick);
        }
    }

    /// The combined idle report of all hosts.
    pub fn on_idle_summary(
        &mut self,
        number: ElementIndex,
        summary: IdleSummary,
        out: &mut Outbox,
    ) {
        self.update_response(number, out, |response, now| response.on_idle_report(summary, now));
    }

    /// All hosts have taken their snapshot of an element.
    pub fn on_sample(
        &mut self,
        number: ElementIndex,
        round: SampleRound,
        sample: ActivitySample,
        out: &mut Outbox,
    ) {
        self.update_response(number, out, |response, now| {
            response.on_round_done(round, sample, now)
        });
    }

    /// Some hosts report what processes of an element wait for.
    pub fn on_wait_states(
        &mut self,
        number: ElementIndex,
        waits: Vec<WaitState>,
        out: &mut Outbox,
    ) {
        self.update_response(number, out, |response, _| response.on_explanations(waits));
    }

    /// Passes an event to the deadlock detection of an element.
    pub(super) fn update_response(
        &mut self,
        number: ElementIndex,
        out: &mut Outbox,
        handler: impl FnOnce(&mut DeadlockResponse, MonotonicTime) -> Vec<ResponseAction>,
    ) {
        let part = self.elements.get_mut(number.index());
        // A process that waits after a fault is neither busy nor deadlocked.
        let is_watched =
            |part: &&mut StageElement| !part.element.is_ended() && !part.faults.is_active();
        let Some(part) = part.filter(is_watched) else { return };
        for step in handler(&mut part.deadlock_response, self.now) {
            self.apply_response(number, step, out);
        }
    }

    fn apply_response(&mut self, number: ElementIndex, step: ResponseAction, out: &mut Outbox) {
        let part = &mut self.elements[number.index()];
        match step {
            ResponseAction::Order(order) => out.element_order(number, order),
            ResponseAction::StopGang => {
                part.holds_job = true;
                out.gang(GangRequest::Hold(HoldReason::Inspection));
            }
            ResponseAction::Release => self.release_hold(number, out),
            ResponseAction::DeclareDeadlock(waits) => {
                let (job, name) = (self.job, part.element.name());
                let lines = deadlock_response::deadlock_report(job, name, &waits, &self.placement);
                lines.into_iter().for_each(|text| out.notice(Level::Error, text));
                part.element.mark_failed(EXIT_DEADLOCK);
            }
            ResponseAction::ReadStacks => {
                let nodes = part.element.running_nodes();
                let request = ToolRequest::Stacks { lines: true };
                self.read_stacks(Asker::Deadlock(number), number, &nodes, request, STACKS_TIMEOUT);
            }
            ResponseAction::ReportSuspicion(waits) => {
                let (job, name) = (self.job, part.element.name());
                let lines = deadlock_response::suspicion_report(job, name, &waits, &self.placement);
                lines.into_iter().for_each(|text| out.notice(Level::Warning, text));
            }
            ResponseAction::Kill => part.element.end(EXIT_DEADLOCK, out),
        }
    }

    /// Requests the stacks of nodes of an element, for the user.
    pub(super) fn read_stacks(
        &mut self,
        asker: Asker,
        number: ElementIndex,
        nodes: &NodeSet,
        request: ToolRequest,
        timeout: Duration,
    ) {
        let first = number.first_rank(self.placement.nodes());
        let ranks = nodes.iter().map(|node| first.saturating_add(node)).collect();
        self.requests.push(StageRequest::ReadStacks { asker, ranks, request, timeout });
    }

    /// The stacks of an element with a deadlock have been read.
    pub(super) fn on_deadlock_stacks_read(&mut self, number: ElementIndex, out: &mut Outbox) {
        let title = format!("stacks of {}", self.name(number));
        out.to_client(JobAnswer::Stacks(ReportedStacks::End { title }));
        if let Some(part) = self.elements.get_mut(number.index()) {
            part.faults.on_stacks_shown();
        }
        self.update_response(number, out, DeadlockResponse::on_stacks_read);
    }
}
