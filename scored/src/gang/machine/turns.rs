//! Turns that need no decision: jobs that are equals on one host follow one another there for a
//! while, and this machine is not asked in between. What happens meanwhile ends that first.

use std::ops::Range;
use std::time::Duration;

use super::super::choice::Room;
use super::super::{Action, Event};
use super::{Gang, Job, Stage, is_late};
use crate::cluster::{JobId, Time};

/// How long jobs take turns before it is decided anew.
const LEASE: Duration = Duration::from_millis(500);
/// So many slices have to end as planned first: who is interrupted all the time does not begin.
const CALM: u32 = 4;
/// Jobs that take turns with one another, at most.
const MOST: usize = 8;

/// Jobs that take turns.
#[derive(Debug)]
pub(super) struct Rotation {
    jobs: Vec<JobId>,
    /// The numbers by which their turns end.
    switches: Range<u64>,
    began: Time,
}

impl Rotation {
    /// Who began.
    pub(super) fn first(&self) -> JobId {
        self.jobs[0]
    }

    /// When they should have long been through.
    pub(super) fn due(&self) -> Time {
        self.began + 2 * LEASE
    }

    /// Whether their host goes no further after this stop.
    pub(super) fn ends_with(&self, job: JobId, switch: u64) -> bool {
        self.jobs.contains(&job) && self.switches.contains(&switch)
    }

    /// Time that the job at this place had when so much had passed. By the clock: a few turns last
    /// little longer than they should, and after many a part of one does not matter.
    fn had(&self, at: u128, passed: u128, slice: u128) -> u128 {
        let several = self.jobs.len() as u128;
        let (turns, rest) = (passed / slice, passed % slice);
        let whole = (turns + several - 1 - at) / several * slice;
        if turns % several == at { whole + rest } else { whole }
    }

    /// That so many turns have been.
    fn told(&self, turns: u64) -> Action {
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        Action::Turned { jobs: self.jobs.clone(), turns, since: self.began }
    }
}

impl Job {
    /// Whether nothing is to be minded about it but its time.
    fn is_calm(&self) -> bool {
        !(self.new || self.first || self.idle || self.was_idle || self.gave_up)
    }

    fn is_equal(&self, other: &Job) -> bool {
        self.cost == other.cost && self.shares.len() == 1 && {
            other.shares.len() == 1 && self.shares[0].host == other.shares[0].host
        }
    }
}

impl Gang {
    /// Something is about to happen. Whether jobs that take turns are stopped for it: the row has
    /// to be filled anew then.
    pub(super) fn interrupt(&mut self, event: &Event, now: Time) -> bool {
        let is_news = match event {
            Event::Stopped { .. } | Event::Busy(_) => false,
            Event::Tick => self
                .jobs
                .values()
                .any(|job| job.asleep.is_some_and(|until| until <= now) || is_late(job, now)),
            _ => true,
        };
        if is_news {
            self.calm = 0;
        }
        let ends = |rotation: &mut Rotation| is_news || rotation.due() <= now;
        let Some(rotation) = self.rotation.take_if(ends) else { return false };
        self.recall(&rotation, event, now);
        true
    }

    /// Stops all that take turns: one of them runs, and only their host knows which.
    fn recall(&mut self, rotation: &Rotation, event: &Event, now: Time) {
        self.calm = 0;
        let (slice, passed) = (self.slice_ns(), now.saturating_sub(rotation.began).as_nanos());
        for (id, at) in rotation.jobs.iter().zip(0..) {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            self.switch += 1;
            let (switch, due) = (self.switch, now + self.setting.patience);
            (job.stage, job.recalled) = (Stage::Stopping { switch, due }, true);
            (job.used, job.counted) = (job.used + rotation.had(at, passed, slice) * job.cost, now);
            match event {
                // It has ended.
                Event::Leave(leaver) if leaver == id => continue,
                // It was its turn, and is counted as a whole one.
                Event::Idle(giver) | Event::Yield(giver) if giver == id => {
                    job.used += (slice - passed % slice) * job.cost;
                    (job.gave_up, job.was_idle) = (true, matches!(event, Event::Idle(_)));
                }
                _ => {}
            }
            self.actions.push(Action::Stop { job: *id, switch, lasting: false });
        }
        let turns = u64::try_from(passed / slice + 1).unwrap_or(u64::MAX);
        self.actions.push(rotation.told(turns));
        self.row.clear();
        (self.length, self.switching) = (None, false);
    }

