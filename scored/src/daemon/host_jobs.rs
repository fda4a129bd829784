//! The local parts of all jobs on this host, from their start to the end of their last process, and
//! the processes and directories that they share.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mio::Registry;
use score_job::host::usage::Usage;
use score_job::jobs::{Launch, LocalReport};
use score_proto::ids::JobId;
use score_proto::job_control::{JobOrder, ShepherdOrder, Status, SwitchOrder, SwitchSeq};

use super::CommonOptions;
use super::event_sources::{EventSources, TokenOwner};
use super::host_job::{HostJob, IsOnlyReport, StartContext};
use super::host_tools::ToolTimes;
use super::keeper_client::SharedKeeper;
use super::program_folders::ProgramFolders;
use super::shepherd_handle::{KnownChildren, ShepherdHandle, kill_orphans};
use super::stop_enforcer::Enforcement;

/// The shortest time between two searches for directories that earlier jobs have left.
const STALE_SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub struct HostJobs {
    jobs: BTreeMap<JobId, HostJob>,
    /// Local parts whose shepherds have been killed but not reaped yet.
    ending: Vec<HostJob>,
    /// The keeper, in multi-user mode.
    keeper: Option<SharedKeeper>,
    no_namespace: bool,
    tool_times: ToolTimes,
    known_children: KnownChildren,
    program_folders: ProgramFolders,
    /// The time of the last search for directories that earlier jobs have left.
    last_sweep_at: Option<Instant>,
}

/// An action against a job whose shepherd has not stopped it in time.
#[derive(Debug)]
pub struct EnforcedStop {
    /// The job.
    pub job: JobId,
    /// The job's user, in multi-user mode.
    pub owner_uid: Option<u32>,
    /// The action.
    pub enforcement: Enforcement,
}

impl HostJobs {
    /// Creates the state of a host without jobs.
    pub fn new(options: &CommonOptions) -> Self {
        Self {
            jobs: BTreeMap::new(),
            ending: Vec::new(),
            keeper: None,
            no_namespace: options.no_namespace,
            tool_times: ToolTimes::new(options.tool_cleanup),
            known_children: KnownChildren::default(),
            program_folders: ProgramFolders::default(),
            last_sweep_at: None,
        }
    }

    /// Makes the keeper start all jobs (multi-user mode).
    pub fn set_keeper(&mut self, keeper: SharedKeeper) {
        self.keeper = Some(keeper);
    }

    /// Adds a job. [`HostJobs::begin_pending`] begins it.
    pub fn add(&mut self, launch: Box<Launch>) {
        let host_job = HostJob::new(launch, self.tool_times, self.known_children.clone());
        self.jobs.insert(host_job.job(), host_job);
    }

    /// Begins the added jobs. Returns false if there are none. `announce_path` gets the path of
    /// each job's directory before the directory exists.
    pub fn begin_pending(
        &mut self,
        sources: &mut EventSources,
        usage: &mut Usage,
        announce_path: &mut dyn FnMut(&Launch, &str),
    ) -> bool {
        let pending = self.jobs.values_mut().filter_map(|job| job.pending_launch.take());
        let launches: Vec<Box<Launch>> = pending.collect();
        for launch in &launches {
            let started_at = Instant::now();
            self.begin(launch, sources, announce_path);
            let owner = launch.start.owner.iter();
            owner.for_each(|owner| usage.charge_time(owner.uid, started_at.elapsed()));
        }
        !launches.is_empty()
    }

    fn begin(
        &mut self,
        launch: &Launch,
        sources: &mut EventSources,
        announce_path: &mut dyn FnMut(&Launch, &str),
    ) {
        let job = launch.start.job;
        let owners = [TokenOwner::Shepherd(job), TokenOwner::SwitchThread(job)];
        let [token, switch_token] = owners.map(|owner| sources.allocate(owner));
        let Some(host_job) = self.jobs.get_mut(&job) else { return };
        let sweep_due = self.last_sweep_at.is_none_or(|last| last.elapsed() > STALE_SWEEP_INTERVAL);
        if sweep_due {
            self.last_sweep_at = Some(Instant::now());
        }
        let context = StartContext {
            no_namespace: self.no_namespace,
            registry: sources.registry(),
            token,
            switch_token,
            known_children: self.known_children.clone(),
            program_folders: &mut self.program_folders,
            keeper: self.keeper.as_ref(),
            sweep_due,
            announce_path: &mut |path| announce_path(launch, path),
        };
        host_job.begin(&launch.start, context);
    }

    /// Handles an order for the shepherd of a job. Returns a report if the job is not here.
    pub fn on_order(&mut self, job: JobId, order: &ShepherdOrder) -> Option<LocalReport> {
        match self.jobs.get_mut(&job) {
            Some(host_job) => host_job.on_order(order),
            // The job ends before it has begun on this host.
            None if matches!(order, ShepherdOrder::Job(JobOrder::Finish)) => {
                return Some(LocalReport::Closed);
            }
            None => {}
        }
        None
    }

