//! Tests of single steps of the scheduler: holds, sleep, idle jobs, and late stops.

use std::collections::BTreeMap;

use score_proto::ids::{HostId, JobId};

use super::simulation::MS;
use super::*;

const START: MonotonicTime = MonotonicTime::ZERO;
const FIRST: JobId = JobId(1);
const SECOND: JobId = JobId(2);
const THIRD: JobId = JobId(3);

/// Two hosts of one slot each.
fn scheduler() -> GangScheduler {
    let slots = BTreeMap::from([(HostId(0), 1), (HostId(1), 1)]);
    GangScheduler::new(GangConfig::default(), slots)
}

fn enter(job: JobId, host: u32) -> GangEvent {
    let shares = vec![HostShare { host: HostId(host), procs: 1 }];
    GangEvent::Enter { job, shares, priority: 8 }
}

fn run(job: JobId) -> GangAction {
    GangAction::Run { job, stop: None }
}

fn running(gang: &GangScheduler) -> Vec<JobId> {
    gang.running().collect()
}

/// The number of the stop, which must be the only action and concern this job.
fn stop_of(job: JobId, actions: &[GangAction]) -> SwitchSeq {
    match actions {
        [GangAction::Stop { job: stopped, switch_seq }] if *stopped == job => *switch_seq,
        other => panic!("{other:?}"),
    }
}

/// The timed stop of the run, which must be the only action and concern this job.
fn timed_stop_of(job: JobId, actions: &[GangAction]) -> TimedStop {
    match actions {
        [GangAction::Run { job: started, stop: Some(stop) }] if *started == job => *stop,
        other => panic!("{other:?}"),
    }
}

/// Stops the first job for the second job, which runs from 5 ms on.
fn two_jobs() -> (GangScheduler, TimedStop) {
    let mut gang = scheduler();
    assert_eq!(gang.on(enter(FIRST, 0), START), [run(FIRST)]);
    assert!(!gang.is_contended());
    assert_eq!(gang.on(enter(SECOND, 0), START), []);
    assert!(gang.is_contended());
    assert_eq!(gang.deadline(), Some(MS * 5), "the shortest time of a job");
    let switch_seq = stop_of(FIRST, &gang.on(GangEvent::Tick, MS * 5));
    let actions = gang.on(GangEvent::Stopped { job: FIRST, switch_seq }, MS * 5);
    let stop = timed_stop_of(SECOND, &actions);
    assert!(stop.switch_seq > switch_seq);
    (gang, stop)
}

#[test]
fn a_newcomer_has_a_slice_and_its_stop_may_be_a_little_late() {
    let (mut gang, stop) = two_jobs();
    assert_eq!(stop.after, MS * 500);
    assert_eq!(gang.deadline(), Some(MS * (5 + 500 + 2)));
    assert_eq!(gang.on(GangEvent::Tick, MS * 506), []);
    assert_eq!(running(&gang), [SECOND]);
}

#[test]
fn jobs_that_have_or_leave_their_processors_are_running() {
    let mut gang = scheduler();
    assert_eq!(running(&gang), []);
    gang.on(enter(FIRST, 0), START);
    gang.on(enter(SECOND, 1), START);
    assert_eq!(running(&gang), [FIRST, SECOND]);
    assert!(!gang.is_contended());
    let switch_seq = stop_of(FIRST, &gang.on(GangEvent::Hold(FIRST, HoldReason::User), MS));
    assert_eq!(running(&gang), [FIRST, SECOND], "it has not stopped yet");
    gang.on(GangEvent::Stopped { job: FIRST, switch_seq }, MS);
    assert_eq!(running(&gang), [SECOND]);
}

#[test]
fn a_job_enters_once_and_leaves_once() {
    let mut gang = scheduler();
    assert_eq!(gang.on(enter(FIRST, 0), START), [run(FIRST)]);
    assert_eq!(gang.on(enter(FIRST, 1), START), []);
    assert_eq!(gang.on(GangEvent::Leave(SECOND), MS), []);
    assert_eq!(gang.on(GangEvent::Leave(FIRST), MS), []);
    assert_eq!(running(&gang), []);
    assert_eq!(gang.on(enter(FIRST, 0), MS * 2), [run(FIRST)]);
}

#[test]
fn a_held_job_runs_when_the_last_reason_has_ended() {
    let mut gang = scheduler();
    gang.on(enter(FIRST, 0), START);
    let hold = |reason| GangEvent::Hold(FIRST, reason);
    let release = |reason| GangEvent::Release(FIRST, reason);
    let switch_seq = stop_of(FIRST, &gang.on(hold(HoldReason::User), MS));
    assert_eq!(gang.on(hold(HoldReason::Inspection), MS), [], "it has not stopped yet");
    let stopped = |switch_seq| GangEvent::Stopped { job: FIRST, switch_seq };
    assert_eq!(gang.on(stopped(switch_seq + 1), MS), [], "of another order");
    assert_eq!(gang.on(stopped(switch_seq), MS), [GangAction::Held(FIRST)]);
    assert_eq!(gang.on(stopped(switch_seq), MS), []);
    assert_eq!(gang.on(hold(HoldReason::OutputBlocked), MS), [GangAction::Held(FIRST)]);
    assert_eq!(gang.on(release(HoldReason::User), MS), []);
    assert_eq!(gang.on(release(HoldReason::User), MS), []);
    assert_eq!(gang.on(release(HoldReason::OutputBlocked), MS), []);
    assert_eq!(gang.on(release(HoldReason::Inspection), MS), [run(FIRST)]);
    assert_eq!(gang.on(release(HoldReason::Inspection), MS), []);
}

