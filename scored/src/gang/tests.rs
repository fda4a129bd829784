//! A cluster whose hosts take their time, simulated: never two jobs on the same processors,
//! shares, newcomers, idle jobs, and hosts that do not answer. A failing seed is in the message.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use super::turn_tests::Rota;
use super::*;

pub const MS: Duration = Duration::from_millis(1);
pub const US: Duration = Duration::from_micros(1);

/// What is on its way to a host or from it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Note {
    Stop {
        host: u32,
        job: JobId,
        switch: u64,
    },
    Run {
        host: u32,
        job: JobId,
        stop: Option<(u64, Duration)>,
    },
    /// The host's own clock says that the job has had its time.
    Over {
        host: u32,
        job: JobId,
        switch: u64,
    },
    Ack {
        host: u32,
        job: JobId,
        switch: u64,
    },
    /// A job is to take turns, at this place of so many.
    Turns {
        host: u32,
        job: JobId,
        place: (usize, usize),
        told: (u64, u32, Duration),
    },
    /// The next turn of a host begins, by that number.
    Turn {
        host: u32,
        switch: u64,
    },
    Do(usize),
}

pub struct World {
    pub gang: Gang,
    pub now: Time,
    notes: BinaryHeap<Reverse<(Time, u64, Note)>>,
    number: u64,
    random: u64,
    pub shares: BTreeMap<JobId, Vec<Share>>,
    /// Acknowledgements that are still missing.
    missing: BTreeMap<(JobId, u64), BTreeSet<u32>>,
    /// By which number a host stops a job by itself.
    pub planned: BTreeMap<(u32, JobId), u64>,
    pub rotas: BTreeMap<u32, Rota>,
    /// How many turns were taken, and how often it went no further than to one.
    pub turns: u64,
    pub lost: u64,
    /// Once in so many turns a host goes no further, or does not answer.
    pub faults: u64,
    /// How many stops were ordered, and how many were carried out without.
    pub ordered: u64,
    pub unordered: u64,
    /// The last time at which something reaches a host: orders keep their order.
    last: BTreeMap<u32, Time>,
    slots: BTreeMap<u32, u32>,
    /// What runs on each host, since when.
    running: BTreeMap<(u32, JobId), Time>,
    had: BTreeMap<JobId, Duration>,
    started: BTreeMap<JobId, Time>,
    entered: BTreeMap<JobId, Time>,
    rows: u64,
    late: Vec<JobId>,
    held: Vec<JobId>,
    /// This host answers that much later.
    pub slow: Option<(u32, Duration)>,
    script: Vec<Event>,
}