    /// Handles an order for the switch thread of a job's shepherd.
    pub fn on_switch_order(&mut self, job: JobId, order: SwitchOrder) {
        let host_job = self.jobs.get_mut(&job).into_iter();
        host_job.for_each(|host_job| host_job.on_switch_order(order));
    }

    /// Records that mio has reported a socket of a job as readable.
    pub fn mark_readable(&mut self, owner: TokenOwner) {
        let (TokenOwner::Shepherd(job) | TokenOwner::SwitchThread(job) | TokenOwner::Tool(job)) =
            owner
        else {
            return;
        };
        let Some(host_job) = self.jobs.get_mut(&job) else { return };
        match (owner, &mut host_job.shepherd) {
            (TokenOwner::Tool(_), _) => host_job.tools_mut().mark_readable(),
            (TokenOwner::Shepherd(_), Some(shepherd)) => shepherd.control_link.mark_readable(),
            (TokenOwner::SwitchThread(_), Some(shepherd)) => shepherd.switch_link.mark_readable(),
            _ => {}
        }
    }

    /// Receives the reports of all shepherds, and charges the owners of the jobs with the time.
    /// [`HostJobs::take_reports`] returns the reports. The reports of a shepherd wait while the
    /// link to the parent is slow, or while the owner has no time. The reports of its switch thread
    /// do not wait, because other jobs need them.
    pub fn receive_reports(&mut self, usage: &mut Usage, is_parent_slow: impl Fn(JobId) -> bool) {
        for (job, host_job) in &mut self.jobs {
            let started_at = Instant::now();
            let has_to_wait = is_parent_slow(*job) || lacks_time(host_job, usage);
            let has_received = host_job.receive_reports(has_to_wait);
            if let Some(uid) = host_job.owner_uid().filter(|_| has_received) {
                usage.charge_report_time(uid, started_at.elapsed());
            }
        }
    }

    /// Takes the reports that have accumulated since the last call, with the uids of the owners of
    /// their jobs.
    pub fn take_reports(&mut self) -> impl Iterator<Item = (JobId, Option<u32>, LocalReport)> {
        self.jobs.iter_mut().flat_map(|(job, host_job)| {
            let uid = host_job.owner_uid();
            host_job.take_reports().into_iter().map(move |report| (*job, uid, report))
        })
    }

    /// Whether [`HostJobs::receive_reports`] may find a report without a further event.
    pub fn may_have_more(&self, usage: &Usage, is_parent_slow: impl Fn(JobId) -> bool) -> bool {
        self.jobs.iter().any(|(job, host_job)| {
            let has_to_wait = is_parent_slow(*job) || lacks_time(host_job, usage);
            host_job.may_have_more(has_to_wait)
        })
    }

    /// Whether many orders wait for the shepherd of a job.
    pub fn has_order_backlog(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(HostJob::has_order_backlog)
    }

    /// The users of the jobs, in multi-user mode. A user with several jobs occurs several times.
    pub fn owner_uids(&self) -> impl Iterator<Item = u32> {
        self.jobs.values().filter_map(HostJob::owner_uid)
    }

    /// Writes as much as the sockets of shepherds and tools accept.
    pub fn flush(&mut self, registry: &Registry) {
        for host_job in self.jobs.values_mut() {
            host_job.tools_mut().flush(registry);
            if let Some(shepherd) = &mut host_job.shepherd {
                shepherd.flush(registry);
            }
        }
    }
}

/// Whether the reports of a job have to wait until its owner has time again.
fn lacks_time(host_job: &HostJob, usage: &Usage) -> bool {
    host_job.owner_uid().is_some_and(|uid| !usage.has_time_for_reports(uid))
}

/// Gang switches.
impl HostJobs {
    /// Receives the reports of a job's switch thread. See [`HostJob::read_rotation_stop`].
    pub fn read_rotation_stop(&mut self, job: JobId, switch: SwitchSeq) -> Option<IsOnlyReport> {
        self.jobs.get_mut(&job)?.read_rotation_stop(switch)
    }

