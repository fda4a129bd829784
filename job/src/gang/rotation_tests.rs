//! Rotations: the actions of a host without orders, and all events that can interrupt them.

use std::collections::BTreeMap;

use score_proto::ids::{HostId, JobId};

use super::tests::{GangSimEvent, GangSimulation, MS, US, seeds};
use super::*;

/// The state of a rotation on a host.
pub struct SimRotation {
    pub jobs: Vec<Option<JobId>>,
    /// The number of the first turn, the number of turns, and their length.
    pub params: (SwitchSeq, u32, Duration),
}

impl SimRotation {
    fn job(&self, switch_seq: SwitchSeq) -> Option<JobId> {
        self.jobs[(switch_seq - self.params.0) as usize % self.jobs.len()]
    }
}

impl GangSimulation {
    /// A job gets another order, or has ended.
    pub fn cancel_rotation(&mut self, host: HostId, job: JobId) {
        if self.rotations.get(&host).is_some_and(|rotation| rotation.jobs.contains(&Some(job))) {
            self.rotations.remove(&host);
        }
    }

    pub fn on_rotation_order(
        &mut self,
        host: HostId,
        job: JobId,
        (position, job_count): (usize, usize),
        params: (SwitchSeq, u32, Duration),
    ) {
        if self.rotations.get(&host).is_none_or(|rotation| rotation.params.0 != params.0) {
            self.rotations.insert(host, SimRotation { jobs: vec![None; job_count], params });
        }
        let rotation = self.rotations.get_mut(&host).unwrap();
        rotation.jobs[position] = Some(job);
        if !rotation.jobs.contains(&None) {
            self.push_event(self.now, GangSimEvent::Turn { host, seq: params.0 });
        }
    }

    /// Begins a turn unless the rotation was cancelled.
    pub fn begin_turn(&mut self, host: HostId, switch_seq: SwitchSeq, seed: u64) {
        let Some(rotation) = self.rotations.get(&host) else { return };
        let (first, turns, length) = rotation.params;
        if (first..first + u64::from(turns)).contains(&switch_seq)
            && let Some(job) = rotation.job(switch_seq)
        {
            self.start_share(host, job, seed);
            self.turn_count += 1;
            self.planned.insert((host, job), switch_seq);
            self.push_event(
                self.now + length,
                GangSimEvent::SliceExpired { host, job, seq: switch_seq },
            );
        }
    }

    /// The host's clock has stopped a job at the end of its turn. The next turn usually follows.
    pub fn end_turn(&mut self, host: HostId, job: JobId, switch_seq: SwitchSeq) {
        let (first, turns, _) = self.rotations[&host].params;
        let draw = self.random(self.fault_odds);
        if switch_seq + 1 == first + u64::from(turns) || draw == 1 {
            self.rotations.remove(&host);
            self.expect_acks(job, switch_seq);
            self.acknowledge(host, job, switch_seq);
        } else if draw == 2 {
            // No job runs, and no message is sent.
            self.lost_turns += 1;
        } else {
            let latency = US * (20 + self.random(200) as u32);
            self.push_event(self.now + latency, GangSimEvent::Turn { host, seq: switch_seq + 1 });
        }
    }
}

