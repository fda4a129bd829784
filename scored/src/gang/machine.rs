//! The machine.

mod account;
mod plan;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use score_proto::peer::HostId;

use super::choice::Room;
use super::{Action, Event, LAST_PRIORITY, Setting, Why};
use crate::cluster::{JobId, Share, Time};
use plan::GRACE;
use turns::Rotation;

/// `1024 * 2^(p/2)`: what a nanosecond costs a job of priority p.
const COSTS: [u128; LAST_PRIORITY as usize + 1] = [
    1024, 1448, 2048, 2896, 4096, 5793, 8192, 11585, 16384, 23170, 32768, 46341, 65536, 92682,
    131_072, 185_364,
];

/// See the [module](super).
#[derive(Debug)]
pub struct Gang {
    setting: Setting,
    slots: BTreeMap<HostId, u32>,
    jobs: BTreeMap<JobId, Job>,
    /// Those that have the slice, whether they run already or not.
    row: BTreeSet<JobId>,
    /// When the slice began.
    began: Time,
    /// Its length, while somebody waits for its end.
    length: Option<Duration>,
    /// Its jobs do not all run yet.
    switching: bool,
    /// What each newcomer gets of the slice that they share.
    part: Option<Duration>,
    /// Jobs that take turns; they are the row.
    rotation: Option<Rotation>,
    /// How many slices have ended as planned since something happened.
    calm: u32,
    switch: u64,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Job {
    shares: Vec<Share>,
    cost: u128,
    /// Time that it had, in cost.
    used: u128,
    stage: Stage,
    /// It has not had a slice yet.
    new: bool,
    /// It has its first slice now.
    first: bool,
    holds: u8,
    asleep: Option<Time>,
    /// It has nothing to do, since it runs.
    idle: bool,
    /// Its last turn ended because it was idle.
    was_idle: bool,
    /// It has given up this slice.
    gave_up: bool,
    /// When what it has used was last counted.
    counted: Time,
    /// It stops by itself, by this number, then.
    plan: Option<(u64, Time)>,
    /// It took turns, and may be at rest or not: it is not had to run on if it does not stop.
    recalled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of it runs anywhere.
    Stopped,
    Running,
    /// It takes turns with others.
    Turning,
    Stopping {
        switch: u64,
        due: Time,
    },
}

impl Job {
    fn takes_room(&self) -> bool {
        self.stage != Stage::Stopped
    }

    /// Whether a row may have it.
    fn may_run(&self) -> bool {
        self.holds == 0 && self.asleep.is_none()
    }

    /// Whether it has nothing to do with its processors.
    fn may_give_up(&self) -> bool {
        self.idle && !self.gave_up && self.stage == Stage::Running
    }

    fn count(&mut self, now: Time) {
        // Not while it stops: a slow host is not the job's fault.
        if self.stage == Stage::Running {
            self.used += now.saturating_sub(self.counted).as_nanos() * self.cost;
        }
        self.counted = now;
    }
}

impl Gang {
    /// With the number of slots of each host.
    pub fn new(setting: Setting, slots: BTreeMap<HostId, u32>) -> Self {
        Self {
            setting,
            slots,
            jobs: BTreeMap::new(),
            row: BTreeSet::new(),
            began: Time::ZERO,
            length: None,
            switching: false,
            part: None,
            rotation: None,
            calm: 0,
            switch: 0,
            actions: Vec::new(),
        }
    }

    /// Something happens. `now` never goes back.
    pub fn on(&mut self, event: Event, now: Time) -> Vec<Action> {
        let recalled = self.interrupt(&event, now);
        match event {
            Event::Enter { job, shares, priority } => self.enter(job, shares, priority, now),
            Event::Leave(job) => self.leave(job, now),
            Event::Stopped { job, switch } => self.stopped(job, switch, now),
            Event::Idle(job) => self.idle(job, now),
            Event::Busy(job) => self.with(job, |job| job.idle = false),
            Event::Yield(job) => self.give_up(job, now),
            Event::Sleep(job, until) => self.sleep(job, until, now),
            Event::Hold(job, why) => self.hold(job, why, now),
            Event::Release(job, why) => self.release(job, why, now),
            Event::Tick => self.tick(now),
        }
        if recalled {
            self.fill(now);
        }
        self.begin_turns(now);
        self.plan(now);
        std::mem::take(&mut self.actions)
    }

