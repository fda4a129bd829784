//! The turns of the members that receive. A turn is at most [`RECEIVE_QUANTUM`] messages if another
//! member also has messages.
//!
//! A poll of an ethernet member is a system call, which takes as long as many messages of another
//! member. While such a member is not the current member, only every 8th empty poll includes it.
//! Each time it has no message this rate is halved, down to every 128th empty poll. Every poll that
//! ends another member's turn also includes it. Therefore a flood of messages from one member
//! delays another member by one turn at most.

#![forbid(unsafe_code)]

use super::routing_table::RoutingTable;
use crate::device::{ReadySource, ReceiveInterface, on};
use crate::sync::SingleWriterU64;

/// Messages in a row from one member.
const RECEIVE_QUANTUM: u64 = 64;
/// The number of polls for each poll of a member that needs a system call: the first value and the
/// largest.
const NETWORK_POLL_INTERVALS: (u64, u64) = (8, 128);

/// See the module.
#[derive(Default)]
pub(super) struct MemberTurns {
    current_member: SingleWriterU64,
    left_of_turn: SingleWriterU64,
    /// Empty polls of the current member since all members were polled, and the number after which
    /// all members are polled again. 0: the first value of [`NETWORK_POLL_INTERVALS`].
    empty_polls: SingleWriterU64,
    network_poll_interval: SingleWriterU64,
}

impl MemberTurns {
    /// Finds a source that may have a message, first in the current member and then in the others.
    #[inline(always)]
    pub(super) fn find(&self, routing: &RoutingTable) -> Option<ReadySource> {
        if routing.member_limit() <= 1 {
            return find_in_member(routing, 0);
        }
        let current = self.current_member.get();
        if self.left_of_turn.get() != 0
            && let Some(found) = find_in_member(routing, current)
        {
            return Some(found);
        }
        self.find_in_others(routing, current)
    }

    #[inline(never)]
    fn find_in_others(&self, routing: &RoutingTable, current: u64) -> Option<ReadySource> {
        let count = routing.member_limit();
        let empty_polls = self.empty_polls.get() + 1;
        let interval = self.network_poll_interval.get().max(NETWORK_POLL_INTERVALS.0);
        let must_poll_network = empty_polls >= interval || self.left_of_turn.get() == 0;
        self.empty_polls.set(if must_poll_network { 0 } else { empty_polls });
        for step in 1..count {
            let member_index = (current + step) % count;
            let found = if must_poll_network {
                find_in_member(routing, member_index)
            } else {
                peek_in_member(routing, member_index)
            };
            if let Some(found) = found {
                self.network_poll_interval.set(NETWORK_POLL_INTERVALS.0);
                self.current_member.set(member_index);
                self.left_of_turn.set(RECEIVE_QUANTUM);
                return Some(found);
            }
        }
        if self.left_of_turn.get() == 0 {
            self.left_of_turn.set(RECEIVE_QUANTUM);
            return find_in_member(routing, current);
        }
        if must_poll_network {
            self.network_poll_interval.set((interval * 2).min(NETWORK_POLL_INTERVALS.1));
        }
        None
    }

    /// Counts a message, and the messages that its source may still deliver in its turn, which are
    /// taken without `find`. Returns whether the member's turn has room for these messages.
    #[inline(always)]
    pub(super) fn on_taken(&self, left_of_source_turn: u64) -> bool {
        let left = self.left_of_turn.get().saturating_sub(1);
        self.left_of_turn.set(left.saturating_sub(left_of_source_turn));
        left_of_source_turn <= left
    }
}

#[inline(always)]
fn find_in_member(routing: &RoutingTable, member_index: u64) -> Option<ReadySource> {
    let source = on!(routing.member(member_index)?, e => e.find())?;
    Some(ReadySource::new(member_index, source))
}

/// Like `find_in_member`, but without a system call.
fn peek_in_member(routing: &RoutingTable, member_index: u64) -> Option<ReadySource> {
    let source = on!(routing.member(member_index)?, e => e.peek())?;
    Some(ReadySource::new(member_index, source))
}
