use super::super::carea::tests::CAreaFixture;
use super::super::{LastRound, ObservedProcess};
use super::*;
use crate::shepherd::networks::MessageCounters;
use score_proto::carea::{IDLE, WaitingFor, area, area::slot};
use score_proto::observation::Activity;
use std::collections::HashSet;

const POLL_INTERVAL: Duration = Duration::from_micros(1500);
/// Time of a clock that has run for a while.
const NOW: u64 = 1_000_000_000;

/// Two processes with one thread each.
struct Fixture {
    carea_fixture: CAreaFixture,
    element: ObservedElement,
}

impl Fixture {
    fn new() -> Self {
        let (carea_fixture, areas) = CAreaFixture::with_second_mapping();
        let element = ObservedElement {
            first_node: 0,
            careas: areas,
            message_counters: MessageCounters::default(),
            processes: vec![ObservedProcess::default(); 2],
            round_history: LastRound::default(),
            last_reported: None,
            held_pids: HashSet::new(),
            armed: Armed::default(),
            backoff: poll_backoff::PollBackoff::default(),
        };
        let fixture = Self { carea_fixture, element };
        (0..2).for_each(|process| fixture.set(process, 0, 0));
        fixture
    }

    /// Sets the state of a process's thread: idle since this time, or busy and last idle at this
    /// time.
    fn set(&self, process: u64, state: u32, since_ns: u64) {
        self.carea_fixture.write_u64(process, area::SLOTS + slot::IDLE_SINCE_NS, since_ns);
        self.carea_fixture.write_slot(process, 0, 70, state, WaitingFor::Message as u32);
        self.carea_fixture.write_u32(process, area::IDLE_THREADS, u32::from(state == IDLE));
    }

    fn poll_idle(&mut self) -> (bool, NotifySource) {
        let (summary, source) = self.element.poll_idle(NOW, POLL_INTERVAL);
        (summary.activity == Activity::Idle, source)
    }

    fn armed(&self) -> [u32; 2] {
        [0, 1].map(|process| self.carea_fixture.read_u32(process, area::IDLE_NOTIFY))
    }
}

#[test]
fn idle_is_reported_again_after_each_stop_and_busy_is_not() {
    let mut element = Fixture::new().element;
    let idle = IdleSummary { stop_seq: SwitchSeq(3), ..IdleSummary::EMPTY };
    let mut report = |summary, stop| element.take_report(summary, SwitchSeq(stop));
    assert_eq!(report(IdleSummary::EMPTY, 3), Some(idle));
    assert_eq!(report(IdleSummary::EMPTY, 3), None);
    assert_eq!(report(IdleSummary::EMPTY, 4), Some(IdleSummary { stop_seq: SwitchSeq(4), ..idle }));
    let busy = IdleSummary { stop_seq: SwitchSeq(4), ..IdleSummary::BUSY };
    assert_eq!(report(IdleSummary::BUSY, 4), Some(busy));
    assert_eq!(report(IdleSummary::BUSY, 5), None);
}

#[test]
fn one_busy_process_is_armed_and_no_other() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.poll_idle(), (false, NotifySource::BusyThread));
    assert_eq!(fixture.armed(), [idle_notify::idle(0), idle_notify::NONE]);
    fixture.set(0, IDLE, NOW - 1000);
    assert_eq!(fixture.poll_idle(), (false, NotifySource::BusyThread));
    assert_eq!(fixture.armed(), [idle_notify::NONE, idle_notify::idle(0)]);
}

#[test]
fn a_process_that_changes_state_often_is_not_armed() {
    let mut fixture = Fixture::new();
    fixture.set(0, 0, NOW - 1000);
    fixture.set(1, IDLE, NOW - 1000);
    assert_eq!(fixture.poll_idle(), (false, NotifySource::NoProcess));
    assert_eq!(fixture.armed(), [idle_notify::NONE; 2]);
    // Idle, but not for long enough.
    fixture.set(0, IDLE, NOW - 500);
    assert_eq!(fixture.poll_idle(), (true, NotifySource::NoProcess));
    assert_eq!(fixture.armed(), [idle_notify::NONE; 2]);
}

#[test]
fn all_processes_are_armed_after_a_period_of_idleness_until_a_process_is_busy() {
    let mut fixture = Fixture::new();
    (0..2).for_each(|process| fixture.set(process, IDLE, NOW / 2));
    assert_eq!(fixture.poll_idle(), (true, NotifySource::AllProcesses));
    assert_eq!(fixture.armed(), [idle_notify::ON_BUSY; 2]);
    fixture.set(1, 0, NOW / 2);
    assert_eq!(fixture.poll_idle(), (false, NotifySource::BusyThread));
    assert_eq!(fixture.armed(), [idle_notify::NONE, idle_notify::idle(0)]);
}

#[test]
fn an_exited_process_is_not_armed() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.poll_idle().1, NotifySource::BusyThread);
    fixture.element.processes[0].has_exited = true;
    assert_eq!(fixture.poll_idle(), (false, NotifySource::BusyThread));
    assert_eq!(fixture.armed(), [idle_notify::NONE, idle_notify::idle(0)]);
    fixture.element.processes[1].has_exited = true;
    assert_eq!(fixture.poll_idle(), (true, NotifySource::AllProcesses));
}

#[test]
fn a_process_with_an_invalid_area_or_an_unreceived_barrier_call_is_polled() {
    let mut fixture = Fixture::new();
    fixture.set(1, IDLE, 0);
    for (offset, wrong, right) in [(area::OVERFLOW, 1, 0), (area::SLOTS_USED, 99, 1)] {
        fixture.carea_fixture.write_u32(0, offset, wrong);
        assert_eq!(fixture.poll_idle(), (false, NotifySource::NoProcess));
        fixture.carea_fixture.write_u32(0, offset, right);
    }
    // The process is in sc_barrier, but the shepherd has not received the call.
    fixture.set(0, IDLE, 0);
    fixture.carea_fixture.write_u64(0, area::BARRIERS_CALLED, 1);
    assert_eq!(fixture.poll_idle(), (false, NotifySource::NoProcess));
    fixture.element.processes[0].barrier_counts = (1, 0);
    assert_eq!(fixture.poll_idle(), (true, NotifySource::AllProcesses));
}
