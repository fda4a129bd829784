//! A simulated cluster for the gang scheduler. Its hosts answer with delays. It checks that no
//! processor has two jobs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use score_proto::ids::{HostId, JobId};

use super::rotation_tests::SimRotation;
use super::sim_event::GangSimEvent;
use super::*;

pub const MS: Duration = Duration::from_millis(1);
pub const US: Duration = Duration::from_micros(1);

/// The data that tests check after a simulation.
#[derive(Default)]
pub struct SimRecord {
    /// The number of turns, and how often a host has lost one.
    pub turn_count: u64,
    pub lost_turns: u64,
    /// The number of stops that were ordered, and of those that were carried out without an order.
    pub ordered_stops: u64,
    pub timed_stops: u64,
    run_time: BTreeMap<JobId, Duration>,
    pub started_at: BTreeMap<JobId, MonotonicTime>,
    pub entered_at: BTreeMap<JobId, MonotonicTime>,
    pub row_count: u64,
    pub late_jobs: Vec<JobId>,
    pub held_jobs: Vec<JobId>,
}

pub struct GangSimulation {
    pub gang: GangScheduler,
    pub now: MonotonicTime,
    events: BinaryHeap<Reverse<(MonotonicTime, u64, GangSimEvent)>>,
    event_count: u64,
    random: u64,
    pub shares: BTreeMap<JobId, Vec<HostShare>>,
    /// Acknowledgements that are still missing.
    missing_acks: BTreeMap<(JobId, SwitchSeq), BTreeSet<HostId>>,
    /// The number of the stop that a host makes by its timer.
    pub planned: BTreeMap<(HostId, JobId), SwitchSeq>,
    pub rotations: BTreeMap<HostId, SimRotation>,
    /// On average, once in this many turns a host aborts the rotation or does not answer.
    pub fault_odds: u64,
    /// The time at which the last event reaches each host, so that orders arrive in the order in
    /// which they were sent.
    last_arrival_at: BTreeMap<HostId, MonotonicTime>,
    pub slots: BTreeMap<HostId, u32>,
    /// The running shares of each host, with the time of their start.
    running: BTreeMap<(HostId, JobId), MonotonicTime>,
    pub record: SimRecord,
    /// This host answers later than other hosts by this time.
    pub slow_host: Option<(HostId, Duration)>,
    script: Vec<GangEvent>,
}