    /// Their host goes no further: nobody runs.
    pub(super) fn came_round(&mut self, number: u64, now: Time) {
        let Some(rotation) = self.rotation.take() else { return };
        let turns = number - rotation.switches.start + 1;
        let (slice, passed) = (self.slice_ns(), u128::from(turns) * self.slice_ns());
        for (id, at) in rotation.jobs.iter().zip(0..) {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            (job.stage, job.counted) = (Stage::Stopped, now);
            job.used += rotation.had(at, passed, slice) * job.cost;
        }
        self.actions.push(rotation.told(turns));
        self.row.clear();
        self.forgive();
        self.choose(now);
    }

    fn slice_ns(&self) -> u128 {
        self.setting.slice.as_nanos().max(1)
    }

    /// Where a slice begins that could as well be the first of several turns it becomes that.
    pub(super) fn begin_turns(&mut self, now: Time) {
        let Some(jobs) = self.equals() else { return };
        let slice = self.setting.slice;
        let rounds = LEASE.as_nanos() / self.slice_ns() / jobs.len() as u128;
        let turns = u32::try_from(rounds).unwrap_or(0).saturating_mul(jobs.len() as u32);
        if rounds < 2 {
            return;
        }
        let switches = self.switch + 1..self.switch + 1 + u64::from(turns);
        self.switch = switches.end;
        for id in &jobs {
            self.with(*id, |job| job.stage = Stage::Turning);
        }
        self.row = jobs.iter().copied().collect();
        self.actions.retain(|action| !matches!(action, Action::Run { .. } | Action::Row(_)));
        let (switch, length) = (switches.start, slice);
        self.actions.push(Action::Turns { jobs: jobs.clone(), switch, turns, length });
        self.actions.push(Action::Row(jobs.clone()));
        self.rotation = Some(Rotation { jobs, switches, began: now });
    }

    /// The jobs that may take turns, the one first that begins to run right now.
    fn equals(&self) -> Option<Vec<JobId>> {
        let is_time = self.rotation.is_none() && self.calm >= CALM && !self.switching;
        if !is_time || self.length != Some(self.setting.slice) || self.row.len() != 1 {
            return None;
        }
        let first = self.row.first()?;
        let begins = |action: &Action| matches!(action, Action::Run { job, .. } if job == first);
        if !self.actions.iter().any(begins) {
            return None;
        }
        let one = &self.jobs[first];
        let others = self.jobs.iter().filter(|(id, _)| *id != first);
        if others.clone().any(|(_, job)| job.stage != Stage::Stopped) {
            return None;
        }
        let mut others: Vec<_> =
            others.filter(|(_, job)| job.may_run()).map(|(id, job)| (job.used, *id)).collect();
        others.sort_unstable();
        let jobs: Vec<JobId> =
            [*first].into_iter().chain(others.iter().map(|(_, id)| *id)).collect();
        // Who has used less than another has turns of its own first.
        let most = one.used.max(others.last()?.0);
        let least = one.used.min(others[0].0);
        let even = most - least <= 2 * self.slice_ns() * one.cost;
        let alike = |id: &JobId| self.jobs[id].is_calm() && self.jobs[id].is_equal(one);
        (even && jobs.len() <= MOST && jobs.iter().all(alike) && self.exclude(&jobs))
            .then_some(jobs)
    }

    /// Whether no two of them run side by side.
    fn exclude(&self, jobs: &[JobId]) -> bool {
        jobs.iter().enumerate().all(|(at, id)| {
            let mut room = Room::free(&self.slots);
            room.put(&self.jobs[id].shares);
            jobs[at + 1..].iter().all(|other| !room.fits(&self.jobs[other].shares))
        })
    }
}
