//! The gang scheduler in the daemon that leads jobs: what jobs and hosts do is told to
//! [`crate::gang`], what that decides goes to the jobs' masters and on down their trees. See
//! docs/time-sharing.md.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::job_control::{LocalRotation, StopCondition};
use score_proto::message::{HostSpec, JobSpec, Level};
use score_proto::peer_message::HostId;

use super::host_job::Parent;
use super::jobs::TreePosition;
use super::{Daemon, service};
use crate::cluster::{HostShare, JobId, MonotonicTime};
use crate::gang::{self, GangConfig, GangScheduler, HoldReason, LatencyHistogram, TimedStop};
use crate::job::master::{GangRequest, MasterEvent};
use crate::sys::timer::Timer;

/// How long nobody has taken a job's output when it is suspended for that.
const OUTPUT_STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether all processes of a job are idle, in microseconds, while another
/// waits for its processors: such a job gives up its slice within 2 ms.
const CONTENDED_POLL_INTERVAL_US: u32 = 1500;
/// Names a variable of scored's environment, for tests: the same, always.
const POLL_INTERVAL_ENV: &str = "SCORE_TEST_PACE";
/// Bounds of the same while nobody waits: a quarter of a slice.
const UNCONTENDED_POLL_INTERVAL_RANGE: [Duration; 2] =
    [Duration::from_millis(2), Duration::from_millis(50)];

/// Since when a job's output is blocked.
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
    /// When the timer runs out.
    timer_deadline: Option<Instant>,
    /// Jobs that run, and how often their processes are looked at.
    running: BTreeMap<JobId, u32>,
    output_stalls: BTreeMap<JobId, OutputStall>,
    /// Jobs that were late, and have been named.
    warned_jobs: BTreeSet<JobId>,
    requests: VecDeque<(JobId, GangRequest)>,
    /// See [`POLL_INTERVAL_ENV`].
    fixed_poll_us: Option<u32>,
    /// How long switches have taken.
    pub switch_latency: LatencyHistogram,
}

impl GangDriver {
    /// Single-user mode: jobs of one user run side by side, however many.
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

    /// Whether a job is suspended: by its user, or because nobody takes its output.
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
        let slow = (self.config.slice / 4)
            .clamp(UNCONTENDED_POLL_INTERVAL_RANGE[0], UNCONTENDED_POLL_INTERVAL_RANGE[1]);
        u32::try_from(slow.as_micros()).unwrap_or(u32::MAX)
    }

    /// When there is something to be done without anything happening.
    fn deadline(&self) -> Option<Instant> {
        let gang = self.scheduler.deadline().map(|due| self.started_at + due);
        let pending_stalls = self.output_stalls.values().filter(|stall| !stall.is_suspended);
        pending_stalls.map(|stall| stall.stalled_at + OUTPUT_STALL_TIMEOUT).chain(gang).min()
    }

    /// Has the timer run out when it is time.
    pub fn set_timer(&mut self) {
        let due = self.deadline();
        // What has run out is set again, or it would be the same and be left.
        let now = Instant::now();
        if due != self.timer_deadline || due.is_some_and(|due| due <= now) {
            self.timer.set(due.map(|due| due.saturating_duration_since(now)));
            self.timer_deadline = due;
        }
    }

    /// When a job stops again that begins to run.
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

    /// What a bid is to the scheduler.
    fn to_gang_event(
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
            GangRequest::Hold(why) => gang::GangEvent::Hold(job, why),
            GangRequest::Release(why) => {
                if why == HoldReason::OutputBlocked {
                    // If it stays blocked that is found anew.
                    self.output_stalls.remove(&job);
                }
                gang::GangEvent::Release(job, why)
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
    /// Multi-user mode: jobs take turns on hosts with so many slots each.
    pub fn set_host_slots(&mut self, slots: BTreeMap<HostId, u32>) {
        let config = self.options.gang;
        (self.gang_driver.scheduler, self.gang_driver.config) =
            (GangScheduler::new(config, slots), config);
    }

    /// Where a job runs, as the gang scheduler sees it.
    pub fn host_allocations(&self, spec: &JobSpec) -> Vec<HostShare> {
        let Some(service) = &self.service else {
            return vec![HostShare { host: SINGLE_USER_HOST, procs: 1 }];
        };
        let allocation_on = |host: &HostSpec| {
            Some(HostShare { host: service.host_named(&host.name)?, procs: host.procs })
        };
        spec.hosts.iter().filter_map(allocation_on).collect()
    }

    /// A job wants something of the gang scheduler: when what its master does now is done.
    pub fn queue_gang_request(&mut self, job: JobId, request: GangRequest) {
        self.gang_driver.requests.push_back((job, request));
    }

    /// Carries out what jobs wanted.
    pub fn handle_gang_requests(&mut self) {
        while let Some((job, request)) = self.gang_driver.requests.pop_front() {
            let led_job = self.led_jobs.get(&job).filter(|_| request == GangRequest::Enter);
            let allocation = led_job.map(|led_job| (led_job.allocations.clone(), led_job.priority));
            if let Some(event) = self.gang_driver.to_gang_event(job, request, allocation) {
                self.step_gang(event);
            }
        }
    }

    /// Everything that is due by the clock, or because output is taken or not.
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
                        MasterEvent::Run { switch_seq, poll_interval_us, until: stop_condition },
                    );
                }
                gang::GangAction::StartRotation {
                    jobs,
                    switch_seq,
                    turns: turn_count,
                    length: slice,
                } => {
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
                                poll_interval_us,
                                until: stop_condition,
                            },
                        );
                    }
                }
                gang::GangAction::RotationEnded { jobs, turns: turn_count, since: start } => {
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

    /// Somebody waits for processors, or nobody does any more: those that run are looked at more
    /// often, or less.
    fn send_poll_interval(&mut self, poll_interval_us: u32) {
        for job in self.gang_driver.running.keys().copied().collect::<Vec<_>>() {
            let switch_seq = self.gang_driver.scheduler.next_switch_seq();
            self.step_master(
                Some(job),
                MasterEvent::Run { switch_seq, poll_interval_us, until: StopCondition::Unchanged },
            );
        }
    }

    /// Some host has not stopped a job in time.
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

    /// Suspends jobs whose output nobody takes, and resumes those where somebody does again.
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
}
