//! The state of one command at one hop: the ranks that have not answered, and the events of the
//! others.

use score_proto::nodeset::{MAX_RANGES, NodeSet};

use super::bodies::{Bodies, ENTRY_OVERHEAD_LEN, RANGE_LEN};
use super::rank_bits::RankBits;
use super::{
    CommandId, EventBody, MergeAction, MergeBounds, MergeRefusal, MergedEvent, MonotonicTime,
};

/// A command that waits for events.
#[derive(Debug, Default)]
pub struct OpenCommand {
    /// The ranks that must answer.
    asked: NodeSet,
    /// The ranks that have not answered.
    unanswered: RankBits,
    bodies: Bodies,
    /// The ranks of the events that exceeded the limits, and the number of these events.
    dropped: (NodeSet, u64),
    /// `None` if the events have been passed on. Later events are passed on one by one.
    deadline: Option<MonotonicTime>,
    held_bytes: usize,
    /// The bytes of all events of the command, held or passed on.
    charged_bytes: usize,
    bounds: MergeBounds,
}

impl OpenCommand {
    /// A command that no rank has answered.
    pub fn new(asked: NodeSet, deadline: MonotonicTime, bounds: MergeBounds) -> Self {
        let unanswered = RankBits::new(&asked);
        Self { asked, unanswered, deadline: Some(deadline), bounds, ..Self::default() }
    }

    /// When the command passes on its events. `None` if it has done so.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.deadline
    }

    /// The bytes of the bodies and sets that are held.
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

    /// Marks ranks as answered. Returns those that were not marked before.
    pub fn take_unanswered(&mut self, ranks: &NodeSet) -> NodeSet {
        self.unanswered.take(ranks)
    }

    /// Why `own`, the ranks of one source, are not all in `new`.
    pub fn refusal_of(&self, own: &NodeSet, new: &NodeSet) -> MergeRefusal {
        match self.asked.intersects(&own.difference(new)) {
            true => MergeRefusal::Duplicate,
            false => MergeRefusal::ForeignRanks,
        }
    }

    /// Adds an event of ranks that have not answered before.
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

    /// Charges the bytes of an event. If the event exceeds the limits, replaces its body.
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

    /// Marks as lost the ranks of a lost source that have not answered. Returns these ranks.
    pub fn on_source_lost(&mut self, source: &NodeSet) -> NodeSet {
        let lost = self.unanswered.take(source);
        if !lost.is_empty() && self.deadline.is_some() {
            self.bodies.add(EventBody::Lost, lost.clone());
        }
        lost
    }

    /// Passes on all held events. Later events are passed on one by one.
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

/// Passes an event on. If its rank set has more ranges than fit into a message, splits it into
/// several events.
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
        // The number of dropped events is counted only once.
        if let EventBody::Dropped { events } = &mut event.body {
            *events = 0;
        }
    }
    actions.push(MergeAction::Pass(event));
}
