//! The gang scheduler in the daemon that leads jobs. Events of jobs and hosts go to
//! [`score_job::gang`]. Its decisions go to the job masters, and from there down the range trees.
//! See docs/time-sharing.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_job::cluster::{HostShare, JobId, MonotonicTime};
use score_job::gang::{self, GangConfig, GangScheduler, HoldReason, LatencyHistogram, TimedStop};
use score_job::host::tree_node::SHEPHERD_CHILD;
use score_job::master::{GangRequest, MasterEvent};
use score_proto::job_control::{LocalRotation, Report, StopCondition, SwitchReport};
use score_proto::message::{HostSpec, JobSpec, Level};
use score_proto::peer_message::HostId;

use super::host_job::{IsOnlyReport, Parent};
use super::jobs::TreePosition;
use super::{Daemon, service};
use crate::sys::timer::Timer;

/// A job is suspended if its output has been blocked for this time.
const OUTPUT_STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of the idle check of a job's processes, in microseconds, while another job waits for
/// its processors. A job whose processes are all idle gives up its slice within 2 ms.
const CONTENDED_POLL_INTERVAL_US: u32 = 1500;
/// Environment variable of scored, for tests: a fixed interval in microseconds.
const POLL_INTERVAL_ENV: &str = "SCORE_TEST_PACE";
/// Bounds of the interval while no job waits. Within them it is a quarter of a slice.
const UNCONTENDED_POLL_INTERVAL_RANGE: [Duration; 2] =
    [Duration::from_millis(2), Duration::from_millis(50)];

/// A job's output is blocked since this time.
#[derive(Debug, Clone, Copy)]
struct OutputStall {
    stalled_at: Instant,
    is_suspended: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct GangDriver {
    scheduler: GangScheduler,
    config: GangConfig,
    started_at: Instant,
    timer: Timer,
    /// The time for which the timer is set.
    timer_deadline: Option<Instant>,
    /// Jobs that run, and the interval of their idle check in microseconds.
    running: BTreeMap<JobId, u32>,
    output_stalls: BTreeMap<JobId, OutputStall>,
    /// Jobs that did not stop in time and that the user has been warned of.
    warned_jobs: BTreeSet<JobId>,
    requests: VecDeque<(JobId, GangRequest)>,
    /// See [`POLL_INTERVAL_ENV`].
    fixed_poll_us: Option<u32>,
    /// Durations of gang switches.
    pub switch_latency: LatencyHistogram,
}

impl GangDriver {
    /// For single-user mode: any number of jobs of one user run at the same time.
    ///
    /// # Errors
    /// As timerfd_create(2).
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        Ok(Self {
            scheduler: GangScheduler::new(
                GangConfig::default(),
                BTreeMap::from([(SINGLE_USER_HOST, u32::MAX)]),
            ),
            config: GangConfig::default(),
            started_at: Instant::now(),
            timer: Timer::new(registry, token)?,
            timer_deadline: None,
            running: BTreeMap::new(),
            output_stalls: BTreeMap::new(),
            warned_jobs: BTreeSet::new(),
            requests: VecDeque::new(),
            fixed_poll_us: std::env::var(POLL_INTERVAL_ENV).ok().and_then(|text| text.parse().ok()),
            switch_latency: LatencyHistogram::default(),
        })
    }

