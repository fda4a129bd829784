//! The state machine of the gang scheduler.

mod fair_share;
mod rotation;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use score_proto::ids::{HostId, JobId};
use score_proto::job_control::SwitchSeq;

use super::row_capacity::SlotUsage;
use super::{GangAction, GangConfig, GangEvent, HoldReason, LOWEST_PRIORITY, TimedStop};
use crate::cluster::{HostShare, MonotonicTime};
use rotation::Rotation;

/// How late a timed stop may be before the scheduler orders it.
const TIMED_STOP_GRACE: Duration = Duration::from_millis(2);

/// `1024 * 2^(p/2)`: the cost of one nanosecond for a job of priority p.
const PRIORITY_WEIGHTS: [u128; LOWEST_PRIORITY as usize + 1] = [
    1024, 1448, 2048, 2896, 4096, 5793, 8192, 11585, 16384, 23170, 32768, 46341, 65536, 92682,
    131_072, 185_364,
];

/// See the [module](super).
#[derive(Debug)]
pub struct GangScheduler {
    config: GangConfig,
    slots: BTreeMap<HostId, u32>,
    jobs: BTreeMap<JobId, GangJob>,
    /// The jobs of the current slice, including those that do not run yet.
    row: BTreeSet<JobId>,
    /// The time at which the slice began.
    slice_began_at: MonotonicTime,
    /// The length of the slice. None if no job waits for its end.
    slice_length: Option<Duration>,
    /// Some jobs of the row do not run yet.
    switching: bool,
    /// The part of the shared slice that each new job gets.
    newcomer_slice: Option<Duration>,
    /// The rotation. Its jobs are the row.
    rotation: Option<Rotation>,
    /// The number of slices that have ended as planned since the last disturbance.
    stable_slices: u32,
    last_switch_seq: SwitchSeq,
    actions: Vec<GangAction>,
}

#[derive(Debug)]
struct GangJob {
    shares: Vec<HostShare>,
    cost: u128,
    /// The time that the job has run, weighted by its cost.
    weighted_usage: u128,
    state: JobState,
    age: JobAge,
    hold_bits: u8,
    asleep_until: Option<MonotonicTime>,
    /// The job runs and has reported that it is idle.
    is_idle: bool,
    /// The job was idle at the end of its last slice.
    was_idle: bool,
    /// The job has given up this slice.
    yielded: bool,
}

#[derive(Debug, Clone, Copy)]
enum JobState {
    /// No process of the job runs.
    Stopped,
    Running(JobRun),
    /// The job is in a rotation with other jobs.
    InRotation,
    Stopping {
        switch_seq: SwitchSeq,
        deadline: MonotonicTime,
        cause: StopCause,
    },
}

#[derive(Debug, Clone, Copy)]
struct JobRun {
    /// The time at which its usage was last counted.
    counted_at: MonotonicTime,
    planned_stop: Option<PlannedStop>,
}

/// A stop for which the hosts have a timer.
#[derive(Debug, Clone, Copy)]
struct PlannedStop {
    switch_seq: SwitchSeq,
    at: MonotonicTime,
}

/// Why a job stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopCause {
    /// Other jobs get its processors next, or the job may not run.
    Row,
    /// The rotation was aborted. The job may already be stopped. It is not resumed if it does not
    /// stop.
    RotationAborted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobAge {
    /// The job has not had a slice yet, or shares its first slice with other new jobs.
    Newcomer,
    /// The current slice is the job's first slice.
    FirstSlice,
    Settled,
}

impl JobState {
    /// A job that begins to run.
    fn begin_running(now: MonotonicTime) -> Self {
        Self::Running(JobRun { counted_at: now, planned_stop: None })
    }
}

impl GangJob {
    fn holds_slots(&self) -> bool {
        !self.is_stopped()
    }

    fn is_stopped(&self) -> bool {
        matches!(self.state, JobState::Stopped)
    }

