//! The range tree. Position `p` owns the range `p..end`, and its children split `p+1..end` into at
//! most `k` ranges of nearly equal size. Because a subtree is a range, one search finds the path to
//! any position, and sets of positions merge into few ranges.

use std::ops::Range;

/// The largest number of children of a position.
pub const FAN_OUT: u32 = 8;

/// The part of the tree below one position, which is its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subtree(Range<u32>);

impl Subtree {
    /// The whole tree of `count` positions. A count of 0 counts as 1.
    pub fn whole(count: u32) -> Subtree {
        Subtree(0..count.max(1))
    }

    /// The position at the root of this subtree.
    pub fn root(&self) -> u32 {
        self.0.start
    }

    /// All positions of this subtree, the root first.
    pub fn positions(&self) -> Range<u32> {
        self.0.clone()
    }

    /// The subtrees of the children, in order. None of them is empty.
    pub fn children(&self) -> impl Iterator<Item = Subtree> + use<> {
        self.split(FAN_OUT)
    }

    /// Like [`Subtree::children`], with a different largest number of children. All positions of a
    /// tree must use the same number.
    pub fn split(&self, fan_out: u32) -> impl Iterator<Item = Subtree> + use<> {
        let rest = self.0.start + 1..self.0.end;
        let descendant_count = rest.end - rest.start;
        let count = descendant_count.min(fan_out);
        let boundary = move |i: u32| {
            rest.start
                + (u64::from(descendant_count) * u64::from(i) / u64::from(count.max(1))) as u32
        };
        (0..count).map(move |i| Subtree(boundary(i)..boundary(i + 1)))
    }

    /// The subtree of the child that contains `position`. Returns `None` for the root and for
    /// positions outside.
    pub fn child_containing(&self, position: u32) -> Option<Subtree> {
        self.children().find(|child| child.0.contains(&position))
    }

    /// The ancestors of `position`, from the root of this subtree to the parent of `position`.
    pub fn ancestors(&self, position: u32) -> Vec<u32> {
        let mut ancestors = Vec::new();
        let mut subtree = self.clone();
        while let Some(next) = subtree.child_containing(position) {
            ancestors.push(subtree.root());
            subtree = next;
        }
        ancestors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(subtree: &Subtree, depth: u32, seen: &mut Vec<u32>) -> u32 {
        seen.push(subtree.root());
        subtree.children().map(|child| visit(&child, depth + 1, seen)).max().unwrap_or(depth)
    }

    #[test]
    fn every_count_has_every_position_once_and_logarithmic_depth() {
        for count in 1..=4096 {
            let mut seen = Vec::new();
            let depth = visit(&Subtree::whole(count), 0, &mut seen);
            assert!(seen.iter().copied().eq(0..count), "{count}");
            assert!(depth <= 5, "{count}: {depth}");
        }
    }

    #[test]
    fn the_ancestors_of_a_position_precede_it_in_order() {
        for count in [1, 2, 9, 10, 73, 74, 1000] {
            let whole = Subtree::whole(count);
            for position in 0..count {
                let ancestors = whole.ancestors(position);
                assert_eq!(ancestors.is_empty(), position == 0);
                assert!(ancestors.windows(2).all(|pair| pair[0] < pair[1]));
                assert!(ancestors.iter().all(|ancestor| *ancestor < position));
            }
            assert_eq!(whole.child_containing(count), None);
            assert_eq!(whole.child_containing(0), None);
        }
    }
}
