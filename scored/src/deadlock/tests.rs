//! The detector with all interleavings of small parallel processes: threads that send, write into
//! each other's memory, poll, take, and become idle, step by step, while they are looked at word
//! by word, one process after the other in any order. No suspicion may ever be wrong; and with any
//! one rule left out some suspicion is.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use super::*;
use crate::cluster::Time;

/// Where a thread is. From `Waiting` to `Taken` its idle slot is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Busy,
    /// Counted as sent, not yet published.
    Sending(usize),
    /// At the head of the loop: looks at the memory.
    Waiting,
    /// It has looked, and polls.
    Polling,
    /// It has a message.
    Taken,
    /// The slot is clear.
    Woken {
        message: bool,
    },
    /// The turn is counted; the message is still to be released.
    Releasing,
}

/// The round after the first two: a suspicion leaves one number out before them.
const THIRD: u64 = 4;

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    SlotFirst,
    Unchanged,
    AllThreads,
    ReceivedWhenReleased,
    Sums,
    Remote,
    Polls,
    SecondPoll,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    threads: Vec<At>,
    slots: Vec<bool>,
    turns: u64,
    polls: u64,
    /// What `polls` was when it was last looked at: it counts on by two at most, which keeps the
    /// model finite.
    polls_seen: u64,
    sent: u64,
    received: u64,
    remote: u64,
    queue: u8,
    memory: u8,
    memory_seen: u8,
}

/// A sample in the making.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Reading {
    word: usize,
    sample: Sample,
    slots: Vec<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    processes: Vec<Process>,
    /// Remote writes: by whom, to whom, and whether they have landed.
    writes: Vec<(usize, usize, bool)>,
    sends_left: u8,
    writes_left: u8,
    /// There are remote writes: who waits spins, and looks at its memory between polls.
    memory: bool,
    detector: Detector,
    watches: Vec<Watch>,
    round: Option<(u64, Vec<Reading>)>,
    told: Option<Seen>,
    began: bool,
}

struct Model {
    without: Without,
    /// Hashes: whole worlds would fill the memory.
    seen: HashSet<u64>,
    todo: Vec<World>,
    wrong: Option<World>,
    suspicions: usize,
}

impl World {
    fn new(threads: &[usize], sends: u8, writes: u8) -> Self {
        let process = |count: &usize| Process {
            threads: vec![At::Busy; *count],
            slots: vec![false; *count],
            turns: 0,
            polls: 0,
            polls_seen: 0,
            sent: 0,
            received: 0,
            remote: 0,
            queue: 0,
            memory: 0,
            memory_seen: 0,
        };
        Self {
            processes: threads.iter().map(process).collect(),
            writes: Vec::new(),
            sends_left: sends,
            writes_left: writes,
            memory: writes > 0,
            detector: Detector::new(threads.len() as u32),
            watches: vec![Watch::default(); threads.len()],
            round: None,
            told: None,
            began: false,
        }
    }

    /// Whether nothing can happen any more.
    fn is_dead(&self) -> bool {
        self.writes.is_empty()
            && self.processes.iter().all(|process| {
                process.queue == 0
                    && process.memory == process.memory_seen
                    && process.threads.iter().all(|at| matches!(at, At::Waiting | At::Polling))
            })
    }

    /// True for a suspicion, with which the model ends: it has to be right without any stop.
    fn carry_out(&mut self, actions: Vec<Action>) -> bool {
        let mut suspicion = false;
        for action in actions {
            match action {
                // What polls is no question where nobody writes into anybody's memory: there the
                // first two rounds are enough.
                Action::Look { round, .. } if round == THIRD && !self.memory => suspicion = true,
                Action::Look { round, .. } => {
                    self.round = Some((round, vec![Reading::default(); self.processes.len()]));
                    self.told = Some(Seen::NOTHING);
                }
                Action::Hold => suspicion = true,
                Action::Release | Action::Verdict => {}
            }
        }
        suspicion
    }
}

