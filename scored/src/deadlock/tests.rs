//! The detector against its [model](super::model), and by itself.

use super::model::{Bounds, Model, Without};
use super::*;
use crate::cluster::Time;

/// Two processes of a thread each.
const PAIR: Bounds = Bounds { threads: &[1, 1], sends: 0, writes: 0, helpers: 0, wakes: 0 };

#[test]
fn no_interleaving_gives_a_wrong_verdict() {
    let cases = [
        Bounds { sends: 2, ..PAIR },
        Bounds { writes: 1, ..PAIR },
        Bounds { threads: &[2, 1], sends: 1, ..PAIR },
        Bounds { threads: &[1, 1, 1], sends: 1, ..PAIR },
        Bounds { sends: 1, helpers: 2, wakes: 3, ..PAIR },
    ];
    for bounds in cases {
        let model = Model::explore(Without::Nothing, bounds);
        assert!(model.wrong.is_none(), "{:?}", model.wrong);
        // It does find those that there are.
        assert!(model.suspicions > 0, "{bounds:?}: none of {} states", model.seen.len());
    }
}

#[test]
fn every_rule_is_needed() {
    use Without::*;
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
        (Ran, Bounds { helpers: 2, wakes: 4, ..PAIR }),
    ];
    for (without, bounds) in cases {
        let model = Model::explore(without, bounds);
        assert!(model.wrong.is_some(), "without {without:?} all verdicts are still right");
    }
}

#[test]
fn what_is_dead_is_found_at_the_first_look() {
    let mut detector = Detector::new(4);
    let mut watch = [Watch::default(), Watch::default()];
    let mut samples = [Sample { idle: true, sent: 3, received: 3, ..Sample::default() }; 2];
    let mut actions = detector.on(Event::AllIdle, Time::ZERO);
    for _ in 0..4 {
        if let [Action::Hold] = actions[..] {
            actions = detector.on(Event::Held, Time::ZERO);
        }
        let [Action::Look { round, stopped }] = actions[..] else { panic!("{actions:?}") };
        samples[0].polls += 2;
        let seen =
            watch[0].look(round, &samples, stopped).and(watch[1].look(round, &samples, stopped));
        actions = detector.on(Event::Seen { round, seen }, Time::ZERO);
    }
    assert_eq!(actions, [Action::Verdict]);
    assert!(detector.is_deadlocked() && detector.on(Event::SomeBusy, Time::ZERO).is_empty());
}

#[test]
fn looks_become_rare_while_all_are_idle_and_alive() {
    let mut detector = Detector::new(1);
    let mut watch = Watch::default();
    let sample = Sample { idle: true, sent: 1, received: 0, ..Sample::default() };
    let (mut now, mut looks) = (Time::ZERO, 0);
    let mut actions = detector.on(Event::AllIdle, now);
    while now < Duration::from_secs(60) {
        match actions[..] {
            [Action::Look { round, .. }] => {
                looks += 1;
                let seen = watch.look(round, &[sample], false);
                actions = detector.on(Event::Seen { round, seen }, now);
            }
            [] => {
                now = detector.deadline().unwrap();
                actions = detector.on(Event::Tick, now);
            }
            _ => panic!("{actions:?}"),
        }
    }
    assert!((60..180).contains(&looks), "{looks}");
    detector.on(Event::SomeBusy, now);
    assert_eq!(detector.deadline(), None);
    assert!(matches!(detector.on(Event::AllIdle, now)[..], [Action::Look { .. }]));
}

#[test]
fn who_spins_without_its_turn_is_waited_for() {
    let mut detector = Detector::new(1);
    let mut watch = Watch::default();
    let mut sample = Sample { idle: true, spins: true, threads: Some(1), ..Sample::default() };
    let mut now = Time::ZERO;
    let mut actions = detector.on(Event::AllIdle, now);
    for round in 0..40 {
        match actions[..] {
            [Action::Look { round, stopped }] => {
                let seen = watch.look(round, &[sample], stopped);
                actions = detector.on(Event::Seen { round, seen }, now);
            }
            [] => {
                now = detector.deadline().unwrap();
                // One poll each time, in the end.
                sample.polls += u64::from(round > 20);
                actions = detector.on(Event::Tick, now);
            }
            [Action::Hold] => return assert!(round > 20 && sample.polls == 2, "{round}"),
            _ => panic!("{actions:?}"),
        }
    }
    panic!("never held");
}

#[test]
fn a_thread_that_has_run_between_two_looks_is_a_change() {
    let mut watch = Watch::default();
    let sample = Sample { idle: true, threads: Some(1), ..Sample::default() };
    watch.look(2, &[sample], false);
    assert!(watch.look(3, &[sample], false).unchanged);
    let ran = Sample { threads: Some(2), ..sample };
    assert!(!watch.look(4, &[ran], false).unchanged);
    assert!(watch.look(5, &[Sample { threads: Some(9), ..ran }], true).unchanged, "by the stop");
}

#[test]
fn rounds_that_a_stop_has_cut_short_begin_again_when_the_job_runs() {
    let mut detector = Detector::new(1);
    let seen = |round| Event::Seen { round, seen: Seen { nodes: 1, ..Seen::NOTHING } };
    let first = |actions: Vec<Action>| match actions[..] {
        [Action::Look { round, stopped: false }] => round,
        _ => panic!("{actions:?}"),
    };
    let mut round = first(detector.on(Event::AllIdle, Time::ZERO));
    for slice in 0..10 {
        assert!(detector.suspects());
        assert_eq!(first(detector.on(seen(round), Time::ZERO)), round + 1, "slice {slice}");
        assert_eq!(detector.on(Event::Stopped, Time::ZERO), []);
        assert!(!detector.suspects() && detector.deadline().is_none());
        assert_eq!(detector.on(seen(round + 1), Time::ZERO), [], "of before");
        assert_eq!(detector.on(Event::Tick, Time::ZERO), []);
        round = first(detector.on(Event::AllIdle, Time::ZERO));
    }
    detector.on(Event::Stopped, Time::ZERO);
    detector.on(Event::SomeBusy, Time::ZERO);
    assert!(!detector.suspects() && detector.deadline().is_none());
}