/// Jobs of two processes each on one host of two slots, from the start.
fn equal_jobs(jobs: u32, slice: Duration, seed: u64) -> GangSimulation {
    let mut sim = GangSimulation::new(1, 2, slice, seed);
    for job in (1..=jobs).map(JobId) {
        let event = sim.enter(job, &[0], 2, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    sim
}

#[test]
fn equal_jobs_on_one_host_rotate_with_hardly_any_orders() {
    for (jobs, slice) in [(2, 5), (2, 10), (3, 10), (5, 40)] {
        let mut sim = equal_jobs(jobs, MS * slice, 41);
        sim.run(MS * 60_000, 41);
        let run_times: Vec<f64> =
            (1..=jobs).map(|job| sim.run_time(JobId(job)).as_secs_f64()).collect();
        let fair_share = run_times.iter().sum::<f64>() / f64::from(jobs);
        assert!(
            run_times.iter().all(|time| (time / fair_share - 1.0).abs() < 0.01),
            "{jobs}, {slice}: {run_times:?}"
        );
        let (turns, unordered) = (sim.turn_count, sim.timed_stops);
        assert!(turns > unordered * 19 / 20, "{jobs} jobs, {slice} ms: {turns} of {unordered}");
    }
}

#[test]
fn only_equal_jobs_that_are_alone_on_a_host_rotate() {
    let others: [fn(&mut GangSimulation) -> GangEvent; 4] = [
        |sim| sim.enter(JobId(3), &[0, 1], 2, 8),
        |sim| sim.enter(JobId(3), &[1], 1, 8),
        |sim| sim.enter(JobId(3), &[0], 2, 6),
        |sim| sim.enter(JobId(3), &[0], 1, 8),
    ];
    for (number, other) in others.iter().enumerate() {
        let mut sim = GangSimulation::new(2, 2, MS * 10, 43);
        for job in [1, 2].map(JobId) {
            let event = sim.enter(job, &[0], if number == 3 { 1 } else { 2 }, 8);
            sim.schedule_event(MonotonicTime::ZERO, event);
        }
        let event = other(&mut sim);
        sim.schedule_event(MonotonicTime::ZERO, event);
        sim.run(MS * 5_000, 43);
        assert_eq!(sim.turn_count, 0, "{number}");
    }
}

/// Two jobs that have begun to rotate; the number of the first stop, and the time of the start.
fn two_jobs_in_rotation() -> (GangScheduler, SwitchSeq, MonotonicTime) {
    let config = GangConfig { slice: MS * 10, ..GangConfig::default() };
    let mut gang = GangScheduler::new(config, BTreeMap::from([(HostId(0), 1)]));
    let (mut now, mut next) = (MonotonicTime::ZERO, Vec::new());
    for job in [1, 2].map(JobId) {
        let shares = vec![HostShare { host: HostId(0), procs: 1 }];
        next.extend(gang.on(GangEvent::Enter { job, shares, priority: 8 }, now));
    }
    for _ in 0..100 {
        let first_stop = next.iter().find_map(|action| match action {
            GangAction::StartRotation { switch_seq, .. } => Some(Err(*switch_seq)),
            GangAction::Stop { job, switch_seq } => Some(Ok((*job, *switch_seq, Duration::ZERO))),
            GangAction::Run { job, stop: Some(stop) } => {
                Some(Ok((*job, stop.switch_seq, stop.after)))
            }
            _ => None,
        });
        match first_stop {
            Some(Err(switch)) => return (gang, switch, now),
            Some(Ok((job, switch, after))) => {
                now += after;
                next = gang.on(GangEvent::Stopped { job, switch_seq: switch }, now);
            }
            None => {
                now = gang.deadline().unwrap();
                next = gang.on(GangEvent::Tick, now);
            }
        }
    }
    panic!("{gang:?}");
}

fn stop_orders(actions: &[GangAction]) -> Vec<(JobId, SwitchSeq)> {
    let stop_order = |action: &GangAction| match action {
        GangAction::Stop { job, switch_seq } => Some((*job, *switch_seq)),
        _ => None,
    };
    actions.iter().filter_map(stop_order).collect()
}

fn started_jobs(actions: &[GangAction]) -> Vec<JobId> {
    let start_order = |action: &GangAction| match action {
        GangAction::Run { job, .. } => Some(vec![*job]),
        GangAction::StartRotation { jobs, .. } => Some(jobs.clone()),
        _ => None,
    };
    actions.iter().filter_map(start_order).flatten().collect()
}

#[test]
fn any_event_ends_the_rotation_and_no_job_runs_before_all_have_stopped() {
    let share = vec![HostShare { host: HostId(0), procs: 1 }];
    let events = [
        GangEvent::Enter { job: JobId(3), shares: share, priority: 8 },
        GangEvent::Hold(JobId(1), HoldReason::User),
        GangEvent::Idle(JobId(1)),
        GangEvent::Yield(JobId(1)),
        GangEvent::Sleep(JobId(1), MS * 60_000),
    ];
    for event in events {
        let (mut gang, first, started_at) = two_jobs_in_rotation();
        let now = started_at + MS * 33;
        let actions = gang.on(event.clone(), now);
        let stops = stop_orders(&actions);
        assert!(stops.len() == 2 && started_jobs(&actions).is_empty(), "{event:?}: {actions:?}");
        // This acknowledgement was in flight when the stop was ordered.
        let stale = gang.on(GangEvent::Stopped { job: JobId(1), switch_seq: first + 2 }, now);
        assert!(started_jobs(&stale).is_empty(), "{event:?}: {stale:?}");
        let (job, switch_seq) = stops[0];
        let after_one = gang.on(GangEvent::Stopped { job, switch_seq }, now + US);
        assert!(started_jobs(&after_one).is_empty(), "{event:?}: {after_one:?}");
        let (job, switch_seq) = stops[1];
        let after_both = gang.on(GangEvent::Stopped { job, switch_seq }, now + US);
        let next = if matches!(event, GangEvent::Enter { .. }) { 3 } else { 2 };
        assert_eq!(started_jobs(&after_both), [JobId(next)], "{event:?}: {after_both:?}");
    }
}

#[test]
fn the_remaining_job_of_a_rotation_runs_as_soon_as_it_has_stopped() {
    let (mut gang, _, started_at) = two_jobs_in_rotation();
    let actions = gang.on(GangEvent::Leave(JobId(1)), started_at + MS * 5);
    let [(JobId(2), switch_seq)] = stop_orders(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(
        started_jobs(
            &gang.on(GangEvent::Stopped { job: JobId(2), switch_seq }, started_at + MS * 5)
        ),
        [JobId(2)]
    );
    assert_eq!(gang.deadline(), None);
}

#[test]
fn no_unresponsive_job_of_a_rotation_is_resumed() {
    let (mut gang, _, started_at) = two_jobs_in_rotation();
    let deadline = gang.deadline().unwrap();
    assert!(deadline <= started_at + MS * 1000);
    let ended = gang.on(GangEvent::Tick, deadline);
    let stops = stop_orders(&ended);
    assert!(stops.len() == 2 && started_jobs(&ended).is_empty(), "{ended:?}");
    let mut late_reports = 0;
    for _ in 0..1000 {
        let deadline = gang.deadline().unwrap();
        let actions = gang.on(GangEvent::Tick, deadline);
        assert!(started_jobs(&actions).is_empty(), "{actions:?}");
        late_reports += usize::from(actions.contains(&GangAction::StopTimedOut(JobId(1))));
    }
    assert!(late_reports > 3);
    let now = gang.deadline().unwrap();
    let mut started = Vec::new();
    for (job, switch_seq) in stops {
        assert!(started.is_empty());
        started = started_jobs(&gang.on(GangEvent::Stopped { job, switch_seq }, now));
    }
    assert_eq!(started.len(), 1);
}

#[test]
fn interrupted_rotations_never_put_two_jobs_on_a_processor() {
    let (mut turns, mut lost_turns, mut ordered_stops) = (0, 0, 0);
    for seed in seeds(20) {
        let jobs = 2 + seed as u32 % 4;
        let mut sim = equal_jobs(jobs, MS * [5, 10, 40][seed as usize % 3], seed);
        sim.fault_odds = [20, 100, 1000][seed as usize / 3 % 3];
        for job in (1..=jobs).map(JobId) {
            let mut time = MS * 100;
            while time < MS * 20_000 {
                time += US * sim.random(3_000_000) as u32;
                let event = match sim.random(6) {
                    0 => GangEvent::Hold(job, HoldReason::User),
                    1 => GangEvent::Release(job, HoldReason::User),
                    2 => GangEvent::Idle(job),
                    3 => GangEvent::Yield(job),
                    4 => GangEvent::Busy(job),
                    _ => GangEvent::Sleep(job, time + MS * sim.random(1000) as u32),
                };
                sim.schedule_event(time, event);
            }
            sim.schedule_event(time, GangEvent::Release(job, HoldReason::User));
        }
        // Further jobs, some of lower priority, enter and leave.
        for job in (jobs + 1..jobs + 5).map(JobId) {
            let event = sim.enter(job, &[0], 2, 8 + (seed as u8 & 1));
            let time = MS * sim.random(15_000) as u32;
            sim.schedule_event(time, event);
            let leave = time + US * sim.random(4_000_000) as u32;
            sim.schedule_event(leave, GangEvent::Leave(job));
        }
        if sim.random(3) == 0 {
            sim.slow_host = Some((HostId(0), MS * sim.random(1500) as u32));
        }
        sim.run(MS * 24_000, seed);
        (sim.slow_host, sim.fault_odds) = (None, u64::MAX);
        let earlier: Vec<_> = (1..=jobs).map(|job| sim.run_time(JobId(job))).collect();
        sim.run(MS * 40_000, seed);
        for (job, earlier_time) in (1..=jobs).map(JobId).zip(earlier) {
            let share = (sim.run_time(job) - earlier_time).as_secs_f64() * f64::from(jobs) / 16.0;
            assert!(share > 0.7, "seed {seed}: job {job} has {share} of its share: {:?}", sim.gang);
        }
        (turns, lost_turns, ordered_stops) = (
            turns + sim.turn_count,
            lost_turns + sim.lost_turns,
            ordered_stops + sim.ordered_stops,
        );
    }
    println!(
        "{turns} turns, {lost_turns} lost without a message, {ordered_stops} stops were ordered"
    );
    assert!(turns > 1000 && lost_turns > 10);
}