    fn is_running(&self) -> bool {
        matches!(self.state, JobState::Running(_))
    }

    fn planned_stop(&self) -> Option<PlannedStop> {
        match self.state {
            JobState::Running(run) => run.planned_stop,
            _ => None,
        }
    }

    /// The job has a slice now. The slice counts as its first slice if other jobs have to wait for
    /// it.
    fn begin_slice(&mut self, others_wait: bool) {
        let is_first = self.age == JobAge::Newcomer && others_wait;
        self.age = if is_first { JobAge::FirstSlice } else { JobAge::Settled };
    }

    /// Whether the job may be in a row.
    fn may_run(&self) -> bool {
        self.hold_bits == 0 && self.asleep_until.is_none()
    }

    /// Whether the job does not need its processors.
    fn can_yield(&self) -> bool {
        self.is_idle && !self.yielded && self.is_running()
    }

    fn charge_usage(&mut self, now: MonotonicTime) {
        // The time in which the job stops does not count: the job is not responsible for a slow
        // host.
        if let JobState::Running(run) = &mut self.state {
            self.weighted_usage += now.saturating_sub(run.counted_at).as_nanos() * self.cost;
            run.counted_at = now;
        }
    }
}

impl GangScheduler {
    /// A scheduler for hosts with these numbers of slots.
    pub fn new(config: GangConfig, slots: BTreeMap<HostId, u32>) -> Self {
        Self {
            config,
            slots,
            jobs: BTreeMap::new(),
            row: BTreeSet::new(),
            slice_began_at: MonotonicTime::ZERO,
            slice_length: None,
            switching: false,
            newcomer_slice: None,
            rotation: None,
            stable_slices: 0,
            last_switch_seq: SwitchSeq::NONE,
            actions: Vec::new(),
        }
    }

    /// Handles an event. `now` never decreases.
    pub fn on(&mut self, event: GangEvent, now: MonotonicTime) -> Vec<GangAction> {
        let rotation_aborted = self.interrupt(&event, now);
        match event {
            GangEvent::Enter { job, shares, priority } => self.on_enter(job, shares, priority, now),
            GangEvent::Leave(job) => self.on_leave(job, now),
            GangEvent::Stopped { job, switch_seq } => self.on_stopped(job, switch_seq, now),
            GangEvent::Idle(job) => self.on_idle(job, now),
            GangEvent::Busy(job) => self.update_job(job, |job| job.is_idle = false),
            GangEvent::Yield(job) => self.yield_slice(job, now),
            GangEvent::Sleep(job, until) => self.on_sleep(job, until, now),
            GangEvent::Hold(job, reason) => self.on_hold(job, reason, now),
            GangEvent::Release(job, reason) => self.on_release(job, reason, now),
            GangEvent::Tick => self.on_tick(now),
        }
        if rotation_aborted {
            self.refill_row(now);
        }
        self.start_rotation(now);
        self.plan_stops(now);
        std::mem::take(&mut self.actions)
    }

