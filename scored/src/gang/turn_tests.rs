//! Jobs that take turns by themselves: what a host does without being asked, and everything that
//! comes between.

use std::collections::BTreeMap;

use super::tests::{MS, Note, US, World, seeds};
use super::*;

/// What a host knows of jobs that take turns there.
pub struct Rota {
    pub jobs: Vec<Option<JobId>>,
    /// The number of the first turn, how many there are, and how long.
    pub told: (u64, u32, Duration),
}

impl Rota {
    fn job(&self, switch: u64) -> Option<JobId> {
        self.jobs[(switch - self.told.0) as usize % self.jobs.len()]
    }
}

impl World {
    /// Something else is ordered to a job, or it has ended.
    pub fn no_turns(&mut self, host: u32, job: JobId) {
        if self.rotas.get(&host).is_some_and(|rota| rota.jobs.contains(&Some(job))) {
            self.rotas.remove(&host);
        }
    }

    pub fn hears_of_turns(
        &mut self,
        host: u32,
        job: JobId,
        (at, of): (usize, usize),
        told: (u64, u32, Duration),
    ) {
        if self.rotas.get(&host).is_none_or(|rota| rota.told.0 != told.0) {
            self.rotas.insert(host, Rota { jobs: vec![None; of], told });
        }
        let rota = self.rotas.get_mut(&host).unwrap();
        rota.jobs[at] = Some(job);
        if !rota.jobs.contains(&None) {
            self.note(self.now, Note::Turn { host, switch: told.0 });
        }
    }

    /// A turn begins, if nothing has come between.
    pub fn turn(&mut self, host: u32, switch: u64, seed: u64) {
        let Some(rota) = self.rotas.get(&host) else { return };
        let (first, turns, length) = rota.told;
        if (first..first + u64::from(turns)).contains(&switch)
            && let Some(job) = rota.job(switch)
        {
            self.begins(host, job, seed);
            self.turns += 1;
            self.planned.insert((host, job), switch);
            self.note(self.now + length, Note::Over { host, job, switch });
        }
    }

    /// The host's clock has stopped a job whose turn it was. What becomes of that: mostly the next
    /// turn.
    pub fn turn_over(&mut self, host: u32, job: JobId, switch: u64) {
        let (first, turns, _) = self.rotas[&host].told;
        let fault = self.random(self.faults);
        if switch + 1 == first + u64::from(turns) || fault == 1 {
            self.rotas.remove(&host);
            self.awaits(job, switch);
            self.acknowledge(host, job, switch);
        } else if fault == 2 {
            // Nobody runs, and nobody is told.
            self.lost += 1;
        } else {
            let way = US * (20 + self.random(200) as u32);
            self.note(self.now + way, Note::Turn { host, switch: switch + 1 });
        }
    }
}

/// Jobs of two processes each on one host of two slots, from the beginning on.
fn equals(jobs: u32, slice: Duration, seed: u64) -> World {
    let mut world = World::new(1, 2, slice, seed);
    for job in 1..=jobs {
        let event = world.enter(job, &[0], 2, 8);
        world.at(Time::ZERO, event);
    }
    world
}

#[test]
fn equals_on_one_host_take_turns_and_hardly_ever_anybody_is_asked() {
    for (jobs, slice) in [(2, 5), (2, 10), (3, 10), (5, 40)] {
        let mut world = equals(jobs, MS * slice, 41);
        world.run(MS * 60_000, 41);
        let had: Vec<f64> = (1..=jobs).map(|job| world.had(job).as_secs_f64()).collect();
        let due = had.iter().sum::<f64>() / f64::from(jobs);
        assert!(had.iter().all(|had| (had / due - 1.0).abs() < 0.01), "{jobs}, {slice}: {had:?}");
        let (turns, unordered) = (world.turns, world.unordered);
        assert!(turns > unordered * 19 / 20, "{jobs} jobs, {slice} ms: {turns} of {unordered}");
    }
}

