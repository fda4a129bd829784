//! The bodies that are held at a hop, each with its ranks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use score_proto::nodeset::NodeSet;

use super::EventBody;

/// The bytes of an entry in addition to its body and its ranges.
pub const ENTRY_OVERHEAD_LEN: usize = 128;

/// The bytes of one range of a set.
pub const RANGE_LEN: usize = 8;

/// Bodies, found by hash and comparison. The hash has a random key, so that a process cannot
/// construct many bodies with the same hash.
#[derive(Debug, Default)]
pub struct Bodies<S = RandomState> {
    ranks: HashMap<EventBody, NodeSet, S>,
}

impl<S: BuildHasher> Bodies<S> {
    /// Adds ranks to a body.
    pub fn add(&mut self, body: EventBody, ranks: NodeSet) {
        match self.ranks.get_mut(&body) {
            Some(known) => known.union(&ranks),
            None => {
                self.ranks.insert(body, ranks);
            }
        }
    }

    /// Whether a body is already held, so that its bytes are not held again.
    pub fn contains(&self, body: &EventBody) -> bool {
        self.ranks.contains_key(body)
    }

    /// Takes all bodies, ordered by their first rank. The result does not depend on the order of
    /// arrival.
    pub fn take_all(&mut self) -> Vec<(EventBody, NodeSet)> {
        let mut all: Vec<_> = self.ranks.drain().collect();
        self.ranks.shrink_to_fit();
        all.sort_unstable_by(|(body, ranks), (other_body, other_ranks)| {
            (ranks.first(), body).cmp(&(other_ranks.first(), other_body))
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasherDefault, Hasher};

    /// A hasher that gives all bodies the same hash.
    #[derive(Default)]
    struct ConstantHasher;

    impl Hasher for ConstantHasher {
        fn finish(&self) -> u64 {
            0
        }

        fn write(&mut self, _: &[u8]) {}
    }

    #[test]
    fn different_bodies_with_the_same_hash_are_not_merged() {
        let mut bodies = Bodies::<BuildHasherDefault<ConstantHasher>>::default();
        let answer = |text: &str| EventBody::Answer(text.into());
        for rank in 0..30 {
            bodies.add(answer(["main", "solve", "MPI_Wait"][rank % 3]), NodeSet::one(rank as u32));
        }
        let all = bodies.take_all();
        let expected = ["main", "solve", "MPI_Wait"].iter().enumerate().map(|(index, text)| {
            (answer(text), (0..10).map(|step| step * 3 + index as u32).collect::<NodeSet>())
        });
        assert!(all.into_iter().eq(expected));
    }
}
