//! A set of ranks as bits. It starts with all ranks of a command, and each rank is taken once. The
//! time for an event does not depend on the number or the distribution of the other ranks.

use std::ops::Range;

use score_proto::nodeset::NodeSet;

const WORD_BITS: u32 = u64::BITS;

/// A set of ranks that only shrinks.
#[derive(Debug, Default)]
pub struct RankBits {
    /// The rank of the first bit.
    first: u32,
    words: Vec<u64>,
    count: u32,
}

impl RankBits {
    /// Creates the bits of a set, one bit for each rank from the first to the last.
    pub fn new(ranks: &NodeSet) -> Self {
        let (Some(first), Some(last)) = (ranks.first(), ranks.last()) else {
            return Self::default();
        };
        let words = vec![0; ((last - first) / WORD_BITS + 1) as usize];
        let mut bits = Self { first, words, count: ranks.len() };
        for range in ranks.ranges() {
            bits.for_each_word(range, |word, mask| *word |= mask);
        }
        bits
    }

    /// Whether no rank is left.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Calls `call` with each word that a range of ranks touches, and a mask of the range's bits in
    /// it. Ignores ranks beyond the words.
    fn for_each_word(&mut self, ranks: Range<u32>, mut call: impl FnMut(&mut u64, u64)) {
        let size = self.words.len() as u64 * u64::from(WORD_BITS);
        let start = u64::from(ranks.start.saturating_sub(self.first)).min(size) as u32;
        let end = u64::from(ranks.end.saturating_sub(self.first)).min(size) as u32;
        let mut at = start;
        while at < end {
            let index = at / WORD_BITS;
            let word_end = (index + 1) * WORD_BITS;
            let len = end.min(word_end) - at;
            let mask = (u64::MAX >> (WORD_BITS - len)) << (at % WORD_BITS);
            call(&mut self.words[index as usize], mask);
            at += len;
        }
    }

    /// Removes those of the ranks that are left, and returns them.
    pub fn take(&mut self, ranks: &NodeSet) -> NodeSet {
        let mut taken = NodeSet::new();
        for range in ranks.ranges() {
            let mut at = range.start.max(self.first);
            self.for_each_word(range, |word, mask| {
                let found = *word & mask;
                *word &= !mask;
                add_bits(&mut taken, found >> mask.trailing_zeros(), at);
                at += mask.count_ones();
            });
        }
        self.count -= taken.len();
        taken
    }

    /// The ranks that are left.
    pub fn to_set(&self) -> NodeSet {
        let mut set = NodeSet::new();
        for (index, word) in (0u32..).zip(&self.words) {
            add_bits(&mut set, *word, self.first + index * WORD_BITS);
        }
        set
    }
}

/// Adds the ranks whose bits are set. Bit 0 is the rank `first`.
fn add_bits(set: &mut NodeSet, mut bits: u64, first: u32) {
    let mut at = first;
    while bits != 0 {
        let skipped = bits.trailing_zeros();
        bits >>= skipped;
        let len = bits.trailing_ones();
        at += skipped;
        set.insert_range(at..at + len);
        at += len;
        bits = if len == WORD_BITS { 0 } else { bits >> len };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sets() -> impl Strategy<Value = NodeSet> {
        proptest::collection::vec((0u32..400, 1u32..150), 0..6).prop_map(|ranges| {
            let mut set = NodeSet::new();
            ranges.iter().for_each(|(start, len)| set.insert_range(*start..start + len));
            set
        })
    }

    proptest! {
        #[test]
        fn each_rank_is_removed_once(
            all in sets(),
            parts in proptest::collection::vec(sets(), 0..5),
            offset in 0u32..100_000,
        ) {
            let moved = |set: &NodeSet| {
                let mut moved = NodeSet::new();
                set.ranges().for_each(|r| moved.insert_range(r.start + offset..r.end + offset));
                moved
            };
            let mut left = moved(&all);
            let mut bits = RankBits::new(&left);
            for part in parts.iter().flat_map(|part| [part.clone(), moved(part)]) {
                prop_assert_eq!(bits.take(&part), left.intersection(&part));
                left = left.difference(&part);
                prop_assert_eq!(bits.to_set(), left.clone());
                prop_assert_eq!(bits.is_empty(), left.is_empty());
            }
        }
    }
}
