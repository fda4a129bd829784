//! The detector with all interleavings of small parallel processes: threads that send, write into
//! each other's memory, poll, take, and become idle, and helpers that say nothing, are woken, wake
//! each other and send, step by step, while they are looked at word by word, one process after the
//! other in any order. No suspicion may ever be wrong; and with any one rule left out some
//! suspicion is.

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
pub enum Without {
    Nothing,
    SlotFirst,
    Unchanged,
    AllThreads,
    ReceivedWhenReleased,
    Sums,
    Remote,
    Polls,
    SecondPoll,
    Helpers,
    Ran,
}

/// A thread that has never said anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Helper {
    /// In a futex, where only its own process can wake it; it has run so often.
    Asleep(u64),
    /// Woken, and about to run.
    Woken(u64),
    /// Counted as sent, not yet published.
    Sending(u64, usize),
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
    helpers: Vec<Helper>,
}

/// A sample in the making.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Reading {
    word: usize,
    sample: Sample,
    slots: Vec<bool>,
    /// Helpers are looked at, too.
    deep: bool,
    helpers: Vec<Helper>,
}

impl Reading {
    /// Words to be read of a process.
    fn words(&self, process: &Process) -> usize {
        process.slots.len() + 3 + self.looked_at(process)
    }

    /// Helpers among them.
    fn looked_at(&self, process: &Process) -> usize {
        if self.deep { process.helpers.len() } else { 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    processes: Vec<Process>,
    /// Remote writes: by whom, to whom, and whether they have landed.
    writes: Vec<(usize, usize, bool)>,
    sends_left: u8,
    writes_left: u8,
    /// How often helpers are woken.
    wakes_left: u8,
    /// There are remote writes: who waits spins, and looks at its memory between polls.
    memory: bool,
    detector: Detector,
    watches: Vec<Watch>,
    round: Option<(u64, Vec<Reading>)>,
    told: Option<Seen>,
    began: bool,
}

/// What is explored.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Threads of each process.
    pub threads: &'static [usize],
    /// Messages.
    pub sends: u8,
    /// Remote writes.
    pub writes: u8,
    /// Helpers of the first process.
    pub helpers: usize,
    /// How often they are woken.
    pub wakes: u8,
}

/// See the [module](self).
pub struct Model {
    without: Without,
    /// Hashes: whole worlds would fill the memory.
    pub seen: HashSet<u64>,
    todo: Vec<World>,
    /// Where a suspicion was wrong.
    pub wrong: Option<World>,
    /// How many there were.
    pub suspicions: usize,
}

impl World {
    fn new(Bounds { threads, sends, writes, helpers, wakes }: Bounds) -> Self {
        let process = |(at, count): (usize, &usize)| Process {
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
            helpers: vec![Helper::Asleep(0); if at == 0 { helpers } else { 0 }],
        };
        Self {
            processes: threads.iter().enumerate().map(process).collect(),
            writes: Vec::new(),
            sends_left: sends,
            writes_left: writes,
            wakes_left: wakes,
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
                    && process.helpers.iter().all(|helper| matches!(helper, Helper::Asleep(_)))
            })
    }

    fn is_plain(&self) -> bool {
        !self.memory && self.processes.iter().all(|process| process.helpers.is_empty())
    }

    /// True for a suspicion, with which the model ends: it has to be right without any stop.
    fn carry_out(&mut self, actions: Vec<Action>) -> bool {
        let mut suspicion = false;
        for action in actions {
            match action {
                // Where nobody writes into anybody's memory and no helper is woken the first two
                // rounds are enough.
                Action::Look { round, .. } if round == THIRD && self.is_plain() => suspicion = true,
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
    /// All that can happen within these bounds.
    pub fn explore(without: Without, bounds: Bounds) -> Self {
        let first = World::new(bounds);
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
            for helper in 0..world.processes[process].helpers.len() {
                self.helper(world, process, helper);
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

    /// The next step of one that has been woken.
    fn helper(&mut self, world: &World, p: usize, h: usize) {
        match world.processes[p].helpers[h] {
            Helper::Asleep(_) => {}
            Helper::Woken(runs) => {
                let mut rests = world.clone();
                rests.processes[p].helpers[h] = Helper::Asleep(runs + 1);
                self.wake_helpers(&rests, p, h);
                self.add(rests);
                for to in (0..world.processes.len()).filter(|to| *to != p) {
                    if world.sends_left > 0 {
                        let mut next = world.clone();
                        next.sends_left -= 1;
                        next.processes[p].sent += 1;
                        next.processes[p].helpers[h] = Helper::Sending(runs, to);
                        self.add(next);
                    }
                }
            }
            Helper::Sending(runs, to) => {
                let mut next = world.clone();
                next.processes[to].queue += 1;
                next.processes[p].helpers[h] = Helper::Asleep(runs + 1);
                self.add(next);
            }
        }
    }

    /// Somebody in a process wakes a helper, other than `but`.
    fn wake_helpers(&mut self, world: &World, p: usize, but: usize) {
        for (h, helper) in world.processes[p].helpers.iter().enumerate() {
            if let Helper::Asleep(runs) = helper
                && h != but
                && world.wakes_left > 0
            {
                let mut next = world.clone();
                next.wakes_left -= 1;
                next.processes[p].helpers[h] = Helper::Woken(*runs);
                self.add(next);
            }
        }
    }

    fn busy(&mut self, world: &World, p: usize, t: usize) {
        self.wake_helpers(world, p, usize::MAX);
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
            let words = |p: usize| readings[p].words(&world.processes[p]);
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
            0 => {
                reading.sample.turns = process.turns;
                reading.deep = world.watches[p].follows(round) && self.without != Without::Helpers;
            }
            word if word <= threads => reading.slots.push(process.slots[word - 1]),
            // Before anything is counted: who runs after that has run by the next look.
            word if word <= threads + reading.looked_at(process) => {
                reading.helpers.push(process.helpers[word - threads - 1]);
            }
            word => match word - threads - reading.looked_at(process) {
                // What stays 0 all the time is read along with the rest.
                1 if world.memory => reading.sample.polls = process.polls,
                1 => reading.sample.sent = process.sent,
                2 if world.memory => reading.sample.remote = process.remote,
                2 => reading.sample.received = process.received,
                _ => return,
            },
        }
        reading.word += 1;
        if reading.word == reading.words(process) {
            if reading.deep {
                let asleep = |helper: &Helper| matches!(helper, Helper::Asleep(_));
                let hasher = BuildHasherDefault::<DefaultHasher>::new();
                let stamp = hasher.hash_one(&reading.helpers);
                reading.sample.threads = (self.without != Without::Ran).then_some(stamp);
                if !reading.helpers.iter().all(asleep) {
                    reading.slots.push(false);
                }
            }
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
        .all(|(reading, process)| reading.word == reading.words(process))
}
