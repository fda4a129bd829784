//! Merging of the events of many processes on their way up a tree (SDM "Events", docs/dev/tools.md
//! N34 to N40).
//!
//! Each hop of the tree has a [`Merger`]. Its *sources* are the branches below the hop, and the
//! hop's own ranks. A command goes to a set of ranks, and each of these ranks answers with one
//! event. Events with equal bodies become one event with the union of their ranks. The hop passes
//! the events on when all ranks have answered, or when the timeout of the command has passed. Later
//! events are passed on one by one. No event is lost: each rank of a command is in exactly one
//! event that leaves the hop, or the command still waits for it.
//!
//! The merger is a function `(input, now) -> actions` without a clock and without I/O.
//!
//! The events from below are not trusted. A source can send events for its own ranks only. Each
//! rank can answer a command only once. The bytes of a command are bounded: the hop replaces the
//! events beyond the bound by an event with their number and their ranks.

#![forbid(unsafe_code)]

mod bodies;
mod open_command;
pub mod output;
mod rank_bits;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use score_proto::nodeset::NodeSet;

use open_command::OpenCommand;

/// The time since an arbitrary fixed moment. The caller's clock is monotonic.
pub type MonotonicTime = Duration;

/// The most commands that a hop waits for at the same time.
pub const MAX_OPEN_COMMANDS: usize = 256;

/// The longest body of an event, in bytes. With a rank set of the most ranges it fits into one
/// frame of [`score_proto::frame`].
pub const MAX_EVENT_BODY_LEN: usize = 512 << 10;

/// The most bytes that the events of one command may take at a hop. This includes bodies and rank
/// sets, held or passed on.
pub const MAX_COMMAND_BYTES: usize = 64 << 20;

/// A hop subtracts this fraction (1/8) from the timeout of a command for its children. Children
/// therefore pass their events on before the hop does, so that the hop can merge them.
const TIMEOUT_PARTS: u32 = 8;

pub use score_proto::tool_command::{CommandId, EventBody, MergedEvent};

/// An input of a merger.
#[derive(Debug, Clone)]
pub enum MergeInput {
    /// A command passes the hop on its way down.
    Command {
        /// Its number.
        command: CommandId,
        /// The ranks that must answer. The hop ignores ranks that belong to no source.
        ranks: NodeSet,
        /// How long this hop waits before it passes on the events that it has.
        timeout: Duration,
    },
    /// An event arrives from below.
    Event {
        /// The index of the source.
        source: usize,
        /// The event.
        event: MergedEvent,
    },
    /// The connection to a source is lost permanently.
    SourceLost {
        /// The index of the source.
        source: usize,
    },
    /// The sender of the command does not wait any more. Later events are refused.
    Close {
        /// The command.
        command: CommandId,
    },
    /// Time has passed; see [`Merger::deadline`].
    Tick,
}

/// An action for the owner of a merger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeAction {
    /// Send the event to the parent.
    Pass(MergedEvent),
    /// All ranks of the command have answered, and all events have been passed on.
    Complete(CommandId),
    /// A source has sent an invalid event. The invalid part was dropped. The owner may close the
    /// connection.
    Refuse {
        /// The index of the source.
        source: usize,
        /// The reason.
        refusal: MergeRefusal,
    },
    /// The command has the number of a waiting command, or there is no room for it. The hop passes
    /// on no event of this command.
    RefuseCommand {
        /// The command.
        command: CommandId,
        /// The reason.
        refusal: CommandRefusal,
    },
}

/// Why an event, or a part of it, is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeRefusal {
    /// No command with this number is waiting.
    #[error("an event of a command that no process is waiting for")]
    UnknownCommand,
    /// The index is not that of a source, or the source is lost.
    #[error("an event of a branch that does not exist")]
    UnknownSource,
    /// Some ranks do not belong to the branch, or the command was not for them.
    #[error("an event of ranks that were not asked, or belong to another branch")]
    ForeignRanks,
    /// Some ranks have already answered this command.
    #[error("a second event of the same ranks for one command")]
    Duplicate,
}