impl Model {
    fn explore(without: Without, threads: &[usize], sends: u8, writes: u8) -> Self {
        let first = World::new(threads, sends, writes);
        let mut model =
            Self { without, seen: HashSet::new(), todo: vec![first], wrong: None, suspicions: 0 };
        while let Some(world) = model.todo.pop() {
            assert!(model.seen.len() < 20_000_000, "the model has grown too large");
            model.steps(&world);
            if model.wrong.is_some() {
                break;
            }
        }
        model
    }

    fn add(&mut self, world: World) {
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        if self.seen.insert(hasher.hash_one(&world)) {
            self.todo.push(world);
        }
    }

    fn act(&mut self, mut world: World, actions: Vec<Action>) {
        if world.carry_out(actions) {
            self.suspicions += 1;
            if !world.is_dead() {
                self.wrong = Some(world);
            }
            return;
        }
        self.add(world);
    }

    fn steps(&mut self, world: &World) {
        for process in 0..world.processes.len() {
            for thread in 0..world.processes[process].threads.len() {
                self.thread(world, process, thread);
            }
        }
        self.writes(world);
        self.detector(world);
    }

    fn writes(&mut self, world: &World) {
        for (index, &(from, to, landed)) in world.writes.iter().enumerate() {
            let mut next = world.clone();
            if landed {
                next.writes.remove(index);
                next.processes[from].remote -= 1;
            } else {
                next.writes[index].2 = true;
                next.processes[to].memory += 1;
            }
            self.add(next);
        }
    }

    fn thread(&mut self, world: &World, p: usize, t: usize) {
        let mut next = world.clone();
        let own = &mut next.processes[p];
        match own.threads[t] {
            At::Busy => {
                self.busy(world, p, t);
                own.slots[t] = true;
                own.threads[t] = if world.memory { At::Waiting } else { At::Polling };
            }
            At::Sending(to) => {
                own.threads[t] = At::Busy;
                next.processes[to].queue += 1;
            }
            At::Waiting if own.memory != own.memory_seen => {
                own.memory_seen = own.memory;
                self.wake(own, t, false);
            }
            At::Waiting => own.threads[t] = At::Polling,
            At::Polling if own.queue > 0 => {
                own.queue -= 1;
                own.threads[t] = At::Taken;
                if self.without == Without::ReceivedWhenReleased {
                    own.received += 1;
                }
            }
            At::Polling if !world.memory => return,
            At::Polling => {
                own.polls = (own.polls + 1).min(own.polls_seen + 2);
                own.threads[t] = At::Waiting;
            }
            At::Taken => self.wake(own, t, true),
            At::Woken { message } => {
                match self.without {
                    Without::SlotFirst => own.slots[t] = false,
                    _ => own.turns += 1,
                }
                own.threads[t] = if message { At::Releasing } else { At::Busy };
            }
            At::Releasing => {
                if self.without != Without::ReceivedWhenReleased {
                    own.received += 1;
                }
                own.threads[t] = At::Busy;
            }
        }
        self.add(next);
    }

    /// The slot is cleared, then the turn counted, then the thread goes on.
    fn wake(&self, own: &mut Process, t: usize, message: bool) {
        match self.without {
            Without::SlotFirst => own.turns += 1,
            _ => own.slots[t] = false,
        }
        own.threads[t] = At::Woken { message };
    }

    fn busy(&mut self, world: &World, p: usize, t: usize) {
        for to in (0..world.processes.len()).filter(|to| *to != p) {
            if world.sends_left > 0 {
                let mut next = world.clone();
                next.sends_left -= 1;
                next.processes[p].sent += 1;
                next.processes[p].threads[t] = At::Sending(to);
                self.add(next);
            }
            // Which of them writes makes no difference.
            if world.writes_left > 0 && p == 0 {
                let mut next = world.clone();
                next.writes_left -= 1;
                next.processes[p].remote += 1;
                next.writes.push((p, to, false));
                self.add(next);
            }
        }
    }

