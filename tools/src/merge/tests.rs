//! Tests of a single hop, then tests that compare trees of hops with a plain union.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SECOND: Duration = Duration::from_secs(1);

fn answer(text: &str) -> EventBody {
    EventBody::Answer(text.as_bytes().to_vec())
}

fn set(ranks: &[u32]) -> NodeSet {
    ranks.iter().copied().collect()
}

fn event(command: u64, ranks: &[u32], body: EventBody) -> MergedEvent {
    MergedEvent { command: CommandId(command), ranks: set(ranks), body }
}

fn passed(command: u64, ranks: &[u32], body: EventBody) -> MergeAction {
    MergeAction::Pass(event(command, ranks, body))
}

/// A hop with the sources 0 (rank 0), 1 (ranks 1 to 4) and 2 (ranks 5 to 8).
struct Hop {
    merger: Merger,
    now: MonotonicTime,
}

impl Hop {
    fn new() -> Self {
        Self::with_bounds(MergeBounds::default())
    }

    fn with_bounds(bounds: MergeBounds) -> Self {
        let sources = [NodeSet::one(0), NodeSet::from(1..5), NodeSet::from(5..9)];
        Self { merger: Merger::with_bounds(sources, bounds), now: MonotonicTime::ZERO }
    }

    fn step(&mut self, input: MergeInput) -> Vec<MergeAction> {
        let mut actions = Vec::new();
        self.merger.step(input, self.now, &mut actions);
        actions
    }

    fn command(&mut self, command: u64, ranks: &[u32]) -> Vec<MergeAction> {
        let (command, ranks) = (CommandId(command), set(ranks));
        self.step(MergeInput::Command { command, ranks, timeout: SECOND })
    }

    fn event(&mut self, source: usize, ranks: &[u32], body: EventBody) -> Vec<MergeAction> {
        self.step(MergeInput::Event { source, event: event(1, ranks, body) })
    }

    fn wait(&mut self, time: Duration) -> Vec<MergeAction> {
        self.now += time;
        self.step(MergeInput::Tick)
    }
}

fn refused(source: usize, refusal: MergeRefusal) -> MergeAction {
    MergeAction::Refuse { source, refusal }
}

#[test]
fn equal_bodies_become_one_event_when_the_last_rank_has_answered() {
    let mut hop = Hop::new();
    assert_eq!(hop.command(1, &[0, 1, 2, 3, 4, 5]), []);
    assert_eq!(hop.event(1, &[1, 3], answer("solve")), []);
    assert_eq!(hop.event(0, &[0], answer("solve")), []);
    assert_eq!(hop.event(1, &[2, 4], answer("wait")), []);
    assert_eq!(hop.merger.unanswered(CommandId(1)), NodeSet::one(5));
    let actions = hop.event(2, &[5], answer("solve"));
    let expected = [
        passed(1, &[0, 1, 3, 5], answer("solve")),
        passed(1, &[2, 4], answer("wait")),
        MergeAction::Complete(CommandId(1)),
    ];
    assert_eq!(actions, expected);
    assert_eq!((hop.merger.held_bytes(), hop.merger.deadline()), (0, None));
}

#[test]
fn after_the_timeout_a_late_event_is_sent_separately_and_no_event_is_lost() {
    let mut hop = Hop::new();
    hop.command(1, &[0, 1, 2, 5]);
    hop.event(0, &[0], answer("solve"));
    assert_eq!(hop.merger.deadline(), Some(SECOND));
    assert_eq!(hop.wait(SECOND / 2), []);
    assert_eq!(hop.wait(SECOND / 2), [passed(1, &[0], answer("solve"))]);
    assert_eq!(hop.merger.deadline(), None);
    assert_eq!(hop.event(1, &[1], answer("solve")), [passed(1, &[1], answer("solve"))]);
    assert_eq!(hop.event(2, &[5], answer("solve")), [passed(1, &[5], answer("solve"))]);
    let last = [passed(1, &[2], answer("wait")), MergeAction::Complete(CommandId(1))];
    assert_eq!(hop.event(1, &[2], answer("wait")), last);
}

#[test]
fn a_lost_branch_causes_an_error_event_for_this_and_for_later_commands() {
    let mut hop = Hop::new();
    hop.command(1, &[0, 1, 2, 5]);
    hop.event(1, &[1], answer("solve"));
    assert_eq!(hop.step(MergeInput::SourceLost { source: 1 }), []);
    hop.event(0, &[0], answer("solve"));
    let actions = hop.event(2, &[5], answer("solve"));
    let expected = [
        passed(1, &[0, 1, 5], answer("solve")),
        passed(1, &[2], EventBody::Lost),
        MergeAction::Complete(CommandId(1)),
    ];
    assert_eq!(actions, expected);
    let expected = [passed(2, &[3, 4], EventBody::Lost), MergeAction::Complete(CommandId(2))];
    assert_eq!(hop.command(2, &[3, 4]), expected);
    assert_eq!(hop.command(3, &[5]), []);
    hop.wait(SECOND);
    let expected = [passed(3, &[5], EventBody::Lost), MergeAction::Complete(CommandId(3))];
    assert_eq!(hop.step(MergeInput::SourceLost { source: 2 }), expected);
    assert_eq!(hop.event(1, &[2], answer("x")), [refused(1, MergeRefusal::UnknownSource)]);
}

