//! The nodes that the owner has marked as exited. Packets in flight to such a node may still be
//! acknowledged, if the node had received them. The engine therefore drops messages to the node
//! only after a grace period.

#![forbid(unsafe_code)]

use std::collections::{HashSet, VecDeque};

/// The time in nanoseconds during which acknowledgements of an exited node are still accepted.
const EXITED_PEER_GRACE_NS: u64 = 50_000_000;

/// See the module.
#[derive(Default)]
pub(super) struct ExitedNodes {
    nodes: HashSet<u32>,
    /// The nodes whose grace period runs, each with its deadline, in order.
    grace: VecDeque<(u64, u32)>,
}

impl ExitedNodes {
    pub(super) fn contains(&self, node: u32) -> bool {
        self.nodes.contains(&node)
    }

    /// Adds a node, and starts its grace period, unless the node was added before.
    pub(super) fn add(&mut self, node: u32, now: u64) {
        if self.nodes.insert(node) {
            self.grace.push_back((now.saturating_add(EXITED_PEER_GRACE_NS), node));
        }
    }

    /// Whether the grace period of any node runs.
    #[inline]
    pub(super) fn has_grace(&self) -> bool {
        !self.grace.is_empty()
    }

    /// Returns the end of the grace period that ends first.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.grace.front().map(|&(deadline, _)| deadline)
    }

    /// Ends the first grace period, if its time has passed or `has_outstanding` returns false for
    /// its node. Returns the node.
    pub(super) fn end_grace(
        &mut self,
        now: u64,
        has_outstanding: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        let &(deadline, node) = self.grace.front()?;
        if now < deadline && has_outstanding(node) {
            return None;
        }
        self.grace.pop_front();
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_ends_after_its_time_or_when_no_message_is_outstanding() {
        let mut exited = ExitedNodes::default();
        for (node, now) in [(7, 100), (8, 200), (7, 300), (9, 400)] {
            exited.add(node, now);
        }
        assert!(exited.contains(7) && !exited.contains(6) && exited.has_grace());
        let first = 100 + EXITED_PEER_GRACE_NS;
        assert_eq!(exited.next_deadline(), Some(first));
        assert_eq!(exited.end_grace(first - 1, |node| node == 7), None);
        assert_eq!(exited.end_grace(first, |_| true), Some(7));
        assert_eq!(exited.end_grace(first, |node| node != 8), Some(8));
        assert_eq!(exited.end_grace(first, |_| true), None);
        assert_eq!(exited.end_grace(first + 300, |_| true), Some(9));
        exited.add(7, first + 300);
        assert!(!exited.has_grace() && exited.contains(9));
    }
}
