//! One command at one hop: who has not answered, and what the others have said.

use score_proto::nodeset::{MAX_RANGES, NodeSet};

use super::bodies::{Bodies, ENTRY_OVERHEAD_LEN, RANGE_LEN};
use super::rank_bits::RankBits;
use super::{
    CommandId, EventBody, MergeAction, MergeBounds, MergeRefusal, MergedEvent, MonotonicTime,
};

/// A command that waits for events.
#[derive(Debug, Default)]
pub struct OpenCommand {
    /// Ranks that shall answer.
    asked: NodeSet,
    /// Those of them that have not.
    unanswered: RankBits,
    bodies: Bodies,
    /// Ranks of bodies that were too much, and how many events these were.
    dropped: (NodeSet, u64),
    /// None: what was there has been passed on, and the rest goes up by itself.
    deadline: Option<MonotonicTime>,
    held_bytes: usize,
    /// All bytes of the command, held or passed.
    charged_bytes: usize,
    bounds: MergeBounds,
}

impl OpenCommand {
    /// A command that nobody has answered.
    pub fn new(asked: NodeSet, deadline: MonotonicTime, bounds: MergeBounds) -> Self {
        let unanswered = RankBits::new(&asked);
        Self { asked, unanswered, deadline: Some(deadline), bounds, ..Self::default() }
    }

    /// When it passes on what it has; none if it has done so.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.deadline
    }

    /// Bytes of the bodies and sets that wait.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether all ranks have answered.
    pub fn is_complete(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// The ranks that have not answered.
    pub fn unanswered(&self) -> NodeSet {
        self.unanswered.to_set()
    }

    /// Marks ranks as answered, and returns those that were not marked before.
    pub fn take_unanswered(&mut self, ranks: &NodeSet) -> NodeSet {
        self.unanswered.take(ranks)
    }

    /// Why not all of `own`, ranks of one source, are `new`.
    pub fn refusal_of(&self, own: &NodeSet, new: &NodeSet) -> MergeRefusal {
        match self.asked.intersects(&own.difference(new)) {
            true => MergeRefusal::Duplicate,
            false => MergeRefusal::ForeignRanks,
        }
    }

    /// An event of ranks that have not answered before.
    pub fn on_event(
        &mut self,
        id: CommandId,
        ranks: NodeSet,
        body: EventBody,
        actions: &mut Vec<MergeAction>,
    ) {
        let body = self.charge(body, &ranks);
        match (self.deadline, body) {
            (None, body) => pass(id, ranks, body, actions),
            (Some(_), EventBody::Dropped { events }) => {
                self.dropped.0.union(&ranks);
                self.dropped.1 = self.dropped.1.saturating_add(events);
            }
            (Some(_), body) => self.bodies.add(body, ranks),
        }
    }

    /// Counts the bytes of an event. One that is too much loses its body.
    fn charge(&mut self, body: EventBody, ranks: &NodeSet) -> EventBody {
        let body_len = match &body {
            EventBody::Answer(bytes) => bytes.len(),
            EventBody::Lost | EventBody::Abandoned | EventBody::Dropped { .. } => return body,
        };
        let is_known = self.deadline.is_some() && self.bodies.contains(&body);
        let new_bytes = if is_known { 0 } else { body_len + ENTRY_OVERHEAD_LEN };
        let charge = new_bytes + ranks.ranges().len() * RANGE_LEN;
        let fits = charge <= self.bounds.command_bytes.saturating_sub(self.charged_bytes);
        if body_len > self.bounds.body_len || !fits {
            return EventBody::Dropped { events: 1 };
        }
        self.charged_bytes += charge;
        if self.deadline.is_some() {
            self.held_bytes += charge;
        }
        body
    }

    /// Of the ranks of a source those are lost that have not answered; returns them.
    pub fn on_source_lost(&mut self, source: &NodeSet) -> NodeSet {
        let lost = self.unanswered.take(source);
        if !lost.is_empty() && self.deadline.is_some() {
            self.bodies.add(EventBody::Lost, lost.clone());
        }
        lost
    }

    /// Passes on all that waits. What comes from now on goes up by itself.
    pub fn flush(&mut self, id: CommandId, actions: &mut Vec<MergeAction>) {
        self.deadline = None;
        self.held_bytes = 0;
        for (body, ranks) in self.bodies.take_all() {
            pass(id, ranks, body, actions);
        }
        let (ranks, events) = std::mem::take(&mut self.dropped);
        pass(id, ranks, EventBody::Dropped { events }, actions);
    }
}

/// Passes an event on. A set with more ranges than fit in a message becomes several events.
pub fn pass(id: CommandId, ranks: NodeSet, body: EventBody, actions: &mut Vec<MergeAction>) {
    if ranks.is_empty() {
        return;
    }
    let mut event = MergedEvent { command: id, ranks, body };
    while event.ranks.ranges().len() > MAX_RANGES {
        let mut first = NodeSet::new();
        event.ranks.ranges().take(MAX_RANGES).for_each(|range| first.insert_range(range));
        let rest = event.ranks.difference(&first);
        actions.push(MergeAction::Pass(MergedEvent {
            command: id,
            ranks: first,
            body: event.body.clone(),
        }));
        event.ranks = rest;
        // What was counted once is not counted again.
        if let EventBody::Dropped { events } = &mut event.body {
            *events = 0;
        }
    }
    actions.push(MergeAction::Pass(event));
}
