//! Stops that need no order: who begins to run and will not have the next slice is told when to
//! stop. An order would have to wake this daemon first, and then to travel; and hosts would stop
//! one after the other.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::choice::Room;
use super::super::{Action, Planned};
use super::{Gang, Job, Stage};
use crate::cluster::{JobId, Time};

/// How late such a stop may be before it is ordered.
pub(super) const GRACE: Duration = Duration::from_millis(2);

impl Gang {
    /// Says to jobs that begin to run when they stop, where that can be known; and to others what
    /// has become of that.
    pub(super) fn plan(&mut self, now: Time) {
        if self.rotation.is_some() {
            return;
        }
        let end = self.length.filter(|_| !self.switching).map(|length| self.began + length);
        let next = end.map(|end| self.next_row(end)).unwrap_or_default();
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| job.stage == Stage::Running) {
            let wanted = end.filter(|_| !next.contains(id));
            let begins = self.actions.iter_mut().find_map(|action| match action {
                Action::Run { job, stop, .. } if job == id => Some(stop),
                _ => None,
            });
            // Who runs already is not woken to hear what an order tells in time.
            if job.plan.map(|(_, end)| end) == wanted || (job.plan.is_none() && begins.is_none()) {
                continue;
            }
            job.plan = wanted.map(|end| {
                self.switch += 1;
                (self.switch, end)
            });
            let planned =
                |(switch, end): (u64, Time)| Planned { switch, after: end.saturating_sub(now) };
            let planned = job.plan.map(planned);
            match begins {
                Some(stop) => *stop = planned,
                None => {
                    self.switch += 1;
                    let (job, switch) = (*id, self.switch);
                    self.actions.push(Action::Run { job, switch, stop: planned });
                }
            }
        }
    }

    /// Who would have the next slice, if nothing happened until this one ends.
    fn next_row(&self, end: Time) -> BTreeSet<JobId> {
        let mut all: Vec<_> = self.jobs.iter().filter(|(_, job)| job.may_run()).collect();
        let used = |job: &Job| match job.stage {
            Stage::Running => job.used + end.saturating_sub(job.counted).as_nanos() * job.cost,
            _ => job.used,
        };
        all.sort_unstable_by_key(|(id, job)| (!job.new, used(job), **id));
        let (mut room, mut row) = (Room::free(&self.slots), BTreeSet::new());
        for (id, job) in all {
            if room.fits(&job.shares) {
                room.put(&job.shares);
                row.insert(*id);
            }
        }
        row
    }
}