impl World {
    pub fn new(hosts: u32, slots: u32, slice: Duration, seed: u64) -> Self {
        let slots: BTreeMap<u32, u32> = (0..hosts).map(|host| (host, slots)).collect();
        let setting = Setting { slice, ..Setting::default() };
        Self {
            gang: Gang::new(setting, slots.clone()),
            now: Time::ZERO,
            notes: BinaryHeap::new(),
            number: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            shares: BTreeMap::new(),
            missing: BTreeMap::new(),
            planned: BTreeMap::new(),
            rotas: BTreeMap::new(),
            turns: 0,
            lost: 0,
            faults: u64::MAX,
            ordered: 0,
            unordered: 0,
            last: BTreeMap::new(),
            slots,
            running: BTreeMap::new(),
            had: BTreeMap::new(),
            started: BTreeMap::new(),
            entered: BTreeMap::new(),
            rows: 0,
            late: Vec::new(),
            held: Vec::new(),
            slow: None,
            script: Vec::new(),
        }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    pub fn at(&mut self, time: Time, event: Event) {
        self.script.push(event);
        let index = self.script.len() - 1;
        self.note(time, Note::Do(index));
    }

    pub fn enter(&mut self, job: JobId, hosts: &[u32], procs: u32, priority: u8) -> Event {
        let shares: Vec<_> = hosts.iter().map(|&host| Share { host, procs }).collect();
        self.shares.insert(job, shares.clone());
        Event::Enter { job, shares, priority }
    }

    pub fn note(&mut self, time: Time, note: Note) {
        self.number += 1;
        self.notes.push(Reverse((time, self.number, note)));
    }

    fn way_to(&mut self, host: u32, note: Note) {
        let way = US * (20 + self.random(200) as u32);
        let slow = self.slow.filter(|(slow, _)| *slow == host).map_or(Duration::ZERO, |(_, by)| by);
        let time = (self.now + way + slow).max(self.last.get(&host).copied().unwrap_or_default());
        self.last.insert(host, time);
        self.note(time, note);
    }

    fn tell(&mut self, event: Event) {
        if let Event::Enter { job, .. } = &event {
            self.entered.insert(*job, self.now);
        }
        if let Event::Leave(job) = &event {
            for share in self.shares[job].clone() {
                self.ends(share.host, *job);
            }
        }
        let gone = if let Event::Leave(job) = &event { Some(*job) } else { None };
        for action in self.gang.on(event, self.now) {
            match action {
                Action::Stop { job, switch, .. } => {
                    self.ordered += 1;
                    self.awaits(job, switch);
                    for share in self.shares[&job].clone() {
                        self.way_to(share.host, Note::Stop { host: share.host, job, switch });
                    }
                }
                Action::Run { job, stop, .. } => {
                    stop.iter().for_each(|stop| self.awaits(job, stop.switch));
                    let stop = stop.map(|stop| (stop.switch, stop.after));
                    for share in self.shares[&job].clone() {
                        self.way_to(share.host, Note::Run { host: share.host, job, stop });
                    }
                }
                Action::Turns { jobs, switch, turns, length } => {
                    let told = (switch, turns, length);
                    for (at, job) in jobs.iter().copied().enumerate() {
                        let (host, place) = (self.shares[&job][0].host, (at, jobs.len()));
                        self.way_to(host, Note::Turns { host, job, place, told });
                    }
                }
                Action::Turned { .. } => {}
                Action::Held(job) => self.held.push(job),
                Action::Late(job) => self.late.push(job),
                Action::Row(_) => self.rows += 1,
            }
        }
        if let Some(job) = gone {
            self.shares.remove(&job);
        }
    }

    /// A number has to come from all hosts of a job.
    pub fn awaits(&mut self, job: JobId, switch: u64) {
        let hosts = self.shares.get(&job).into_iter().flatten().map(|share| share.host);
        let hosts = hosts.collect();
        self.missing.entry((job, switch)).or_insert(hosts);
    }

    pub fn acknowledge(&mut self, host: u32, job: JobId, switch: u64) {
        let way = US * (20 + self.random(200) as u32);
        self.note(self.now + way, Note::Ack { host, job, switch });
    }

    fn ends(&mut self, host: u32, job: JobId) {
        if let Some(since) = self.running.remove(&(host, job)) {
            *self.had.entry(job).or_default() += self.now - since;
        }
    }

    /// What the whole thing is for.
    pub fn begins(&mut self, host: u32, job: JobId, seed: u64) {
        let Some(own) = self.shares.get(&job) else { return };
        let procs = own.iter().find(|share| share.host == host).unwrap().procs;
        let others: u32 = self
            .running
            .range((host, 0)..=(host, JobId::MAX))
            .map(|((_, other), _)| other)
            .filter(|other| **other != job)
            .map(|other| {
                let shares = &self.shares[other];
                shares.iter().find(|share| share.host == host).unwrap().procs
            })
            .sum();
        assert!(
            others == 0 || others + procs <= self.slots[&host],
            "seed {seed}: job {job} runs beside {others} processes on host {host}"
        );
        let now = self.now;
        self.running.entry((host, job)).or_insert(now);
        self.started.entry(job).or_insert(now);
    }

    pub fn run(&mut self, until: Time, seed: u64) {
        for _ in 0..50_000_000u64 {
            let next = self.notes.peek().map(|Reverse((time, ..))| *time);
            let tick = self.gang.deadline();
            let time = match (next, tick) {
                (Some(a), Some(b)) => a.min(b.max(self.now)),
                (Some(a), None) | (None, Some(a)) => a.max(self.now),
                (None, None) => until,
            };
            if time >= until {
                self.now = until;
                let open: Vec<_> = self.running.keys().copied().collect();
                for (host, job) in open {
                    self.ends(host, job);
                    self.running.insert((host, job), until);
                }
                return;
            }
            self.now = time;
            if next.is_none_or(|next| next > time) {
                self.tell(Event::Tick);
                continue;
            }
            let Some(Reverse((_, _, note))) = self.notes.pop() else { continue };
            match note {
                Note::Do(index) => {
                    let event = self.script[index].clone();
                    self.tell(event);
                }
                Note::Turns { host, job, place, told } => {
                    self.hears_of_turns(host, job, place, told);
                }
                Note::Turn { host, switch } => self.turn(host, switch, seed),
                Note::Run { host, job, stop } => {
                    self.no_turns(host, job);
                    self.begins(host, job, seed);
                    self.planned.remove(&(host, job));
                    if let Some((switch, after)) = stop {
                        self.planned.insert((host, job), switch);
                        self.note(self.now + after, Note::Over { host, job, switch });
                    }
                }
                Note::Over { host, job, switch } => {
                    if self.planned.get(&(host, job)) == Some(&switch) {
                        self.planned.remove(&(host, job));
                        self.unordered += 1;
                        self.ends(host, job);
                        let in_turns =
                            |rota: &Rota| switch >= rota.told.0 && rota.jobs.contains(&Some(job));
                        match self.rotas.get(&host).is_some_and(in_turns) {
                            true => self.turn_over(host, job, switch),
                            false => self.acknowledge(host, job, switch),
                        }
                    }
                }
                Note::Stop { host, job, switch } => {
                    self.no_turns(host, job);
                    self.planned.remove(&(host, job));
                    self.ends(host, job);
                    self.acknowledge(host, job, switch);
                }
                Note::Ack { host, job, switch } => {
                    let Some(hosts) = self.missing.get_mut(&(job, switch)) else { continue };
                    hosts.remove(&host);
                    if hosts.is_empty() {
                        self.missing.remove(&(job, switch));
                        self.tell(Event::Stopped { job, switch });
                    }
                }
            }
        }
        panic!("seed {seed}: no end");
    }

    /// Time that a job had, by host.
    pub fn had(&self, job: JobId) -> Duration {
        self.had.get(&job).copied().unwrap_or_default() / self.entered_hosts(job)
    }

    fn entered_hosts(&self, job: JobId) -> u32 {
        self.shares.get(&job).map_or(1, |shares| shares.len() as u32)
    }
}

#[test]
fn a_job_alone_is_never_stopped() {
    let mut world = World::new(4, 2, MS * 40, 1);
    let event = world.enter(1, &[0, 1, 2, 3], 2, 8);
    world.at(Time::ZERO, event);
    // Beside it, on no processor of its own, others come and go.
    world.slots.insert(4, 2);
    world.gang = Gang::new(Setting::default(), world.slots.clone());
    for job in 2..5 {
        let event = world.enter(job, &[4], 2, 0);
        world.at(MS * 10 * job, event);
    }
    world.run(MS * 10_000, 1);
    assert!(world.had(1) > MS * 9_999, "{:?}", world.had(1));
    assert!(world.rows > 15);
}

#[test]
fn two_jobs_share_evenly_and_lose_little() {
    for slice in [5, 10, 40, 500] {
        let mut world = World::new(2, 2, MS * slice, 3);
        for job in [1, 2] {
            let event = world.enter(job, &[0, 1], 2, 8);
            world.at(Time::ZERO, event);
        }
        world.run(MS * 60_000, 3);
        let (one, two) = (world.had(1).as_secs_f64(), world.had(2).as_secs_f64());
        assert!((one / two - 1.0).abs() < 0.02, "slice {slice}: {one} {two}");
        assert!(one + two > 60.0 * (1.0 - 0.7 / f64::from(slice)), "slice {slice}: {one} {two}");
        // Hardly ever somebody has to be told when a slice ends.
        let (ordered, unordered) = (world.ordered, world.unordered);
        assert!(ordered <= 2 + unordered / 100, "slice {slice}: {ordered} {unordered}");
    }
}

/// Two jobs on one processor: the first has just given way at 5 ms, and the second knows when it
/// stops.
fn second_of_two() -> (Gang, Planned) {
    let mut gang = Gang::new(Setting::default(), BTreeMap::from([(0, 1)]));
    let enter = |job| Event::Enter { job, shares: vec![Share { host: 0, procs: 1 }], priority: 8 };
    gang.on(enter(1), Time::ZERO);
    gang.on(enter(2), Time::ZERO);
    let first = gang.on(Event::Tick, MS * 5);
    let [Action::Stop { job: 1, switch, .. }] = first[..] else { panic!("{first:?}") };
    let run = gang.on(Event::Stopped { job: 1, switch }, MS * 5);
    let [Action::Run { job: 2, stop: Some(planned), .. }, _] = run[..] else { panic!("{run:?}") };
    (gang, planned)
}

/// A host whose thread does not do it by itself is told.
#[test]
fn a_stop_that_does_not_come_by_itself_is_ordered() {
    let (mut gang, planned) = second_of_two();
    let due = gang.deadline().unwrap();
    assert!(due > MS * 5 + planned.after);
    let ordered = [Action::Stop { job: 2, switch: planned.switch, lasting: false }];
    assert_eq!(gang.on(Event::Tick, due), ordered);
}

#[test]
fn a_job_that_is_left_alone_is_told_that_it_does_not_stop() {
    let (mut gang, planned) = second_of_two();
    let alone = gang.on(Event::Leave(1), MS * 100);
    assert!(matches!(alone[..], [Action::Run { job: 2, stop: None, .. }]), "{alone:?}");
    // What was under way already: it is to run, and is.
    assert_eq!(gang.on(Event::Stopped { job: 2, switch: planned.switch }, MS * 501), []);
    assert_eq!(gang.deadline(), None);
}

#[test]
fn shares_follow_the_priorities() {
    for priorities in [vec![6, 8, 10], vec![0, 15], vec![8, 8, 9, 12]] {
        let mut world = World::new(3, 2, MS * 10, 5);
        for (job, priority) in priorities.iter().enumerate() {
            let event = world.enter(job as JobId + 1, &[0, 1, 2], 2, *priority);
            world.at(Time::ZERO, event);
        }
        world.run(MS * 60_000, 5);
        let weights: Vec<f64> =
            priorities.iter().map(|p| 2f64.powf(-f64::from(*p) / 2.0)).collect();
        let had: Vec<f64> =
            (1..=priorities.len() as JobId).map(|job| world.had(job).as_secs_f64()).collect();
        for (own, weight) in had.iter().zip(&weights) {
            let share = own / had.iter().sum::<f64>();
            let due = weight / weights.iter().sum::<f64>();
            assert!((share / due - 1.0).abs() < 0.05, "{priorities:?}: {had:?}");
        }
    }
}

#[test]
fn jobs_that_do_not_overlap_run_side_by_side() {
    let mut world = World::new(4, 2, MS * 20, 7);
    for (job, hosts) in [(1, vec![0, 1, 2, 3]), (2, vec![0, 1]), (3, vec![2, 3])] {
        let event = world.enter(job, &hosts, 2, 8);
        world.at(Time::ZERO, event);
    }
    // Half of a host each: both always fit.
    let mut halves = World::new(2, 2, MS * 20, 7);
    for job in [1, 2] {
        let event = halves.enter(job, &[0, 1], 1, 8);
        halves.at(Time::ZERO, event);
    }
    world.run(MS * 10_000, 7);
    halves.run(MS * 10_000, 7);
    for job in 1..=3 {
        let had = world.had(job).as_secs_f64();
        assert!((had / 5.0 - 1.0).abs() < 0.05, "job {job}: {had}");
    }
    assert!(halves.had(1) > MS * 9_999 && halves.had(2) > MS * 9_999);
}

#[test]
fn a_newcomer_runs_within_20_ms_whatever_the_number_of_rows() {
    for rows in [1, 2, 20, 100] {
        let mut world = World::new(8, 2, MS * 500, 11);
        let all: Vec<u32> = (0..8).collect();
        for job in 1..=rows {
            let event = world.enter(job, &all, 2, 8);
            world.at(Time::ZERO, event);
        }
        let mut at = MS * 300_000;
        for job in rows + 1..rows + 20 {
            let event = world.enter(job, &all, 2, 15);
            world.at(at, event);
            at += MS * (503 + world.random(300) as u32);
        }
        world.run(at + MS * 1000, 11);
        for job in rows + 1..rows + 20 {
            let wait = world.started[&job] - world.entered[&job];
            assert!(wait <= MS * 20, "{rows} rows: {wait:?}");
        }
    }
}

#[test]
fn several_newcomers_share_a_slice_in_equal_parts() {
    let mut world = World::new(2, 2, MS * 400, 13);
    let event = world.enter(1, &[0, 1], 2, 8);
    world.at(Time::ZERO, event);
    for job in 2..=5 {
        let event = world.enter(job, &[0, 1], 2, 8);
        world.at(MS * 1000, event);
    }
    world.run(MS * 1425, 13);
    for job in 2..=5 {
        let had = world.had(job).as_secs_f64();
        assert!((had / 0.1 - 1.0).abs() < 0.08, "job {job} had {had} s");
    }
}

#[test]
fn a_newcomer_that_goes_on_into_the_slice_that_it_shares_is_new_no_more() {
    let mut world = World::new(2, 2, MS * 20, 5);
    // The fourth has to wait for the third alone, so that the second runs on.
    let jobs: [(&[u32], u32); 4] = [(&[0, 1], 0), (&[0], 100), (&[1], 110), (&[1], 112)];
    for ((hosts, at), job) in jobs.into_iter().zip(1..) {
        let event = world.enter(job, hosts, 2, 8);
        world.at(MS * at, event);
    }
    world.run(MS * 3_000, 5);
    let had: Vec<_> = (1..=4).map(|job| world.had(job)).collect();
    assert!(had.iter().all(|had| *had > MS * 600), "{had:?}");
}

#[test]
fn who_ran_where_nobody_else_fitted_owes_nothing_for_it() {
    let mut world = World::new(3, 2, MS * 20, 9);
    // While the others of its hosts are held the third, of the least priority, has these for
    // itself. Later there is always one of them that goes beside the first.
    let jobs: [(&[u32], u8); 4] = [(&[0], 0), (&[0, 1], 0), (&[1, 2], 15), (&[1], 0)];
    for ((hosts, priority), job) in jobs.into_iter().zip(1..) {
        let event = world.enter(job, hosts, 2, priority);
        world.at(Time::ZERO, event);
    }
    for job in [2, 4] {
        world.at(MS, Event::Hold(job, Why::User));
        world.at(MS * 2_000, Event::Release(job, Why::User));
    }
    world.run(MS * 2_100, 9);
    let before = world.had(3);
    // Its share is one in 182 of each of two rows, and it owes two slices at most.
    world.run(MS * 2_100 + MS * 21 * 182 * 5, 9);
    assert!(world.had(3) > before, "{before:?}: {:?}", world.gang);
}

#[test]
fn an_idle_job_gives_way_within_two_milliseconds() {
    let mut world = World::new(2, 2, MS * 500, 17);
    for job in [1, 2] {
        let event = world.enter(job, &[0, 1], 2, 8);
        world.at(Time::ZERO, event);
    }
    // Job 1 has something to do in its first slice alone; its hosts say so 1 ms after it runs.
    let mut idle_at = Vec::new();
    for ms in 0..9_000u32 {
        idle_at.push(MS * (600 + ms));
    }
    for time in idle_at {
        world.at(time, Event::Idle(1));
    }
    world.run(MS * 10_000, 17);
    let (idle, busy) = (world.had(1), world.had(2));
    assert!(idle < MS * (600 + 20 * 3) && busy > MS * 9_300, "{idle:?} {busy:?}");
}

#[test]
fn idle_jobs_among_themselves_do_not_chase_each_other() {
    let mut world = World::new(1, 1, MS * 500, 19);
    for job in [1, 2] {
        let event = world.enter(job, &[0], 1, 8);
        world.at(Time::ZERO, event);
    }
    for ms in 1..10_000u32 {
        for job in [1, 2] {
            world.at(MS * ms, Event::Idle(job));
        }
    }
    world.run(MS * 10_000, 19);
    assert!(world.rows < 1_100, "{} switches in 10 s", world.rows);
}

#[test]
fn a_held_job_stops_everywhere_and_comes_back() {
    let mut world = World::new(2, 2, MS * 100, 23);
    for job in [1, 2] {
        let event = world.enter(job, &[0, 1], 2, 8);
        world.at(Time::ZERO, event);
    }
    world.at(MS * 1000, Event::Hold(1, Why::User));
    world.at(MS * 1500, Event::Hold(1, Why::Check));
    world.at(MS * 2000, Event::Release(1, Why::Check));
    world.at(MS * 3000, Event::Release(1, Why::User));
    world.run(MS * 2999, 23);
    assert_eq!(world.held, [1, 1]);
    assert!(world.had(1) < MS * 510 && world.had(2) > MS * 2480, "{:?}", world.had(1));
    world.run(MS * 5000, 23);
    let later = world.had(1).as_secs_f64();
    assert!((later - 1.5).abs() < 0.11, "{later}");
}

#[test]
fn a_sleeping_job_has_no_slice_and_wakes() {
    let mut world = World::new(1, 2, MS * 50, 29);
    for job in [1, 2] {
        let event = world.enter(job, &[0], 2, 8);
        world.at(Time::ZERO, event);
    }
    world.at(MS * 1000, Event::Sleep(1, MS * 3000));
    world.run(MS * 3000, 29);
    assert!(world.had(1) < MS * 560, "{:?}", world.had(1));
    world.run(MS * 5000, 29);
    let later = world.had(1).as_secs_f64();
    assert!((later - 1.5).abs() < 0.1, "{later}");
}

#[test]
fn a_host_that_does_not_stop_costs_a_longer_slice_and_is_told() {
    let mut world = World::new(4, 2, MS * 100, 31);
    for job in [1, 2] {
        let event = world.enter(job, &[0, 1, 2, 3], 2, 8);
        world.at(Time::ZERO, event);
    }
    world.run(MS * 1010, 31);
    world.slow = Some((2, MS * 1800));
    world.run(MS * 8000, 31);
    assert!(!world.late.is_empty());
    world.slow = None;
    let rows = world.rows;
    world.run(MS * 20_000, 31);
    assert!(world.rows > rows + 80, "{} rows, before {rows}", world.rows);
}

/// Those that are asked for, or so many.
pub fn seeds(usual: u64) -> std::ops::RangeInclusive<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("SCORE_SIM_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("SCORE_SIM_SEEDS").unwrap_or(usual),
    }
}

