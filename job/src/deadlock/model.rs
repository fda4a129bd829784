//! Checks the detector against all interleavings of small parallel processes. Threads send, write
//! into each other's memory, poll, take messages and become idle. They send questions to their
//! launcher, and poll for its answers while they are idle. Helper threads report nothing, are
//! woken, wake each other and send. All threads advance step by step while they are sampled word by
//! word, one process after the other in any order. The model checks that no suspicion is wrong. If
//! any single rule is disabled, some suspicion must be wrong.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use score_proto::job_control::SwitchSeq;
use score_proto::observation::SampleRound;

use super::*;
use crate::cluster::MonotonicTime;

/// The phase of a thread. From `Waiting` to `Taken` its idle slot is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ThreadPhase {
    Busy,
    /// The message is counted as sent, but not yet published.
    Sending(usize),
    /// The thread is at the head of its loop, and has not read the memory.
    Waiting,
    /// The thread has read the memory and polls.
    Polling,
    /// The thread has taken a message.
    Taken,
    /// The thread has taken an answer of the launcher.
    Answered,
    /// The idle slot is clear.
    Woken {
        message: bool,
    },
    /// The transition is counted. The message is not yet released.
    Releasing,
}

/// The round after the first two: a suspicion skips one number before them.
const THIRD_ROUND: SampleRound = SampleRound(4);

/// A rule that is disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisabledRule {
    NoRule,
    SlotFirst,
    Unchanged,
    AllThreads,
    ReceivedWhenReleased,
    Sums,
    Remote,
    Polls,
    SecondPoll,
    Helpers,
    HelperRuns,
    Answers,
}

/// The question of a process to its launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Question {
    None,
    Asked,
    /// The answer has arrived and has not been taken.
    Answered,
}

/// A thread that never reports its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Helper {
    /// The thread waits in a futex, and only its own process can wake it. The number counts its
    /// runs.
    Asleep(u64),
    /// The thread was woken, and is about to run.
    Woken(u64),
    /// The message is counted as sent, but not yet published.
    Sending(u64, usize),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ModelProcess {
    threads: Vec<ThreadPhase>,
    slots: Vec<bool>,
    turns: u64,
    polls: u64,
    /// The value of `polls` at the last sample. `polls` exceeds it by at most two, which keeps the
    /// model finite.
    polls_seen: u64,
    sent: u64,
    received: u64,
    remote: u64,
    queue: u8,
    memory: u8,
    memory_seen: u8,
    question: Question,
    helpers: Vec<Helper>,
}

/// A partial sample.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct PartialSnapshot {
    next_word: usize,
    sample: ProcessSnapshot,
    slots: Vec<bool>,
    /// Whether helpers are also sampled.
    reads_helpers: bool,
    helpers: Vec<Helper>,
}

impl PartialSnapshot {
    /// The number of words to be read of a process.
    fn words(&self, process: &ModelProcess) -> usize {
        process.slots.len() + 3 + self.helpers_read(process)
    }