    /// Which jobs have their processors, in ascending order.
    pub fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        self.scheduler.running()
    }

    /// Whether a job is suspended: by its user, or because its output is blocked.
    pub fn is_suspended(&self, job: JobId) -> bool {
        self.scheduler.is_suspended(job)
    }

    fn now(&self) -> MonotonicTime {
        self.started_at.elapsed()
    }

    fn poll_interval_us(&self) -> u32 {
        if let Some(fixed_us) = self.fixed_poll_us {
            return fixed_us;
        }
        if self.scheduler.is_contended() {
            return CONTENDED_POLL_INTERVAL_US;
        }
        let interval = (self.config.slice / 4)
            .clamp(UNCONTENDED_POLL_INTERVAL_RANGE[0], UNCONTENDED_POLL_INTERVAL_RANGE[1]);
        u32::try_from(interval.as_micros()).unwrap_or(u32::MAX)
    }

    /// When the scheduler or a stalled output needs the next check, if no event comes earlier.
    fn deadline(&self) -> Option<Instant> {
        let gang = self.scheduler.deadline().map(|due| self.started_at + due);
        let pending_stalls = self.output_stalls.values().filter(|stall| !stall.is_suspended);
        pending_stalls.map(|stall| stall.stalled_at + OUTPUT_STALL_TIMEOUT).chain(gang).min()
    }

    /// Sets the timer to the next deadline.
    pub fn set_timer(&mut self) {
        let due = self.deadline();
        // A timer that has run out is set again, even if the deadline is the same.
        let now = Instant::now();
        if due != self.timer_deadline || due.is_some_and(|due| due <= now) {
            self.timer.set(due.map(|due| due.saturating_duration_since(now)));
            self.timer_deadline = due;
        }
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
    ) -> Option<gang::GangEvent> {
        Some(match request {
            GangRequest::Enter => {
                let (allocations, priority) = allocation?;
                gang::GangEvent::Enter { job, shares: allocations, priority }
            }
            GangRequest::Leave => {
                self.running.remove(&job);
                self.output_stalls.remove(&job);
                self.warned_jobs.remove(&job);
                self.switch_latency.forget_job(job);
                gang::GangEvent::Leave(job)
            }
            GangRequest::Stopped(switch_seq) => {
                self.running.remove(&job);
                self.switch_latency.on_stopped(job, switch_seq, self.now());
                gang::GangEvent::Stopped { job, switch_seq }
            }
            GangRequest::Hold(reason) => gang::GangEvent::Hold(job, reason),
            GangRequest::Release(reason) => {
                if reason == HoldReason::OutputBlocked {
                    // If the output stays blocked, `check_output_stalls` finds that again.
                    self.output_stalls.remove(&job);
                }
                gang::GangEvent::Release(job, reason)
            }
            GangRequest::Yield => gang::GangEvent::Yield(job),
            GangRequest::Sleep(seconds) => {
                gang::GangEvent::Sleep(job, self.now() + Duration::from_secs(seconds.into()))
            }
            GangRequest::Idle => gang::GangEvent::Idle(job),
            GangRequest::Busy => gang::GangEvent::Busy(job),
        })
    }
}

/// The host of all jobs of single-user mode.
const SINGLE_USER_HOST: HostId = 0;

impl Daemon {
    /// Multi-user mode: jobs share hosts, each of which has this number of slots.
    pub fn set_host_slots(&mut self, slots: BTreeMap<HostId, u32>) {
        let config = self.options.gang;
        (self.gang_driver.scheduler, self.gang_driver.config) =
            (GangScheduler::new(config, slots), config);
    }

    /// The hosts and processors of a job, as the gang scheduler counts them.
    pub fn host_allocations(&self, spec: &JobSpec) -> Vec<HostShare> {
        let Some(service) = &self.service else {
            return vec![HostShare { host: SINGLE_USER_HOST, procs: 1 }];
        };
        let allocation_on = |host: &HostSpec| {
            Some(HostShare { host: service.host_named(&host.name)?, procs: host.procs })
        };
        spec.hosts.iter().filter_map(allocation_on).collect()
    }

    /// Queues a job's request to the gang scheduler until the job's master has finished its step.
    pub fn queue_gang_request(&mut self, job: JobId, request: GangRequest) {
        self.gang_driver.requests.push_back((job, request));
    }

    /// Carries out the queued requests of jobs.
    pub fn handle_gang_requests(&mut self) {
        while let Some((job, request)) = self.gang_driver.requests.pop_front() {
            let led_job = self.led_jobs.get(&job).filter(|_| request == GangRequest::Enter);
            let allocation = led_job.map(|led_job| (led_job.allocations.clone(), led_job.priority));
            if let Some(event) = self.gang_driver.take_gang_event(job, request, allocation) {
                self.step_gang(event);
            }
        }
    }