#[test]
fn whatever_happens_no_processor_has_two_jobs() {
    let mut switches = 0u64;
    for seed in seeds(60) {
        let hosts = [1, 2, 3, 7, 16][seed as usize % 5];
        let mut world = World::new(hosts, 4, MS * 5 * (1 + seed as u32 % 9), seed);
        let jobs = 3 + world.random(12) as JobId;
        let mut end = Vec::new();
        for job in 1..=jobs {
            let first = world.random(hosts.into()) as u32;
            let many = 1 + world.random(u64::from(hosts - first)) as u32;
            let at: Vec<u32> = (first..first + many).collect();
            let (procs, priority) = (1 + world.random(6) as u32, world.random(16) as u8);
            let event = world.enter(job, &at, procs, priority);
            let mut time = MS * world.random(300) as u32;
            world.at(time, event);
            for _ in 0..world.random(12) {
                time += US * world.random(90_000) as u32;
                let event = match world.random(9) {
                    0 => Event::Hold(job, Why::User),
                    1 => Event::Release(job, Why::User),
                    2 => Event::Hold(job, Why::Output),
                    3 => Event::Release(job, Why::Output),
                    4 | 5 => Event::Idle(job),
                    6 => Event::Busy(job),
                    7 => Event::Yield(job),
                    _ => Event::Sleep(job, time + MS * world.random(100) as u32),
                };
                world.at(time, event);
            }
            for why in [Why::User, Why::Output] {
                world.at(time + MS, Event::Release(job, why));
            }
            if world.random(2) == 0 {
                let leave = time + MS * world.random(500) as u32;
                world.at(leave, Event::Leave(job));
            } else {
                end.push(job);
            }
        }
        if world.random(3) == 0 {
            let host = world.random(hosts.into()) as u32;
            world.slow = Some((host, MS * world.random(1500) as u32));
        }
        world.run(MS * 2_500, seed);
        world.slow = None;
        let before: Vec<_> = end.iter().map(|job| world.had(*job)).collect();
        let rows = end.len() as u32 + 1;
        world.run(MS * 5_000 + MS * 46 * 181 * 2 * rows, seed);
        for (job, before) in end.iter().zip(before) {
            let gang = &world.gang;
            assert!(world.had(*job) > before, "seed {seed}: job {job} has no slice: {gang:?}");
        }
        switches += world.rows;
    }
    println!("{switches} switches");
}

#[test]
fn four_thousand_hosts_are_switched_in_time() {
    let mut world = World::new(4096, 2, MS * 100, 37);
    let all: Vec<u32> = (0..4096).collect();
    for job in 1..=2 {
        let event = world.enter(job, &all, 2, 8);
        world.at(Time::ZERO, event);
    }
    for job in 3..60 {
        let first = world.random(4000) as u32;
        let some: Vec<u32> = (first..first + 96).collect();
        let event = world.enter(job, &some, 2, 8);
        world.at(MS * 10 * job, event);
    }
    world.run(MS * 2_000, 37);
    assert!(world.rows > 10);
    assert!(world.had(1) > MS * 100 && world.had(2) > MS * 100);
}
