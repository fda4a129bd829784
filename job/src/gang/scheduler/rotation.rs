//! Turns that need no decision: equivalent jobs on one host rotate on that host for some time
//! without orders of the scheduler. An event that may change the plan first ends the rotation.

use std::ops::Range;
use std::time::Duration;

use score_proto::ids::JobId;
use score_proto::job_control::SwitchSeq;

use super::super::row_capacity::SlotUsage;
use super::super::{GangAction, GangEvent};
use super::{GangJob, GangScheduler, JobAge, JobState, StopCause, is_late};
use crate::cluster::MonotonicTime;

/// The length of a rotation, after which the scheduler decides again.
const ROTATION_WINDOW: Duration = Duration::from_millis(500);
/// The number of slices that have to end as planned before a rotation starts. If jobs are often
/// interrupted, no rotation starts.
const STABLE_SLICES: u32 = 4;
/// The largest number of jobs in a rotation.
const MAX_ROTATION_JOBS: usize = 8;

/// A rotation in progress.
#[derive(Debug)]
pub(super) struct Rotation {
    jobs: Vec<JobId>,
    /// The numbers of the stops that end the turns.
    switch_seqs: Range<SwitchSeq>,
    began_at: MonotonicTime,
}

impl Rotation {
    /// The job of the first turn.
    pub(super) fn first(&self) -> JobId {
        self.jobs[0]
    }

    /// When the scheduler aborts the rotation if its end was not reported.
    pub(super) fn deadline(&self) -> MonotonicTime {
        self.began_at + 2 * ROTATION_WINDOW
    }

    /// Whether this stop ends the rotation.
    pub(super) fn ends_with(&self, job: JobId, switch_seq: SwitchSeq) -> bool {
        self.jobs.contains(&job) && self.switch_seqs.contains(&switch_seq)
    }

    /// The time that the job at this position has had after `elapsed`, by the clock. The small
    /// delays of single turns are ignored: a few turns are hardly late, and after many turns a part
    /// of one does not matter.
    fn run_time_of(&self, position: u128, elapsed: u128, slice: u128) -> u128 {
        let job_count = self.jobs.len() as u128;
        let (turns, remainder) = (elapsed / slice, elapsed % slice);
        let complete_turns = (turns + job_count - 1 - position) / job_count * slice;
        if turns % job_count == position { complete_turns + remainder } else { complete_turns }
    }

    /// The action for a rotation that has ended after this many turns.
    fn ended_action(&self, turns: u64) -> GangAction {
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        GangAction::RotationEnded {
            jobs: self.jobs.clone(),
            turn_count: turns,
            since: self.began_at,
        }
    }
}

impl GangJob {
    /// Whether the usage of the job alone decides whether the job is in the next row.
    fn is_undisturbed(&self) -> bool {
        self.age == JobAge::Settled && !(self.is_idle || self.was_idle || self.yielded)
    }

    fn is_equivalent(&self, other: &GangJob) -> bool {
        self.cost == other.cost && self.shares.len() == 1 && {
            other.shares.len() == 1 && self.shares[0].host == other.shares[0].host
        }
    }
}

impl GangScheduler {
    /// Handles an event before the scheduler does. Returns whether the jobs of a rotation are
    /// stopped because of the event. If so, the row has to be filled again.
    pub(super) fn interrupt(&mut self, event: &GangEvent, now: MonotonicTime) -> bool {
        let is_disturbance = match event {
            GangEvent::Stopped { .. } | GangEvent::Busy(_) => false,
            GangEvent::Tick => self
                .jobs
                .values()
                .any(|job| job.asleep_until.is_some_and(|until| until <= now) || is_late(job, now)),
            _ => true,
        };
        if is_disturbance {
            self.stable_slices = 0;
        }
        let ends = |rotation: &mut Rotation| is_disturbance || rotation.deadline() <= now;
        let Some(rotation) = self.rotation.take_if(ends) else { return false };
        self.abort_rotation(&rotation, event, now);
        true
    }

    /// Stops all jobs of the rotation. One of them runs, but the scheduler cannot determine which.
    fn abort_rotation(&mut self, rotation: &Rotation, event: &GangEvent, now: MonotonicTime) {
        self.stable_slices = 0;
        let (slice, elapsed) = (self.slice_ns(), now.saturating_sub(rotation.began_at).as_nanos());
        for (id, position) in rotation.jobs.iter().zip(0..) {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            self.last_switch_seq += 1;
            let (switch_seq, deadline) = (self.last_switch_seq, now + self.config.stop_timeout);
            let cause = StopCause::RotationAborted;
            job.state = JobState::Stopping { switch_seq, deadline, cause };
            job.weighted_usage += rotation.run_time_of(position, elapsed, slice) * job.cost;
            match event {
                // The job has ended.
                GangEvent::Leave(leaver) if leaver == id => continue,
                // The event concerns the job of the current turn. The whole turn is charged to it.
                GangEvent::Idle(yielder) | GangEvent::Yield(yielder) if yielder == id => {
                    job.weighted_usage += (slice - elapsed % slice) * job.cost;
                    (job.yielded, job.was_idle) = (true, matches!(event, GangEvent::Idle(_)));
                }
                _ => {}
            }
            self.actions.push(GangAction::Stop { job: *id, switch_seq });
        }
        let turns = u64::try_from(elapsed / slice + 1).unwrap_or(u64::MAX);
        self.actions.push(rotation.ended_action(turns));
        self.row.clear();
        (self.slice_length, self.switching) = (None, false);
    }

