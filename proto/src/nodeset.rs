//! Sets of nodes or hosts as sorted, disjoint, non-adjacent ranges. The report of a subtree thus
//! takes a few bytes, independently of the size of the subtree.
//!
//! An encoded set is a sequence of pairs, one for each range. The first number of a pair is the
//! number of nodes that are skipped in front of the range. From the second range on it is one less,
//! because at least one node is skipped. The second number is the length of the range minus one.
//! Every such sequence is sorted and free of overlaps, so that only its end and its length need a
//! check.

use std::fmt;
use std::ops::Range;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::MAX_NODES;

/// Largest number of ranges of one set in one message. [`NodeSet::union_fits`] rejects a union that
/// might have more. Two messages are then sent instead.
pub const MAX_RANGES: usize = 1 << 16;

/// Largest number of ranges that are printed. For further ranges, only the number of nodes is
/// printed.
const MAX_DISPLAYED_RANGES: usize = 16;

/// A set of numbers below [`MAX_NODES`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NodeSet {
    /// Sorted ranges, with a gap of at least one number between two of them.
    ranges: Vec<Range<u32>>,
}

impl NodeSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set of one node.
    pub fn one(node: u32) -> Self {
        Self::from(node..node.saturating_add(1))
    }

    /// Adds a node. Returns false if it was already in the set.
    pub fn insert(&mut self, node: u32) -> bool {
        let after = self.ranges.partition_point(|range| range.end <= node);
        let is_present = self.ranges.get(after).is_some_and(|range| range.start <= node);
        if !is_present {
            self.insert_range(node..node.saturating_add(1));
        }
        !is_present
    }

    /// Adds all numbers of `new`.
    pub fn insert_range(&mut self, new: Range<u32>) {
        if new.is_empty() {
            return;
        }
        // Ranges that overlap or touch the new one are merged with it.
        let from = self.ranges.partition_point(|range| range.end < new.start);
        let to = self.ranges.partition_point(|range| range.start <= new.end);
        let (mut start, mut end) = (new.start, new.end);
        if let [first, ..] = &self.ranges[from..to] {
            start = start.min(first.start);
            end = end.max(self.ranges[to - 1].end);
        }
        self.ranges.splice(from..to, std::iter::once(start..end));
    }

    /// Removes a node. Returns false if it was not in the set.
    pub fn remove(&mut self, node: u32) -> bool {
        let index = self.ranges.partition_point(|range| range.end <= node);
        let Some(range) = self.ranges.get(index).filter(|range| range.contains(&node)).cloned()
        else {
            return false;
        };
        let rest = [range.start..node, node + 1..range.end];
        self.ranges.splice(index..=index, rest.into_iter().filter(|piece| !piece.is_empty()));
        true
    }

    /// Adds all nodes of `other`.
    pub fn union(&mut self, other: &NodeSet) {
        if let [range] = other.ranges.as_slice() {
            return self.insert_range(range.clone());
        }
        let mut all = std::mem::take(&mut self.ranges);
        all.extend_from_slice(&other.ranges);
        // A stable sort merges two sorted runs in one pass.
        all.sort_by_key(|range| range.start);
        for range in all {
            match self.ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => self.ranges.push(range),
            }
        }
    }

    /// Whether the union with `other` certainly fits into a message.
    pub fn union_fits(&self, other: &NodeSet) -> bool {
        self.ranges.len() + other.ranges.len() <= MAX_RANGES
    }

    /// Whether `node` is in the set.
    pub fn contains(&self, node: u32) -> bool {
        let index = self.ranges.partition_point(|range| range.end <= node);
        self.ranges.get(index).is_some_and(|range| range.start <= node)
    }

    /// Whether a node is in both sets.
    pub fn intersects(&self, other: &NodeSet) -> bool {
        let (mut ours, mut theirs) =
            (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some(one), Some(two)) = (ours.peek(), theirs.peek()) {
            if one.end <= two.start {
                ours.next();
            } else if two.end <= one.start {
                theirs.next();
            } else {
                return true;
            }
        }
        false
    }

    /// The nodes that are in both sets.
    pub fn intersection(&self, other: &NodeSet) -> NodeSet {
        let (mut ours, mut theirs) =
            (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        let mut ranges = Vec::new();
        while let (Some(one), Some(two)) = (ours.peek(), theirs.peek()) {
            let (start, end) = (one.start.max(two.start), one.end.min(two.end));
            if start < end {
                ranges.push(start..end);
            }
            if one.end <= two.end {
                ours.next();
            } else {
                theirs.next();
            }
        }
        Self { ranges }
    }

    /// The nodes of the set that are not in `other`.
    pub fn difference(&self, other: &NodeSet) -> NodeSet {
        let mut ranges = Vec::with_capacity(self.ranges.len());
        let mut holes = other.ranges.iter().peekable();
        for own in &self.ranges {
            let mut start = own.start;
            while let Some(hole) = holes.peek().filter(|hole| hole.start < own.end) {
                if start < hole.start {
                    ranges.push(start..hole.start);
                }
                start = start.max(hole.end);
                if hole.end > own.end {
                    break;
                }
                holes.next();
            }
            if start < own.end {
                ranges.push(start..own.end);
            }
        }
        Self { ranges }
    }

    /// The nodes of the set that are in `range`.
    pub fn within(&self, range: Range<u32>) -> NodeSet {
        let clip = |own: &Range<u32>| own.start.max(range.start)..own.end.min(range.end);
        let ranges = self.ranges.iter().map(clip).filter(|own| !own.is_empty()).collect();
        Self { ranges }
    }

    /// The numbers of `all` that are not in the set.
    pub fn missing(&self, all: Range<u32>) -> NodeSet {
        let mut missing = NodeSet::new();
        let mut from = all.start;
        for range in &self.ranges {
            missing.insert_range(from..range.start.min(all.end));
            from = from.max(range.end);
        }
        missing.insert_range(from..all.end);
        missing
    }

    /// Number of nodes.
    pub fn len(&self) -> u32 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The smallest node.
    pub fn first(&self) -> Option<u32> {
        self.ranges.first().map(|range| range.start)
    }

    /// The largest node. A receiver compares it with the size of its job.
    pub fn last(&self) -> Option<u32> {
        self.ranges.last().map(|range| range.end - 1)
    }

    /// The ranges, in order.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<u32>> + '_ {
        self.ranges.iter().cloned()
    }

    /// The nodes, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().cloned().flatten()
    }
}