#[test]
fn nobody_takes_turns_who_is_not_alone_with_its_equals() {
    let others: [fn(&mut World) -> Event; 4] = [
        |world| world.enter(3, &[0, 1], 2, 8),
        |world| world.enter(3, &[1], 1, 8),
        |world| world.enter(3, &[0], 2, 6),
        |world| world.enter(3, &[0], 1, 8),
    ];
    for (number, other) in others.iter().enumerate() {
        let mut world = World::new(2, 2, MS * 10, 43);
        for job in [1, 2] {
            let event = world.enter(job, &[0], if number == 3 { 1 } else { 2 }, 8);
            world.at(Time::ZERO, event);
        }
        let event = other(&mut world);
        world.at(Time::ZERO, event);
        world.run(MS * 5_000, 43);
        assert_eq!(world.turns, 0, "{number}");
    }
}

/// Two jobs that have begun to take turns; the number of the first stop, and when that was.
fn two_in_turns() -> (Gang, u64, Time) {
    let setting = Setting { slice: MS * 10, ..Setting::default() };
    let mut gang = Gang::new(setting, BTreeMap::from([(0, 1)]));
    let (mut now, mut next) = (Time::ZERO, Vec::new());
    for job in [1, 2] {
        let shares = vec![Share { host: 0, procs: 1 }];
        next.extend(gang.on(Event::Enter { job, shares, priority: 8 }, now));
    }
    for _ in 0..100 {
        let stops = next.iter().find_map(|action| match action {
            Action::Turns { switch, .. } => Some(Err(*switch)),
            Action::Stop { job, switch, .. } => Some(Ok((*job, *switch, Duration::ZERO))),
            Action::Run { job, stop: Some(stop), .. } => Some(Ok((*job, stop.switch, stop.after))),
            _ => None,
        });
        match stops {
            Some(Err(switch)) => return (gang, switch, now),
            Some(Ok((job, switch, after))) => {
                now += after;
                next = gang.on(Event::Stopped { job, switch }, now);
            }
            None => {
                now = gang.deadline().unwrap();
                next = gang.on(Event::Tick, now);
            }
        }
    }
    panic!("{gang:?}");
}

fn stops(actions: &[Action]) -> Vec<(JobId, u64)> {
    let stop = |action: &Action| match action {
        Action::Stop { job, switch, .. } => Some((*job, *switch)),
        _ => None,
    };
    actions.iter().filter_map(stop).collect()
}

fn begins(actions: &[Action]) -> Vec<JobId> {
    let run = |action: &Action| match action {
        Action::Run { job, .. } => Some(vec![*job]),
        Action::Turns { jobs, .. } => Some(jobs.clone()),
        _ => None,
    };
    actions.iter().filter_map(run).flatten().collect()
}

#[test]
fn whatever_happens_ends_the_turns_and_nobody_runs_before_all_have_stopped() {
    let share = vec![Share { host: 0, procs: 1 }];
    let events = [
        Event::Enter { job: 3, shares: share, priority: 8 },
        Event::Hold(1, Why::User),
        Event::Idle(1),
        Event::Yield(1),
        Event::Sleep(1, MS * 60_000),
    ];
    for event in events {
        let (mut gang, first, begin) = two_in_turns();
        let now = begin + MS * 33;
        let told = gang.on(event.clone(), now);
        let stops = stops(&told);
        assert!(stops.len() == 2 && begins(&told).is_empty(), "{event:?}: {told:?}");
        // On its way when that was ordered.
        let stale = gang.on(Event::Stopped { job: 1, switch: first + 2 }, now);
        assert!(begins(&stale).is_empty(), "{event:?}: {stale:?}");
        let (job, switch) = stops[0];
        let one = gang.on(Event::Stopped { job, switch }, now + US);
        assert!(begins(&one).is_empty(), "{event:?}: {one:?}");
        let (job, switch) = stops[1];
        let both = gang.on(Event::Stopped { job, switch }, now + US);
        let next = if matches!(event, Event::Enter { .. }) { 3 } else { 2 };
        assert_eq!(begins(&both), [next], "{event:?}: {both:?}");
    }
}