    /// Whether a job has a shepherd on this host.
    pub fn has_shepherd(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|host_job| host_job.shepherd.is_some())
    }

    /// Sends a job's shepherd the order to run in a rotation. Returns false if the shepherd has
    /// ended.
    pub fn start_turn(&mut self, job: JobId, order: SwitchOrder, registry: &Registry) -> bool {
        self.jobs.get_mut(&job).is_some_and(|host_job| host_job.start_turn(order, registry))
    }

    /// Enforces the stops whose deadlines have passed.
    pub fn enforce_stops(&mut self, usage: &mut Usage) -> Vec<EnforcedStop> {
        let now = Instant::now();
        let enforce = |(job, host_job): (&JobId, &mut HostJob)| {
            let started_at = Instant::now();
            let enforcement = host_job.enforce_stop(now)?;
            let owner_uid = host_job.owner_uid();
            owner_uid.iter().for_each(|uid| usage.charge_time(*uid, started_at.elapsed()));
            Some(EnforcedStop { job: *job, owner_uid, enforcement })
        };
        self.jobs.iter_mut().filter_map(enforce).collect()
    }

    /// The time of the next enforcement.
    pub fn stop_deadline(&self) -> Option<Instant> {
        self.jobs.values().filter_map(HostJob::stop_deadline).min()
    }
}

/// Tools and program directories.
impl HostJobs {
    /// Starts the tools that can be started now.
    pub fn start_tools(&mut self, sources: &mut EventSources, usage: &mut Usage) {
        let with_tools = self.jobs.iter_mut().filter(|(_, job)| job.has_startable_tools());
        for (job, host_job) in with_tools {
            let token = sources.allocate(TokenOwner::Tool(*job));
            let started_at = Instant::now();
            host_job.start_tools(sources.registry(), token);
            let uid = host_job.owner_uid();
            uid.into_iter().for_each(|uid| usage.charge_time(uid, started_at.elapsed()));
        }
    }

    /// Receives the reports of tools.
    pub fn advance_tools(&mut self) {
        let now = Instant::now();
        self.jobs.values_mut().for_each(|host_job| host_job.advance_tools(now));
    }

    /// Removes the program directories that have not been used for long.
    pub fn remove_unused_folders(&mut self) {
        self.program_folders.remove_unused(Instant::now());
    }

    /// The time at which tools or program directories need attention without an event.
    pub fn deadline(&self) -> Option<Instant> {
        let tools = self.jobs.values().filter_map(HostJob::tool_deadline);
        tools.chain(self.program_folders.deadline()).min()
    }
}

/// The ends of jobs and of processes.
impl HostJobs {
    /// Ends a job without a report. Its processes are reaped later.
    pub fn abort(&mut self, job: JobId) {
        if let Some(mut host_job) = self.jobs.remove(&job)
            && !host_job.abort()
        {
            self.ending.push(host_job);
        }
    }

    /// Removes a job that has ended.
    pub fn remove(&mut self, job: JobId) {
        self.jobs.remove(&job);
    }

    /// Handles the exits of shepherds. Call it after a SIGCHLD and after an event of the keeper.
    pub fn check_exits(&mut self) {
        self.jobs.values_mut().for_each(HostJob::check_shepherd_exit);
        self.reap_ending();
    }

    fn reap_ending(&mut self) {
        self.ending.retain_mut(|host_job| !host_job.abort());
    }

    /// Whether killed shepherds have not ended yet.
    pub fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Waits until killed shepherds have ended, at most for `timeout`. Then gives them up.
    pub fn wait_for_ending(&mut self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        while self.is_ending() && Instant::now() < deadline {
            self.keeper.iter().for_each(|keeper| keeper.borrow_mut().receive_events());
            self.reap_ending();
            std::thread::sleep(Duration::from_micros(200));
        }
        self.ending.drain(..).for_each(|mut host_job| host_job.abandon());
    }

    /// Whether a child of this process is the shepherd of a job, also of a job that is ending.
    pub fn is_shepherd(&self, pid: i32) -> bool {
        let shepherds = self
            .jobs
            .values()
            .chain(&self.ending)
            .filter_map(|host_job| host_job.shepherd.as_ref());
        shepherds.filter_map(ShepherdHandle::child_pid).any(|child| child == pid)
    }

    /// Adds children of this process that are not to be killed as orphans.
    pub fn add_children(&mut self, pids: impl IntoIterator<Item = i32>) {
        self.known_children.borrow_mut().extend(pids);
    }

    /// Records that a child of this process, which is no shepherd, has been reaped.
    pub fn on_child_exit(&mut self, pid: i32, status: Status) {
        let was_known = self.known_children.borrow_mut().remove(&pid);
        if was_known && matches!(status, Status::Signaled(_)) {
            // A killed supervisor may leave processes of its tool.
            kill_orphans(&self.known_children.borrow());
        }
    }

    /// Removes the program directories, because the daemon ends.
    pub fn close_folders(&mut self) {
        self.program_folders.close(&self.known_children);
    }

    /// Ends the keeper and waits for it, because the daemon ends.
    pub fn close_keeper(&self) {
        self.keeper.iter().for_each(|keeper| keeper.borrow_mut().close());
    }