#[test]
fn a_source_can_answer_only_once_and_for_its_own_ranks() {
    let mut hop = Hop::new();
    hop.command(1, &[0, 1, 2, 5]);
    let foreign = MergeRefusal::ForeignRanks;
    // Ranks of another branch, and ranks of the branch that the command was not for.
    assert_eq!(hop.event(1, &[0, 1, 5, 70_000], answer("a")), [refused(1, foreign)]);
    assert_eq!(hop.event(1, &[3], answer("a")), [refused(1, foreign)]);
    assert_eq!(hop.event(1, &[1], answer("b")), [refused(1, MergeRefusal::Duplicate)]);
    assert_eq!(hop.event(1, &[], answer("b")), []);
    assert_eq!(hop.event(3, &[1], answer("b")), [refused(3, MergeRefusal::UnknownSource)]);
    let unknown = MergeInput::Event { source: 1, event: event(9, &[1], answer("a")) };
    assert_eq!(hop.step(unknown), [refused(1, MergeRefusal::UnknownCommand)]);
    assert_eq!(hop.wait(SECOND), [passed(1, &[1], answer("a"))]);
}

#[test]
fn bytes_of_a_command_are_bounded_and_dropped_bytes_are_counted() {
    let bounds = MergeBounds { command_bytes: 500, body_len: 100, ..MergeBounds::default() };
    let mut hop = Hop::with_bounds(bounds);
    hop.command(1, &[0, 1, 2, 3, 4, 5]);
    let bodies: Vec<EventBody> = (0..6).map(|n| answer(&format!("{n:100}"))).collect();
    for (rank, body) in bodies.iter().enumerate().take(4) {
        hop.event(rank.min(1), &[rank as u32], body.clone());
        assert!(hop.merger.held_bytes() <= 500);
    }
    // A body that is already held costs only its rank. An event that a child has dropped also
    // counts here.
    hop.event(1, &[4], bodies[0].clone());
    let actions = hop.event(2, &[5], EventBody::Dropped { events: 7 });
    let expected = [
        passed(1, &[0, 4], bodies[0].clone()),
        passed(1, &[1], bodies[1].clone()),
        passed(1, &[2, 3, 5], EventBody::Dropped { events: 9 }),
        MergeAction::Complete(CommandId(1)),
    ];
    assert_eq!(actions, expected);
    // A body that is too long is dropped. The bytes that were already passed on also count.
    hop.command(2, &[0, 1, 5, 6]);
    hop.wait(SECOND);
    let mut late =
        |source, rank, body| hop.step(MergeInput::Event { source, event: event(2, &[rank], body) });
    let too_long = answer(&"x".repeat(101));
    assert_eq!(late(0, 0, too_long), [passed(2, &[0], EventBody::Dropped { events: 1 })]);
    assert_eq!(late(1, 1, bodies[0].clone()), [passed(2, &[1], bodies[0].clone())]);
    assert_eq!(late(2, 5, bodies[0].clone()), [passed(2, &[5], bodies[0].clone())]);
    let dropped = passed(2, &[6], EventBody::Dropped { events: 1 });
    assert_eq!(late(2, 6, bodies[0].clone())[0], dropped);
}

#[test]
fn an_excess_command_replaces_the_oldest_late_command_or_is_refused() {
    let mut hop = Hop::with_bounds(MergeBounds { open_commands: 2, ..MergeBounds::default() });
    let refused = |command, refusal| {
        vec![MergeAction::RefuseCommand { command: CommandId(command), refusal }]
    };
    hop.command(1, &[0, 1]);
    assert_eq!(hop.command(1, &[0]), refused(1, CommandRefusal::NumberInUse));
    hop.wait(SECOND);
    hop.command(2, &[0]);
    assert_eq!(hop.command(3, &[0]), [passed(1, &[0, 1], EventBody::Abandoned)]);
    assert_eq!(hop.command(4, &[0]), refused(4, CommandRefusal::TooManyCommands));
    assert_eq!(hop.step(MergeInput::Close { command: CommandId(3) }), []);
    assert_eq!(hop.command(4, &[0]), []);
}

