//! Tests in a simulated cluster whose hosts answer with delays: exclusive use of processors,
//! shares, new jobs, idle jobs, and hosts that do not answer. A failing seed is in the message.

use std::collections::BTreeMap;

use score_proto::ids::{HostId, JobId};

use super::simulation::{GangSimulation, MS, US, seeds};
use super::*;

// Promise of `shares_follow_the_priorities`.
#[test]
fn a_job_alone_is_never_stopped() {
    let mut sim = GangSimulation::new(4, 2, MS * 40, 1);
    let event = sim.enter(JobId(1), &[0, 1, 2, 3], 2, 8);
    sim.schedule_event(MonotonicTime::ZERO, event);
    // Other jobs enter and leave on other processors.
    sim.slots.insert(HostId(4), 2);
    sim.gang = GangScheduler::new(GangConfig::default(), sim.slots.clone());
    for job in (2..5).map(JobId) {
        let event = sim.enter(job, &[4], 2, 0);
        sim.schedule_event(MS * 10 * job.0, event);
    }
    sim.run(MS * 10_000, 1);
    assert!(sim.run_time(JobId(1)) > MS * 9_999, "{:?}", sim.run_time(JobId(1)));
    assert!(sim.record.row_count > 15);
}

// Promise of `a_timed_stop_that_does_not_happen_is_ordered`.
#[test]
fn two_jobs_share_evenly_and_lose_little() {
    for slice in [5, 10, 40, 500] {
        let mut sim = GangSimulation::new(2, 2, MS * slice, 3);
        for job in [1, 2].map(JobId) {
            let event = sim.enter(job, &[0, 1], 2, 8);
            sim.schedule_event(MonotonicTime::ZERO, event);
        }
        sim.run(MS * 60_000, 3);
        let (one, two) =
            (sim.run_time(JobId(1)).as_secs_f64(), sim.run_time(JobId(2)).as_secs_f64());
        assert!((one / two - 1.0).abs() < 0.02, "slice {slice}: {one} {two}");
        assert!(one + two > 60.0 * (1.0 - 0.7 / f64::from(slice)), "slice {slice}: {one} {two}");
        // At the end of a slice, at most about 1 % of the stops need an order.
        let (ordered, unordered) = (sim.record.ordered_stops, sim.record.timed_stops);
        assert!(ordered <= 2 + unordered / 100, "slice {slice}: {ordered} {unordered}");
    }
}

/// Two jobs on one processor. The first was stopped at 5 ms. The second runs and has a timed stop.
fn second_of_two() -> (GangScheduler, TimedStop) {
    let mut gang = GangScheduler::new(GangConfig::default(), BTreeMap::from([(HostId(0), 1)]));
    let shares = vec![HostShare { host: HostId(0), procs: 1 }];
    let enter = |job| GangEvent::Enter { job, shares: shares.clone(), priority: 8 };
    gang.on(enter(JobId(1)), MonotonicTime::ZERO);
    gang.on(enter(JobId(2)), MonotonicTime::ZERO);
    let first = gang.on(GangEvent::Tick, MS * 5);
    let [GangAction::Stop { job: JobId(1), switch_seq }] = first[..] else { panic!("{first:?}") };
    let run = gang.on(GangEvent::Stopped { job: JobId(1), switch_seq }, MS * 5);
    let [GangAction::Run { job: JobId(2), stop: Some(planned) }] = run[..] else {
        panic!("{run:?}")
    };
    (gang, planned)
}

/// A host whose timer does not stop the job gets an order.
// Promise (time-sharing): Slices end by the clocks of the hosts; a job that does not stop gets an
// order, and a change of the plan is sent to the hosts.
#[test]
fn a_timed_stop_that_does_not_happen_is_ordered() {
    let (mut gang, planned) = second_of_two();
    let deadline = gang.deadline().unwrap();
    assert!(deadline > MS * 5 + planned.after);
    let ordered = [GangAction::Stop { job: JobId(2), switch_seq: planned.switch_seq }];
    assert_eq!(gang.on(GangEvent::Tick, deadline), ordered);
}

// Promise of `a_timed_stop_that_does_not_happen_is_ordered`.
#[test]
fn a_job_left_alone_has_its_planned_stop_cancelled() {
    let (mut gang, planned) = second_of_two();
    let actions = gang.on(GangEvent::Leave(JobId(1)), MS * 100);
    assert!(matches!(actions[..], [GangAction::Run { job: JobId(2), stop: None }]), "{actions:?}");
    // The stop was already in flight. The job is in the row, and runs again.
    assert_eq!(
        gang.on(GangEvent::Stopped { job: JobId(2), switch_seq: planned.switch_seq }, MS * 501),
        []
    );
    assert_eq!(gang.deadline(), None);
}