impl GangSimulation {
    pub fn new(hosts: u32, slots: u32, slice: Duration, seed: u64) -> Self {
        let slots: BTreeMap<_, _> = (0..hosts).map(|host| (HostId(host), slots)).collect();
        let config = GangConfig { slice, ..GangConfig::default() };
        Self {
            gang: GangScheduler::new(config, slots.clone()),
            now: MonotonicTime::ZERO,
            events: BinaryHeap::new(),
            event_count: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            shares: BTreeMap::new(),
            missing_acks: BTreeMap::new(),
            planned: BTreeMap::new(),
            rotations: BTreeMap::new(),
            fault_odds: u64::MAX,
            last_arrival_at: BTreeMap::new(),
            slots,
            running: BTreeMap::new(),
            record: SimRecord::default(),
            slow_host: None,
            script: Vec::new(),
        }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    pub fn schedule_event(&mut self, time: MonotonicTime, event: GangEvent) {
        self.script.push(event);
        let index = self.script.len() - 1;
        self.push_event(time, GangSimEvent::Scripted(index));
    }

    pub fn enter(&mut self, job: JobId, hosts: &[u32], procs: u32, priority: u8) -> GangEvent {
        let to_share = |&host: &u32| HostShare { host: HostId(host), procs };
        let shares: Vec<_> = hosts.iter().map(to_share).collect();
        self.shares.insert(job, shares.clone());
        GangEvent::Enter { job, shares, priority }
    }

    pub fn push_event(&mut self, time: MonotonicTime, event: GangSimEvent) {
        self.event_count += 1;
        self.events.push(Reverse((time, self.event_count, event)));
    }

    fn send_to_host(&mut self, host: HostId, event: GangSimEvent) {
        let latency = US * (20 + self.random(200) as u32);
        let extra_latency =
            self.slow_host.filter(|(slow, _)| *slow == host).map_or(Duration::ZERO, |(_, by)| by);
        let time = (self.now + latency + extra_latency)
            .max(self.last_arrival_at.get(&host).copied().unwrap_or_default());
        self.last_arrival_at.insert(host, time);
        self.push_event(time, event);
    }

    /// Whether an action starts a job that was stopped.
    fn starts_row(&self, action: &GangAction) -> bool {
        let is_stopped = |job: &JobId| {
            let mut shares = self.shares[job].iter();
            shares.any(|share| !self.running.contains_key(&(share.host, *job)))
        };
        match action {
            GangAction::Run { job, .. } => is_stopped(job),
            GangAction::StartRotation { .. } => true,
            _ => false,
        }
    }

    fn step_gang(&mut self, event: GangEvent) {
        if let GangEvent::Enter { job, .. } = &event {
            self.record.entered_at.insert(*job, self.now);
        }
        if let GangEvent::Leave(job) = &event {
            for share in self.shares[job].clone() {
                self.stop_share(share.host, *job);
            }
        }
        let leaver = if let GangEvent::Leave(job) = &event { Some(*job) } else { None };
        let actions = self.gang.on(event, self.now);
        self.record.row_count += u64::from(actions.iter().any(|action| self.starts_row(action)));
        for action in actions {
            match action {
                GangAction::Stop { job, switch_seq } => {
                    self.record.ordered_stops += 1;
                    self.expect_acks(job, switch_seq);
                    for share in self.shares[&job].clone() {
                        self.send_to_host(
                            share.host,
                            GangSimEvent::Stop { host: share.host, job, seq: switch_seq },
                        );
                    }
                }
                GangAction::Run { job, stop } => {
                    stop.iter().for_each(|stop| self.expect_acks(job, stop.switch_seq));
                    let stop = stop.map(|stop| (stop.switch_seq, stop.after));
                    for share in self.shares[&job].clone() {
                        self.send_to_host(
                            share.host,
                            GangSimEvent::Run { host: share.host, job, stop },
                        );
                    }
                }
                GangAction::StartRotation {
                    jobs,
                    switch_seq,
                    turn_count: turns,
                    slice: length,
                } => {
                    let params = (switch_seq, turns, length);
                    for (index, job) in jobs.iter().copied().enumerate() {
                        let (host, position) = (self.shares[&job][0].host, (index, jobs.len()));
                        self.send_to_host(
                            host,
                            GangSimEvent::Turns { host, job, position, params },
                        );
                    }
                }
                GangAction::RotationEnded { .. } => {}
                GangAction::Held(job) => self.record.held_jobs.push(job),
                GangAction::StopTimedOut(job) => self.record.late_jobs.push(job),
            }
        }
        if let Some(job) = leaver {
            self.shares.remove(&job);
        }
    }

    /// Records that all hosts of a job have to acknowledge the stop of this number.
    pub fn expect_acks(&mut self, job: JobId, switch_seq: SwitchSeq) {
        let hosts = self.shares.get(&job).into_iter().flatten().map(|share| share.host);
        let hosts = hosts.collect();
        self.missing_acks.entry((job, switch_seq)).or_insert(hosts);
    }

    pub fn acknowledge(&mut self, host: HostId, job: JobId, switch_seq: SwitchSeq) {
        let latency = US * (20 + self.random(200) as u32);
        self.push_event(self.now + latency, GangSimEvent::Ack { host, job, seq: switch_seq });
    }

    fn stop_share(&mut self, host: HostId, job: JobId) {
        if let Some(since) = self.running.remove(&(host, job)) {
            *self.record.run_time.entry(job).or_default() += self.now - since;
        }
    }

    /// Starts a share. Asserts the main invariant: no processor has two jobs.
    pub fn start_share(&mut self, host: HostId, job: JobId, seed: u64) {
        let Some(job_shares) = self.shares.get(&job) else { return };
        let procs = job_shares.iter().find(|share| share.host == host).unwrap().procs;
        let others: u32 = self
            .running
            .range((host, JobId(0))..=(host, JobId(u32::MAX)))
            .map(|((_, other), _)| other)
            .filter(|other| **other != job)
            .map(|other| {
                let shares = &self.shares[other];
                shares.iter().find(|share| share.host == host).unwrap().procs
            })
            .sum();
        assert!(
            others == 0 || others + procs <= self.slots[&host],
            "seed {seed}: job {job} runs with {others} other processes on host {host}"
        );
        let now = self.now;
        self.running.entry((host, job)).or_insert(now);
        self.record.started_at.entry(job).or_insert(now);
    }

    pub fn run(&mut self, until: MonotonicTime, seed: u64) {
        for _ in 0..50_000_000u64 {
            let next = self.events.peek().map(|Reverse((time, ..))| *time);
            let tick = self.gang.deadline();
            let time = match (next, tick) {
                (Some(a), Some(b)) => a.min(b.max(self.now)),
                (Some(a), None) | (None, Some(a)) => a.max(self.now),
                (None, None) => until,
            };
            if time >= until {
                self.now = until;
                let running: Vec<_> = self.running.keys().copied().collect();
                for (host, job) in running {
                    self.stop_share(host, job);
                    self.running.insert((host, job), until);
                }
                return;
            }
            self.now = time;
            if next.is_none_or(|next| next > time) {
                self.step_gang(GangEvent::Tick);
                continue;
            }
            let Some(Reverse((_, _, sim_event))) = self.events.pop() else { continue };
            match sim_event {
                GangSimEvent::Scripted(index) => {
                    let event = self.script[index].clone();
                    self.step_gang(event);
                }
                GangSimEvent::Turns { host, job, position, params } => {
                    self.on_rotation_order(host, job, position, params);
                }
                GangSimEvent::Turn { host, seq: switch_seq } => {
                    self.begin_turn(host, switch_seq, seed)
                }
                GangSimEvent::Run { host, job, stop } => {
                    self.cancel_rotation(host, job);
                    self.start_share(host, job, seed);
                    self.planned.remove(&(host, job));
                    if let Some((switch_seq, after)) = stop {
                        self.planned.insert((host, job), switch_seq);
                        self.push_event(
                            self.now + after,
                            GangSimEvent::SliceExpired { host, job, seq: switch_seq },
                        );
                    }
                }
                GangSimEvent::SliceExpired { host, job, seq: switch_seq } => {
                    if self.planned.get(&(host, job)) == Some(&switch_seq) {
                        self.planned.remove(&(host, job));
                        self.record.timed_stops += 1;
                        self.stop_share(host, job);
                        let is_in_rotation = |rotation: &SimRotation| {
                            switch_seq >= rotation.params.0 && rotation.jobs.contains(&Some(job))
                        };
                        match self.rotations.get(&host).is_some_and(is_in_rotation) {
                            true => self.end_turn(host, job, switch_seq),
                            false => self.acknowledge(host, job, switch_seq),
                        }
                    }
                }
                GangSimEvent::Stop { host, job, seq: switch_seq } => {
                    self.cancel_rotation(host, job);
                    self.planned.remove(&(host, job));
                    self.stop_share(host, job);
                    self.acknowledge(host, job, switch_seq);
                }
                GangSimEvent::Ack { host, job, seq: switch_seq } => {
                    let Some(hosts) = self.missing_acks.get_mut(&(job, switch_seq)) else {
                        continue;
                    };
                    hosts.remove(&host);
                    if hosts.is_empty() {
                        self.missing_acks.remove(&(job, switch_seq));
                        self.step_gang(GangEvent::Stopped { job, switch_seq });
                    }
                }
            }
        }
        panic!("seed {seed}: no end");
    }

    /// The time that a job has run, by host.
    pub fn run_time(&self, job: JobId) -> Duration {
        self.record.run_time.get(&job).copied().unwrap_or_default() / self.entered_hosts(job)
    }

    fn entered_hosts(&self, job: JobId) -> u32 {
        self.shares.get(&job).map_or(1, |shares| shares.len() as u32)
    }
}

/// The seeds that the environment names, or the default number of seeds.
pub fn seeds(default_count: u64) -> std::ops::RangeInclusive<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("SCORE_SIM_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number("SCORE_SIM_SEEDS").unwrap_or(default_count),
    }
}
