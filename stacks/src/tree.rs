//! The prefix tree of the stacks of many ranks. The common outer frames of stacks are one node,
//! with the ranks and the number of threads in it.

use std::collections::BTreeMap;

use score_proto::nodeset::NodeSet;

use crate::ProcessStacks;
use crate::frame::{Frame, Stack};

/// Maximum number of nodes of a tree. Frames beyond it are combined as `...`.
pub const MAX_TREE_NODES: usize = 1 << 17;
/// Maximum depth of a tree in frames.
pub const MAX_TREE_DEPTH: usize = crate::frame::MAX_STACK_FRAMES;

/// The ranks and threads of a node, and the nodes of the functions that they have called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeNode {
    /// The ranks that have a thread here.
    pub ranks: NodeSet,
    /// The total number of their threads here.
    pub threads: u64,
    /// The functions that these threads have called. A thread that is in no child is in this frame.
    pub children: BTreeMap<Frame, TreeNode>,
}

/// A prefix tree. The root is not a frame: it has all ranks and threads.
///
/// Merging is associative and commutative. If there are more than [`MAX_TREE_NODES`] nodes, the
/// order determines which frames become `...`. Ranks and threads are never lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackTree {
    root: TreeNode,
    nodes: usize,
}

impl StackTree {
    /// A tree without stacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// All ranks and threads, and the outermost frames.
    pub fn root(&self) -> &TreeNode {
        &self.root
    }

    /// The number of frames.
    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// Adds a stack that each of `threads` threads of `ranks` has.
    pub fn insert(&mut self, stack: &Stack, ranks: &NodeSet, threads: u64) {
        let mut node = &mut self.root;
        node.add(ranks, threads);
        for (depth, frame) in stack.frames.iter().enumerate() {
            let is_full = self.nodes + 1 >= MAX_TREE_NODES || depth + 1 >= MAX_TREE_DEPTH;
            let is_new = !node.children.contains_key(frame);
            if is_new && is_full {
                return node.add_cut(ranks, threads, &mut self.nodes);
            }
            self.nodes += usize::from(is_new);
            node = node.children.entry(frame.clone()).or_default();
            node.add(ranks, threads);
        }
    }

    /// Adds all threads of the process of `rank`.
    pub fn insert_process(&mut self, rank: u32, process: &ProcessStacks) {
        for thread in &process.threads {
            self.insert(&thread.stack, &NodeSet::one(rank), 1);
        }
    }

    /// Adds all stacks of another tree.
    pub fn merge(&mut self, other: &StackTree) {
        merge_node(&mut self.root, &other.root, &mut self.nodes, 0);
    }
}

impl TreeNode {
    fn add(&mut self, ranks: &NodeSet, threads: u64) {
        self.ranks.union(ranks);
        self.threads = self.threads.saturating_add(threads);
    }

    /// Adds threads whose further frames have no room, below one node that represents these frames.
    fn add_cut(&mut self, ranks: &NodeSet, threads: u64, nodes: &mut usize) {
        *nodes += usize::from(!self.children.contains_key(&Frame::Cut));
        self.children.entry(Frame::Cut).or_default().add(ranks, threads);
    }

    /// The number of threads that are in this frame itself.
    pub fn own_threads(&self) -> u64 {
        let below = self.children.values().map(|child| child.threads);
        self.threads.saturating_sub(below.fold(0, u64::saturating_add))
    }
}

