//! A tree of hops in one process that counts the events that each hop receives.

use std::time::{Duration, Instant};

use score_proto::nodeset::NodeSet;
use score_tools::merge::{
    CommandId, EventBody, MergeAction, MergeInput, MergedEvent, Merger, timeout_of_children,
};

/// The counts of all hops of one level.
#[derive(Debug, Clone, Copy, Default)]
pub struct LevelCounts {
    /// The number of hops of the level.
    pub hops: usize,
    /// The most events that one hop has received.
    pub max_events: usize,
    /// The most bytes of bodies and sets that one hop has received.
    pub max_bytes: usize,
    /// The most bytes that one hop held.
    pub max_held_bytes: usize,
    /// The total time of all hops of the level.
    pub time: Duration,
}

impl LevelCounts {
    fn add(&mut self, hop: Self) {
        self.hops += hop.hops;
        self.max_events = self.max_events.max(hop.max_events);
        self.max_bytes = self.max_bytes.max(hop.max_bytes);
        self.max_held_bytes = self.max_held_bytes.max(hop.max_held_bytes);
        self.time += hop.time;
    }
}

/// The result of a simulation.
#[derive(Debug)]
pub struct SimulationResult {
    /// The counts by level, the root first.
    pub levels: Vec<LevelCounts>,
    /// The events that the root passes on.
    pub top: Vec<MergedEvent>,
}

/// The index of the stack of a rank. Neighbouring ranks have different stacks, so that the rank
/// sets are as long as possible.
pub fn stack_index(rank: u32, stacks: usize) -> usize {
    rank.wrapping_mul(2_654_435_761) as usize % stacks
}

/// A stack: 25 frames with module, offset, file and line, about 1,500 bytes.
pub fn stack(index: u32) -> Vec<u8> {
    let frame = |depth: u32| {
        let function = index.wrapping_mul(31).wrapping_add(depth * 7);
        format!("libsolver.so.3+{function:#010x} advance_{depth} (src/advance_{depth}.c:{index})\n")
    };
    (0..25).map(frame).collect::<String>().into_bytes()
}

/// The tree. The children of `hop` are `arity * hop + 1` and the next ones.
struct Simulation {
    arity: usize,
    stacks: Vec<Vec<u8>>,
    /// The ranks below each hop, and its own.
    below: Vec<NodeSet>,
    levels: Vec<LevelCounts>,
}

/// Simulates one command that all servers answer with their stacks. The branches answer one after
/// the other, so that only the hops of one path hold events. The memory use is that of one hop of
/// each level.
pub fn simulate(servers: usize, arity: usize, stacks: u32) -> SimulationResult {
    let mut below: Vec<NodeSet> = (0..servers as u32).map(NodeSet::one).collect();
    for hop in (1..servers).rev() {
        let own = below[hop].clone();
        below[(hop - 1) / arity].union(&own);
    }
    let stacks = (0..stacks).map(stack).collect();
    let mut simulation = Simulation { arity, stacks, below, levels: Vec::new() };
    let top = simulation.answer(0, 0, Duration::from_secs(60));
    SimulationResult { levels: simulation.levels, top }
}

impl Simulation {
    fn children(&self, hop: usize) -> impl Iterator<Item = usize> + use<> {
        let servers = self.below.len();
        (self.arity * hop + 1..=self.arity * hop + self.arity).take_while(move |&hop| hop < servers)
    }

    /// The events that a hop passes on when its branch has answered.
    fn answer(&mut self, hop: usize, level: usize, timeout: Duration) -> Vec<MergedEvent> {
        if self.levels.len() <= level {
            self.levels.push(LevelCounts::default());
        }
        let sources = self.children(hop).map(|child| self.below[child].clone());
        let mut merger = Merger::new(std::iter::once(NodeSet::one(hop as u32)).chain(sources));
        let (command, ranks) = (CommandId(1), NodeSet::from(0..self.below.len() as u32));
        let input = MergeInput::Command { command, ranks, timeout };
        let mut actions = Vec::new();
        merger.step(input, Duration::ZERO, &mut actions);

        let mut counts = LevelCounts { hops: 1, ..LevelCounts::default() };
        let mut receive = |source, event: MergedEvent| {
            let EventBody::Answer(body) = &event.body else { panic!("{event:?}") };
            counts.max_events += 1;
            counts.max_bytes += body.len() + event.ranks.ranges().len() * 8;
            counts.max_held_bytes = counts.max_held_bytes.max(merger.held_bytes());
            let started_at = Instant::now();
            merger.step(MergeInput::Event { source, event }, Duration::ZERO, &mut actions);
            counts.time += started_at.elapsed();
        };
        for (index, child) in self.children(hop).enumerate() {
            for event in self.answer(child, level + 1, timeout_of_children(timeout)) {
                receive(index + 1, event);
            }
        }
        let body =
            EventBody::Answer(self.stacks[stack_index(hop as u32, self.stacks.len())].clone());
        receive(0, MergedEvent { command, ranks: NodeSet::one(hop as u32), body });
        self.levels[level].add(counts);

        assert_eq!(actions.pop(), Some(MergeAction::Complete(command)));
        let event = |action| match action {
            MergeAction::Pass(event) => event,
            refused => panic!("{refused:?}"),
        };
        actions.into_iter().map(event).collect()
    }
}
