//! Tests of rotations: the actions of a host without orders, and all events that can interrupt it.

use std::collections::BTreeMap;

use score_proto::ids::{HostId, JobId};

use super::sim_event::GangSimEvent;
use super::simulation::{GangSimulation, MS, US, seeds};
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
    /// Cancels the rotation of a job that gets another order or has ended.
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
            self.record.turn_count += 1;
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
            self.record.lost_turns += 1;
        } else {
            let latency = US * (20 + self.random(200) as u32);
            self.push_event(self.now + latency, GangSimEvent::Turn { host, seq: switch_seq + 1 });
        }
    }
}

/// Enters this many jobs of two processes on one host of two slots.
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
        let (turns, unordered) = (sim.record.turn_count, sim.record.timed_stops);
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
        assert_eq!(sim.record.turn_count, 0, "{number}");
    }
}

/// Jobs whose rotation has started.
struct StartedRotation {
    gang: GangScheduler,
    jobs: Vec<JobId>,
    /// The number of the first stop.
    first: SwitchSeq,
    turn_count: u32,
    began_at: MonotonicTime,
    /// The number of stops without an order before the rotation.
    timed_stops: u32,
}

impl StartedRotation {
    /// Runs jobs of one process on a host of one slot until they rotate. None if they do not.
    fn of(job_count: u32, slice: Duration) -> Option<Self> {
        let config = GangConfig { slice, ..GangConfig::default() };
        let mut gang = GangScheduler::new(config, BTreeMap::from([(HostId(0), 1)]));
        let (mut now, mut next, mut timed_stops) = (MonotonicTime::ZERO, Vec::new(), 0);
        for job in (1..=job_count).map(JobId) {
            let shares = vec![HostShare { host: HostId(0), procs: 1 }];
            next.extend(gang.on(GangEvent::Enter { job, shares, priority: 8 }, now));
        }
        for _ in 0..200 {
            let first_stop = next.iter().find_map(|action| match action {
                GangAction::StartRotation { .. } => Some(Err(action.clone())),
                GangAction::Stop { job, switch_seq } => {
                    Some(Ok((*job, *switch_seq, Duration::ZERO)))
                }
                GangAction::Run { job, stop: Some(stop) } => {
                    Some(Ok((*job, stop.switch_seq, stop.after)))
                }
                _ => None,
            });
            match first_stop {
                Some(Err(start)) => return Some(Self::started(gang, start, now, timed_stops)),
                Some(Ok((job, switch_seq, after))) => {
                    timed_stops += u32::from(!after.is_zero());
                    now += after;
                    next = gang.on(GangEvent::Stopped { job, switch_seq }, now);
                }
                None => {
                    now = gang.deadline()?;
                    next = gang.on(GangEvent::Tick, now);
                }
            }
        }
        None
    }

    fn started(
        gang: GangScheduler,
        start: GangAction,
        began_at: MonotonicTime,
        timed_stops: u32,
    ) -> Self {
        let GangAction::StartRotation { jobs, switch_seq: first, turn_count, .. } = start else {
            panic!("{start:?}")
        };
        Self { gang, jobs, first, turn_count, began_at, timed_stops }
    }

    /// The host stops the job of this turn. No other turn follows.
    fn end_after(&mut self, turns: u32) -> Vec<GangAction> {
        let job = self.jobs[(turns as usize - 1) % self.jobs.len()];
        let switch_seq = self.first + u64::from(turns - 1);
        self.gang.on(GangEvent::Stopped { job, switch_seq }, self.began_at + MS * 10 * turns)
    }

    fn ended_action(&self, turn_count: u32) -> GangAction {
        GangAction::RotationEnded { jobs: self.jobs.clone(), turn_count, since: self.began_at }
    }
}

/// Two jobs that have begun to rotate. Returns also the number of the first stop and the time of
/// the start.
fn two_jobs_in_rotation() -> (GangScheduler, SwitchSeq, MonotonicTime) {
    let rotation = StartedRotation::of(2, MS * 10).unwrap();
    (rotation.gang, rotation.first, rotation.began_at)
}