/// Why a command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    /// A command with this number is waiting for events.
    #[error("the number of the command is in use; give each command a new one")]
    NumberInUse,
    /// [`MAX_OPEN_COMMANDS`] commands are waiting, and the timeout of none has passed.
    #[error("{MAX_OPEN_COMMANDS} commands wait for events; wait for them, or close one")]
    TooManyCommands,
}

/// The limits of a [`Merger`].
#[derive(Debug, Clone, Copy)]
pub struct MergeBounds {
    /// See [`MAX_OPEN_COMMANDS`].
    pub open_commands: usize,
    /// See [`MAX_COMMAND_BYTES`].
    pub command_bytes: usize,
    /// See [`MAX_EVENT_BODY_LEN`].
    pub body_len: usize,
}

impl Default for MergeBounds {
    fn default() -> Self {
        Self {
            open_commands: MAX_OPEN_COMMANDS,
            command_bytes: MAX_COMMAND_BYTES,
            body_len: MAX_EVENT_BODY_LEN,
        }
    }
}

/// The timeout that a hop passes to its children for a command that it got with `timeout`.
pub fn timeout_of_children(timeout: Duration) -> Duration {
    timeout - timeout / TIMEOUT_PARTS
}

/// Merges the events at one hop of a tree.
#[derive(Debug)]
pub struct Merger {
    /// The ranks of each branch, which do not overlap.
    sources: Vec<NodeSet>,
    lost: BTreeSet<usize>,
    commands: BTreeMap<CommandId, OpenCommand>,
    bounds: MergeBounds,
}

impl Merger {
    /// Creates a hop with these branches, one of which may be the hop itself. A rank in several
    /// branches belongs to the first of them.
    pub fn new(sources: impl IntoIterator<Item = NodeSet>) -> Self {
        Self::with_bounds(sources, MergeBounds::default())
    }

    /// Like `new`, with other limits. `body_len` is limited to [`MAX_EVENT_BODY_LEN`].
    pub fn with_bounds(
        sources: impl IntoIterator<Item = NodeSet>,
        mut bounds: MergeBounds,
    ) -> Self {
        let mut named = NodeSet::new();
        let own_part = |source: NodeSet| {
            let part = source.difference(&named);
            named.union(&part);
            part
        };
        let sources = sources.into_iter().map(own_part).collect();
        bounds.body_len = bounds.body_len.min(MAX_EVENT_BODY_LEN);
        Self { sources, lost: BTreeSet::new(), commands: BTreeMap::new(), bounds }
    }

    /// The ranks of a source. Empty, if there is no such source.
    pub fn ranks_of(&self, source: usize) -> NodeSet {
        self.sources.get(source).cloned().unwrap_or_default()
    }

    /// Whether the hop waits for events of this command.
    pub fn is_open(&self, command: CommandId) -> bool {
        self.commands.contains_key(&command)
    }

    /// The ranks that have not answered this command.
    pub fn unanswered(&self, command: CommandId) -> NodeSet {
        self.commands.get(&command).map(OpenCommand::unanswered).unwrap_or_default()
    }

