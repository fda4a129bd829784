//! Stops without an order. A job that begins to run and will not have the next slice gets the time
//! of its stop in advance. An order would first have to wake this daemon and would then take time
//! to arrive, and the hosts would stop one after the other.

use std::collections::BTreeSet;
use std::time::Duration;

use score_proto::ids::JobId;

use super::super::row_capacity::SlotUsage;
use super::super::{GangAction, TimedStop};
use super::{GangJob, GangScheduler, JobAge, JobState, PlannedStop};
use crate::cluster::MonotonicTime;

/// How late a timed stop may be before the scheduler orders it.
pub(super) const TIMED_STOP_GRACE: Duration = Duration::from_millis(2);

impl GangScheduler {
    /// Sends the time of their stop to jobs that begin to run, if it is known. Jobs that already
    /// run get an order if their stop has changed.
    pub(super) fn plan_stops(&mut self, now: MonotonicTime) {
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
            // A running job is not disturbed if an order can still stop it in time.
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