#[test]
fn a_job_is_suspended_by_its_user_or_its_output_but_not_for_inspection() {
    for (reason, is_suspended) in [
        (HoldReason::User, true),
        (HoldReason::OutputBlocked, true),
        (HoldReason::Inspection, false),
    ] {
        let mut gang = scheduler();
        gang.on(enter(FIRST, 0), START);
        gang.on(enter(SECOND, 1), START);
        gang.on(GangEvent::Hold(FIRST, reason), MS);
        let suspended = [FIRST, SECOND, THIRD].map(|job| gang.is_suspended(job));
        assert_eq!(suspended, [is_suspended, false, false]);
        gang.on(GangEvent::Release(FIRST, reason), MS);
        assert!(!gang.is_suspended(FIRST));
    }
}

#[test]
fn a_job_sleeps_until_the_latest_time_that_it_has_named() {
    let mut gang = scheduler();
    gang.on(enter(FIRST, 0), START);
    let switch_seq = stop_of(FIRST, &gang.on(GangEvent::Sleep(FIRST, MS * 300), MS));
    gang.on(GangEvent::Stopped { job: FIRST, switch_seq }, MS);
    gang.on(GangEvent::Sleep(FIRST, MS * 200), MS * 2);
    assert_eq!(gang.deadline(), Some(MS * 300));
    assert_eq!(gang.on(GangEvent::Tick, MS * 299), []);
    assert_eq!(gang.on(GangEvent::Tick, MS * 300), [run(FIRST)]);
    assert_eq!(gang.deadline(), None);
}

#[test]
fn an_idle_job_yields_at_once_to_a_busy_job_and_later_to_an_idle_job() {
    let (mut gang, _) = two_jobs();
    // The third job is held, so it does not wait for the processor.
    gang.on(enter(THIRD, 0), MS * 5);
    gang.on(GangEvent::Hold(THIRD, HoldReason::User), MS * 5);
    let actions = gang.on(GangEvent::Idle(SECOND), MS * 6);
    let switch_seq = stop_of(SECOND, &actions);
    let actions = gang.on(GangEvent::Stopped { job: SECOND, switch_seq }, MS * 6);
    assert!(matches!(actions[..], [GangAction::Run { job: FIRST, .. }]), "{actions:?}");
    assert_eq!(gang.on(GangEvent::Idle(FIRST), MS * 7), [], "the second is idle too");
    let deadline = gang.deadline().unwrap();
    assert!((MS * 15..=MS * 16).contains(&deadline), "{deadline:?}");
    assert_eq!(gang.on(GangEvent::Tick, deadline - MS / 2), []);
    stop_of(FIRST, &gang.on(GangEvent::Tick, deadline));
}

#[test]
fn a_job_that_is_busy_again_keeps_its_processor() {
    let (mut gang, _) = two_jobs();
    let switch_seq = stop_of(SECOND, &gang.on(GangEvent::Idle(SECOND), MS * 6));
    gang.on(GangEvent::Stopped { job: SECOND, switch_seq }, MS * 6);
    assert_eq!(gang.on(GangEvent::Idle(FIRST), MS * 7), []);
    let deadline = gang.deadline().unwrap();
    assert_eq!(gang.on(GangEvent::Busy(FIRST), MS * 8), []);
    assert!(gang.deadline().unwrap() > deadline);
    assert_eq!(gang.on(GangEvent::Tick, deadline), []);
}

#[test]
fn a_job_that_is_alone_does_not_yield() {
    let mut gang = scheduler();
    gang.on(enter(FIRST, 0), START);
    assert_eq!(gang.on(GangEvent::Yield(FIRST), MS), []);
    assert_eq!(gang.on(GangEvent::Idle(FIRST), MS * 2), []);
    assert_eq!((gang.deadline(), running(&gang)), (None, vec![FIRST]));
}

#[test]
fn a_job_that_misses_its_stop_for_a_second_continues_unless_it_is_held() {
    for is_held in [false, true] {
        let (mut gang, _) = two_jobs();
        let event = match is_held {
            true => GangEvent::Hold(SECOND, HoldReason::User),
            false => GangEvent::Yield(SECOND),
        };
        let switch_seq = stop_of(SECOND, &gang.on(event, MS * 10));
        assert!(gang.deadline() <= Some(MS * 1010));
        assert_eq!(gang.on(GangEvent::Tick, MS * 1009), []);
        let actions = gang.on(GangEvent::Tick, MS * 1010);
        assert_eq!(actions[0], GangAction::StopTimedOut(SECOND));
        let is_resumed = matches!(actions[1..], [GangAction::Run { job: SECOND, .. }]);
        assert_eq!(is_resumed, !is_held, "{actions:?}");
        if is_held {
            assert!(actions.len() == 1 && gang.deadline() <= Some(MS * 2010), "{actions:?}");
            let stopped = GangEvent::Stopped { job: SECOND, switch_seq };
            let actions = gang.on(stopped, MS * 1500);
            assert_eq!(actions, [GangAction::Held(SECOND), run(FIRST)]);
        }
    }
}
