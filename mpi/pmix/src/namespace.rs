//! The fences of a namespace in which this host takes part. This module does not use libpmix.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use score_proto::ids::ElementIndex;
use score_proto::job_control::SubsetFence;
use score_proto::nodeset::NodeSet;

/// A fence that a call of libpmix waits for.
#[derive(Debug)]
pub struct PendingFence<C> {
    /// The call to answer.
    pub caller: C,
    /// The data of the ranks of this host. Empty once it has been reported.
    entries: Vec<u8>,
}

/// The participants of a fence, compared with the ranks of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Participants {
    /// All ranks of the namespace.
    All,
    /// Some ranks, all of them on this host.
    OfThisHost,
    /// Some ranks, which are on several hosts.
    OfSeveralHosts(NodeSet),
    /// At least one rank that does not exist.
    Unknown,
}

/// Fences of the same ranks, in their order.
#[derive(Debug)]
struct FenceQueue<C> {
    /// Fences that the ranks of this host have entered. The first one has been reported.
    fences: VecDeque<PendingFence<C>>,
    /// The data received for the first fence, or for the next fence if there is none.
    received: Vec<u8>,
}

impl<C> FenceQueue<C> {
    fn new() -> Self {
        Self { fences: VecDeque::new(), received: Vec::new() }
    }

    fn entries_to_report(&mut self) -> Option<Vec<u8>> {
        Some(std::mem::take(&mut self.fences.front_mut()?.entries))
    }
}

/// See the [module](self). `C` is the type of a call that can be answered.
#[derive(Debug)]
pub struct Namespace<C> {
    /// The number of the element.
    pub element: ElementIndex,
    rank_count: u32,
    local_ranks: Range<u32>,
    /// Fences of all ranks (key None), and of some ranks.
    queues: HashMap<Option<SubsetFence>, FenceQueue<C>>,
}

impl<C> Namespace<C> {
    /// A namespace of `rank_count` ranks, of which `local_ranks` are on this host.
    pub fn new(element: ElementIndex, rank_count: u32, local_ranks: Range<u32>) -> Self {
        Self { element, rank_count, local_ranks, queues: HashMap::new() }
    }

    /// All ranks.
    pub fn all_ranks(&self) -> NodeSet {
        NodeSet::from(0..self.rank_count)
    }

    /// Whether a rank exists and is on another host.
    pub fn is_remote(&self, rank: u32) -> bool {
        rank < self.rank_count && !self.local_ranks.contains(&rank)
    }

    /// The participants of a fence of these ranks. A rank of None means all ranks.
    pub fn participants(&self, ranks: impl Iterator<Item = Option<u32>>) -> Participants {
        let Some(named) = ranks.collect::<Option<Vec<u32>>>() else { return Participants::All };
        if named.iter().any(|rank| *rank >= self.rank_count) {
            return Participants::Unknown;
        }
        let named: NodeSet = named.into_iter().collect();
        if named.len() == self.rank_count {
            Participants::All
        } else if named.within(self.local_ranks.clone()) == named {
            Participants::OfThisHost
        } else {
            Participants::OfSeveralHosts(named)
        }
    }

    fn queue(&mut self, fence: Option<SubsetFence>) -> &mut FenceQueue<C> {
        self.queues.entry(fence).or_insert_with(FenceQueue::new)
    }

    /// Notes that the participating ranks of this host have entered a fence. Returns the data to
    /// report, unless an earlier fence of the same ranks has not ended.
    pub fn begin_fence(
        &mut self,
        fence: Option<SubsetFence>,
        caller: C,
        entries: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let queue = self.queue(fence);
        queue.fences.push_back(PendingFence { caller, entries });
        (queue.fences.len() == 1).then(|| queue.entries_to_report()).flatten()
    }

    /// Adds the data of other hosts.
    pub fn add_entries(&mut self, fence: Option<SubsetFence>, entries: &[u8]) {
        self.queue(fence).received.extend_from_slice(entries);
    }

    /// Ends a fence that all participating ranks have entered. Returns the waiting call and the
    /// data of all hosts. If the ranks of this host have already entered the next fence, also
    /// returns the data to report for the next fence.
    pub fn end_fence(
        &mut self,
        fence: &Option<SubsetFence>,
    ) -> Option<(C, Vec<u8>, Option<Vec<u8>>)> {
        let queue = self.queues.get_mut(fence)?;
        let ended = queue.fences.pop_front()?;
        let received = std::mem::take(&mut queue.received);
        let next = queue.entries_to_report();
        if queue.fences.is_empty() {
            self.queues.remove(fence);
        }
        Some((ended.caller, received, next))
    }
}

