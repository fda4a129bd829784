//! Tests of the detector in its [model](super::model) and alone.

use score_proto::job_control::SwitchSeq;
use score_proto::observation::SampleRound;

use super::model::{Bounds, DisabledRule, Model};
use super::*;
use crate::cluster::MonotonicTime;

/// Two processes of one thread each.
const PAIR: Bounds =
    Bounds { threads: &[1, 1], sends: 0, writes: 0, questions: 0, helpers: 0, wakes: 0 };

// Promise (deadlock): No interleaving of processes and inspections gives a wrong verdict of
// deadlock, and every rule is necessary.
#[test]
fn no_interleaving_causes_a_wrong_report_of_a_deadlock() {
    let cases = [
        Bounds { sends: 2, ..PAIR },
        Bounds { writes: 1, ..PAIR },
        Bounds { threads: &[2, 1], sends: 1, ..PAIR },
        Bounds { threads: &[1, 1, 1], sends: 1, ..PAIR },
        Bounds { sends: 1, helpers: 2, wakes: 3, ..PAIR },
        Bounds { questions: 1, ..PAIR },
    ];
    for bounds in cases {
        let model = Model::explore(DisabledRule::NoRule, bounds);
        assert!(model.false_suspicion.is_none(), "{:?}", model.false_suspicion);
        // The model finds the existing deadlocks.
        assert!(model.suspicions > 0, "{bounds:?}: none of {} states", model.visited.len());
    }
}

// Promise of `no_interleaving_causes_a_wrong_report_of_a_deadlock`.
#[test]
fn each_rule_of_deadlock_detection_is_needed() {
    use DisabledRule::*;
    let cases = [
        (SlotFirst, Bounds { sends: 2, ..PAIR }),
        (Unchanged, Bounds { sends: 3, ..PAIR }),
        (AllThreads, Bounds { threads: &[2], ..PAIR }),
        (ReceivedWhenReleased, Bounds { sends: 1, ..PAIR }),
        (Sums, Bounds { sends: 1, ..PAIR }),
        (Remote, Bounds { writes: 1, ..PAIR }),
        (Polls, Bounds { writes: 1, ..PAIR }),
        (SecondPoll, Bounds { writes: 1, ..PAIR }),
        (Helpers, Bounds { sends: 1, helpers: 1, wakes: 1, ..PAIR }),
        (HelperRuns, Bounds { helpers: 2, wakes: 4, ..PAIR }),
        (Answers, Bounds { questions: 1, ..PAIR }),
    ];
    for (disabled, bounds) in cases {
        let model = Model::explore(disabled, bounds);
        assert!(
            model.false_suspicion.is_some(),
            "without {disabled:?} all verdicts are still right"
        );
    }
}

#[test]
fn a_deadlock_is_found_in_the_first_rounds() {
    let mut detector = Detector::new(4);
    let mut histories = [LastRound::default(), LastRound::default()];
    let mut samples =
        [ProcessSnapshot { idle: true, sent: 3, received: 3, ..ProcessSnapshot::default() }; 2];
    let mut actions =
        detector.on(DetectorEvent::AllIdle { stop_seq: SwitchSeq::NONE }, MonotonicTime::ZERO);
    for _ in 0..4 {
        if let [DetectorAction::StopGang] = actions[..] {
            actions = detector.on(DetectorEvent::GangStopped, MonotonicTime::ZERO);
        }
        let [DetectorAction::TakeSnapshot { round, stopped }] = actions[..] else {
            panic!("{actions:?}")
        };
        samples[0].polls += 2;
        let activity = histories[0]
            .compare_round(round, &samples, stopped)
            .combine(histories[1].compare_round(round, &samples, stopped));
        actions = detector.on(DetectorEvent::RoundDone { round, activity }, MonotonicTime::ZERO);
    }
    assert_eq!(actions, [DetectorAction::Verdict]);
    assert!(
        detector.is_deadlocked()
            && detector.on(DetectorEvent::SomeBusy, MonotonicTime::ZERO).is_empty()
    );
}

#[test]
fn snapshots_become_rare_while_all_are_idle_without_deadlock() {
    let mut detector = Detector::new(1);
    let mut history = LastRound::default();
    let sample = ProcessSnapshot { idle: true, sent: 1, received: 0, ..ProcessSnapshot::default() };
    let (mut now, mut snapshots) = (MonotonicTime::ZERO, 0);
    let mut actions = detector.on(DetectorEvent::AllIdle { stop_seq: SwitchSeq::NONE }, now);
    while now < Duration::from_secs(60) {
        match actions[..] {
            [DetectorAction::TakeSnapshot { round, .. }] => {
                snapshots += 1;
                let activity = history.compare_round(round, &[sample], false);
                actions = detector.on(DetectorEvent::RoundDone { round, activity }, now);
            }
            [] => {
                now = detector.deadline().unwrap();
                actions = detector.on(DetectorEvent::Tick, now);
            }
            _ => panic!("{actions:?}"),
        }
    }
    assert!((60..180).contains(&snapshots), "{snapshots}");
    detector.on(DetectorEvent::SomeBusy, now);
    assert_eq!(detector.deadline(), None);
    assert!(matches!(
        detector.on(DetectorEvent::AllIdle { stop_seq: SwitchSeq::NONE }, now)[..],
        [DetectorAction::TakeSnapshot { .. }]
    ));
}