    /// Does everything that is due by the clock or because output is blocked or not.
    pub fn tick_gang(&mut self) {
        self.check_output_stalls();
        if self.gang_driver.scheduler.deadline().is_some_and(|due| due <= self.gang_driver.now()) {
            self.step_gang(gang::GangEvent::Tick);
        }
        self.handle_gang_requests();
    }

    fn step_gang(&mut self, event: gang::GangEvent) {
        let now = self.gang_driver.now();
        let old_interval_us = self.gang_driver.poll_interval_us();
        let actions = self.gang_driver.scheduler.on(event, now);
        let poll_interval_us = self.gang_driver.poll_interval_us();
        if poll_interval_us != old_interval_us {
            self.send_poll_interval(poll_interval_us);
        }
        for action in actions {
            match action {
                gang::GangAction::Stop { job, switch_seq, lasting } => {
                    self.gang_driver.running.remove(&job);
                    self.gang_driver.switch_latency.on_stop_ordered(job, switch_seq, now);
                    self.step_master(Some(job), MasterEvent::Stop { switch_seq, lasting });
                }
                gang::GangAction::Run { job, switch_seq, stop: timed_stop } => {
                    self.gang_driver.running.insert(job, poll_interval_us);
                    let stop_condition = self.gang_driver.stop_condition(job, timed_stop, now);
                    self.step_master(
                        Some(job),
                        MasterEvent::Run {
                            switch_seq,
                            idle_check_interval_us: poll_interval_us,
                            until: stop_condition,
                        },
                    );
                }
                gang::GangAction::StartRotation { jobs, switch_seq, turn_count, slice } => {
                    let job_count = u8::try_from(jobs.len()).unwrap_or(u8::MAX);
                    let slice_us = u32::try_from(slice.as_micros()).unwrap_or(u32::MAX);
                    for (job, index) in jobs.into_iter().zip(0..) {
                        let stop_condition = StopCondition::LocalRotation(LocalRotation {
                            first_switch_seq: switch_seq,
                            turn_us: slice_us,
                            turn_count,
                            job_count,
                            position: index,
                        });
                        self.gang_driver.running.insert(job, poll_interval_us);
                        self.step_master(
                            Some(job),
                            MasterEvent::Run {
                                switch_seq,
                                idle_check_interval_us: poll_interval_us,
                                until: stop_condition,
                            },
                        );
                    }
                }
                gang::GangAction::RotationEnded { jobs, turn_count, since: start } => {
                    jobs.iter().for_each(|job| _ = self.gang_driver.running.remove(job));
                    self.gang_driver.switch_latency.add_rotation_turns(turn_count);
                    self.record_rotation(&jobs, turn_count, self.gang_driver.started_at + start);
                }
                gang::GangAction::Held(job) => {
                    self.step_master(Some(job), MasterEvent::GangStopped)
                }
                gang::GangAction::StopTimedOut(job) => self.warn_late_hosts(job),
                gang::GangAction::RowStarted(_) => {}
            }
        }
        self.record_row();
    }

    /// A job has begun to wait for processors, or no job waits any more. The idle check of the
    /// running jobs becomes more frequent or less frequent.
    fn send_poll_interval(&mut self, poll_interval_us: u32) {
        for job in self.gang_driver.running.keys().copied().collect::<Vec<_>>() {
            let switch_seq = self.gang_driver.scheduler.next_switch_seq();
            self.step_master(
                Some(job),
                MasterEvent::Run {
                    switch_seq,
                    idle_check_interval_us: poll_interval_us,
                    until: StopCondition::Unchanged,
                },
            );
        }
    }

