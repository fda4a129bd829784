//! Queues of pending work, one for each node, so that a node without room does not block others.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use crate::matching::KeyHasher;

/// A queue for each node.
#[derive(Debug)]
pub(crate) struct NodeQueues<T> {
    by_node: HashMap<u32, VecDeque<T>, BuildHasherDefault<KeyHasher>>,
    /// The nodes whose queues are not empty, each once.
    nodes: VecDeque<u32>,
}

impl<T> NodeQueues<T> {
    pub(crate) fn new() -> Self {
        Self { by_node: HashMap::default(), nodes: VecDeque::new() }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether the queue of `node` has this value.
    pub(crate) fn contains(&self, node: u32, value: &T) -> bool
    where
        T: PartialEq,
    {
        self.by_node.get(&node).is_some_and(|queue| queue.contains(value))
    }

    pub(crate) fn push(&mut self, node: u32, value: T) {
        let queue = self.by_node.entry(node).or_default();
        if queue.is_empty() {
            self.nodes.push_back(node);
        }
        queue.push_back(value);
    }

    /// Takes the queues of all nodes that have entries. The caller owns the result, and returns the
    /// rest by [`NodeQueues::put_back`].
    pub(crate) fn take_all(&mut self) -> Vec<(u32, VecDeque<T>)> {
        let by_node = &mut self.by_node;
        let take = |node| Some((node, std::mem::take(by_node.get_mut(&node)?)));
        self.nodes.drain(..).filter_map(take).collect()
    }

    /// Puts the rest of a queue back, in front of entries that were added since.
    pub(crate) fn put_back(&mut self, node: u32, mut left: VecDeque<T>) {
        let queue = self.by_node.entry(node).or_default();
        let was_empty = queue.is_empty();
        left.append(queue);
        *queue = left;
        if was_empty && !queue.is_empty() {
            self.nodes.push_back(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_are_put_back_precede_newer_entries() {
        let mut queues = NodeQueues::new();
        for (node, value) in [(1, 'a'), (2, 'b'), (1, 'c')] {
            queues.push(node, value);
        }
        assert!(queues.contains(1, &'c') && !queues.contains(2, &'c') && !queues.contains(3, &'c'));
        let mut taken = queues.take_all();
        assert!(queues.is_empty());
        assert_eq!(taken, [(1, VecDeque::from(['a', 'c'])), (2, VecDeque::from(['b']))]);
        queues.push(1, 'd');
        assert_eq!(taken[0].1.pop_front(), Some('a'));
        taken.into_iter().for_each(|(node, left)| queues.put_back(node, left));
        queues.put_back(3, VecDeque::new());
        let expected = [(1, VecDeque::from(['c', 'd'])), (2, VecDeque::from(['b']))];
        assert_eq!(queues.take_all(), expected);
    }
}