    /// When `Tick` is wanted at the latest; asked for after each event.
    pub fn deadline(&self) -> Option<Time> {
        let turns = self.rotation.as_ref().map(Rotation::due);
        let is_planned = self.jobs.values().any(|job| job.plan.is_some());
        let grace = if is_planned { GRACE } else { Duration::ZERO };
        let slice = self.length.map(|length| self.began + length + grace);
        let slice = turns.or(slice);
        let linger = self.linger();
        let of_jobs = self.jobs.values().flat_map(|job| {
            let due = match job.stage {
                Stage::Stopping { due, .. } => Some(due),
                _ => None,
            };
            let idle = linger.filter(|_| job.may_give_up()).map(|linger| self.began + linger);
            [due, job.asleep, idle].into_iter().flatten()
        });
        slice.into_iter().chain(of_jobs).min()
    }

    /// Whether somebody waits for processors.
    pub fn is_contended(&self) -> bool {
        self.length.is_some()
    }

    /// The jobs that have their processors, in ascending order; of those that take turns the first.
    pub fn running(&self) -> impl Iterator<Item = JobId> + '_ {
        let first = self.rotation.as_ref().map(Rotation::first);
        let runs = move |(id, job): &(&JobId, &Job)| match job.stage {
            Stage::Turning => Some(**id) == first,
            _ => job.takes_room(),
        };
        self.jobs.iter().filter(runs).map(|(id, _)| *id)
    }

    /// Whether a job is suspended: by its user, or because nobody takes its output.
    pub fn is_suspended(&self, id: JobId) -> bool {
        let why = bit(Why::User) | bit(Why::Output);
        self.jobs.get(&id).is_some_and(|job| job.holds & why != 0)
    }

    /// A number for an order of the shell's own to a job that runs.
    pub fn number(&mut self) -> u64 {
        self.switch += 1;
        self.switch
    }

    fn with(&mut self, job: JobId, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.get_mut(&job) {
            change(job);
        }
    }

    fn enter(&mut self, id: JobId, shares: Vec<Share>, priority: u8, now: Time) {
        if self.jobs.contains_key(&id) {
            return;
        }
        self.count(now);
        self.merge_accounts(&shares);
        let job = Job {
            shares,
            cost: COSTS[usize::from(priority.min(LAST_PRIORITY))],
            used: 0,
            stage: Stage::Stopped,
            new: true,
            first: false,
            holds: 0,
            asleep: None,
            idle: false,
            was_idle: false,
            gave_up: false,
            counted: now,
            plan: None,
            recalled: false,
        };
        self.jobs.insert(id, job);
        self.fill(now);
        if !self.row.contains(&id) && self.length.is_some() {
            // It gets the next slice, and that comes as soon as this one has had the least. Those
            // that are in their first one share it.
            (self.length, self.part) = (Some(self.setting.smallest), None);
            for id in self.row.clone() {
                self.with(id, |job| job.new |= job.first);
            }
        }
        self.end_slice_if_over(now);
    }

    fn leave(&mut self, job: JobId, now: Time) {
        self.count(now);
        if self.jobs.remove(&job).is_some() {
            self.row.remove(&job);
            self.fill(now);
        }
    }