fn merge_node(node: &mut TreeNode, other: &TreeNode, nodes: &mut usize, depth: usize) {
    node.add(&other.ranks, other.threads);
    for (frame, child) in &other.children {
        let is_new = !node.children.contains_key(frame);
        let is_full = *nodes + 1 >= MAX_TREE_NODES || depth + 1 >= MAX_TREE_DEPTH;
        if is_new && is_full {
            node.add_cut(&child.ranks, child.threads, nodes);
            continue;
        }
        *nodes += usize::from(is_new);
        let own = node.children.entry(frame.clone()).or_default();
        merge_node(own, child, nodes, depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn function(number: u8) -> Frame {
        let name = format!("f{number}");
        Frame::Function { name, module: "program".to_owned(), source: None, is_inlined: false }
    }

    fn stack(numbers: &[u8]) -> Stack {
        Stack { frames: numbers.iter().map(|number| function(*number)).collect() }
    }

    /// The ranks and threads of a path, from a plain list of all threads.
    fn threads_in(all: &[(Vec<u8>, u32)], path: &[u8]) -> (NodeSet, u64) {
        let within: Vec<_> = all.iter().filter(|(stack, _)| stack.starts_with(path)).collect();
        (within.iter().map(|(_, rank)| *rank).collect(), within.len() as u64)
    }

    fn check_node(node: &TreeNode, all: &[(Vec<u8>, u32)], path: &mut Vec<u8>) -> usize {
        assert_eq!((node.ranks.clone(), node.threads), threads_in(all, path));
        let mut nodes = 0;
        for number in 0..4 {
            path.push(number);
            match node.children.get(&function(number)) {
                Some(child) => nodes += 1 + check_node(child, all, path),
                None => assert_eq!(threads_in(all, path).1, 0),
            }
            path.pop();
        }
        nodes
    }

    fn threads() -> impl Strategy<Value = Vec<(Vec<u8>, u32)>> {
        prop::collection::vec((prop::collection::vec(0u8..4, 0..6), 0u32..40), 0..40)
    }

    fn tree_of(threads: &[(Vec<u8>, u32)]) -> StackTree {
        let mut tree = StackTree::new();
        for (numbers, rank) in threads {
            tree.insert(&stack(numbers), &NodeSet::one(*rank), 1);
        }
        tree
    }

    proptest! {
        #[test]
        fn a_tree_merged_in_any_order_agrees_with_a_plain_list(
            parts in (threads(), threads(), threads()),
        ) {
            let (one, two, three) = (tree_of(&parts.0), tree_of(&parts.1), tree_of(&parts.2));
            let mut left = one.clone();
            left.merge(&two);
            left.merge(&three);
            let mut right = three;
            let mut pair = two;
            pair.merge(&one);
            right.merge(&pair);
            prop_assert_eq!(&left, &right);
            let all = [parts.0, parts.1, parts.2].concat();
            let nodes = check_node(left.root(), &all, &mut Vec::new());
            prop_assert_eq!(left.node_count(), nodes);
            prop_assert_eq!(left, tree_of(&all));
        }
    }

    #[test]
    fn a_full_tree_is_marked_and_loses_no_rank() {
        let mut tree = StackTree::new();
        for rank in 0..3u32 {
            let frames = (0..MAX_TREE_NODES as u64 / 2)
                .map(|offset| (u64::from(rank) << 32) + offset)
                .map(|offset| Frame::Address { module: "jit".to_owned(), offset });
            for frame in frames {
                tree.insert(&Stack { frames: vec![frame] }, &NodeSet::one(rank), 1);
            }
        }
        assert!(tree.node_count() <= MAX_TREE_NODES);
        let root = tree.root();
        assert_eq!(root.ranks, NodeSet::from(0..3));
        assert!(root.children[&Frame::Cut].ranks.contains(2));
        assert_eq!(root.own_threads(), 0);
        let mut twice = tree.clone();
        twice.merge(&tree);
        assert!(twice.node_count() <= MAX_TREE_NODES);
        assert_eq!(twice.root().threads, 2 * tree.root().threads);
    }

    #[test]
    fn a_stack_that_is_too_deep_is_cut() {
        let mut tree = StackTree::new();
        let deep = stack(&[0; 3 * MAX_TREE_DEPTH]);
        tree.insert(&deep, &NodeSet::one(1), 1);
        assert_eq!(tree.node_count(), MAX_TREE_DEPTH);
        let mut merged = StackTree::new();
        merged.merge(&tree);
        assert_eq!(merged, tree);
    }
}