    /// The number of helpers among these words.
    fn helpers_read(&self, process: &ModelProcess) -> usize {
        if self.reads_helpers { process.helpers.len() } else { 0 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelState {
    processes: Vec<ModelProcess>,
    /// Remote writes: the origin, the target, and whether the write has arrived.
    writes: Vec<(usize, usize, bool)>,
    sends_left: u8,
    writes_left: u8,
    /// How often helpers may still be woken.
    wakes_left: u8,
    questions_left: u8,
    /// There are remote writes or questions. A waiting process spins, and checks for both between
    /// polls.
    spins: bool,
    detector: Detector,
    histories: Vec<LastRound>,
    round: Option<(SampleRound, Vec<PartialSnapshot>)>,
    collected: Option<ActivitySample>,
    started: bool,
}

/// The bounds of an exploration.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Threads of each process.
    pub threads: &'static [usize],
    /// Messages.
    pub sends: u8,
    /// Remote writes.
    pub writes: u8,
    /// Questions of the first process to its launcher.
    pub questions: u8,
    /// Helpers of the first process.
    pub helpers: usize,
    /// How often helpers are woken.
    pub wakes: u8,
}

/// See the [module](self).
pub struct Model {
    disabled: DisabledRule,
    /// Hashes of states. Whole states would need too much memory.
    pub visited: HashSet<u64>,
    pending: Vec<ModelState>,
    /// The state of a wrong suspicion.
    pub false_suspicion: Option<ModelState>,
    /// The number of suspicions.
    pub suspicions: usize,
}

impl ModelState {
    fn new(Bounds { threads, sends, writes, questions, helpers, wakes }: Bounds) -> Self {
        let process = |(index, count): (usize, &usize)| ModelProcess {
            threads: vec![ThreadPhase::Busy; *count],
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
            question: Question::None,
            helpers: vec![Helper::Asleep(0); if index == 0 { helpers } else { 0 }],
        };
        Self {
            processes: threads.iter().enumerate().map(process).collect(),
            writes: Vec::new(),
            sends_left: sends,
            writes_left: writes,
            wakes_left: wakes,
            questions_left: questions,
            spins: writes + questions > 0,
            detector: Detector::new(threads.len() as u32),
            histories: vec![LastRound::default(); threads.len()],
            round: None,
            collected: None,
            started: false,
        }
    }

    /// Whether no event can happen any more.
    fn is_dead(&self) -> bool {
        self.writes.is_empty()
            && self.processes.iter().all(|process| {
                process.queue == 0
                    && process.memory == process.memory_seen
                    && process.question == Question::None
                    && process
                        .threads
                        .iter()
                        .all(|phase| matches!(phase, ThreadPhase::Waiting | ThreadPhase::Polling))
                    && process.helpers.iter().all(|helper| matches!(helper, Helper::Asleep(_)))
            })
    }

    fn is_plain(&self) -> bool {
        !self.spins && self.processes.iter().all(|process| process.helpers.is_empty())
    }

    /// Returns true for a suspicion. The model ends with a suspicion, because a suspicion must be
    /// correct without a stop.
    fn perform(&mut self, actions: Vec<DetectorAction>) -> bool {
        let mut suspicion = false;
        for action in actions {
            match action {
                // If no process spins or has a helper, the first two rounds are enough.
                DetectorAction::TakeSnapshot { round, .. }
                    if round == THIRD_ROUND && self.is_plain() =>
                {
                    suspicion = true
                }
                DetectorAction::TakeSnapshot { round, .. } => {
                    self.round =
                        Some((round, vec![PartialSnapshot::default(); self.processes.len()]));
                    self.collected = Some(ActivitySample::EMPTY);
                }
                DetectorAction::StopGang => suspicion = true,
                DetectorAction::Release | DetectorAction::Verdict | DetectorAction::Suspicion => {}
            }
        }
        suspicion
    }
}

impl Model {
    /// Explores all states within these bounds.
    pub fn explore(disabled: DisabledRule, bounds: Bounds) -> Self {
        let first = ModelState::new(bounds);
        let mut model = Self {
            disabled,
            visited: HashSet::new(),
            pending: vec![first],
            false_suspicion: None,
            suspicions: 0,
        };
        while let Some(state) = model.pending.pop() {
            assert!(model.visited.len() < 20_000_000, "the model has grown too large");
            model.expand(&state);
            if model.false_suspicion.is_some() {
                break;
            }
        }
        model
    }

    fn add(&mut self, state: ModelState) {
        let hasher = BuildHasherDefault::<DefaultHasher>::new();
        if self.visited.insert(hasher.hash_one(&state)) {
            self.pending.push(state);
        }
    }

    fn apply(&mut self, mut state: ModelState, actions: Vec<DetectorAction>) {
        if state.perform(actions) {
            self.suspicions += 1;
            if !state.is_dead() {
                self.false_suspicion = Some(state);
            }
            return;
        }
        self.add(state);
    }

    fn expand(&mut self, state: &ModelState) {
        for process in 0..state.processes.len() {
            for thread in 0..state.processes[process].threads.len() {
                self.thread(state, process, thread);
            }
            for helper in 0..state.processes[process].helpers.len() {
                self.helper(state, process, helper);
            }
            if state.processes[process].question == Question::Asked {
                let mut next = state.clone();
                next.processes[process].question = Question::Answered;
                self.add(next);
            }
        }
        self.writes(state);
        self.detector(state);
    }

    fn writes(&mut self, state: &ModelState) {
        for (index, &(from, to, is_written)) in state.writes.iter().enumerate() {
            let mut next = state.clone();
            if is_written {
                next.writes.remove(index);
                next.processes[from].remote -= 1;
            } else {
                next.writes[index].2 = true;
                next.processes[to].memory += 1;
            }
            self.add(next);
        }
    }

    fn thread(&mut self, state: &ModelState, p: usize, t: usize) {
        let mut next = state.clone();
        let process = &mut next.processes[p];
        match process.threads[t] {
            ThreadPhase::Busy => {
                self.busy(state, p, t);
                process.slots[t] = true;
                process.threads[t] =
                    if state.spins { ThreadPhase::Waiting } else { ThreadPhase::Polling };
            }
            ThreadPhase::Sending(to) => {
                process.threads[t] = ThreadPhase::Busy;
                next.processes[to].queue += 1;
            }
            ThreadPhase::Waiting if process.memory != process.memory_seen => {
                process.memory_seen = process.memory;
                self.wake(process, t, false);
            }
            ThreadPhase::Waiting if process.question == Question::Answered => {
                process.question = Question::None;
                process.threads[t] = ThreadPhase::Answered;
            }
            ThreadPhase::Waiting => process.threads[t] = ThreadPhase::Polling,
            ThreadPhase::Answered => self.wake(process, t, false),
            ThreadPhase::Polling if process.queue > 0 => {
                process.queue -= 1;
                process.threads[t] = ThreadPhase::Taken;
                if self.disabled == DisabledRule::ReceivedWhenReleased {
                    process.received += 1;
                }
            }
            ThreadPhase::Polling if !state.spins => return,
            ThreadPhase::Polling => {
                process.polls = (process.polls + 1).min(process.polls_seen + 2);
                process.threads[t] = ThreadPhase::Waiting;
            }
            ThreadPhase::Taken => self.wake(process, t, true),
            ThreadPhase::Woken { message } => {
                match self.disabled {
                    DisabledRule::SlotFirst => process.slots[t] = false,
                    _ => process.turns += 1,
                }
                process.threads[t] =
                    if message { ThreadPhase::Releasing } else { ThreadPhase::Busy };
            }
            ThreadPhase::Releasing => {
                if self.disabled != DisabledRule::ReceivedWhenReleased {
                    process.received += 1;
                }
                process.threads[t] = ThreadPhase::Busy;
            }
        }
        self.add(next);
    }

    /// Clears the slot, then counts the transition, and only then lets the thread continue.
    fn wake(&self, process: &mut ModelProcess, t: usize, message: bool) {
        match self.disabled {
            DisabledRule::SlotFirst => process.turns += 1,
            _ => process.slots[t] = false,
        }
        process.threads[t] = ThreadPhase::Woken { message };
    }

    /// The next step of a helper that has been woken.
    fn helper(&mut self, state: &ModelState, p: usize, h: usize) {
        match state.processes[p].helpers[h] {
            Helper::Asleep(_) => {}
            Helper::Woken(runs) => {
                let mut finished = state.clone();
                finished.processes[p].helpers[h] = Helper::Asleep(runs + 1);
                self.wake_helpers(&finished, p, h);
                self.add(finished);
                for to in (0..state.processes.len()).filter(|to| *to != p) {
                    if state.sends_left > 0 {
                        let mut next = state.clone();
                        next.sends_left -= 1;
                        next.processes[p].sent += 1;
                        next.processes[p].helpers[h] = Helper::Sending(runs, to);
                        self.add(next);
                    }
                }
            }
            Helper::Sending(runs, to) => {
                let mut next = state.clone();
                next.processes[to].queue += 1;
                next.processes[p].helpers[h] = Helper::Asleep(runs + 1);
                self.add(next);
            }
        }
    }

    /// A thread of a process wakes a helper, other than `except_helper`.
    fn wake_helpers(&mut self, state: &ModelState, p: usize, except_helper: usize) {
        for (h, helper) in state.processes[p].helpers.iter().enumerate() {
            if let Helper::Asleep(runs) = helper
                && h != except_helper
                && state.wakes_left > 0
            {
                let mut next = state.clone();
                next.wakes_left -= 1;
                next.processes[p].helpers[h] = Helper::Woken(*runs);
                self.add(next);
            }
        }
    }

    fn busy(&mut self, state: &ModelState, p: usize, t: usize) {
        self.wake_helpers(state, p, usize::MAX);
        for to in (0..state.processes.len()).filter(|to| *to != p) {
            if state.sends_left > 0 {
                let mut next = state.clone();
                next.sends_left -= 1;
                next.processes[p].sent += 1;
                next.processes[p].threads[t] = ThreadPhase::Sending(to);
                self.add(next);
            }
            if state.questions_left > 0 && p == 0 && state.processes[p].question == Question::None {
                let mut next = state.clone();
                next.questions_left -= 1;
                next.processes[p].question = Question::Asked;
                self.add(next);
            }
            // It makes no difference which process writes.
            if state.writes_left > 0 && p == 0 {
                let mut next = state.clone();
                next.writes_left -= 1;
                next.processes[p].remote += 1;
                next.writes.push((p, to, false));
                self.add(next);
            }
        }
    }

    fn detector(&mut self, state: &ModelState) {
        let mut next = state.clone();
        if !state.started {
            next.started = true;
            let actions = next
                .detector
                .on(DetectorEvent::AllIdle { stop_seq: SwitchSeq::NONE }, MonotonicTime::ZERO);
            self.apply(next, actions);
        } else if let Some((_, readings)) = &state.round {
            let word_count = |p: usize| readings[p].words(&state.processes[p]);
            let in_progress =
                (0..readings.len()).find(|p| (1..word_count(*p)).contains(&readings[*p].next_word));
            for p in in_progress.map_or(0..readings.len(), |p| p..p + 1) {
                self.read(state, p);
            }
        }
    }

    /// Reads the next word of one process.
    fn read(&mut self, state: &ModelState, p: usize) {
        let mut next = state.clone();
        let Some((round, readings)) = &mut next.round else { return };
        let (round, process, reading) = (*round, &state.processes[p], &mut readings[p]);
        let threads = process.slots.len();
        match reading.next_word {
            0 => {
                reading.sample.turns = process.turns;
                reading.reads_helpers =
                    state.histories[p].follows(round) && self.disabled != DisabledRule::Helpers;
                if state.histories[p].follows(round)
                    && self.disabled != DisabledRule::Answers
                    && process.question != Question::None
                {
                    reading.slots.push(false);
                }
            }
            word if word <= threads => reading.slots.push(process.slots[word - 1]),
            // Helpers are read before the counters: a helper that runs after this read has run by
            // the next sample.
            word if word <= threads + reading.helpers_read(process) => {
                reading.helpers.push(process.helpers[word - threads - 1]);
            }
            word => match word - threads - reading.helpers_read(process) {
                // Words that always stay 0 need no step of their own.
                1 if state.spins => reading.sample.polls = process.polls,
                1 => reading.sample.sent = process.sent,
                2 if state.spins => reading.sample.remote_in_flight = process.remote,
                2 => reading.sample.received = process.received,
                _ => return,
            },
        }
        reading.next_word += 1;
        if reading.next_word == reading.words(process) {
            if reading.reads_helpers {
                let asleep = |helper: &Helper| matches!(helper, Helper::Asleep(_));
                let hasher = BuildHasherDefault::<DefaultHasher>::new();
                let fingerprint = hasher.hash_one(&reading.helpers);
                reading.sample.threads =
                    (self.disabled != DisabledRule::HelperRuns).then_some(fingerprint);
                if !reading.helpers.iter().all(asleep) {
                    reading.slots.push(false);
                }
            }
            reading.sample.is_spinning = state.spins;
            reading.sample.idle = match self.disabled {
                DisabledRule::AllThreads => reading.slots.contains(&true),
                _ => !reading.slots.contains(&false),
            };
            let sample = reading.sample;
            let mut activity = next.histories[p].compare_round(round, &[sample], false);
            next.processes[p].polls_seen = sample.polls;
            match self.disabled {
                DisabledRule::Unchanged => activity.unchanged = true,
                DisabledRule::Polls => activity.all_spinners_polled = true,
                DisabledRule::SecondPoll => activity.all_spinners_polled = sample.polls > 0,
                DisabledRule::Sums => (activity.sent, activity.received) = (0, 0),
                DisabledRule::Remote => activity.outstanding_rma = 0,
                _ => {}
            }
            next.collected = next.collected.map(|collected| collected.combine(activity));
            let is_round_done = all_words_read(&next);
            if let Some(activity) = next.collected.filter(|_| is_round_done) {
                (next.round, next.collected) = (None, None);
                let actions = next
                    .detector
                    .on(DetectorEvent::RoundDone { round, activity }, MonotonicTime::ZERO);
                self.apply(next, actions);
                return;
            }
        }
        self.add(next);
    }
}

fn all_words_read(state: &ModelState) -> bool {
    let Some((_, readings)) = &state.round else { return false };
    readings
        .iter()
        .zip(&state.processes)
        .all(|(reading, process)| reading.next_word == reading.words(process))
}
