//! A namespace, as far as this host takes part in it: which of its ranks wait for a fence.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// What a call of libpmix waits for.
#[derive(Debug)]
pub struct PendingFence<C> {
    /// How to answer the call.
    pub caller: C,
    /// What the ranks of this host have put. Empty once it has been reported.
    entries: Vec<u8>,
}

/// The ranks that take part in a fence, compared with those of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Participants {
    /// All ranks of the namespace.
    All,
    /// Some ranks, all of them on this host.
    OfThisHost,
    /// Some ranks, of several hosts.
    OfSeveralHosts,
}

/// See the [module](self). `C`: how to answer a call.
#[derive(Debug)]
pub struct Namespace<C> {
    /// The number of the parallel process.
    pub element: u32,
    rank_count: u32,
    local_ranks: Range<u32>,
    /// Fences in which the ranks of this host are. The first one has been reported.
    fences: VecDeque<PendingFence<C>>,
    /// What has come for the first fence, or for the next one if there is none.
    received: Vec<u8>,
}

impl<C> Namespace<C> {
    /// A namespace of so many ranks, of which these are on this host.
    pub fn new(element: u32, rank_count: u32, local_ranks: Range<u32>) -> Self {
        let (fences, received) = (VecDeque::new(), Vec::new());
        Self { element, rank_count, local_ranks, fences, received }
    }

    /// Whether a rank is one of another host.
    pub fn is_remote(&self, rank: u32) -> bool {
        rank < self.rank_count && !self.local_ranks.contains(&rank)
    }

    /// Who takes part in a fence of these ranks. None: all.
    pub fn participants(&self, ranks: impl Iterator<Item = Option<u32>>) -> Participants {
        let mut named = Vec::new();
        for rank in ranks {
            match rank {
                None => return Participants::All,
                Some(rank) => named.push(rank),
            }
        }
        named.sort_unstable();
        named.dedup();
        if named.len() == self.rank_count as usize {
            Participants::All
        } else if named.iter().all(|rank| self.local_ranks.contains(rank)) {
            Participants::OfThisHost
        } else {
            Participants::OfSeveralHosts
        }
    }

    /// The ranks of this host are in a fence of all ranks. Returns what is to be reported, unless
    /// that has to wait for the end of an earlier fence.
    pub fn begin_fence(&mut self, caller: C, entries: Vec<u8>) -> Option<Vec<u8>> {
        self.fences.push_back(PendingFence { caller, entries });
        (self.fences.len() == 1).then(|| self.entries_to_report()).flatten()
    }

    fn entries_to_report(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.fences.front_mut()?.entries))
    }

    /// Some hosts have put these entries.
    pub fn add_entries(&mut self, entries: &[u8]) {
        self.received.extend_from_slice(entries);
    }

    /// All hosts are in the fence. Returns the call that waits for it, what all hosts have put, and
    /// what is to be reported for the next fence, if there is one already.
    pub fn end_fence(&mut self) -> Option<(C, Vec<u8>, Option<Vec<u8>>)> {
        let fence = self.fences.pop_front()?;
        let received = std::mem::take(&mut self.received);
        Some((fence.caller, received, self.entries_to_report()))
    }
}

/// Context ids of groups.
#[derive(Debug, Default)]
pub struct GroupIds {
    /// How often each group has been constructed.
    counts: HashMap<u64, u64>,
}

impl GroupIds {
    /// The id of the next group of this name and these ranks. It is found without asking other
    /// hosts: the ranks construct groups of one name and one set of ranks one after the other.
    pub fn context_id(&mut self, name: &str, ranks: &[u32]) -> usize {
        let ranks = ranks.iter().flat_map(|rank| rank.to_le_bytes());
        let group = hash(name.bytes().chain([0]).chain(ranks));
        let count = self.counts.entry(group).or_insert(0);
        *count += 1;
        let id = hash(group.to_le_bytes().into_iter().chain(count.to_le_bytes()));
        // The largest one means that there is none.
        usize::try_from(id).unwrap_or(usize::MAX).min(usize::MAX - 1)
    }
}

/// The 64-bit hash FNV-1a.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_its_own_context_id_and_the_same_one_on_all_hosts() {
        let [mut here, mut there] = [GroupIds::default(), GroupIds::default()];
        let mut seen = std::collections::HashSet::new();
        for name in ["a", "b"] {
            for ranks in [&[0, 1][..], &[0, 1, 2], &[]] {
                for _ in 0..3 {
                    let id = here.context_id(name, ranks);
                    assert!(seen.insert(id));
                    assert_eq!(there.context_id(name, ranks), id);
                }
            }
        }
        // Published values of FNV-1a.
        assert_eq!(hash([].into_iter()), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"foobar".iter().copied()), 0x8594_4171_f739_67e8);
    }

    fn namespace() -> Namespace<char> {
        Namespace::new(0, 4, 2..4)
    }

    #[test]
    fn participants_are_counted_once_and_by_their_hosts() {
        let participants =
            |ranks: &[u32]| namespace().participants(ranks.iter().copied().map(Some));
        assert_eq!(participants(&[0, 1, 2, 3]), Participants::All);
        assert_eq!(participants(&[3, 2, 1, 0, 0]), Participants::All);
        assert_eq!(participants(&[2, 2, 3, 3]), Participants::OfThisHost);
        assert_eq!(participants(&[1, 2]), Participants::OfSeveralHosts);
        assert_eq!(participants(&[9]), Participants::OfSeveralHosts);
        let remote: Vec<u32> = (0..9).filter(|rank| namespace().is_remote(*rank)).collect();
        assert_eq!(remote, [0, 1]);
        assert_eq!(namespace().participants([Some(1), None].into_iter()), Participants::All);
    }

    #[test]
    fn entries_of_other_hosts_may_come_first() {
        let mut namespace = namespace();
        namespace.add_entries(b"a");
        assert_eq!(namespace.begin_fence('x', b"b".to_vec()), Some(b"b".to_vec()));
        namespace.add_entries(b"b");
        assert_eq!(namespace.end_fence(), Some(('x', b"ab".to_vec(), None)));
        assert_eq!(namespace.end_fence(), None);
    }

    #[test]
    fn a_second_fence_is_reported_when_the_first_has_ended() {
        let mut namespace = namespace();
        assert_eq!(namespace.begin_fence('x', b"1".to_vec()), Some(b"1".to_vec()));
        assert_eq!(namespace.begin_fence('y', b"2".to_vec()), None);
        assert_eq!(namespace.end_fence(), Some(('x', Vec::new(), Some(b"2".to_vec()))));
        namespace.add_entries(b"2");
        assert_eq!(namespace.end_fence(), Some(('y', b"2".to_vec(), None)));
    }
}