    /// Takes the children of this process that are left.
    pub fn take_children(&mut self) -> Vec<i32> {
        self.known_children.borrow_mut().drain().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use score_client::FramedSocket;
    use score_job::host::usage::REPORT_TIME_WINDOW;
    use score_job::jobs::Parent;
    use score_proto::job_control::{
        JobReport, JobStart, Owner, Placement, ShepherdReport, SwitchReport,
    };
    use score_proto::message::{JobSpec, OsBytes};
    use score_proto::peer_message::JobIncarnation;

    use super::super::shepherd_handle::{ChildShepherd, ShepherdProcess};
    use super::*;

    /// Adds a job of this user. Returns the sockets of its shepherd and of its switch thread.
    fn add_job(
        host_jobs: &mut HostJobs,
        sources: &mut EventSources,
        uid: u32,
    ) -> [FramedSocket; 2] {
        let job = JobId(uid);
        let name = OsBytes(Vec::new());
        let owner = Owner { uid, gid: uid, name, limits: Vec::new(), voucher: Vec::new() };
        let start = JobStart { job, secret: 1, spec: JobSpec::default(), owner: Some(owner) };
        let host = ("here".to_owned(), None, 1);
        host_jobs.add(Box::new(Launch {
            start: Arc::new(start),
            placement: Placement::new(JobIncarnation(1), [host]),
            parent: Parent::Master,
            client_job: None,
        }));
        let owners = [TokenOwner::Shepherd(job), TokenOwner::SwitchThread(job)];
        let tokens = owners.map(|owner| sources.allocate(owner));
        let mut ends = Vec::new();
        let shepherd = ShepherdHandle::start(sources.registry(), tokens, |sockets| {
            ends.extend(sockets.map(|socket| socket.try_clone().unwrap()));
            Ok::<_, io::Error>(ShepherdProcess::Child(ChildShepherd::without_process()))
        });
        host_jobs.jobs.get_mut(&job).unwrap().shepherd = Some(shepherd.unwrap());
        let mut ends = ends.into_iter().map(|end| FramedSocket::new(end).unwrap());
        [ends.next().unwrap(), ends.next().unwrap()]
    }

    fn send_reports(sockets: &mut [FramedSocket; 2], host_jobs: &mut HostJobs, job: JobId) {
        let [control, switch] = sockets;
        control.queue(&ShepherdReport::Job(JobReport::Ready));
        switch.queue(&SwitchReport::Stopped { switch_seq: SwitchSeq(1) });
        sockets.iter_mut().for_each(FramedSocket::flush);
        host_jobs.mark_readable(TokenOwner::Shepherd(job));
        host_jobs.mark_readable(TokenOwner::SwitchThread(job));
    }

    #[test]
    fn reports_of_a_user_without_time_wait_except_those_that_a_gang_switch_needs() {
        let mut sources = EventSources::new().unwrap();
        let mut host_jobs = HostJobs::new(&CommonOptions::default());
        let start = Instant::now();
        let mut usage = Usage::new(start);
        let mut sockets = [7, 8].map(|uid| add_job(&mut host_jobs, &mut sources, uid));
        for (uid, sockets) in (7..).zip(&mut sockets) {
            send_reports(sockets, &mut host_jobs, JobId(uid));
        }
        let is_of_switch = |report: &LocalReport| matches!(report, LocalReport::Switch(_));
        usage.refill_time(start, [7, 8].into_iter());
        usage.charge_report_time(7, REPORT_TIME_WINDOW);
        host_jobs.receive_reports(&mut usage, |_| false);
        let received: Vec<_> = host_jobs
            .take_reports()
            .map(|(job, uid, report)| (job.0, uid, is_of_switch(&report)))
            .collect();
        assert_eq!(received, [(7, Some(7), true), (8, Some(8), true), (8, Some(8), false)]);
        // The loop does not wait for the report, but it can receive the report later.
        host_jobs.receive_reports(&mut usage, |_| false);
        assert!(!host_jobs.may_have_more(&usage, |_| false));
        usage.refill_time(start + Duration::from_secs(10), [7, 8].into_iter());
        assert!(host_jobs.may_have_more(&usage, |_| false));
        host_jobs.receive_reports(&mut usage, |_| false);
        let late: Vec<_> = host_jobs.take_reports().map(|(job, ..)| job).collect();
        assert_eq!(late, [JobId(7)]);
        // The time of the reports is charged to the owner of the job.
        let [control, _] = &mut sockets[1];
        let mut sent = 0;
        while usage.has_time_for_reports(8) && sent < 1_000_000 {
            (0..100).for_each(|_| control.queue(&ShepherdReport::Job(JobReport::Ready)));
            control.flush();
            sent += 100;
            host_jobs.mark_readable(TokenOwner::Shepherd(JobId(8)));
            host_jobs.receive_reports(&mut usage, |_| false);
            host_jobs.take_reports().for_each(drop);
        }
        assert!(!usage.has_time_for_reports(8) && usage.has_time_for_reports(7), "{sent}");
    }
}
