//! The gang scheduler in the daemon that leads jobs. It passes requests of job masters to
//! [`crate::gang`], and the decisions of the scheduler to the job masters. The masters send them
//! down the range trees. See docs/dev/time-sharing.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use score_proto::ids::{HostId, JobId};
use score_proto::job_control::{LocalRotation, Placement, StopCondition, SwitchSeq};

use super::{Effect, Jobs};
use crate::cluster::{HostShare, MonotonicTime};
use crate::gang::{
    GangAction, GangConfig, GangEvent, GangScheduler, HoldReason, LatencyHistogram, TimedStop,
};
use crate::master::{GangRequest, MasterEvent};

/// A job is suspended if its output has been blocked for this time.
const OUTPUT_STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval of the idle check of a job's processes, in microseconds, while another job waits
/// for its processors. A job whose processes are all idle gives up its slice within 2 ms.
const CONTENDED_POLL_INTERVAL_US: u32 = 1500;
/// The bounds of the interval while no job waits. Between them, the interval is a quarter of a
/// slice.
const UNCONTENDED_POLL_INTERVAL_RANGE: [Duration; 2] =
    [Duration::from_millis(2), Duration::from_millis(50)];

/// The host of all jobs of single-user mode.
pub const SINGLE_USER_HOST: HostId = HostId(0);

/// The output of a job is blocked since this time.
#[derive(Debug, Clone, Copy)]
struct OutputStall {
    stalled_at: MonotonicTime,
    is_suspended: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct GangDriver {
    scheduler: GangScheduler,
    config: GangConfig,
    /// The jobs that run.
    running: BTreeSet<JobId>,
    output_stalls: BTreeMap<JobId, OutputStall>,
    /// Jobs that did not stop in time and about which the user was warned.
    warned_jobs: BTreeSet<JobId>,
    requests: VecDeque<(JobId, GangRequest)>,
    /// For tests: a fixed interval of the idle check in microseconds.
    fixed_poll_us: Option<u32>,
    /// Durations of gang switches.
    pub switch_latency: LatencyHistogram,
}

impl GangDriver {
    /// The driver for single-user mode: any number of jobs of one user run at the same time.
    pub(super) fn new(fixed_poll_us: Option<u32>) -> Self {
        let config = GangConfig::default();
        Self {
            scheduler: GangScheduler::new(config, BTreeMap::from([(SINGLE_USER_HOST, u32::MAX)])),
            config,
            running: BTreeSet::new(),
            output_stalls: BTreeMap::new(),
            warned_jobs: BTreeSet::new(),
            requests: VecDeque::new(),
            fixed_poll_us,
            switch_latency: LatencyHistogram::default(),
        }
    }

    pub(super) fn configure(&mut self, config: GangConfig, slots: BTreeMap<HostId, u32>) {
        (self.scheduler, self.config) = (GangScheduler::new(config, slots), config);
    }

    /// The jobs that have their processors, in ascending order.
    pub fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        self.scheduler.running()
    }

    /// Whether a job is suspended: by its user or a debugger, or because its output is blocked.
    pub fn is_suspended(&self, job: JobId) -> bool {
        self.scheduler.is_suspended(job)
    }