    /// When the next `Tick` is due at the latest. Query it after each event.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        let rotation_end = self.rotation.as_ref().map(Rotation::deadline);
        let is_planned = self.jobs.values().any(|job| job.planned_stop().is_some());
        let grace = if is_planned { TIMED_STOP_GRACE } else { Duration::ZERO };
        let slice_end = self.slice_length.map(|length| self.slice_began_at + length + grace);
        let next_slice_end = rotation_end.or(slice_end);
        let idle_grace = self.idle_grace();
        let of_jobs = self.jobs.values().flat_map(|job| {
            let stop_deadline = match job.state {
                JobState::Stopping { deadline, .. } => Some(deadline),
                _ => None,
            };
            let idle_deadline = idle_grace
                .filter(|_| job.can_yield())
                .map(|idle_grace| self.slice_began_at + idle_grace);
            [stop_deadline, job.asleep_until, idle_deadline].into_iter().flatten()
        });
        next_slice_end.into_iter().chain(of_jobs).min()
    }

    /// Whether a job waits for processors.
    pub fn is_contended(&self) -> bool {
        self.slice_length.is_some()
    }

    /// The jobs that have their processors, in ascending order. For a rotation, only the first job.
    pub fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        let first = self.rotation.as_ref().map(Rotation::first);
        let runs = move |(id, job): &(&JobId, &GangJob)| match job.state {
            JobState::InRotation => Some(**id) == first,
            _ => job.holds_slots(),
        };
        self.jobs.iter().filter(runs).map(|(id, _)| *id)
    }

    /// Whether a job is suspended: by its user or a debugger, or because its output is blocked.
    pub fn is_suspended(&self, id: JobId) -> bool {
        let reasons = [
            HoldReason::User,
            HoldReason::OutputBlocked,
            HoldReason::HeldStage,
            HoldReason::Debugger,
        ];
        let suspended_bits = reasons.into_iter().map(hold_bit).fold(0, std::ops::BitOr::bitor);
        self.jobs.get(&id).is_some_and(|job| job.hold_bits & suspended_bits != 0)
    }

    fn update_job(&mut self, job: JobId, change: impl FnOnce(&mut GangJob)) {
        if let Some(job) = self.jobs.get_mut(&job) {
            change(job);
        }
    }

    fn on_enter(&mut self, id: JobId, shares: Vec<HostShare>, priority: u8, now: MonotonicTime) {
        if self.jobs.contains_key(&id) {
            return;
        }
        self.charge_all(now);
        self.rebase_usage(&shares);
        let job = GangJob {
            shares,
            cost: PRIORITY_WEIGHTS[usize::from(priority.min(LOWEST_PRIORITY))],
            weighted_usage: 0,
            state: JobState::Stopped,
            age: JobAge::Newcomer,
            hold_bits: 0,
            asleep_until: None,
            is_idle: false,
            was_idle: false,
            yielded: false,
        };
        self.jobs.insert(id, job);
        self.refill_row(now);
        if !self.row.contains(&id) && self.slice_length.is_some() {
            // The job gets the next slice, which begins as soon as this one has reached its
            // minimum. Jobs that are in their first slice share it with the new job.
            (self.slice_length, self.newcomer_slice) = (Some(self.config.min_slice), None);
            for id in self.row.clone() {
                self.update_job(id, |job| {
                    if job.age == JobAge::FirstSlice {
                        job.age = JobAge::Newcomer;
                    }
                });
            }
        }
        self.end_slice_if_over(now);
    }

    fn on_leave(&mut self, job: JobId, now: MonotonicTime) {
        self.charge_all(now);
        if self.jobs.remove(&job).is_some() {
            self.row.remove(&job);
            self.refill_row(now);
        }
    }

    fn on_stopped(&mut self, id: JobId, switch_seq: SwitchSeq, now: MonotonicTime) {
        if self.rotation.as_ref().is_some_and(|rotation| rotation.ends_with(id, switch_seq)) {
            return self.on_rotation_end(switch_seq, now);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.state {
            JobState::Stopping { switch_seq: expected_seq, .. } if expected_seq == switch_seq => {}
            JobState::Running(JobRun { planned_stop: Some(stop), .. })
                if stop.switch_seq == switch_seq =>
            {
                return self.on_timed_stop(id, now);
            }
            _ => return,
        }
        (job.state, job.is_idle) = (JobState::Stopped, false);
        if job.hold_bits != 0 {
            self.actions.push(GangAction::Held(id));
        }
        self.refill_row(now);
    }

    /// A job has stopped by its timer: it has had a whole slice, even if other clocks differ.
    fn on_timed_stop(&mut self, id: JobId, now: MonotonicTime) {
        self.charge_all(now);
        self.stable_slices += 1;
        self.update_job(id, |job| job.state = JobState::Stopped);
        self.slice_length =
            self.slice_length.map(|length| length.min(now.saturating_sub(self.slice_began_at)));
        self.end_slice_if_over(now);
        // This follows the end of the slice, which records whether the job was idle.
        self.update_job(id, |job| job.is_idle = false);
    }

    fn on_idle(&mut self, id: JobId, now: MonotonicTime) {
        self.update_job(id, |job| job.is_idle = job.is_running());
        self.on_tick(now);
    }

    /// The time that an idle job keeps its processors; None if no job waits for processors.
    fn idle_grace(&self) -> Option<Duration> {
        self.slice_length?;
        let mut waiting =
            self.jobs.iter().filter(|(id, job)| job.may_run() && !self.row.contains(id));
        let others_busy = waiting.any(|(_, job)| !job.was_idle);
        Some(if others_busy { Duration::ZERO } else { self.config.idle_grace })
    }

    fn yield_slice(&mut self, id: JobId, now: MonotonicTime) {
        let slice = self.slice_length;
        let remaining = slice
            .map_or(Duration::ZERO, |length| (self.slice_began_at + length).saturating_sub(now));
        self.charge_all(now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.is_running() && !job.yielded && slice.is_some() {
            job.weighted_usage += remaining.as_nanos() * job.cost;
            job.yielded = true;
            self.refill_row(now);
        }
    }

    fn on_sleep(&mut self, id: JobId, until: MonotonicTime, now: MonotonicTime) {
        self.charge_all(now);
        self.update_job(id, |job| job.asleep_until = job.asleep_until.max(Some(until)));
        self.refill_row(now);
    }

    fn on_hold(&mut self, id: JobId, reason: HoldReason, now: MonotonicTime) {
        self.charge_all(now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.hold_bits |= hold_bit(reason);
        if job.is_stopped() {
            self.actions.push(GangAction::Held(id));
        }
        self.refill_row(now);
    }

    fn on_release(&mut self, id: JobId, reason: HoldReason, now: MonotonicTime) {
        self.charge_all(now);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.hold_bits & hold_bit(reason) != 0)
        else {
            return;
        };
        job.hold_bits &= !hold_bit(reason);
        if job.hold_bits == 0 {
            self.clamp_credit(id);
            self.refill_row(now);
        }
    }

    fn on_tick(&mut self, now: MonotonicTime) {
        self.charge_all(now);
        let late_jobs = self.jobs_where(|job| is_late(job, now));
        let woken_jobs = self.jobs_where(|job| job.asleep_until.is_some_and(|end| end <= now));
        for &id in &woken_jobs {
            self.update_job(id, |job| job.asleep_until = None);
            self.clamp_credit(id);
        }
        if !late_jobs.is_empty() {
            self.resume_late(&late_jobs, now);
        } else if !woken_jobs.is_empty() {
            self.refill_row(now);
        }
        if self.idle_grace().is_some_and(|idle_grace| self.slice_began_at + idle_grace <= now) {
            for id in self.jobs_where(GangJob::can_yield) {
                self.update_job(id, |job| job.was_idle = true);
                self.yield_slice(id, now);
            }
        }
        self.end_slice_if_over(now);
    }

    fn jobs_where(&self, predicate: impl Fn(&GangJob) -> bool) -> Vec<JobId> {
        self.jobs.iter().filter(|(_, job)| predicate(job)).map(|(id, _)| *id).collect()
    }

    /// A host has not stopped its part of these jobs. These jobs get another slice. But a held job,
    /// and each job of an aborted rotation, still has to stop: one job of the rotation may run.
    fn resume_late(&mut self, late_jobs: &[JobId], now: MonotonicTime) {
        self.stable_slices = 0;
        let deadline = now + self.config.stop_timeout;
        for &id in late_jobs {
            self.actions.push(GangAction::StopTimedOut(id));
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let may_run = job.may_run();
            let JobState::Stopping { deadline: old_deadline, cause, .. } = &mut job.state else {
                continue;
            };
            if may_run && *cause == StopCause::Row {
                job.state = JobState::begin_running(now);
                self.actions.push(GangAction::Run { job: id, stop: None });
            } else {
                *old_deadline = deadline;
            }
        }
        self.row = self.jobs_where(GangJob::is_running).into_iter().collect();
        (self.slice_began_at, self.slice_length) = (now, Some(self.config.slice));
        self.apply_row(now);
    }

    fn end_slice_if_over(&mut self, now: MonotonicTime) {
        if self.rotation.is_none()
            && self.slice_length.is_some_and(|length| self.slice_began_at + length <= now)
        {
            for job in self.jobs.values_mut() {
                job.yielded = false;
            }
            for id in std::mem::take(&mut self.row) {
                self.update_job(id, |job| {
                    job.was_idle = job.is_idle;
                    if job.age == JobAge::FirstSlice {
                        job.age = JobAge::Settled;
                    }
                });
            }
            self.cap_debt();
            self.complete_row(now);
        }
    }

    /// Keeps the jobs of the row that may stay, and fills the free slots with other jobs.
    fn refill_row(&mut self, now: MonotonicTime) {
        let jobs = &self.jobs;
        self.row.retain(|id| jobs.get(id).is_some_and(|job| job.may_run() && !job.yielded));
        self.complete_row(now);
    }

    fn charge_all(&mut self, now: MonotonicTime) {
        for job in self.jobs.values_mut() {
            job.charge_usage(now);
        }
    }

    /// Completes the row and starts to apply it.
    fn complete_row(&mut self, now: MonotonicTime) {
        let had_jobs = !self.row.is_empty();
        let mut slot_usage = SlotUsage::empty(&self.slots);
        for id in &self.row {
            slot_usage.add(&self.jobs[id].shares);
        }
        let waiting = self.jobs.iter().filter(|(id, job)| job.may_run() && !self.row.contains(id));
        let mut waiting: Vec<_> = waiting
            .map(|(id, job)| (job.yielded, job.age != JobAge::Newcomer, job.weighted_usage, *id))
            .collect();
        waiting.sort_unstable();
        let newcomers = waiting.iter().filter(|(_, old, ..)| !old).count() as u32;
        self.newcomer_slice = match newcomers {
            0 => None,
            count => self.newcomer_slice.or(Some(self.config.slice / count)),
        };
        let (mut left_out, mut first_slice) = (false, false);
        for (_, old, _, id) in waiting {
            let shares = &self.jobs[&id].shares;
            if slot_usage.fits(shares) {
                slot_usage.add(shares);
                self.row.insert(id);
                first_slice |= !old;
            } else {
                left_out = true;
            }
        }
        if !left_out {
            self.slice_length = None;
        } else if !had_jobs || self.slice_length.is_none() {
            let length = self.newcomer_slice.filter(|_| first_slice).unwrap_or(self.config.slice);
            self.slice_length = Some(length.max(self.config.min_slice));
            (self.slice_began_at, self.switching) = (now, true);
        } else {
            return self.apply_row(now);
        }
        // Jobs that continue to run also have this slice.
        for id in self.row.clone() {
            self.update_job(id, |job| {
                if job.is_running() {
                    job.begin_slice(left_out);
                }
            });
        }
        self.apply_row(now);
    }

    /// Stops the jobs that are not in the row. Runs the jobs of the row whose processors are free.
    fn apply_row(&mut self, now: MonotonicTime) {
        let deadline = now + self.config.stop_timeout;
        for (id, job) in &mut self.jobs {
            let JobState::Running(JobRun { planned_stop, .. }) = job.state else { continue };
            if !self.row.contains(id) {
                let switch_seq =
                    planned_stop.map_or(self.last_switch_seq + 1, |stop| stop.switch_seq);
                self.last_switch_seq = self.last_switch_seq.max(switch_seq);
                job.state = JobState::Stopping { switch_seq, deadline, cause: StopCause::Row };
                // If the planned time has come, the job is about to stop or has stopped, and needs
                // no order.
                if planned_stop
                    .is_none_or(|stop| now < stop.at || stop.at + TIMED_STOP_GRACE <= now)
                {
                    self.actions.push(GangAction::Stop { job: *id, switch_seq });
                }
            }
        }
        let mut slot_usage = SlotUsage::empty(&self.slots);
        for job in self.jobs.values().filter(|job| job.holds_slots()) {
            slot_usage.add(&job.shares);
        }
        for id in &self.row {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            if job.is_stopped() && slot_usage.fits(&job.shares) {
                slot_usage.add(&job.shares);
                (job.state, job.is_idle) = (JobState::begin_running(now), false);
                job.begin_slice(self.slice_length.is_some());
                self.actions.push(GangAction::Run { job: *id, stop: None });
            }
        }
        if self.switching && self.row.iter().all(|id| self.jobs[id].is_running()) {
            // The length of a slice is measured from the time at which its last job runs.
            (self.slice_began_at, self.switching) = (now, false);
        }
    }

    /// Plans stops without an order. A job that begins to run and will not have the next slice gets
    /// the time of its stop in advance. An order would first have to wake this daemon, would then
    /// take time to arrive, and the hosts would stop one after the other. Jobs that already run get
    /// an order if their stop has changed.
    fn plan_stops(&mut self, now: MonotonicTime) {
        if self.rotation.is_some() {
            return;
        }
        let end = self
            .slice_length
            .filter(|_| !self.switching)
            .map(|length| self.slice_began_at + length);
        let next = end.map(|end| self.next_row(end)).unwrap_or_default();
        for (id, job) in &mut self.jobs {
            let JobState::Running(run) = &mut job.state else { continue };
            let stop_at = end.filter(|_| !next.contains(id));
            let pending_run_stop = self.actions.iter_mut().find_map(|action| match action {
                GangAction::Run { job, stop } if job == id => Some(stop),
                _ => None,
            });
            // A running job gets no new order now if a later order can still stop it in time.
            if run.planned_stop.map(|stop| stop.at) == stop_at
                || (run.planned_stop.is_none() && pending_run_stop.is_none())
            {
                continue;
            }
            run.planned_stop = stop_at.map(|at| {
                self.last_switch_seq += 1;
                PlannedStop { switch_seq: self.last_switch_seq, at }
            });
            let to_timed_stop = |PlannedStop { switch_seq, at }| TimedStop {
                switch_seq,
                after: at.saturating_sub(now),
            };
            let timed_stop = run.planned_stop.map(to_timed_stop);
            match pending_run_stop {
                Some(stop) => *stop = timed_stop,
                None => {
                    self.actions.push(GangAction::Run { job: *id, stop: timed_stop });
                }
            }
        }
    }

    /// The jobs of the next slice, if no event occurs before the end of this slice.
    fn next_row(&self, end: MonotonicTime) -> BTreeSet<JobId> {
        let mut runnable: Vec<_> = self.jobs.iter().filter(|(_, job)| job.may_run()).collect();
        let projected_usage = |job: &GangJob| match job.state {
            JobState::Running(run) => {
                job.weighted_usage + end.saturating_sub(run.counted_at).as_nanos() * job.cost
            }
            _ => job.weighted_usage,
        };
        runnable.sort_unstable_by_key(|(id, job)| {
            (job.age != JobAge::Newcomer, projected_usage(job), **id)
        });
        let (mut slot_usage, mut row) = (SlotUsage::empty(&self.slots), BTreeSet::new());
        for (id, job) in runnable {
            if slot_usage.fits(&job.shares) {
                slot_usage.add(&job.shares);
                row.insert(*id);
            }
        }
        row
    }
}

fn is_late(job: &GangJob, now: MonotonicTime) -> bool {
    matches!(job.state, JobState::Stopping { deadline, .. } if deadline <= now)
}

fn hold_bit(reason: HoldReason) -> u8 {
    1 << reason as u8
}