#[test]
fn a_command_for_no_rank_is_complete_and_without_timeout_no_event_is_held() {
    let mut hop = Hop::new();
    assert_eq!(hop.command(1, &[100]), [MergeAction::Complete(CommandId(1))]);
    let (command, ranks) = (CommandId(1), NodeSet::from(0..3));
    hop.step(MergeInput::Command { command, ranks, timeout: Duration::ZERO });
    assert_eq!(hop.event(0, &[0], answer("a")), [passed(1, &[0], answer("a"))]);
}

#[test]
fn a_set_with_too_many_ranges_for_one_message_is_sent_in_parts() {
    let ranks = NodeSet::from(0..300_000);
    let odd: NodeSet = (0..150_000).map(|rank| rank * 2 + 1).collect();
    let mut merger = Merger::new([ranks.clone()]);
    let mut actions = Vec::new();
    let mut step = |input| merger.step(input, MonotonicTime::ZERO, &mut actions);
    step(MergeInput::Command { command: CommandId(1), ranks, timeout: SECOND });
    // A lost source counts as the answer of all its missing ranks.
    let body = answer("a");
    step(MergeInput::Event {
        source: 0,
        event: MergedEvent { command: CommandId(1), ranks: odd, body },
    });
    step(MergeInput::SourceLost { source: 0 });
    let mut all = BTreeMap::<EventBody, NodeSet>::new();
    for action in &actions {
        let MergeAction::Pass(event) = action else { continue };
        score_proto::frame::encode_datagram(event).expect("it fits in a message");
        all.entry(event.body.clone()).or_default().union(&event.ranks);
    }
    assert_eq!(actions.len(), 7, "three parts of each body, and the end");
    assert!(all.values().all(|ranks| ranks.len() == 150_000));
}

/// The events of a rank in the test of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RankPlan {
    body: u8,
    answers_at: u16,
    asked: bool,
}

/// A tree of hops over the ranks 0 to n-1. The children of `rank` are `arity * rank + 1` and the
/// next ones.
struct Tree {
    hops: Vec<Merger>,
    arity: usize,
}

impl Tree {
    fn new(ranks: usize, arity: usize) -> Self {
        let mut below = vec![NodeSet::new(); ranks];
        for rank in (0..ranks).rev() {
            below[rank].insert(rank as u32);
            if rank > 0 {
                let own = below[rank].clone();
                below[(rank - 1) / arity].union(&own);
            }
        }
        let children = |rank: usize| {
            (arity * rank + 1..=arity * rank + arity).take_while(move |&child| child < ranks)
        };
        let sources = |rank| {
            let own = NodeSet::one(rank as u32);
            std::iter::once(own).chain(children(rank).map(|child| below[child].clone()))
        };
        Self { hops: (0..ranks).map(|rank| Merger::new(sources(rank))).collect(), arity }
    }

    /// Passes an input to a hop, and its events to the parent, up to the root.
    fn step(
        &mut self,
        hop: usize,
        input: MergeInput,
        now: MonotonicTime,
        top: &mut Vec<MergedEvent>,
    ) {
        let mut actions = Vec::new();
        self.hops[hop].step(input, now, &mut actions);
        for action in actions {
            match action {
                MergeAction::Pass(event) if hop == 0 => top.push(event),
                MergeAction::Pass(event) => {
                    let source = (hop - 1) % self.arity + 1;
                    let input = MergeInput::Event { source, event };
                    self.step((hop - 1) / self.arity, input, now, top);
                }
                MergeAction::Complete(_) => (),
                refused => panic!("{refused:?}"),
            }
        }
    }
}