    /// When [`MergeInput::Tick`] is due. A command then passes on its events.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.commands.values().filter_map(OpenCommand::deadline).min()
    }

    /// The bytes of bodies and rank sets that are held here.
    pub fn held_bytes(&self) -> usize {
        self.commands.values().map(OpenCommand::held_bytes).sum()
    }

    /// Handles one input and appends the resulting actions to `actions`. First handles deadlines
    /// that have passed at `now`.
    pub fn step(&mut self, input: MergeInput, now: MonotonicTime, actions: &mut Vec<MergeAction>) {
        for (&id, command) in &mut self.commands {
            if command.deadline().is_some_and(|deadline| deadline <= now) {
                command.flush(id, actions);
            }
        }
        match input {
            MergeInput::Command { command, ranks, timeout } => {
                self.on_command(command, &ranks, now.saturating_add(timeout), now, actions);
            }
            MergeInput::Event { source, event } => self.on_event(source, event, actions),
            MergeInput::SourceLost { source } => self.on_source_lost(source, actions),
            MergeInput::Close { command } => {
                self.commands.remove(&command);
            }
            MergeInput::Tick => (),
        }
    }

    fn on_command(
        &mut self,
        id: CommandId,
        ranks: &NodeSet,
        deadline: MonotonicTime,
        now: MonotonicTime,
        actions: &mut Vec<MergeAction>,
    ) {
        if self.is_open(id) {
            let refusal = CommandRefusal::NumberInUse;
            return actions.push(MergeAction::RefuseCommand { command: id, refusal });
        }
        if self.commands.len() >= self.bounds.open_commands && !self.abandon_oldest(actions) {
            let refusal = CommandRefusal::TooManyCommands;
            return actions.push(MergeAction::RefuseCommand { command: id, refusal });
        }
        let mut asked = NodeSet::new();
        self.sources.iter().for_each(|source| asked.union(&source.intersection(ranks)));
        let mut command = OpenCommand::new(asked, deadline, self.bounds);
        for &source in &self.lost {
            command.on_source_lost(&self.sources[source]);
        }
        if deadline <= now {
            command.flush(id, actions);
        }
        self.commands.insert(id, command);
        self.settle(id, actions);
    }

    /// Makes room by giving up the oldest command whose timeout has passed. Returns false if there
    /// is none.
    fn abandon_oldest(&mut self, actions: &mut Vec<MergeAction>) -> bool {
        let late = self.commands.iter().find(|(_, command)| command.deadline().is_none());
        let Some((&id, _)) = late else { return false };
        let command = self.commands.remove(&id).unwrap_or_default();
        open_command::pass(id, command.unanswered(), EventBody::Abandoned, actions);
        true
    }

    fn on_event(&mut self, source: usize, event: MergedEvent, actions: &mut Vec<MergeAction>) {
        let refuse = |refusal| MergeAction::Refuse { source, refusal };
        if source >= self.sources.len() || self.lost.contains(&source) {
            return actions.push(refuse(MergeRefusal::UnknownSource));
        }
        let id = event.command;
        let Some(command) = self.commands.get_mut(&id) else {
            return actions.push(refuse(MergeRefusal::UnknownCommand));
        };
        let own = event.ranks.intersection(&self.sources[source]);
        let new = command.take_unanswered(&own);
        if own.len() != event.ranks.len() {
            actions.push(refuse(MergeRefusal::ForeignRanks));
        }
        if new.len() != own.len() {
            actions.push(refuse(command.refusal_of(&own, &new)));
        }
        if !new.is_empty() {
            command.on_event(id, new, event.body, actions);
        }
        self.settle(id, actions);
    }

    fn on_source_lost(&mut self, source: usize, actions: &mut Vec<MergeAction>) {
        if source >= self.sources.len() || !self.lost.insert(source) {
            return;
        }
        let ids: Vec<CommandId> = self.commands.keys().copied().collect();
        for id in ids {
            if let Some(command) = self.commands.get_mut(&id) {
                let ranks = command.on_source_lost(&self.sources[source]);
                if command.deadline().is_none() {
                    open_command::pass(id, ranks, EventBody::Lost, actions);
                }
            }
            self.settle(id, actions);
        }
    }

    /// Passes on and removes a command that all ranks have answered.
    fn settle(&mut self, id: CommandId, actions: &mut Vec<MergeAction>) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        if command.is_complete() {
            command.flush(id, actions);
            self.commands.remove(&id);
            actions.push(MergeAction::Complete(id));
        }
    }
}
