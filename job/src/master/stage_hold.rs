//! The master's part of stages that are held or listed for a debugger of the whole job (MPIR). It
//! adds the state of the job to the requests, which [`StageHold`](crate::stage_hold::StageHold)
//! handles.

use score_proto::job_control::ProcessBlock;
use score_proto::message::DebuggerRequest;

use super::{JobMaster, State};
use crate::jobs::SessionKey;
use crate::stage_hold::Lister;

impl JobMaster {
    /// A debugger sends a request through scrun.
    pub(super) fn on_debugger_request(&mut self, request: DebuggerRequest) {
        match request {
            DebuggerRequest::HoldStages(hold) => self.hold.hold_stages(hold),
            DebuggerRequest::ReleaseStage => self.hold.release_stage(&mut self.actions),
            DebuggerRequest::ListProcesses => {
                // A request of scrun is never refused.
                let _ = self.request_list(Lister::Scrun);
            }
        }
    }

    /// A session requests the list of processes.
    pub(super) fn on_session_list(&mut self, session_key: SessionKey) {
        // A job that continues without a lost host also has a `kill_code`. Its list would be
        // incomplete.
        let begun = match self.state.has_hosts() && self.kill_code.is_none() {
            true => self.request_list(Lister::Session(session_key)),
            false => Err(format!("job {} has no processes: it starts, or ends", self.number)),
        };
        if let Err(reason) = begun {
            self.actions.refuse(session_key, reason);
        }
    }

    fn request_list(&mut self, lister: Lister) -> Result<(), String> {
        let is_running = self.state == State::Running;
        let stage = self.programs.listed_stage(&self.placement);
        self.hold.request_list(lister, is_running, &stage, &mut self.actions)
    }

    /// Hosts have listed processes of a stage, which may have ended meanwhile.
    pub(super) fn on_processes(&mut self, number: u32, blocks: Vec<ProcessBlock>) {
        let stage = self.programs.listed_stage(&self.placement);
        if self.state == State::Running && number == stage.stage {
            self.hold.on_processes(blocks, &stage, &mut self.actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use score_proto::ids::{ElementIndex, JobHostId, JobId};
    use score_proto::job_control::{
        DebuggerOrder, JobOrder, JobReport, JobStart, Order, Placement, Remains, Report,
        StopCondition, SwitchOrder,
    };
    use score_proto::message::{
        ElementSpec, HostSpec, JobRequest, JobSpec, OsBytes, ProgramKind, StageSpec,
    };
    use score_proto::peer_message::JobIncarnation;

    use score_proto::server_message::{ConsoleAnswer, JobAnswer, ListedProcesses};

    use super::super::{MasterAction, MasterEvent};
    use super::*;
    use crate::gang::HoldReason;
    use crate::scheduling::GangRequest;

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
        let block = ProcessBlock {
            host: JobHostId(host),
            element: ElementIndex(0),
            first_node: 2 * host,
            pids,
        };
        let report = JobReport::Processes { stage, blocks: vec![block] };
        job.on(MasterEvent::Report(Report::Job(report)))
    }

    #[test]
    fn a_job_whose_processes_all_wait_yields_its_processors_until_it_is_released() {
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
        assert_eq!(list(&mut job, 0, 0), [], "no list is requested");
        let release = JobRequest::Debugger(DebuggerRequest::ReleaseStage);
        let expected = [
            MasterAction::Gang(GangRequest::Release(HoldReason::HeldStage)),
            MasterAction::Order(Order::Job(JobOrder::Debugger(DebuggerOrder::ReleaseStage))),
        ];
        assert_eq!(job.on(MasterEvent::FromClient(release.clone())), expected);
        assert_eq!(job.on(MasterEvent::FromClient(release)), []);
    }
    #[test]
    fn each_session_gets_a_whole_list_and_scrun_only_its_own() {
        let mut job = held_job();
        let key = SessionKey(5);
        assert_eq!(job.on(MasterEvent::ListProcesses(key)), [], "after the list of the hold");
        list(&mut job, 1, 0);
        let last = list(&mut job, 0, 0);
        let order = Order::Job(JobOrder::Debugger(DebuggerOrder::ListProcesses));
        let programs = vec![OsBytes(b"/bin/prog".to_vec())];
        let begin = ListedProcesses::Stage { stage: 0, programs, nodes: 4 };
        let to_session = |answer| MasterAction::ToSession(key, answer);
        assert_eq!(
            last[2..],
            [MasterAction::Order(order), to_session(ConsoleAnswer::Processes(begin))]
        );
        let is_block = |action: &MasterAction, name: &str| {
            matches!(action, MasterAction::ToSession(_, ConsoleAnswer::Processes(
                ListedProcesses::Block { host_name, .. })) if host_name == name)
        };
        let first = list(&mut job, 0, 0);
        assert!(first.len() == 1 && is_block(&first[0], "left"), "{first:?}");
        let second = list(&mut job, 1, 0);
        assert!(second.len() == 2 && is_block(&second[0], "right"), "{second:?}");
        assert_eq!(second[1], to_session(ConsoleAnswer::Finished { code: 0 }));
        // The job ends while a session waits.
        assert_eq!(job.on(MasterEvent::ListProcesses(key)).len(), 2);
        let (remains, reason) = (Remains::Processes, String::new());
        let lost = Report::HostsLost { code: 1, hosts: 0..1, remains, reason };
        let actions = job.on(MasterEvent::Report(lost));
        let refused = |action: &&MasterAction| {
            matches!(action, MasterAction::RefuseTool(session, reason)
                if *session == key && reason.starts_with("job 7 ends"))
        };
        assert_eq!(actions.iter().filter(refused).count(), 1, "{actions:?}");
        let late = job.on(MasterEvent::ListProcesses(key));
        assert!(matches!(&late[..], [MasterAction::RefuseTool(..)]), "{late:?}");
    }
}
