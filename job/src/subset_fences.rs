//! The fences of subsets of a parallel process that are in progress, and the nodes that have
//! entered them.

use std::collections::HashMap;

use score_proto::job_control::{MAX_FENCE_BYTES, MAX_FENCE_BYTES_PER_NODE, SubsetFence};
use score_proto::nodeset::NodeSet;

/// The progress of a fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubsetFenceProgress {
    /// Some members have not entered the fence.
    Waiting,
    /// All members have entered the fence.
    Done,
    /// The entries exceed this limit in bytes.
    TooManyBytes(usize),
}

#[derive(Debug, Default)]
struct UnderWay {
    in_fence: NodeSet,
    bytes: usize,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct SubsetFences(HashMap<SubsetFence, UnderWay>);

impl SubsetFences {
    /// These nodes have entered a fence. Their host sends this many bytes of entries for the other
    /// members.
    pub fn on_in_fence(
        &mut self,
        fence: &SubsetFence,
        nodes: &NodeSet,
        bytes: usize,
    ) -> SubsetFenceProgress {
        let under_way = self.0.entry(fence.clone()).or_default();
        under_way.in_fence.union(nodes);
        under_way.bytes = under_way.bytes.saturating_add(bytes);
        let members = fence.members.len();
        let max_bytes = (members as usize * MAX_FENCE_BYTES_PER_NODE).min(MAX_FENCE_BYTES);
        if under_way.bytes > max_bytes {
            return SubsetFenceProgress::TooManyBytes(max_bytes);
        }
        if under_way.in_fence.len() < members {
            return SubsetFenceProgress::Waiting;
        }
        self.0.remove(fence);
        SubsetFenceProgress::Done
    }

    /// Nodes that wait in a fence, and members of that fence that have ended without entering it.
    pub fn waiting_for(&self, ended: &NodeSet) -> Option<(NodeSet, NodeSet)> {
        let waiting = self.0.iter().filter_map(|(fence, under_way)| {
            let in_fence = &under_way.in_fence;
            let awaited: NodeSet = fence
                .members
                .iter()
                .filter(|node| ended.contains(*node) && !in_fence.contains(*node))
                .collect();
            let waiting: NodeSet = in_fence.iter().filter(|node| !ended.contains(*node)).collect();
            (!awaited.is_empty() && !waiting.is_empty()).then_some((waiting, awaited))
        });
        // The result must not depend on the order of the map, which is random.
        waiting.min_by_key(|(waiting, awaited)| (waiting.first(), awaited.first()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(members: &[u32], tag: u64) -> SubsetFence {
        SubsetFence { members: members.iter().copied().collect(), tag }
    }

    fn enter(
        fences: &mut SubsetFences,
        fence: &SubsetFence,
        nodes: &[u32],
        bytes: usize,
    ) -> SubsetFenceProgress {
        fences.on_in_fence(fence, &nodes.iter().copied().collect(), bytes)
    }

    #[test]
    fn fences_of_other_nodes_and_other_groups_do_not_disturb_each_other() {
        use SubsetFenceProgress::{Done, Waiting};
        let mut fences = SubsetFences::default();
        let (one, two, group) = (fence(&[0, 2], 0), fence(&[0, 1, 3], 0), fence(&[0, 2], 7));
        for _ in 0..2 {
            for (fence, nodes, progress) in [
                (&one, &[0][..], Waiting),
                (&two, &[3], Waiting),
                (&group, &[2], Waiting),
                (&two, &[0, 1], Done),
                (&one, &[2], Done),
                (&group, &[0], Done),
            ] {
                assert_eq!(enter(&mut fences, fence, nodes, 1), progress, "{fence:?}");
            }
        }
        assert!(fences.0.is_empty(), "nothing is kept of them: {fences:?}");
    }

    #[test]
    fn the_bytes_of_a_fence_have_a_bound_by_its_nodes() {
        let mut fences = SubsetFences::default();
        let fence = fence(&[1, 2], 0);
        let most = 2 * MAX_FENCE_BYTES_PER_NODE;
        assert_eq!(enter(&mut fences, &fence, &[1], most), SubsetFenceProgress::Waiting);
        let progress = enter(&mut fences, &fence, &[2], 1);
        assert_eq!(progress, SubsetFenceProgress::TooManyBytes(most));
    }

    #[test]
    fn a_fence_reports_the_nodes_that_wait_for_an_ended_node() {
        let mut fences = SubsetFences::default();
        enter(&mut fences, &fence(&[1, 2, 3], 0), &[1], 0);
        enter(&mut fences, &fence(&[0, 4], 0), &[4], 0);
        let waiting = |ended: &[u32]| {
            let found = fences.waiting_for(&ended.iter().copied().collect());
            found.map(|(waiting, awaited)| (waiting.to_string(), awaited.to_string()))
        };
        assert_eq!(waiting(&[5]), None);
        assert_eq!(waiting(&[1]), None, "node 1 is in the fence");
        assert_eq!(waiting(&[3]), Some(("1".to_owned(), "3".to_owned())));
        assert_eq!(waiting(&[0, 2, 3]), Some(("1".to_owned(), "2-3".to_owned())));
    }
}
