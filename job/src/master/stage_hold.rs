//! Stages that are held for a debugger of the whole job (MPIR), as the master has them: it starts
//! them so, releases them, and passes on the lists of processes.

use score_proto::job_control::{DebuggerOrder, JobOrder, ProcessBlock};
use score_proto::message::DebuggerRequest;
use score_proto::server_message::JobAnswer;

use super::{JobMaster, State};
use crate::gang::HoldReason;
use crate::scheduling::GangRequest;

impl JobMaster {
    pub(super) fn start_if_due(&mut self) {
        if self.scheduling.has_slice() && self.state == State::StageDue {
            self.state = State::Running;
            let processes = self.elements.len() as u64 * u64::from(self.placement.nodes());
            let orders = self.hold.on_stage_start(self.stage as u32, processes);
            orders.into_iter().for_each(|order| self.send_job_order(order));
        }
    }

    /// A debugger makes scrun request something.
    pub(super) fn on_debugger_request(&mut self, request: DebuggerRequest) {
        let order = match request {
            DebuggerRequest::HoldStages(hold) => {
                self.hold.hold_stages(hold);
                None
            }
            DebuggerRequest::ReleaseStage => self.end_hold(),
            DebuggerRequest::ListProcesses => self.hold.list(self.state == State::Running),
        };
        order.into_iter().for_each(|order| self.send_job_order(JobOrder::Debugger(order)));
    }

    /// The running stage is held no longer. Returns the order for the hosts if it was.
    pub(super) fn end_hold(&mut self) -> Option<DebuggerOrder> {
        if self.hold.is_held() {
            self.send_to_gang(GangRequest::Release(HoldReason::HeldStage));
        }
        self.hold.release()
    }

    /// Hosts have listed processes of a stage, which may have ended by now.
    pub(super) fn on_processes(&mut self, stage: u32, blocks: Vec<ProcessBlock>) {
        if self.state != State::Running || stage as usize != self.stage {
            return;
        }
        let was_held = self.hold.is_held();
        for block in blocks {
            let host = self.placement.hosts.get(block.host.index());
            if (block.element as usize) < self.elements.len()
                && let Some(host_name) = host.map(|host| host.name.clone())
                && self.hold.on_listed(block.pids.len() as u64)
            {
                self.send_to_client(JobAnswer::Processes { stage, host_name, block });
            }
        }
        if self.hold.is_held() && !was_held {
            // All of its processes wait: the processors are for other jobs meanwhile.
            self.send_to_gang(GangRequest::Hold(HoldReason::HeldStage));
        }
    }
}

#[cfg(test)]
mod tests {
    use score_proto::ids::{JobHostId, JobId};
    use score_proto::job_control::{
        JobReport, JobStart, Order, Placement, Report, StopCondition, SwitchOrder,
    };
    use score_proto::message::{
        ElementSpec, HostSpec, JobRequest, JobSpec, OsBytes, ProgramKind, StageSpec,
    };
    use score_proto::peer_message::JobIncarnation;

    use super::super::{MasterAction, MasterEvent};
    use super::*;

    /// A job of two nodes on each of two hosts, whose stages are held, in its first slice.
    fn held_job() -> JobMaster {
        let element = ElementSpec::new(
            OsBytes(b"/bin/prog".to_vec()),
            vec![OsBytes(b"prog".to_vec())],
            ProgramKind::Plain,
        );
        let spec = JobSpec {
            hosts: vec![HostSpec::local(2); 2],
            stages: vec![StageSpec { elements: vec![element] }],
            hold: true,
            ..JobSpec::default()
        };
        let hosts = ["left", "right"].map(|name| (name.to_owned(), None, 2));
        let placement = Placement::new(JobIncarnation(0), hosts);
        let start = JobStart { job: JobId(7), secret: 1, spec, owner: None };
        let (mut job, _) = JobMaster::begin(start, placement);
        job.on(MasterEvent::Report(Report::Job(JobReport::Ready)));
        let until = StopCondition::OnOrder;
        let orders = job.on(MasterEvent::Run { idle_check_interval_us: 0, until });
        let hold = JobOrder::Debugger(DebuggerOrder::HoldStage);
        let run = SwitchOrder::Run { idle_check_interval_us: 0, stop_condition: until };
        let expected = [Order::Job(hold), Order::Job(JobOrder::StartStage(0)), Order::Switch(run)];
        assert_eq!(orders, expected.map(MasterAction::Order));
        job
    }

    fn list(job: &mut JobMaster, host: u32, stage: u32) -> Vec<MasterAction> {
        let pids = vec![10 * host + 1, 10 * host + 2];
        let block = ProcessBlock { host: JobHostId(host), element: 0, first_node: 2 * host, pids };
        let report = JobReport::Processes { stage, blocks: vec![block] };
        job.on(MasterEvent::Report(Report::Job(report)))
    }

    #[test]
    fn a_job_whose_processes_all_wait_leaves_its_processors_to_others_until_it_is_released() {
        let mut job = held_job();
        let is_list = |action: &MasterAction, name: &str| {
            matches!(action, MasterAction::ToClient(JobAnswer::Processes { host_name, .. })
                if host_name == name)
        };
        assert_eq!(list(&mut job, 0, 1), [], "of another stage");
        assert_eq!(list(&mut job, 9, 0), [], "of no host");
        let first = list(&mut job, 1, 0);
        assert!(first.len() == 1 && is_list(&first[0], "right"), "{first:?}");
        let last = list(&mut job, 0, 0);
        assert!(last.len() == 2 && is_list(&last[0], "left"), "{last:?}");
        assert_eq!(last[1], MasterAction::Gang(GangRequest::Hold(HoldReason::HeldStage)));
        assert_eq!(list(&mut job, 0, 0), [], "nobody has asked");
        let release = JobRequest::Debugger(DebuggerRequest::ReleaseStage);
        let expected = [
            MasterAction::Gang(GangRequest::Release(HoldReason::HeldStage)),
            MasterAction::Order(Order::Job(JobOrder::Debugger(DebuggerOrder::ReleaseStage))),
        ];
        assert_eq!(job.on(MasterEvent::FromClient(release.clone())), expected);
        assert_eq!(job.on(MasterEvent::FromClient(release)), []);
    }
}
