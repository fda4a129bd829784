//! The turns of a rotation ([`crate::host::host_rotation`]): jobs of this host run alternately,
//! without orders of their masters or of the scheduler. The daemon reports each stop here.

use score_proto::ids::JobId;
use score_proto::job_control::{SwitchOrder, SwitchReport, SwitchSeq};

use super::tree_positions::TreePosition;
use super::{Jobs, LocalReport};

impl Jobs {
    /// The job whose turn it is, and the stop that it will report.
    pub fn expected_rotation_stop(&self) -> Option<(JobId, SwitchSeq)> {
        self.rotation.expected_stop()
    }

    /// The job of the current turn has stopped. Returns the job of the next turn and its order, if
    /// all jobs of the rotation can continue. `has_shepherd` returns whether a job has a shepherd.
    pub fn next_rotation_turn(
        &mut self,
        has_shepherd: impl Fn(JobId) -> bool,
    ) -> Option<(JobId, SwitchOrder)> {
        let is_ready = |job: JobId| {
            let links = self.tree.get(TreePosition::host(job));
            has_shepherd(job) && links.is_some_and(|links| !links.node.is_idle())
        };
        if self.rotation.jobs().all(is_ready) { self.rotation.next_turn() } else { None }
    }

    /// Ends the rotation with this stop, and reports the stop to the scheduler. The daemon calls
    /// this for the last stop, or if the rotation cannot continue. It also calls this if the
    /// scheduler has to decide, because a job may be idle.
    pub fn end_rotation(&mut self, job: JobId, switch_seq: SwitchSeq) {
        self.rotation.end();
        self.on_local_report(job, LocalReport::Switch(SwitchReport::Stopped { switch_seq }));
    }

    /// The stop of a job was enforced. It ends the rotation of which the job is a part.
    pub fn end_rotation_with(&mut self, job: JobId) {
        self.rotation.end_with(job);
    }
}