    fn stopped(&mut self, id: JobId, number: u64, now: Time) {
        if self.rotation.as_ref().is_some_and(|all| all.ends_with(id, number)) {
            return self.came_round(number, now);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.stage {
            Stage::Stopping { switch, .. } if switch == number => {}
            Stage::Running if job.plan.is_some_and(|(switch, _)| switch == number) => {
                return self.ran_its_slice(id, now);
            }
            _ => return,
        }
        job.count(now);
        (job.stage, job.idle, job.recalled) = (Stage::Stopped, false, false);
        if job.holds != 0 {
            self.actions.push(Action::Held(id));
        }
        self.fill(now);
    }

    /// A job has stopped by itself: what it had was a slice, whatever other clocks say.
    fn ran_its_slice(&mut self, id: JobId, now: Time) {
        self.count(now);
        self.calm += 1;
        self.with(id, |job| (job.stage, job.plan) = (Stage::Stopped, None));
        self.length = self.length.map(|length| length.min(now.saturating_sub(self.began)));
        self.end_slice_if_over(now);
        // Not before the slice is over, which notes it.
        self.with(id, |job| job.idle = false);
    }

    fn idle(&mut self, id: JobId, now: Time) {
        self.with(id, |job| job.idle = job.stage == Stage::Running);
        self.tick(now);
    }

    /// How long a job that is idle keeps its processors; for ever if nobody waits for any.
    fn linger(&self) -> Option<Duration> {
        self.length?;
        let mut waiting =
            self.jobs.iter().filter(|(id, job)| job.may_run() && !self.row.contains(id));
        let busy = waiting.any(|(_, job)| !job.was_idle);
        Some(if busy { Duration::ZERO } else { self.setting.linger })
    }

    fn give_up(&mut self, id: JobId, now: Time) {
        let slice = self.length;
        let rest = slice.map_or(Duration::ZERO, |length| (self.began + length).saturating_sub(now));
        self.count(now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if job.stage == Stage::Running && !job.gave_up && slice.is_some() {
            job.used += rest.as_nanos() * job.cost;
            job.gave_up = true;
            self.fill(now);
        }
    }

    fn sleep(&mut self, id: JobId, until: Time, now: Time) {
        self.count(now);
        self.with(id, |job| job.asleep = job.asleep.max(Some(until)));
        self.fill(now);
    }

    fn hold(&mut self, id: JobId, why: Why, now: Time) {
        self.count(now);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.holds |= bit(why);
        if job.stage == Stage::Stopped {
            self.actions.push(Action::Held(id));
        }
        self.fill(now);
    }

    fn release(&mut self, id: JobId, why: Why, now: Time) {
        self.count(now);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.holds & bit(why) != 0) else {
            return;
        };
        job.holds &= !bit(why);
        if job.holds == 0 {
            self.catch_up(id);
            self.fill(now);
        }
    }

    fn tick(&mut self, now: Time) {
        self.count(now);
        let late = self.which(|job| is_late(job, now));
        let awake = self.which(|job| job.asleep.is_some_and(|end| end <= now));
        for &id in &awake {
            self.with(id, |job| job.asleep = None);
            self.catch_up(id);
        }
        if !late.is_empty() {
            self.go_on_with(&late, now);
        } else if !awake.is_empty() {
            self.fill(now);
        }
        if self.linger().is_some_and(|linger| self.began + linger <= now) {
            for id in self.which(Job::may_give_up) {
                self.with(id, |job| job.was_idle = true);
                self.give_up(id, now);
            }
        }
        self.end_slice_if_over(now);
    }

    fn which(&self, is: impl Fn(&Job) -> bool) -> Vec<JobId> {
        self.jobs.iter().filter(|(_, job)| is(job)).map(|(id, _)| *id).collect()
    }

    /// Some host has not stopped its part of these: whoever runs has another slice. What is held
    /// has to stop sooner or later, and so has one of several of which one runs.
    fn go_on_with(&mut self, late: &[JobId], now: Time) {
        self.calm = 0;
        let due = now + self.setting.patience;
        for &id in late {
            self.actions.push(Action::Late(id));
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if job.may_run() && !job.recalled {
                self.switch += 1;
                job.stage = Stage::Running;
                self.actions.push(Action::Run { job: id, switch: self.switch, stop: None });
            } else if let Stage::Stopping { switch, .. } = job.stage {
                job.stage = Stage::Stopping { switch, due };
            }
        }
        self.row = self.which(|job| job.stage == Stage::Running).into_iter().collect();
        (self.began, self.length) = (now, Some(self.setting.slice));
        self.go(now);
    }

    fn end_slice_if_over(&mut self, now: Time) {
        if self.rotation.is_none() && self.length.is_some_and(|length| self.began + length <= now) {
            for job in self.jobs.values_mut() {
                job.gave_up = false;
            }
            for id in std::mem::take(&mut self.row) {
                self.with(id, |job| (job.was_idle, job.first) = (job.idle, false));
            }
            self.forgive();
            self.choose(now);
        }
    }

    /// The row keeps whoever may stay; others get what room there is.
    fn fill(&mut self, now: Time) {
        let jobs = &self.jobs;
        self.row.retain(|id| jobs.get(id).is_some_and(|job| job.may_run() && !job.gave_up));
        self.choose(now);
    }

    fn count(&mut self, now: Time) {
        for job in self.jobs.values_mut() {
            job.count(now);
        }
    }

    /// Completes the row, and begins to make it true.
    fn choose(&mut self, now: Time) {
        let kept = !self.row.is_empty();
        let mut room = Room::free(&self.slots);
        for id in &self.row {
            room.put(&self.jobs[id].shares);
        }
        let waiting = self.jobs.iter().filter(|(id, job)| job.may_run() && !self.row.contains(id));
        let mut waiting: Vec<_> =
            waiting.map(|(id, job)| (job.gave_up, !job.new, job.used, *id)).collect();
        waiting.sort_unstable();
        let newcomers = waiting.iter().filter(|(_, old, ..)| !old).count() as u32;
        self.part = match newcomers {
            0 => None,
            several => self.part.or(Some(self.setting.slice / several)),
        };
        let (mut left_out, mut first_slice) = (false, false);
        for (_, old, _, id) in waiting {
            let shares = &self.jobs[&id].shares;
            if room.fits(shares) {
                room.put(shares);
                self.row.insert(id);
                first_slice |= !old;
            } else {
                left_out = true;
            }
        }
        if !left_out {
            self.length = None;
        } else if !kept || self.length.is_none() {
            let part = self.part.filter(|_| first_slice).unwrap_or(self.setting.slice);
            self.length = Some(part.max(self.setting.smallest));
            (self.began, self.switching) = (now, true);
        } else {
            return self.go(now);
        }
        // Who runs on has this slice as well.
        for id in self.row.clone() {
            self.with(id, |job| {
                if job.stage == Stage::Running {
                    (job.first, job.new) = (job.new && left_out, false);
                }
            });
        }
        self.go(now);
    }

    /// Stops what is not in the row, and runs what is, as far as its processors are free.
    fn go(&mut self, now: Time) {
        let due = now + self.setting.patience;
        for (id, job) in &mut self.jobs {
            if job.stage == Stage::Running && !self.row.contains(id) {
                let plan = job.plan.take();
                let switch = plan.map_or(self.switch + 1, |(switch, _)| switch);
                self.switch = self.switch.max(switch);
                job.stage = Stage::Stopping { switch, due };
                // Its time is over: it is about to stop, if it has not already.
                if plan.is_none_or(|(_, end)| now < end || end + GRACE <= now) {
                    let lasting = !job.may_run();
                    self.actions.push(Action::Stop { job: *id, switch, lasting });
                }
            }
        }
        let mut room = Room::free(&self.slots);
        for job in self.jobs.values().filter(|job| job.takes_room()) {
            room.put(&job.shares);
        }
        let mut begun = false;
        for id in &self.row {
            let Some(job) = self.jobs.get_mut(id) else { continue };
            if job.stage == Stage::Stopped && room.fits(&job.shares) {
                room.put(&job.shares);
                self.switch += 1;
                (job.stage, job.idle, job.counted) = (Stage::Running, false, now);
                (job.first, job.new) = (job.new && self.length.is_some(), false);
                self.actions.push(Action::Run { job: *id, switch: self.switch, stop: None });
                begun = true;
            }
        }
        if begun {
            self.actions.push(Action::Row(self.row.iter().copied().collect()));
        }
        if self.switching && self.row.iter().all(|id| self.jobs[id].stage == Stage::Running) {
            // A slice counts from the moment when its last job runs.
            (self.began, self.switching) = (now, false);
        }
    }
}

fn is_late(job: &Job, now: Time) -> bool {
    matches!(job.stage, Stage::Stopping { due, .. } if due <= now)
}

fn bit(why: Why) -> u8 {
    1 << why as u8
}