/// Assigns context ids to groups.
#[derive(Debug, Default)]
pub struct GroupIds {
    /// How often each group has been constructed.
    counts: HashMap<u64, u64>,
}

impl GroupIds {
    /// The id of the next group of this name and these ranks. All hosts compute the same id without
    /// communication, because the ranks construct groups of the same name and ranks in the same
    /// order.
    pub fn context_id(&mut self, name: &str, ranks: &[u32]) -> usize {
        let ranks = ranks.iter().flat_map(|rank| rank.to_le_bytes());
        let group = hash(name.bytes().chain([0]).chain(ranks));
        let count = self.counts.entry(group).or_insert(0);
        *count += 1;
        let id = hash(group.to_le_bytes().into_iter().chain(count.to_le_bytes()));
        // The largest number means "no id".
        usize::try_from(id).unwrap_or(usize::MAX).min(usize::MAX - 1)
    }
}

/// The 64-bit hash FNV-1a.
pub fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_has_its_own_context_id_which_is_equal_on_all_hosts() {
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

    fn namespace<C>() -> Namespace<C> {
        Namespace::new(ElementIndex(0), 4, 2..4)
    }

    #[test]
    fn participants_are_counted_once_and_by_their_hosts() {
        let participants =
            |ranks: &[u32]| namespace::<char>().participants(ranks.iter().copied().map(Some));
        assert_eq!(participants(&[0, 1, 2, 3]), Participants::All);
        assert_eq!(participants(&[3, 2, 1, 0, 0]), Participants::All);
        assert_eq!(participants(&[2, 2, 3, 3]), Participants::OfThisHost);
        let some = Participants::OfSeveralHosts([1, 2].into_iter().collect());
        assert_eq!(participants(&[1, 2, 1]), some);
        assert_eq!(participants(&[1, 9]), Participants::Unknown);
        let remote: Vec<u32> = (0..9).filter(|rank| namespace::<char>().is_remote(*rank)).collect();
        assert_eq!(remote, [0, 1]);
        assert_eq!(
            namespace::<char>().participants([Some(1), None].into_iter()),
            Participants::All
        );
    }

    #[test]
    fn entries_of_other_hosts_may_arrive_first() {
        let mut namespace = namespace();
        namespace.add_entries(None, b"a");
        assert_eq!(namespace.begin_fence(None, 'x', b"b".to_vec()), Some(b"b".to_vec()));
        namespace.add_entries(None, b"b");
        assert_eq!(namespace.end_fence(&None), Some(('x', b"ab".to_vec(), None)));
        assert_eq!(namespace.end_fence(&None), None);
    }

    #[test]
    fn fences_of_some_ranks_do_not_disturb_each_other() {
        let mut namespace = namespace();
        let fence = |ranks: &[u32], tag| {
            let members = ranks.iter().copied().collect();
            Some(SubsetFence { members, tag })
        };
        let fences = [fence(&[0, 2], 0), fence(&[0, 3], 0), fence(&[0, 2], 1), None];
        for (number, fence) in (0..).zip(&fences) {
            let entries = vec![number];
            let reported = namespace.begin_fence(fence.clone(), number, entries.clone());
            assert_eq!(reported, Some(entries));
        }
        for (number, fence) in (0..4).zip(&fences).rev() {
            namespace.add_entries(fence.clone(), &[number, 7]);
            assert_eq!(namespace.end_fence(fence), Some((number, vec![number, 7], None)));
        }
        assert!(namespace.queues.is_empty(), "nothing is kept of them");
    }

    #[test]
    fn a_second_fence_is_reported_when_the_first_has_ended() {
        let mut namespace = namespace();
        assert_eq!(namespace.begin_fence(None, 'x', b"1".to_vec()), Some(b"1".to_vec()));
        assert_eq!(namespace.begin_fence(None, 'y', b"2".to_vec()), None);
        assert_eq!(namespace.end_fence(&None), Some(('x', Vec::new(), Some(b"2".to_vec()))));
        namespace.add_entries(None, b"2");
        assert_eq!(namespace.end_fence(&None), Some(('y', b"2".to_vec(), None)));
    }
}