impl From<Range<u32>> for NodeSet {
    fn from(range: Range<u32>) -> Self {
        let mut set = Self::new();
        set.insert_range(range);
        set
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let mut set = Self::new();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

impl Extend<u32> for NodeSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, nodes: I) {
        for node in nodes {
            self.insert(node);
        }
    }
}

/// Prints a set as `0-3, 7`. A long list ends with the number of nodes that are not printed.
impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().take(MAX_DISPLAYED_RANGES).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match range.end - range.start {
                1 => write!(f, "{comma}{}", range.start)?,
                _ => write!(f, "{comma}{}-{}", range.start, range.end - 1)?,
            }
        }
        match self
            .ranges
            .iter()
            .skip(MAX_DISPLAYED_RANGES)
            .map(|range| range.end - range.start)
            .sum::<u32>()
        {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Serialize for NodeSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.ranges.len() > MAX_RANGES || self.last().is_some_and(|last| last >= MAX_NODES) {
            return Err(S::Error::custom("a set of nodes beyond the limits of a message"));
        }
        let mut pairs = serializer.serialize_seq(Some(self.ranges.len()))?;
        let mut min_start = 0;
        for range in &self.ranges {
            pairs.serialize_element(&(range.start - min_start, range.end - range.start - 1))?;
            min_start = range.end + 1;
        }
        pairs.end()
    }
}