    /// The host has ended the rotation. None of its jobs runs.
    pub(super) fn on_rotation_end(&mut self, switch_seq: SwitchSeq, now: MonotonicTime) {
        let Some(rotation) = self.rotation.take() else { return };
        let turns = switch_seq - rotation.switch_seqs.start + 1;
        let (slice, elapsed) = (self.slice_ns(), u128::from(turns) * self.slice_ns());
        for (id, position) in rotation.jobs.iter().zip(0..) {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            job.state = JobState::Stopped;
            job.weighted_usage += rotation.run_time_of(position, elapsed, slice) * job.cost;
        }
        self.actions.push(rotation.ended_action(turns));
        self.row.clear();
        self.cap_debt();
        self.complete_row(now);
    }

    fn slice_ns(&self) -> u128 {
        self.config.slice.as_nanos().max(1)
    }

    /// Starts a rotation if the slice that begins can be the first of several turns.
    pub(super) fn start_rotation(&mut self, now: MonotonicTime) {
        let Some(jobs) = self.rotation_candidates() else { return };
        let slice = self.config.slice;
        let rounds = ROTATION_WINDOW.as_nanos() / self.slice_ns() / jobs.len() as u128;
        let turns = u32::try_from(rounds).unwrap_or(0).saturating_mul(jobs.len() as u32);
        if rounds < 2 {
            return;
        }
        let switch_seqs = self.last_switch_seq + 1..self.last_switch_seq + 1 + u64::from(turns);
        self.last_switch_seq = switch_seqs.end;
        for id in &jobs {
            self.update_job(*id, |job| job.state = JobState::InRotation);
        }
        self.row = jobs.iter().copied().collect();
        self.actions.retain(|action| !matches!(action, GangAction::Run { .. }));
        let (switch_seq, length) = (switch_seqs.start, slice);
        self.actions.push(GangAction::StartRotation {
            jobs: jobs.clone(),
            switch_seq,
            turn_count: turns,
            slice: length,
        });
        self.rotation = Some(Rotation { jobs, switch_seqs, began_at: now });
    }

    /// The jobs that may rotate, beginning with the job that starts to run now.
    fn rotation_candidates(&self) -> Option<Vec<JobId>> {
        let is_stable =
            self.rotation.is_none() && self.stable_slices >= STABLE_SLICES && !self.switching;
        if !is_stable || self.slice_length != Some(self.config.slice) || self.row.len() != 1 {
            return None;
        }
        let first = self.row.first()?;
        let begins =
            |action: &GangAction| matches!(action, GangAction::Run { job, .. } if job == first);
        if !self.actions.iter().any(begins) {
            return None;
        }
        let first_job = &self.jobs[first];
        let others = self.jobs.iter().filter(|(id, _)| *id != first);
        if others.clone().any(|(_, job)| job.holds_slots()) {
            return None;
        }
        let mut others: Vec<_> = others
            .filter(|(_, job)| job.may_run())
            .map(|(id, job)| (job.weighted_usage, *id))
            .collect();
        others.sort_unstable();
        let jobs: Vec<JobId> =
            [*first].into_iter().chain(others.iter().map(|(_, id)| *id)).collect();
        // A job that has used less than the other jobs gets ordinary slices first.
        let max_usage = first_job.weighted_usage.max(others.last()?.0);
        let min_usage = first_job.weighted_usage.min(others[0].0);
        let is_even = max_usage - min_usage <= 2 * self.slice_ns() * first_job.cost;
        let is_equivalent =
            |id: &JobId| self.jobs[id].is_undisturbed() && self.jobs[id].is_equivalent(first_job);
        (is_even
            && jobs.len() <= MAX_ROTATION_JOBS
            && jobs.iter().all(is_equivalent)
            && self.are_mutually_exclusive(&jobs))
        .then_some(jobs)
    }

    /// Whether no two of the jobs fit at the same time.
    fn are_mutually_exclusive(&self, jobs: &[JobId]) -> bool {
        jobs.iter().enumerate().all(|(index, id)| {
            let mut slot_usage = SlotUsage::empty(&self.slots);
            slot_usage.add(&self.jobs[id].shares);
            jobs[index + 1..].iter().all(|other| !slot_usage.fits(&self.jobs[other].shares))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_rotation_is_charged_to_its_jobs_by_turns() {
        let slice = 10;
        for job_count in 1..=4 {
            let jobs = (1..=job_count).map(JobId).collect();
            let switch_seqs = SwitchSeq(5)..SwitchSeq(45);
            let rotation = Rotation { jobs, switch_seqs, began_at: MonotonicTime::ZERO };
            let mut expected = vec![0; job_count as usize];
            for elapsed in 0..200 {
                let actual: Vec<_> = (0..u128::from(job_count))
                    .map(|position| rotation.run_time_of(position, elapsed, slice))
                    .collect();
                assert_eq!(actual, expected, "{job_count} jobs, {elapsed}");
                expected[(elapsed / slice) as usize % job_count as usize] += 1;
            }
        }
    }

    #[test]
    fn a_rotation_ends_with_any_stop_of_its_jobs_and_turns() {
        let jobs = vec![JobId(4), JobId(2)];
        let switch_seqs = SwitchSeq(5)..SwitchSeq(45);
        let rotation = Rotation { jobs, switch_seqs, began_at: MonotonicTime::ZERO };
        assert_eq!(rotation.first(), JobId(4));
        for (job, switch_seq, ends) in
            [(2, 5, true), (4, 44, true), (2, 4, false), (4, 45, false), (3, 5, false)]
        {
            let found = rotation.ends_with(JobId(job), SwitchSeq(switch_seq));
            assert_eq!(found, ends, "{job} {switch_seq}");
        }
    }
}