    fn detector(&mut self, world: &World) {
        let mut next = world.clone();
        if !world.began {
            next.began = true;
            let actions = next.detector.on(Event::AllIdle, Time::ZERO);
            self.act(next, actions);
        } else if let Some((_, readings)) = &world.round {
            let words = |p: usize| world.processes[p].slots.len() + 3;
            let begun = (0..readings.len()).find(|p| (1..words(*p)).contains(&readings[*p].word));
            for p in begun.map_or(0..readings.len(), |p| p..p + 1) {
                self.read(world, p);
            }
        }
    }

    /// The next word of one process.
    fn read(&mut self, world: &World, p: usize) {
        let mut next = world.clone();
        let Some((round, readings)) = &mut next.round else { return };
        let (round, process, reading) = (*round, &world.processes[p], &mut readings[p]);
        let threads = process.slots.len();
        match reading.word {
            0 => reading.sample.turns = process.turns,
            word if word <= threads => reading.slots.push(process.slots[word - 1]),
            word => match word - threads {
                // What stays 0 all the time is read along with the rest.
                1 if world.memory => reading.sample.polls = process.polls,
                1 => reading.sample.sent = process.sent,
                2 if world.memory => reading.sample.remote = process.remote,
                2 => reading.sample.received = process.received,
                _ => return,
            },
        }
        reading.word += 1;
        if reading.word == threads + 3 {
            reading.sample.spins = world.memory;
            reading.sample.idle = match self.without {
                Without::AllThreads => reading.slots.contains(&true),
                _ => !reading.slots.contains(&false),
            };
            let sample = reading.sample;
            let mut seen = next.watches[p].look(round, &[sample], false);
            next.processes[p].polls_seen = sample.polls;
            match self.without {
                Without::Unchanged => seen.unchanged = true,
                Without::Polls => seen.polled = true,
                Without::SecondPoll => seen.polled = sample.polls > 0,
                Without::Sums => (seen.sent, seen.received) = (0, 0),
                Without::Remote => seen.remote = 0,
                _ => {}
            }
            next.told = next.told.map(|told| told.and(seen));
            let end = threads_read(&next);
            if let Some(seen) = next.told.filter(|_| end) {
                (next.round, next.told) = (None, None);
                let actions = next.detector.on(Event::Seen { round, seen }, Time::ZERO);
                self.act(next, actions);
                return;
            }
        }
        self.add(next);
    }
}

fn threads_read(world: &World) -> bool {
    let Some((_, readings)) = &world.round else { return false };
    readings
        .iter()
        .zip(&world.processes)
        .all(|(reading, process)| reading.word == process.slots.len() + 3)
}

#[test]
fn no_interleaving_gives_a_wrong_verdict() {
    let cases = [(&[1, 1][..], 2, 0), (&[1, 1], 0, 1), (&[2, 1], 1, 0), (&[1, 1, 1], 1, 0)];
    for (threads, sends, writes) in cases {
        let model = Model::explore(Without::Nothing, threads, sends, writes);
        assert!(model.wrong.is_none(), "{:?}", model.wrong);
        // It does find those that there are.
        assert!(model.suspicions > 0, "{threads:?}: none of {} states", model.seen.len());
    }
}

#[test]
fn every_rule_is_needed() {
    use Without::*;
    let cases = [
        (SlotFirst, &[1, 1][..], 2, 0),
        (Unchanged, &[1, 1], 3, 0),
        (AllThreads, &[2], 0, 0),
        (ReceivedWhenReleased, &[1, 1], 1, 0),
        (Sums, &[1, 1], 1, 0),
        (Remote, &[1, 1], 0, 1),
        (Polls, &[1, 1], 0, 1),
        (SecondPoll, &[1, 1], 0, 1),
    ];
    for (without, threads, sends, writes) in cases {
        let model = Model::explore(without, threads, sends, writes);
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