    /// When the next [`super::Input::Tick`] is due, for the scheduler or a blocked output.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        let pending_stalls = self.output_stalls.values().filter(|stall| !stall.is_suspended);
        let stall_deadlines = pending_stalls.map(|stall| stall.stalled_at + OUTPUT_STALL_TIMEOUT);
        stall_deadlines.chain(self.scheduler.deadline()).min()
    }

    fn poll_interval_us(&self) -> u32 {
        if let Some(fixed_us) = self.fixed_poll_us {
            return fixed_us;
        }
        if self.scheduler.is_contended() {
            return CONTENDED_POLL_INTERVAL_US;
        }
        let [min_interval, max_interval] = UNCONTENDED_POLL_INTERVAL_RANGE;
        let interval = (self.config.slice / 4).clamp(min_interval, max_interval);
        u32::try_from(interval.as_micros()).unwrap_or(u32::MAX)
    }

    /// Queues a job's request until the job's master has finished its step.
    pub(super) fn queue(&mut self, job: JobId, request: GangRequest) {
        self.requests.push_back((job, request));
    }

    /// The condition under which a job that starts to run stops again.
    fn stop_condition(
        &mut self,
        job: JobId,
        timed_stop: Option<TimedStop>,
        now: MonotonicTime,
    ) -> StopCondition {
        let Some(TimedStop { switch_seq, after }) = timed_stop else {
            return StopCondition::OnOrder;
        };
        self.switch_latency.on_stop_ordered(job, switch_seq, now + after);
        StopCondition::After {
            run_us: u32::try_from(after.as_micros()).unwrap_or(u32::MAX),
            switch_seq,
        }
    }

    /// Translates a job's request to an event of the scheduler.
    fn take_gang_event(
        &mut self,
        job: JobId,
        request: GangRequest,
        allocation: Option<(Vec<HostShare>, u8)>,
        now: MonotonicTime,
    ) -> Option<GangEvent> {
        Some(match request {
            GangRequest::Enter => {
                let (allocations, priority) = allocation?;
                GangEvent::Enter { job, shares: allocations, priority }
            }
            GangRequest::Leave => {
                self.running.remove(&job);
                self.output_stalls.remove(&job);
                self.warned_jobs.remove(&job);
                self.switch_latency.forget_job(job);
                GangEvent::Leave(job)
            }
            GangRequest::Stopped(switch_seq) => {
                self.running.remove(&job);
                self.switch_latency.on_stopped(job, switch_seq, now);
                GangEvent::Stopped { job, switch_seq }
            }
            GangRequest::Hold(reason) => GangEvent::Hold(job, reason),
            GangRequest::Release(reason) => {
                if reason == HoldReason::OutputBlocked {
                    // If the output stays blocked, `tick_gang` records a new stall.
                    self.output_stalls.remove(&job);
                }
                GangEvent::Release(job, reason)
            }
            GangRequest::Yield => GangEvent::Yield(job),
            GangRequest::Sleep(seconds) => {
                GangEvent::Sleep(job, now + Duration::from_secs(seconds.into()))
            }
            GangRequest::Idle => GangEvent::Idle(job),
            GangRequest::Busy => GangEvent::Busy(job),
        })
    }

    /// A job has ended. Its output may have been blocked again after it left the scheduler.
    pub(super) fn forget_output(&mut self, job: JobId) {
        self.output_stalls.remove(&job);
    }

    /// Records whether a job's output is blocked. Returns a request for the scheduler if one is
    /// due.
    fn on_output(
        &mut self,
        job: JobId,
        is_blocked: bool,
        now: MonotonicTime,
    ) -> Option<GangRequest> {
        if !is_blocked {
            let stall = self.output_stalls.remove(&job)?;
            return stall.is_suspended.then_some(GangRequest::Release(HoldReason::OutputBlocked));
        }
        let new_stall = OutputStall { stalled_at: now, is_suspended: false };
        let stall = self.output_stalls.entry(job).or_insert(new_stall);
        if stall.is_suspended || stall.stalled_at + OUTPUT_STALL_TIMEOUT > now {
            return None;
        }
        stall.is_suspended = true;
        Some(GangRequest::Hold(HoldReason::OutputBlocked))
    }
}

impl Jobs {
    /// Carries out the queued requests of jobs.
    pub(super) fn handle_gang_requests(&mut self) {
        while let Some((job, request)) = self.gang.requests.pop_front() {
            let led_job = self.led_jobs.get(&job).filter(|_| request == GangRequest::Enter);
            let allocation = led_job.map(|led_job| (led_job.allocations.clone(), led_job.priority));
            if let Some(event) = self.gang.take_gang_event(job, request, allocation, self.now) {
                self.step_gang(event);
            }
        }
    }

    /// Handles blocked output, and all actions whose time has come.
    pub(super) fn tick_gang(&mut self) {
        for job in self.led_job_ids() {
            let is_blocked = self.tree.led(job).is_some_and(|links| links.node.is_blocked());
            let request = self.gang.on_output(job, is_blocked, self.now);
            request.into_iter().for_each(|request| self.gang.queue(job, request));
        }
        if self.gang.scheduler.deadline().is_some_and(|due| due <= self.now) {
            self.step_gang(GangEvent::Tick);
        }
        self.handle_gang_requests();
    }

