//! A queue of peers that contains each peer at most once.

use std::collections::VecDeque;

/// Indices of peers, in the order in which they were added.
#[derive(Default)]
pub(super) struct PeerQueue {
    order: VecDeque<u32>,
    /// For each peer, whether `order` contains it. Peers beyond the end are not contained.
    is_queued: Vec<bool>,
}

impl PeerQueue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[inline]
    pub(super) fn front(&self) -> Option<u32> {
        self.order.front().copied()
    }

    /// Adds a peer at the end, unless the queue contains it.
    #[inline]
    pub(super) fn add(&mut self, index: u32) {
        match self.is_queued.get_mut(index as usize) {
            Some(is_queued) if *is_queued => return,
            Some(is_queued) => *is_queued = true,
            None => self.grow(index as usize),
        }
        self.order.push_back(index);
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.is_queued.resize(index, false);
        self.is_queued.push(true);
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<u32> {
        let index = self.order.pop_front()?;
        self.is_queued[index as usize] = false;
        Some(index)
    }

    /// Moves the first peer to the end.
    #[inline]
    pub(super) fn rotate(&mut self) {
        if !self.order.is_empty() {
            self.order.rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_queued_once_and_again_after_its_turn() {
        let mut queue = PeerQueue::default();
        for index in [3, 0, 3, 0] {
            queue.add(index);
        }
        queue.rotate();
        queue.add(3);
        assert_eq!((queue.front(), queue.is_empty()), (Some(0), false));
        assert_eq!([queue.pop_front(), queue.pop_front()], [Some(0), Some(3)]);
        queue.rotate();
        assert_eq!((queue.pop_front(), queue.is_empty()), (None, true));
        queue.add(0);
        assert_eq!(queue.pop_front(), Some(0));
    }
}