impl<'de> Deserialize<'de> for NodeSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(NodeSetVisitor)
    }
}

struct NodeSetVisitor;

impl<'de> Visitor<'de> for NodeSetVisitor {
    type Value = NodeSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a set of nodes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<NodeSet, A::Error> {
        let (mut set, mut min_start) = (NodeSet::new(), 0u32);
        // The announced count is not trusted. The list grows with the pairs that are decoded.
        while let Some((skipped, more)) = pairs.next_element::<(u32, u32)>()? {
            let start = min_start.checked_add(skipped);
            let end = start.and_then(|start| start.checked_add(more)?.checked_add(1));
            match (start, end) {
                (Some(start), Some(end)) if end <= MAX_NODES && set.ranges.len() < MAX_RANGES => {
                    set.ranges.push(start..end);
                    min_start = end + 1;
                }
                _ => return Err(A::Error::custom("a set of nodes beyond its limits")),
            }
        }
        Ok(set)
    }
}

/// Fuzzing entry: decodes any bytes as a set.
///
/// # Panics
/// If an accepted set is not sorted, exceeds its limits, or differs after it has been encoded and
/// decoded again.
pub fn fuzz(bytes: &[u8]) {
    let Ok(set) = crate::frame::decode_datagram::<NodeSet>(bytes) else { return };
    assert!(set.ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
    assert!(set.ranges.iter().all(|range| !range.is_empty() && range.end <= MAX_NODES));
    assert!(set.ranges.len() <= MAX_RANGES);
    let encoded = crate::frame::encode_datagram(&set).expect("it came in a datagram");
    assert_eq!(crate::frame::decode_datagram(&encoded), Ok(set));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{decode_datagram, encode_datagram};
    use proptest::prelude::*;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, U32Deserializer};
    use std::collections::BTreeSet;

    fn set(nodes: &[u32]) -> NodeSet {
        nodes.iter().copied().collect()
    }

    #[test]
    fn neighbours_become_one_range_and_are_shown_as_one() {
        let mut nodes = set(&[7, 0, 2, 1, 3]);
        assert_eq!(nodes.to_string(), "0-3, 7");
        assert!(!nodes.insert(2));
        nodes.insert_range(4..7);
        assert_eq!((nodes.to_string(), nodes.len()), ("0-7".to_owned(), 8));
        assert_eq!(NodeSet::new().to_string(), "");
    }

    #[test]
    fn a_long_list_is_cut_and_counted() {
        let odd: NodeSet = (0..100).map(|node| node * 2 + 1).collect();
        assert!(odd.to_string().ends_with("29, 31 and 84 more"), "{odd}");
        let pairs: NodeSet = (0..20).flat_map(|index| [3 * index + 1, 3 * index + 2]).collect();
        assert!(pairs.to_string().ends_with("43-44, 46-47 and 8 more"), "{pairs}");
    }

    #[test]
    fn a_set_is_empty_until_nodes_are_added() {
        let mut nodes = NodeSet::new();
        assert!(nodes.is_empty());
        nodes.extend([5, 3]);
        assert!(!nodes.is_empty() && nodes.iter().eq([3, 5]));
    }

    #[test]
    fn results_contain_no_empty_ranges() {
        let (nodes, others) = (set(&[2, 3, 4, 5, 8, 9, 12]), set(&[2, 4, 5, 6, 7, 8, 12]));
        assert_eq!(nodes.difference(&others), set(&[3, 9]));
        assert_eq!(set(&[2, 3]).intersection(&set(&[4])), NodeSet::new());
    }

    #[test]
    fn a_million_nodes_are_encoded_in_a_few_bytes() {
        let all = NodeSet::from(0..MAX_NODES);
        let bytes = encode_datagram(&all).unwrap();
        assert!(bytes.len() <= 8, "{bytes:?}");
        assert_eq!(decode_datagram(&bytes), Ok(all));
    }

    #[test]
    fn sets_beyond_the_limits_are_neither_sent_nor_accepted() {
        assert!(encode_datagram(&NodeSet::one(MAX_NODES)).is_err());
        let beyond = encode_datagram(&vec![(0u32, MAX_NODES)]).unwrap();
        assert!(decode_datagram::<NodeSet>(&beyond).is_err());
        let wrapped = encode_datagram(&vec![(u32::MAX, 0u32), (5, u32::MAX)]).unwrap();
        assert!(decode_datagram::<NodeSet>(&wrapped).is_err());
        let many = encode_datagram(&vec![(0u32, 0u32); MAX_RANGES + 1]).unwrap();
        assert!(decode_datagram::<NodeSet>(&many).is_err());
        let announced = [0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(decode_datagram::<NodeSet>(&announced).is_err());
        let number: U32Deserializer<Error> = 3u32.into_deserializer();
        let error = NodeSet::deserialize(number).unwrap_err().to_string();
        assert!(error.ends_with("expected a set of nodes"), "{error}");
    }

    #[test]
    fn the_largest_number_of_ranges_is_sent_and_a_larger_union_does_not_fit() {
        let odd = |count: usize| -> NodeSet { (0..count as u32).map(|n| 2 * n + 1).collect() };
        let most = odd(MAX_RANGES);
        let bytes = encode_datagram(&most).unwrap();
        assert!(decode_datagram::<NodeSet>(&bytes).unwrap() == most);
        assert!(encode_datagram(&odd(MAX_RANGES + 1)).is_err());
        let half = odd(MAX_RANGES / 2);
        assert!(half.union_fits(&half) && !half.union_fits(&odd(MAX_RANGES / 2 + 1)));
    }

    proptest! {
        #[test]
        fn a_set_of_ranges_is_a_set_of_numbers(
            steps in proptest::collection::vec((0u32..80, 0u32..10, 0..4), 0..40),
            other in proptest::collection::btree_set(0u32..90, 0..30),
        ) {
            let (mut nodes, mut model) = (NodeSet::new(), BTreeSet::new());
            for (start, count, operation) in steps {
                match operation {
                    0 => prop_assert_eq!(nodes.insert(start), model.insert(start)),
                    1 => prop_assert_eq!(nodes.remove(start), model.remove(&start)),
                    _ => {
                        nodes.insert_range(start..start + count);
                        model.extend(start..start + count);
                    }
                }
            }
            let other_set: NodeSet = other.iter().copied().collect();
            prop_assert_eq!(nodes.intersects(&other_set), !model.is_disjoint(&other));
            prop_assert_eq!(
                nodes.intersection(&other_set),
                model.intersection(&other).copied().collect::<NodeSet>()
            );
            prop_assert_eq!(
                nodes.difference(&other_set),
                model.difference(&other).copied().collect::<NodeSet>()
            );
            prop_assert_eq!(
                nodes.within(3..85),
                model.range(3..85).copied().collect::<NodeSet>()
            );
            prop_assert_eq!(nodes.missing(3..85).iter().collect::<Vec<_>>(),
                (3..85).filter(|node| !model.contains(node)).collect::<Vec<_>>());
            nodes.union(&other_set);
            model.extend(&other);
            prop_assert!(nodes.iter().eq(model.iter().copied()));
            prop_assert_eq!(nodes.len() as usize, model.len());
            prop_assert!((0..100).all(|node| nodes.contains(node) == model.contains(&node)));
            prop_assert_eq!(nodes.first(), model.first().copied());
            prop_assert_eq!(nodes.last(), model.last().copied());
            fuzz(&encode_datagram(&nodes).unwrap());
        }

        #[test]
        fn no_bytes_make_a_set_that_breaks_its_rules(
            bytes in proptest::collection::vec(any::<u8>(), 0..64)
        ) {
            fuzz(&bytes);
        }
    }
}