#[test]
fn a_rotation_fills_half_a_second_with_at_least_two_rounds() {
    let turns = |jobs, slice| StartedRotation::of(jobs, slice).map(|found| found.turn_count);
    assert_eq!((turns(2, MS * 10), turns(3, MS * 10)), (Some(50), Some(48)));
    assert_eq!((turns(2, MS * 125), turns(2, MS * 126)), (Some(4), None));
    assert_eq!((turns(8, MS * 10), turns(9, MS * 10), turns(1, MS * 10)), (Some(48), None, None));
}

#[test]
fn a_rotation_begins_when_four_slices_have_ended_as_planned() {
    let rotation = StartedRotation::of(2, MS * 10).unwrap();
    assert!((4..=6).contains(&rotation.timed_stops), "{}", rotation.timed_stops);
    assert_eq!(rotation.gang.running().collect::<Vec<_>>(), [rotation.jobs[0]]);
}

#[test]
fn a_rotation_that_its_host_ends_is_charged_to_its_jobs_by_their_turns() {
    for turns in [1, 2, 3, 49, 50] {
        let mut rotation = StartedRotation::of(2, MS * 10).unwrap();
        let actions = rotation.end_after(turns);
        assert_eq!(actions[0], rotation.ended_action(turns));
        // After an odd number of turns, the second job has had one turn less than the first.
        if turns % 2 == 1 {
            assert_eq!(started_jobs(&actions)[0], rotation.jobs[1], "{actions:?}");
        }
    }
}

#[test]
fn a_rotation_that_is_interrupted_ends_with_the_turn_that_has_begun() {
    for (milliseconds, turns) in [(0, 1), (9, 1), (10, 2), (33, 4)] {
        let mut rotation = StartedRotation::of(2, MS * 10).unwrap();
        let now = rotation.began_at + MS * milliseconds;
        let actions = rotation.gang.on(GangEvent::Hold(JobId(1), HoldReason::User), now);
        assert!(actions.contains(&rotation.ended_action(turns)), "{actions:?}");
        let last_turn = rotation.first + u64::from(rotation.turn_count - 1);
        let stops = stop_orders(&actions);
        assert!(stops.iter().all(|(_, switch_seq)| *switch_seq > last_turn), "{stops:?}");
        assert!(stops[0].1 < stops[1].1, "{stops:?}");
    }
}

#[test]
fn a_rotation_continues_if_no_job_has_changed() {
    let mut rotation = StartedRotation::of(2, MS * 10).unwrap();
    let now = rotation.began_at + MS * 5;
    assert_eq!(rotation.gang.on(GangEvent::Busy(JobId(1)), now), []);
    assert_eq!(rotation.gang.on(GangEvent::Tick, now), []);
    let switch_seq = SwitchSeq(1);
    assert_eq!(rotation.gang.on(GangEvent::Stopped { job: JobId(1), switch_seq }, now), []);
    assert_eq!(rotation.gang.deadline(), Some(rotation.began_at + MS * 1000));
    let before = rotation.began_at + MS * 999;
    assert_eq!(rotation.gang.on(GangEvent::Tick, before), []);
    assert_eq!(rotation.end_after(50)[0], rotation.ended_action(50));
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

// Promise of `interrupted_rotations_never_put_two_jobs_on_a_processor`.
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

// Promise of `interrupted_rotations_never_put_two_jobs_on_a_processor`.
#[test]
fn no_unresponsive_job_of_a_rotation_is_resumed() {
    let (mut gang, _, started_at) = two_jobs_in_rotation();
    let deadline = gang.deadline().unwrap();
    assert_eq!(deadline, started_at + MS * 1000);
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

// Promise (time-sharing): Rotation: equal jobs on one host take turns without the scheduler; any
// other event ends the rotation first, and no job runs before all have stopped; a lost order or
// report of a rotation costs a second.
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
            turns + sim.record.turn_count,
            lost_turns + sim.record.lost_turns,
            ordered_stops + sim.record.ordered_stops,
        );
    }
    println!(
        "{turns} turns, {lost_turns} lost without a message, {ordered_stops} stops were ordered"
    );
    assert!(turns > 1000 && lost_turns > 10);
}