    fn step_gang(&mut self, event: GangEvent) {
        let old_interval_us = self.gang.poll_interval_us();
        let actions = self.gang.scheduler.on(event, self.now);
        if self.gang.poll_interval_us() != old_interval_us {
            self.send_poll_interval();
        }
        for action in actions {
            match action {
                GangAction::Stop { job, switch_seq } => {
                    self.gang.running.remove(&job);
                    self.gang.switch_latency.on_stop_ordered(job, switch_seq, self.now);
                    self.step_master(job, MasterEvent::Stop { switch_seq });
                }
                GangAction::Run { job, stop } => {
                    let until = self.gang.stop_condition(job, stop, self.now);
                    self.run_job(job, until);
                }
                GangAction::StartRotation { jobs, switch_seq, turn_count, slice } => {
                    self.start_rotation(&jobs, switch_seq, turn_count, slice)
                }
                GangAction::RotationEnded { jobs, turn_count, since } => {
                    jobs.iter().for_each(|job| _ = self.gang.running.remove(job));
                    self.gang.switch_latency.add_rotation_turns(turn_count);
                    self.effects.push(Effect::Rotated(jobs, turn_count, since));
                }
                GangAction::Held(job) => self.step_master(job, MasterEvent::GangStopped),
                GangAction::StopTimedOut(job) => self.report_late_hosts(job),
            }
        }
        self.effects.push(Effect::RowStarted);
    }

    fn run_job(&mut self, job: JobId, until: StopCondition) {
        self.gang.running.insert(job);
        let idle_check_interval_us = self.gang.poll_interval_us();
        self.step_master(job, MasterEvent::Run { idle_check_interval_us, until });
    }

    fn start_rotation(
        &mut self,
        jobs: &[JobId],
        switch_seq: SwitchSeq,
        turn_count: u32,
        slice: Duration,
    ) {
        let job_count = u8::try_from(jobs.len()).unwrap_or(u8::MAX);
        let turn_us = u32::try_from(slice.as_micros()).unwrap_or(u32::MAX);
        for (job, position) in jobs.iter().zip(0..) {
            let first_switch_seq = switch_seq;
            let rotation =
                LocalRotation { first_switch_seq, turn_us, turn_count, job_count, position };
            self.run_job(*job, StopCondition::LocalRotation(rotation));
        }
    }

    /// A job has begun to wait for processors, or no job waits any more. Changes the interval of
    /// the idle check of the running jobs.
    fn send_poll_interval(&mut self) {
        for job in self.gang.running.iter().copied().collect::<Vec<_>>() {
            let idle_check_interval_us = self.gang.poll_interval_us();
            let until = StopCondition::Unchanged;
            self.step_master(job, MasterEvent::Run { idle_check_interval_us, until });
        }
    }

    /// A host has not stopped a job in time.
    fn report_late_hosts(&mut self, job: JobId) {
        if !self.gang.warned_jobs.insert(job) {
            return;
        }
        let Some(node) = self.tree.led(job).map(|links| &links.node) else { return };
        let name = |range| late_host_name(node.placement(), range);
        let hosts: Vec<String> = node.unstopped_hosts().map(name).collect();
        let text = format!(
            "job {job} has not been stopped within {} s on host {}: the job continues to run, and \
             other jobs wait for its processors",
            self.gang.config.stop_timeout.as_secs(),
            hosts.join(", ")
        );
        let client_job = self.led_jobs.get(&job).map(|led_job| led_job.client_job);
        self.effects.push(Effect::StopTimedOut(client_job, text));
    }
}

/// The name of a child of a tree node that has not stopped a job.
fn late_host_name(placement: &Placement, range: Range<u32>) -> String {
    let first = placement.hosts.get(range.start as usize).map_or("?", |host| &host.name);
    match range.len() {
        1 => first.to_owned(),
        host_count => format!("{first} or one of {} hosts below it", host_count - 1),
    }
}