/// Runs rounds for this many seconds on an element whose threads cannot be proved to wait. At
/// `busy_at` the element is busy for a short time. Returns the times of suspicions.
fn suspicions(seconds: u64, busy_at: Option<u64>) -> Vec<Duration> {
    let mut detector = Detector::new(1);
    let (mut history, mut now) = (LastRound::default(), MonotonicTime::ZERO);
    let all_idle = DetectorEvent::AllIdle { stop_seq: SwitchSeq::NONE };
    let (mut times, mut was_busy) = (Vec::new(), false);
    let mut actions = detector.on(all_idle, now);
    while now < MonotonicTime::from_secs(seconds) {
        if actions.contains(&DetectorAction::Suspicion) {
            times.push(now - MonotonicTime::ZERO);
        }
        let is_busy = busy_at.is_some_and(|busy_at| now >= MonotonicTime::from_secs(busy_at));
        if is_busy && !std::mem::replace(&mut was_busy, true) {
            detector.on(DetectorEvent::SomeBusy, now);
            actions = detector.on(all_idle, now);
        }
        match actions.first() {
            Some(DetectorAction::TakeSnapshot { round, .. }) => {
                // The first round reads only the idle flags. The second round finds a thread at
                // another place.
                let idle = !history.follows(*round);
                let sample = ProcessSnapshot { idle, ..ProcessSnapshot::default() };
                let activity = history.compare_round(*round, &[sample], false);
                actions = detector.on(DetectorEvent::RoundDone { round: *round, activity }, now);
            }
            None => {
                now = detector.deadline().unwrap();
                actions = detector.on(DetectorEvent::Tick, now);
            }
            _ => panic!("{actions:?}"),
        }
    }
    times
}

// Promise of `a_long_wait_that_is_no_proved_deadlock_is_reported_once_and_the_job_continues`.
#[test]
fn a_hang_that_cannot_be_proved_is_suspected_once() {
    let [time] = suspicions(200, None)[..] else { panic!() };
    assert!((30..33).contains(&time.as_secs()), "{time:?}");
    let [time] = suspicions(200, Some(20))[..] else { panic!() };
    assert!((50..53).contains(&time.as_secs()), "{time:?}: 30 s after it was last busy");
    assert_eq!(suspicions(29, None), []);
}

#[test]
fn a_spinning_process_that_has_not_polled_is_waited_for() {
    let mut detector = Detector::new(1);
    let mut history = LastRound::default();
    let mut sample = ProcessSnapshot {
        idle: true,
        is_spinning: true,
        threads: Some(1),
        ..ProcessSnapshot::default()
    };
    let mut now = MonotonicTime::ZERO;
    let mut actions = detector.on(DetectorEvent::AllIdle { stop_seq: SwitchSeq::NONE }, now);
    for round in 0..40 {
        match actions[..] {
            [DetectorAction::TakeSnapshot { round, stopped }] => {
                let activity = history.compare_round(round, &[sample], stopped);
                actions = detector.on(DetectorEvent::RoundDone { round, activity }, now);
            }
            [] => {
                now = detector.deadline().unwrap();
                // After 20 steps, the process polls once in each round.
                sample.polls += u64::from(round > 20);
                actions = detector.on(DetectorEvent::Tick, now);
            }
            [DetectorAction::StopGang] => {
                return assert!(round > 20 && sample.polls == 2, "{round}");
            }
            _ => panic!("{actions:?}"),
        }
    }
    panic!("never held");
}

#[test]
fn a_thread_that_has_run_between_two_samples_is_a_change() {
    let mut history = LastRound::default();
    let sample = ProcessSnapshot { idle: true, threads: Some(1), ..ProcessSnapshot::default() };
    history.compare_round(SampleRound(2), &[sample], false);
    assert!(history.compare_round(SampleRound(3), &[sample], false).unchanged);
    let ran = ProcessSnapshot { threads: Some(2), ..sample };
    assert!(!history.compare_round(SampleRound(4), &[ran], false).unchanged);
    assert!(
        history
            .compare_round(SampleRound(5), &[ProcessSnapshot { threads: Some(9), ..ran }], true)
            .unchanged,
        "by the stop"
    );
}

#[test]
fn rounds_that_a_stop_has_cut_short_begin_again_when_the_job_runs() {
    let mut detector = Detector::new(1);
    let round_done = |round| DetectorEvent::RoundDone {
        round,
        activity: ActivitySample { node_count: 1, ..ActivitySample::EMPTY },
    };
    let first = |actions: Vec<DetectorAction>| match actions[..] {
        [DetectorAction::TakeSnapshot { round, stopped: false }] => round,
        _ => panic!("{actions:?}"),
    };
    let all_idle = |stop| DetectorEvent::AllIdle { stop_seq: SwitchSeq(stop) };
    let stopped = |stop| DetectorEvent::Stopped { switch_seq: SwitchSeq(stop) };
    let mut round = first(detector.on(all_idle(0), MonotonicTime::ZERO));
    for slice in 0..10 {
        assert!(detector.is_suspecting());
        assert_eq!(
            first(detector.on(round_done(round), MonotonicTime::ZERO)),
            round.next(),
            "slice {slice}"
        );
        assert_eq!(detector.on(stopped(slice + 1), MonotonicTime::ZERO), []);
        assert!(!detector.is_suspecting() && detector.deadline().is_none());
        assert_eq!(detector.on(round_done(round.next()), MonotonicTime::ZERO), [], "earlier slice");
        assert_eq!(detector.on(DetectorEvent::Tick, MonotonicTime::ZERO), []);
        // This report was sent before the stop.
        assert_eq!(detector.on(all_idle(slice), MonotonicTime::ZERO), []);
        assert!(!detector.is_suspecting() && detector.deadline().is_none());
        round = first(detector.on(all_idle(slice + 1), MonotonicTime::ZERO));
    }
    detector.on(stopped(11), MonotonicTime::ZERO);
    detector.on(DetectorEvent::SomeBusy, MonotonicTime::ZERO);
    assert!(!detector.is_suspecting() && detector.deadline().is_none());
}
