use super::super::areas::tests::Written;
use super::super::{Process, Watch};
use super::*;
use crate::shepherd::networks::Gauges;
use score_proto::carea::{IDLE, WaitingFor, area, area::slot};

const PACE: Duration = Duration::from_micros(1500);
/// A clock that has run for a while.
const NOW: u64 = 1_000_000_000;

/// Two processes of a thread each.
struct Bed {
    written: Written,
    element: Element,
}

impl Bed {
    fn new() -> Self {
        let (written, areas) = Written::again();
        let element = Element {
            first: 0,
            areas,
            gauges: Gauges::default(),
            processes: vec![Process::default(); 2],
            watch: Watch::default(),
            told: None,
            asked: Asked::default(),
            pause: pause::Pause::default(),
        };
        let bed = Self { written, element };
        (0..2).for_each(|process| bed.set(process, 0, 0));
        bed
    }

    /// The thread of a process is idle, or works and has been idle last, since then.
    fn set(&self, process: u64, state: u32, since_ns: u64) {
        self.written.u64(process, area::SLOTS + slot::IDLE_SINCE_NS, since_ns);
        self.written.seat(process, 0, 70, state, WaitingFor::Message as u32);
        self.written.u32(process, area::IDLE_THREADS, u32::from(state == IDLE));
    }

    fn listen(&mut self) -> (bool, Hearing) {
        let (quiet, hearing) = self.element.listen(NOW, PACE);
        (quiet.idle, hearing)
    }

    fn wishes(&self) -> [u32; 2] {
        [0, 1].map(|process| self.written.word(process, area::BELL))
    }
}

#[test]
fn one_that_works_is_asked_and_no_other() {
    let mut bed = Bed::new();
    assert_eq!(bed.listen(), (false, Hearing::Worker));
    assert_eq!(bed.wishes(), [bell::idle(0), bell::NOTHING]);
    bed.set(0, IDLE, NOW - 1000);
    assert_eq!(bed.listen(), (false, Hearing::Worker));
    assert_eq!(bed.wishes(), [bell::NOTHING, bell::idle(0)]);
}

#[test]
fn who_goes_to_and_fro_is_not_asked() {
    let mut bed = Bed::new();
    bed.set(0, 0, NOW - 1000);
    bed.set(1, IDLE, NOW - 1000);
    assert_eq!(bed.listen(), (false, Hearing::Nobody));
    assert_eq!(bed.wishes(), [bell::NOTHING; 2]);
    // Idle, but not for long.
    bed.set(0, IDLE, NOW - 500);
    assert_eq!(bed.listen(), (true, Hearing::Nobody));
    assert_eq!(bed.wishes(), [bell::NOTHING; 2]);
}

#[test]
fn when_all_have_been_idle_for_a_while_all_are_asked_until_one_works() {
    let mut bed = Bed::new();
    (0..2).for_each(|process| bed.set(process, IDLE, NOW / 2));
    assert_eq!(bed.listen(), (true, Hearing::All));
    assert_eq!(bed.wishes(), [bell::BUSY; 2]);
    bed.set(1, 0, NOW / 2);
    assert_eq!(bed.listen(), (false, Hearing::Worker));
    assert_eq!(bed.wishes(), [bell::NOTHING, bell::idle(0)]);
}

#[test]
fn who_has_ended_is_asked_nothing() {
    let mut bed = Bed::new();
    assert_eq!(bed.listen().1, Hearing::Worker);
    bed.element.processes[0].ended = true;
    assert_eq!(bed.listen(), (false, Hearing::Worker));
    assert_eq!(bed.wishes(), [bell::NOTHING, bell::idle(0)]);
    bed.element.processes[1].ended = true;
    assert_eq!(bed.listen(), (true, Hearing::All));
}

#[test]
fn a_process_that_nobody_can_make_out_is_looked_at() {
    let mut bed = Bed::new();
    bed.set(1, IDLE, 0);
    for (offset, wrong, right) in [(area::OVERFLOW, 1, 0), (area::SLOTS_USED, 99, 1)] {
        bed.written.u32(0, offset, wrong);
        assert_eq!(bed.listen(), (false, Hearing::Nobody));
        bed.written.u32(0, offset, right);
    }
    // In sc_barrier, and nobody has heard of the call.
    bed.set(0, IDLE, 0);
    bed.written.u64(0, area::BARRIERS_CALLED, 1);
    assert_eq!(bed.listen(), (false, Hearing::Nobody));
    bed.element.processes[0].barriers = (1, 0);
    assert_eq!(bed.listen(), (true, Hearing::All));
}