// Promise (time-sharing): Shares follow the priorities within 5 %; a job alone is never stopped; a
// newcomer runs within 20 ms whatever the number of rows.
#[test]
fn shares_follow_the_priorities() {
    for priorities in [vec![6, 8, 10], vec![0, 15], vec![8, 8, 9, 12]] {
        let mut sim = GangSimulation::new(3, 2, MS * 10, 5);
        for (job, priority) in priorities.iter().enumerate() {
            let event = sim.enter(JobId(job as u32 + 1), &[0, 1, 2], 2, *priority);
            sim.schedule_event(MonotonicTime::ZERO, event);
        }
        sim.run(MS * 60_000, 5);
        let weights: Vec<f64> =
            priorities.iter().map(|p| 2f64.powf(-f64::from(*p) / 2.0)).collect();
        let run_times: Vec<f64> = (1..=priorities.len() as u32)
            .map(|job| sim.run_time(JobId(job)).as_secs_f64())
            .collect();
        for (run_time, weight) in run_times.iter().zip(&weights) {
            let actual_share = run_time / run_times.iter().sum::<f64>();
            let expected_share = weight / weights.iter().sum::<f64>();
            assert!(
                (actual_share / expected_share - 1.0).abs() < 0.05,
                "{priorities:?}: {run_times:?}"
            );
        }
    }
}

