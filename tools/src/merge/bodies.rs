//! The bodies that wait at a hop, each with its ranks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use score_proto::nodeset::NodeSet;

use super::EventBody;

/// Bytes that an entry takes beside its body and its ranges.
pub const ENTRY_OVERHEAD_LEN: usize = 128;

/// Bytes of one range of a set.
pub const RANGE_LEN: usize = 8;

/// Bodies by their hash, then by comparison. The hash has a random key, so that no process can
/// make many bodies with the same one.
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

    /// Whether a body is there: then its bytes are not held a second time.
    pub fn contains(&self, body: &EventBody) -> bool {
        self.ranks.contains_key(body)
    }

    /// All bodies in order of their first rank: the order of arrival does not show.
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

    /// All bodies have one hash.
    #[derive(Default)]
    struct ConstantHasher;

    impl Hasher for ConstantHasher {
        fn finish(&self) -> u64 {
            0
        }

        fn write(&mut self, _: &[u8]) {}
    }

    #[test]
    fn different_bodies_of_one_hash_stay_apart() {
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