#[test]
fn who_is_left_runs_as_soon_as_it_is_known_to_stand_still() {
    let (mut gang, _, begin) = two_in_turns();
    let told = gang.on(Event::Leave(1), begin + MS * 5);
    let [(2, switch)] = stops(&told)[..] else { panic!("{told:?}") };
    assert_eq!(begins(&gang.on(Event::Stopped { job: 2, switch }, begin + MS * 5)), [2]);
    assert_eq!(gang.deadline(), None);
}

#[test]
fn of_jobs_that_do_not_answer_none_is_had_to_run_on_since_another_may() {
    let (mut gang, _, begin) = two_in_turns();
    let due = gang.deadline().unwrap();
    assert!(due <= begin + MS * 1000);
    let ended = gang.on(Event::Tick, due);
    let stops = stops(&ended);
    assert!(stops.len() == 2 && begins(&ended).is_empty(), "{ended:?}");
    let mut named = 0;
    for _ in 0..1000 {
        let due = gang.deadline().unwrap();
        let late = gang.on(Event::Tick, due);
        assert!(begins(&late).is_empty(), "{late:?}");
        named += usize::from(late.contains(&Action::Late(1)));
    }
    assert!(named > 3);
    let now = gang.deadline().unwrap();
    let mut begun = Vec::new();
    for (job, switch) in stops {
        assert!(begun.is_empty());
        begun = begins(&gang.on(Event::Stopped { job, switch }, now));
    }
    assert_eq!(begun.len(), 1);
}

#[test]
fn whatever_comes_between_turns_no_processor_has_two_jobs_and_all_go_on() {
    let (mut turns, mut lost, mut ordered) = (0, 0, 0);
    for seed in seeds(20) {
        let jobs = 2 + seed as u32 % 4;
        let mut world = equals(jobs, MS * [5, 10, 40][seed as usize % 3], seed);
        world.faults = [20, 100, 1000][seed as usize / 3 % 3];
        for job in 1..=jobs {
            let mut time = MS * 100;
            while time < MS * 20_000 {
                time += US * world.random(3_000_000) as u32;
                let event = match world.random(6) {
                    0 => Event::Hold(job, Why::User),
                    1 => Event::Release(job, Why::User),
                    2 => Event::Idle(job),
                    3 => Event::Yield(job),
                    4 => Event::Busy(job),
                    _ => Event::Sleep(job, time + MS * world.random(1000) as u32),
                };
                world.at(time, event);
            }
            world.at(time, Event::Release(job, Why::User));
        }
        // Somebody comes, of lesser priority at times, and goes.
        for job in jobs + 1..jobs + 5 {
            let event = world.enter(job, &[0], 2, 8 + (seed as u8 & 1));
            let time = MS * world.random(15_000) as u32;
            world.at(time, event);
            let leave = time + US * world.random(4_000_000) as u32;
            world.at(leave, Event::Leave(job));
        }
        if world.random(3) == 0 {
            world.slow = Some((0, MS * world.random(1500) as u32));
        }
        world.run(MS * 24_000, seed);
        (world.slow, world.faults) = (None, u64::MAX);
        let before: Vec<_> = (1..=jobs).map(|job| world.had(job)).collect();
        world.run(MS * 40_000, seed);
        for (job, before) in (1..=jobs).zip(before) {
            let had = (world.had(job) - before).as_secs_f64() * f64::from(jobs) / 16.0;
            assert!(had > 0.7, "seed {seed}: job {job} has {had} of its share: {:?}", world.gang);
        }
        (turns, lost, ordered) = (turns + world.turns, lost + world.lost, ordered + world.ordered);
    }
    println!("{turns} turns, {lost} ended with nobody told, {ordered} stops were ordered");
    assert!(turns > 1000 && lost > 10);
}