#[test]
fn jobs_that_do_not_overlap_run_side_by_side() {
    let mut sim = GangSimulation::new(4, 2, MS * 20, 7);
    for (job, hosts) in
        [(JobId(1), vec![0, 1, 2, 3]), (JobId(2), vec![0, 1]), (JobId(3), vec![2, 3])]
    {
        let event = sim.enter(job, &hosts, 2, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    // Each job uses half of each host, so both jobs always fit.
    let mut halves = GangSimulation::new(2, 2, MS * 20, 7);
    for job in [1, 2].map(JobId) {
        let event = halves.enter(job, &[0, 1], 1, 8);
        halves.schedule_event(MonotonicTime::ZERO, event);
    }
    sim.run(MS * 10_000, 7);
    halves.run(MS * 10_000, 7);
    for job in (1..=3).map(JobId) {
        let seconds = sim.run_time(job).as_secs_f64();
        assert!((seconds / 5.0 - 1.0).abs() < 0.05, "job {job}: {seconds}");
    }
    assert!(halves.run_time(JobId(1)) > MS * 9_999 && halves.run_time(JobId(2)) > MS * 9_999);
}

// Promise of `shares_follow_the_priorities`.
#[test]
fn a_newcomer_runs_within_20_ms_for_any_number_of_rows() {
    for rows in [1, 2, 20, 100] {
        let mut sim = GangSimulation::new(8, 2, MS * 500, 11);
        let all: Vec<u32> = (0..8).collect();
        for job in (1..=rows).map(JobId) {
            let event = sim.enter(job, &all, 2, 8);
            sim.schedule_event(MonotonicTime::ZERO, event);
        }
        let mut enters_at = MS * 300_000;
        for job in (rows + 1..rows + 20).map(JobId) {
            let event = sim.enter(job, &all, 2, 15);
            sim.schedule_event(enters_at, event);
            enters_at += MS * (503 + sim.random(300) as u32);
        }
        sim.run(enters_at + MS * 1000, 11);
        for job in (rows + 1..rows + 20).map(JobId) {
            let wait = sim.record.started_at[&job] - sim.record.entered_at[&job];
            assert!(wait <= MS * 20, "{rows} rows: {wait:?}");
        }
    }
}

#[test]
fn several_newcomers_share_a_slice_in_equal_parts() {
    let mut sim = GangSimulation::new(2, 2, MS * 400, 13);
    let event = sim.enter(JobId(1), &[0, 1], 2, 8);
    sim.schedule_event(MonotonicTime::ZERO, event);
    for job in (2..=5).map(JobId) {
        let event = sim.enter(job, &[0, 1], 2, 8);
        sim.schedule_event(MS * 1000, event);
    }
    sim.run(MS * 1425, 13);
    for job in (2..=5).map(JobId) {
        let seconds = sim.run_time(job).as_secs_f64();
        assert!((seconds / 0.1 - 1.0).abs() < 0.08, "job {job} had {seconds} s");
    }
}

#[test]
fn a_newcomer_that_continues_into_its_shared_slice_is_no_newcomer_any_more() {
    let mut sim = GangSimulation::new(2, 2, MS * 20, 5);
    // The fourth job has to wait only for the third, so the second continues.
    let jobs: [(&[u32], u32); 4] = [(&[0, 1], 0), (&[0], 100), (&[1], 110), (&[1], 112)];
    for ((hosts, at), job) in jobs.into_iter().zip((1..).map(JobId)) {
        let event = sim.enter(job, hosts, 2, 8);
        sim.schedule_event(MS * at, event);
    }
    sim.run(MS * 3_000, 5);
    let run_times: Vec<_> = (1..=4).map(|job| sim.run_time(JobId(job))).collect();
    assert!(run_times.iter().all(|time| *time > MS * 600), "{run_times:?}");
}

#[test]
fn a_job_is_not_charged_for_time_on_hosts_that_no_other_job_could_use() {
    let mut sim = GangSimulation::new(3, 2, MS * 20, 9);
    // While the other jobs of its hosts are held, the third job, which has the lowest priority, has
    // the hosts for itself. Later, one of the other jobs always runs at the same time as the first.
    let jobs: [(&[u32], u8); 4] = [(&[0], 0), (&[0, 1], 0), (&[1, 2], 15), (&[1], 0)];
    for ((hosts, priority), job) in jobs.into_iter().zip((1..).map(JobId)) {
        let event = sim.enter(job, hosts, 2, priority);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    for job in [2, 4].map(JobId) {
        sim.schedule_event(MS, GangEvent::Hold(job, HoldReason::User));
        sim.schedule_event(MS * 2_000, GangEvent::Release(job, HoldReason::User));
    }
    sim.run(MS * 2_100, 9);
    let earlier = sim.run_time(JobId(3));
    // The fraction of this job is 1/182 of each of two rows, and its debt is at most two slices.
    sim.run(MS * 2_100 + MS * 21 * 182 * 5, 9);
    assert!(sim.run_time(JobId(3)) > earlier, "{earlier:?}: {:?}", sim.gang);
}

#[test]
fn an_idle_job_yields_within_two_milliseconds() {
    let mut sim = GangSimulation::new(2, 2, MS * 500, 17);
    for job in [1, 2].map(JobId) {
        let event = sim.enter(job, &[0, 1], 2, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    // From 600 ms on, the hosts of job 1 report every millisecond that it is idle.
    let mut idle_at = Vec::new();
    for ms in 0..9_000u32 {
        idle_at.push(MS * (600 + ms));
    }
    for time in idle_at {
        sim.schedule_event(time, GangEvent::Idle(JobId(1)));
    }
    sim.run(MS * 10_000, 17);
    let (idle, busy) = (sim.run_time(JobId(1)), sim.run_time(JobId(2)));
    assert!(idle < MS * (600 + 20 * 3) && busy > MS * 9_300, "{idle:?} {busy:?}");
}

#[test]
fn idle_jobs_do_not_preempt_other_idle_jobs() {
    let mut sim = GangSimulation::new(1, 1, MS * 500, 19);
    for job in [1, 2].map(JobId) {
        let event = sim.enter(job, &[0], 1, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    for ms in 1..10_000u32 {
        for job in [1, 2].map(JobId) {
            sim.schedule_event(MS * ms, GangEvent::Idle(job));
        }
    }
    sim.run(MS * 10_000, 19);
    assert!(sim.record.row_count < 1_100, "{} switches in 10 s", sim.record.row_count);
}

#[test]
fn a_held_job_stops_on_all_hosts_and_runs_again_after_its_release() {
    let mut sim = GangSimulation::new(2, 2, MS * 100, 23);
    for job in [1, 2].map(JobId) {
        let event = sim.enter(job, &[0, 1], 2, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    sim.schedule_event(MS * 1000, GangEvent::Hold(JobId(1), HoldReason::User));
    sim.schedule_event(MS * 1500, GangEvent::Hold(JobId(1), HoldReason::Inspection));
    sim.schedule_event(MS * 2000, GangEvent::Release(JobId(1), HoldReason::Inspection));
    sim.schedule_event(MS * 3000, GangEvent::Release(JobId(1), HoldReason::User));
    sim.run(MS * 2999, 23);
    assert_eq!(sim.record.held_jobs, [JobId(1); 2]);
    assert!(
        sim.run_time(JobId(1)) < MS * 510 && sim.run_time(JobId(2)) > MS * 2480,
        "{:?}",
        sim.run_time(JobId(1))
    );
    sim.run(MS * 5000, 23);
    let later = sim.run_time(JobId(1)).as_secs_f64();
    assert!((later - 1.5).abs() < 0.11, "{later}");
}

#[test]
fn a_sleeping_job_has_no_slice_and_wakes() {
    let mut sim = GangSimulation::new(1, 2, MS * 50, 29);
    for job in [1, 2].map(JobId) {
        let event = sim.enter(job, &[0], 2, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    sim.schedule_event(MS * 1000, GangEvent::Sleep(JobId(1), MS * 3000));
    sim.run(MS * 3000, 29);
    assert!(sim.run_time(JobId(1)) < MS * 560, "{:?}", sim.run_time(JobId(1)));
    sim.run(MS * 5000, 29);
    let later = sim.run_time(JobId(1)).as_secs_f64();
    assert!((later - 1.5).abs() < 0.1, "{later}");
}

#[test]
fn a_host_that_does_not_stop_delays_the_switch_and_is_reported() {
    let mut sim = GangSimulation::new(4, 2, MS * 100, 31);
    for job in [1, 2].map(JobId) {
        let event = sim.enter(job, &[0, 1, 2, 3], 2, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    sim.run(MS * 1010, 31);
    sim.slow_host = Some((HostId(2), MS * 1800));
    sim.run(MS * 8000, 31);
    assert!(!sim.record.late_jobs.is_empty());
    sim.slow_host = None;
    let rows = sim.record.row_count;
    sim.run(MS * 20_000, 31);
    assert!(sim.record.row_count > rows + 80, "{} rows, before {rows}", sim.record.row_count);
}

// Promise (time-sharing): Whatever happens, no processor has two jobs, and no job is left without a
// slice.
#[test]
fn no_processor_ever_has_two_jobs() {
    let mut switches = 0u64;
    for seed in seeds(60) {
        let hosts = [1, 2, 3, 7, 16][seed as usize % 5];
        let mut sim = GangSimulation::new(hosts, 4, MS * 5 * (1 + seed as u32 % 9), seed);
        let jobs = 3 + sim.random(12) as u32;
        let mut survivors = Vec::new();
        for job in (1..=jobs).map(JobId) {
            let first = sim.random(hosts.into()) as u32;
            let host_count = 1 + sim.random(u64::from(hosts - first)) as u32;
            let job_hosts: Vec<u32> = (first..first + host_count).collect();
            let (procs, priority) = (1 + sim.random(6) as u32, sim.random(16) as u8);
            let event = sim.enter(job, &job_hosts, procs, priority);
            let mut time = MS * sim.random(300) as u32;
            sim.schedule_event(time, event);
            for _ in 0..sim.random(12) {
                time += US * sim.random(90_000) as u32;
                let event = match sim.random(9) {
                    0 => GangEvent::Hold(job, HoldReason::User),
                    1 => GangEvent::Release(job, HoldReason::User),
                    2 => GangEvent::Hold(job, HoldReason::OutputBlocked),
                    3 => GangEvent::Release(job, HoldReason::OutputBlocked),
                    4 | 5 => GangEvent::Idle(job),
                    6 => GangEvent::Busy(job),
                    7 => GangEvent::Yield(job),
                    _ => GangEvent::Sleep(job, time + MS * sim.random(100) as u32),
                };
                sim.schedule_event(time, event);
            }
            for why in [HoldReason::User, HoldReason::OutputBlocked] {
                sim.schedule_event(time + MS, GangEvent::Release(job, why));
            }
            if sim.random(2) == 0 {
                let leave = time + MS * sim.random(500) as u32;
                sim.schedule_event(leave, GangEvent::Leave(job));
            } else {
                survivors.push(job);
            }
        }
        if sim.random(3) == 0 {
            let host = HostId(sim.random(hosts.into()) as u32);
            sim.slow_host = Some((host, MS * sim.random(1500) as u32));
        }
        sim.run(MS * 2_500, seed);
        sim.slow_host = None;
        let before: Vec<_> = survivors.iter().map(|job| sim.run_time(*job)).collect();
        let rows = survivors.len() as u32 + 1;
        sim.run(MS * 5_000 + MS * 46 * 181 * 2 * rows, seed);
        for (job, earlier) in survivors.iter().zip(before) {
            let gang = &sim.gang;
            assert!(sim.run_time(*job) > earlier, "seed {seed}: job {job} has no slice: {gang:?}");
        }
        switches += sim.record.row_count;
    }
    println!("{switches} switches");
}

// Promise of `no_processor_ever_has_two_jobs`.
#[test]
fn four_thousand_hosts_are_switched_in_time() {
    let mut sim = GangSimulation::new(4096, 2, MS * 100, 37);
    let all: Vec<u32> = (0..4096).collect();
    for job in (1..=2).map(JobId) {
        let event = sim.enter(job, &all, 2, 8);
        sim.schedule_event(MonotonicTime::ZERO, event);
    }
    for job in (3..60).map(JobId) {
        let first = sim.random(4000) as u32;
        let some: Vec<u32> = (first..first + 96).collect();
        let event = sim.enter(job, &some, 2, 8);
        sim.schedule_event(MS * 10 * job.0, event);
    }
    sim.run(MS * 2_000, 37);
    assert!(sim.record.row_count > 10);
    assert!(sim.run_time(JobId(1)) > MS * 100 && sim.run_time(JobId(2)) > MS * 100);
}