proptest! {
    // Promise (debug manager): Events of many processes with equal bodies are one event with their
    // ranks; the result of a tree is the union of the events of the ranks, whatever is late or
    // lost.
    #[test]
    fn a_tree_sends_the_union_of_the_events_of_its_ranks(
        plans in proptest::collection::vec(
            (0u8..4, 0u16..1200, any::<bool>())
                .prop_map(|(body, answers_at, asked)| RankPlan { body, answers_at, asked }),
            1..60,
        ),
        arity in 1usize..5,
        lost in proptest::option::of((any::<prop::sample::Index>(), 0u16..1200)),
        is_patient in any::<bool>(),
    ) {
        let ms = |ms: u16| Duration::from_millis(ms.into());
        let asked = (0u32..).zip(&plans).filter(|(_, plan)| plan.asked);
        let ranks: NodeSet = asked.map(|(rank, _)| rank).collect();
        let mut tree = Tree::new(plans.len(), arity);
        let mut top = Vec::new();
        // A timeout of 800 ms, which some answers miss, or a timeout that no answer misses.
        let timeout = ms(if is_patient { 60_000 } else { 800 });
        let mut timeouts = vec![timeout; plans.len()];
        for hop in 0..plans.len() {
            if hop > 0 {
                timeouts[hop] = timeout_of_children(timeouts[(hop - 1) / arity]);
            }
            let (command, ranks) = (CommandId(1), ranks.clone());
            let input = MergeInput::Command { command, ranks, timeout: timeouts[hop] };
            // A child sends no answer before its parent has the command.
            tree.step(hop, input, Duration::ZERO, &mut top);
        }
        // The branch of a child is lost at some time. The root is never lost.
        let lost = lost.map(|(index, at)| (index.index(plans.len()), at));
        let lost = lost.filter(|(hop, _)| *hop > 0);
        let is_cut = |mut rank: usize, time: u16| {
            let Some((hop, at)) = lost else { return false };
            while rank > hop {
                rank = (rank - 1) / arity;
            }
            rank == hop && at <= time
        };
        let mut expected = BTreeMap::<EventBody, NodeSet>::new();
        for time in 0..1200u16 {
            if let Some((hop, _)) = lost.filter(|(_, at)| *at == time) {
                let source = (hop - 1) % arity + 1;
                tree.step((hop - 1) / arity, MergeInput::SourceLost { source }, ms(time), &mut top);
            }
            for hop in (0..plans.len()).rev() {
                if is_cut(hop, time) {
                    continue;
                }
                if tree.hops[hop].deadline().is_some_and(|deadline| deadline <= ms(time)) {
                    tree.step(hop, MergeInput::Tick, ms(time), &mut top);
                }
                let plan = plans[hop];
                if plan.asked && plan.answers_at == time {
                    let body = EventBody::Answer(vec![plan.body]);
                    let ranks = NodeSet::one(hop as u32);
                    let event = MergedEvent { command: CommandId(1), ranks, body };
                    tree.step(hop, MergeInput::Event { source: 0, event }, ms(time), &mut top);
                }
            }
        }
        // Events that the lost branch has not passed on are equivalent to events that it has never
        // sent.
        let mut lost_ranks = NodeSet::new();
        let mut said = NodeSet::new();
        let mut all = BTreeMap::<EventBody, NodeSet>::new();
        for event in &top {
            prop_assert!(!said.intersects(&event.ranks), "a rank answers once: {top:?}");
            said.union(&event.ranks);
            all.entry(event.body.clone()).or_default().union(&event.ranks);
            if event.body == EventBody::Lost {
                lost_ranks.union(&event.ranks);
            }
        }
        for (rank, plan) in plans.iter().enumerate().filter(|(_, plan)| plan.asked) {
            let rank_is_lost = lost_ranks.contains(rank as u32);
            prop_assert!(!rank_is_lost || is_cut(rank, 1200), "rank {rank} was not cut off");
            let body = match rank_is_lost {
                true => EventBody::Lost,
                false => EventBody::Answer(vec![plan.body]),
            };
            expected.entry(body).or_default().insert(rank as u32);
        }
        prop_assert_eq!(&all, &expected);
        prop_assert_eq!(said, ranks, "each rank is in one event");
        if is_patient && lost.is_none() {
            prop_assert_eq!(top.len(), all.len(), "one event a body");
        }
        prop_assert_eq!(tree.hops[0].held_bytes(), 0);
    }

    // Promise (debug manager): A hostile branch of the tree can answer only once, only for its own
    // ranks, and only within the size limit of a command.
    #[test]
    fn a_hostile_child_cannot_answer_for_other_ranks_or_exceed_the_bound(
        events in proptest::collection::vec(
            (
                0usize..4,
                proptest::collection::btree_set(0u32..12, 0..6),
                0u8..5,
                0u64..3,
                0usize..90,
            ),
            0..80,
        ),
    ) {
        let bounds = MergeBounds { command_bytes: 700, body_len: 60, ..MergeBounds::default() };
        let mut hop = Hop::with_bounds(bounds);
        hop.command(1, &[0, 1, 2, 3, 5, 6, 8]);
        let mut answered = NodeSet::new();
        for (source, ranks, byte, command, len) in events {
            let body = match byte {
                0 => EventBody::Dropped { events: u64::MAX },
                byte => EventBody::Answer(vec![byte; len]),
            };
            let ranks: NodeSet = ranks.into_iter().collect();
            let command = CommandId(command);
            let event = MergedEvent { command, ranks: ranks.clone(), body };
            let before = hop.merger.unanswered(CommandId(1));
            let actions = hop.step(MergeInput::Event { source, event });
            prop_assert!(hop.merger.held_bytes() <= 700);
            let after = hop.merger.unanswered(CommandId(1));
            let own = hop.merger.ranks_of(source).intersection(&ranks);
            let new = before.difference(&after);
            let accepted = match command.0 {
                1 => own.intersection(&before),
                _ => NodeSet::new(),
            };
            prop_assert_eq!(&new, &accepted);
            answered.union(&new);
            for action in actions {
                if let MergeAction::Pass(event) = action {
                    prop_assert_eq!(event.ranks.difference(&answered), NodeSet::new());
                }
            }
        }
    }
}