    /// A host has not stopped a job in time.
    fn warn_late_hosts(&mut self, job: JobId) {
        if !self.gang_driver.warned_jobs.insert(job) {
            return;
        }
        let tree_positions: [TreePosition; 2] = [(job, true), (job, false)];
        let mut host_jobs =
            tree_positions.iter().filter_map(|tree_position| self.host_jobs.get(tree_position));
        let Some(root) = host_jobs.find(|host_job| host_job.parent == Parent::Master) else {
            return;
        };
        let placement = root.tree_node.placement();
        let name = |range: std::ops::Range<u32>| {
            let first = placement.hosts.get(range.start as usize).map_or("?", |host| &host.name);
            match range.len() {
                1 => first.to_owned(),
                host_count => format!("{first} or one of {} hosts below it", host_count - 1),
            }
        };
        let hosts: Vec<String> = root.tree_node.unstopped_hosts().map(name).collect();
        let text = format!(
            "job {job} has not been stopped within {} s on host {}: it runs on, and others wait \
             for its processors",
            self.gang_driver.config.stop_timeout.as_secs(),
            hosts.join(", ")
        );
        if self.service.is_some() {
            service::warn(&text);
        }
        if let Some(client_job) = self.led_jobs.get(&job).map(|led_job| led_job.client_job) {
            self.notice(client_job, Level::Warning, text);
        }
    }

    /// Suspends jobs whose output is blocked, and resumes them when it is not blocked any more.
    fn check_output_stalls(&mut self) {
        let now = Instant::now();
        for job in self.led_jobs.keys().copied().collect::<Vec<_>>() {
            let tree_positions: [TreePosition; 2] = [(job, true), (job, false)];
            let mut host_jobs =
                tree_positions.iter().filter_map(|tree_position| self.host_jobs.get(tree_position));
            let root = host_jobs.find(|host_job| host_job.parent == Parent::Master);
            let is_blocked = root.is_some_and(|root| root.tree_node.is_blocked());
            let stall = self.gang_driver.output_stalls.get(&job).copied();
            match stall {
                None if is_blocked => {
                    self.gang_driver
                        .output_stalls
                        .insert(job, OutputStall { stalled_at: now, is_suspended: false });
                }
                Some(OutputStall { stalled_at, is_suspended: false })
                    if is_blocked && stalled_at + OUTPUT_STALL_TIMEOUT <= now =>
                {
                    self.gang_driver
                        .output_stalls
                        .insert(job, OutputStall { stalled_at, is_suspended: true });
                    self.queue_gang_request(job, GangRequest::Hold(HoldReason::OutputBlocked));
                }
                Some(OutputStall { is_suspended, .. }) if !is_blocked => {
                    self.gang_driver.output_stalls.remove(&job);
                    if is_suspended {
                        self.queue_gang_request(
                            job,
                            GangRequest::Release(HoldReason::OutputBlocked),
                        );
                    }
                }
                _ => {}
            }
        }
    }

    /// If the job whose turn it is has stopped, starts the next job. True if that stop was the
    /// shepherd's only report. The last stop goes up the range tree to the scheduler. So does a
    /// stop after which the scheduler has to decide because a job may be idle.
    pub fn advance_rotation(&mut self) -> bool {
        let Some((job, switch_seq)) = self.host_rotation.expected_stop() else { return false };
        let Some(host_job) = self.host_jobs.get_mut(&(job, false)) else { return false };
        let Some(IsOnlyReport(is_only_report)) = host_job.read_rotation_stop(switch_seq) else {
            return false;
        };
        let is_ready = |job| {
            let host_job = self.host_jobs.get(&(job, false));
            host_job.is_some_and(|host_job| {
                host_job.shepherd.is_some() && !host_job.tree_node.is_idle()
            })
        };
        let next = if self.host_rotation.jobs().all(is_ready) {
            self.host_rotation.next_turn()
        } else {
            None
        };
        let registry = self.poll.registry();
        if let Some((next, order)) = next
            && let Some(host_job) = self.host_jobs.get_mut(&(next, false))
            && host_job.start_turn(order, registry)
        {
            return is_only_report;
        }
        self.host_rotation.end();
        let host_job = self.host_jobs.get_mut(&(job, false));
        host_job.into_iter().for_each(|host_job| {
            let report = Report::Switch(SwitchReport::Stopped { switch_seq });
            host_job.tree_node.on_report(SHEPHERD_CHILD, report)
        });
        false
    }
}
