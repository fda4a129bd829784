//! The placement of a job. Each host has a number of slots, normally its processors, and a number
//! of rows, one for each time slice. This is pure arithmetic on a list of candidate hosts for one
//! row. A job in the first row has its slots alone. A job in a further row shares its slots in
//! time.

use std::ops::RangeInclusive;

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::HostId;

/// A host that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSlots {
    /// The number of the host.
    pub host: HostId,
    /// All of its slots.
    pub slots: u32,
    /// The slots that a new job may have.
    pub free: u32,
    /// Processes that jobs already have on the host, scaled to 1024 slots.
    pub load: u64,
}

impl HostSlots {
    /// A host with this many rows. Jobs have `used` slots in them.
    pub fn new(host: HostId, slots: u32, used: u32, rows: u32) -> Self {
        let free = slots.saturating_mul(rows).saturating_sub(used).min(slots);
        Self { host, slots, free, load: u64::from(used) * 1024 / u64::from(slots.max(1)) }
    }
}

/// The order in which fitting hosts are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// The hosts with the fewest free slots first. Large hosts stay free for the jobs that need
    /// them.
    BestFit,
    /// The hosts with the smallest load, on which the job waits least for its slices.
    LeastLoaded,
}

impl PlacementPolicy {
    fn key(self, candidate: &HostSlots) -> (u64, HostId) {
        match self {
            PlacementPolicy::BestFit => (candidate.free.into(), candidate.host),
            PlacementPolicy::LeastLoaded => (candidate.load, candidate.host),
        }
    }
}

/// The part of a job that runs on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostShare {
    /// The host.
    pub host: HostId,
    /// Processes on the host. For the gang scheduler, the slots that they need.
    pub procs: u32,
}

/// Finds free slots among `candidates`. The shares are in the order of the job's hosts: hosts with
/// more processes first, then by number.
pub fn place(
    shape: AllocationRequest,
    candidates: &[HostSlots],
    policy: PlacementPolicy,
) -> Option<Vec<HostShare>> {
    match shape {
        AllocationRequest::HostsByProcs { hosts, procs } => grid(hosts, procs, candidates, policy),
        AllocationRequest::FewestHosts(nodes) => spread(nodes, candidates, policy),
        AllocationRequest::AllFreeSlots { min_nodes, max_nodes } => {
            fill(min_nodes, max_nodes, candidates, policy)
        }
        AllocationRequest::Exclusive { hosts, min_nodes, max_nodes } => {
            whole_hosts(hosts, min_nodes..=max_nodes, candidates)
        }
        AllocationRequest::EveryHost { .. } if candidates.is_empty() => None,
        AllocationRequest::EveryHost { procs, min_nodes, max_nodes } => {
            let shares = grid(u32::try_from(candidates.len()).ok()?, procs, candidates, policy)?;
            (min_nodes..=max_nodes).contains(&total_procs(&shares)).then_some(shares)
        }
    }
}

fn total_procs(shares: &[HostShare]) -> u32 {
    shares.iter().fold(0, |sum, share| sum.saturating_add(share.procs))
}

/// Selects hosts on which all slots are free: those with the least load first, then by number. The
/// largest or the smallest hosts are used only if no other choice gives a requested number of
/// nodes.
fn whole_hosts(
    host_count: u32,
    node_range: RangeInclusive<u32>,
    candidates: &[HostSlots],
) -> Option<Vec<HostShare>> {
    let mut fully_free: Vec<_> =
        candidates.iter().filter(|candidate| candidate.free == candidate.slots).collect();
    let mut chosen = None;
    for size_order in [0, -1, 1] {
        fully_free.sort_by_key(|candidate| {
            (size_order * i64::from(candidate.slots), candidate.load, candidate.host)
        });
        let share =
            |candidate: &&HostSlots| HostShare { host: candidate.host, procs: candidate.slots };
        let shares: Vec<HostShare> =
            fully_free.get(..host_count as usize)?.iter().map(share).collect();
        if node_range.contains(&total_procs(&shares)) {
            chosen = Some(shares);
            break;
        }
    }
    let mut chosen = chosen.filter(|chosen| !chosen.is_empty())?;
    chosen.sort_by_key(|share| (std::cmp::Reverse(share.procs), share.host));
    Some(chosen)
}

/// Distributes `nodes` processes over these hosts in blocks that differ by at most one. The first
/// `nodes % host_count` blocks have one process more. Among blocks of the same size, the host
/// numbers increase.
fn distribute_evenly(nodes: u32, mut hosts: Vec<HostId>, host_count: u32) -> Vec<HostShare> {
    let larger_blocks = (nodes % host_count) as usize;
    hosts[..larger_blocks].sort_unstable();
    hosts[larger_blocks..].sort_unstable();
    let procs = |index: usize| nodes / host_count + u32::from(index < larger_blocks);
    hosts
        .into_iter()
        .enumerate()
        .map(|(index, host)| HostShare { host, procs: procs(index) })
        .collect()
}

fn grid(
    host_count: u32,
    procs_per_host: u32,
    candidates: &[HostSlots],
    policy: PlacementPolicy,
) -> Option<Vec<HostShare>> {
    let mut fitting: Vec<_> =
        candidates.iter().filter(|candidate| candidate.free >= procs_per_host).collect();
    fitting.sort_by_key(|candidate| policy.key(candidate));
    let chosen = fitting.get(..host_count as usize)?;
    Some(distribute_evenly(
        host_count.checked_mul(procs_per_host)?,
        chosen.iter().map(|candidate| candidate.host).collect(),
        host_count,
    ))
}

fn spread(nodes: u32, candidates: &[HostSlots], policy: PlacementPolicy) -> Option<Vec<HostShare>> {
    let mut by_free: Vec<_> = candidates.iter().collect();
    by_free.sort_by_key(|candidate| (std::cmp::Reverse(candidate.free), candidate.host));
    let max_hosts = by_free.len().min(nodes as usize);
    let fits = |host_count: &usize| {
        let (block, larger_blocks) = (nodes / *host_count as u32, nodes as usize % host_count);
        by_free[host_count - 1].free >= block
            && (larger_blocks == 0 || by_free[larger_blocks - 1].free > block)
    };
    let host_count = (1..=max_hosts).find(fits)?;
    // The smallest number of hosts is known. Hosts that can take the larger block are preferred, if
    // there are enough of them.
    let block = nodes.div_ceil(host_count as u32);
    let fitting_count = by_free.partition_point(|candidate| candidate.free >= block);
    let first = match policy {
        PlacementPolicy::BestFit => fitting_count.saturating_sub(host_count),
        PlacementPolicy::LeastLoaded if fitting_count > host_count => {
            by_free[..fitting_count].sort_by_key(|candidate| policy.key(candidate));
            0
        }
        PlacementPolicy::LeastLoaded => 0,
    };
    let chosen = &by_free[first..first + host_count];
    Some(distribute_evenly(
        nodes,
        chosen.iter().map(|candidate| candidate.host).collect(),
        host_count as u32,
    ))
}

fn fill(
    min_nodes: u32,
    max_nodes: u32,
    candidates: &[HostSlots],
    policy: PlacementPolicy,
) -> Option<Vec<HostShare>> {
    let free: u64 = candidates.iter().map(|candidate| u64::from(candidate.free)).sum();
    if free < u64::from(min_nodes.max(1)) {
        return None;
    }
    if free > u64::from(max_nodes)
        && let Some(shares) = spread(max_nodes, candidates, policy)
    {
        return Some(shares);
    }
    let mut with_free_slots: Vec<_> =
        candidates.iter().filter(|candidate| candidate.free > 0).collect();
    with_free_slots.sort_by_key(|candidate| (std::cmp::Reverse(candidate.free), candidate.host));
    let mut remaining = max_nodes;
    let share = |candidate: &HostSlots| {
        let procs = candidate.free.min(remaining);
        remaining -= procs;
        HostShare { host: candidate.host, procs }
    };
    Some(with_free_slots.into_iter().map(share).take_while(|share| share.procs > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidates_with_free(free: &[u32]) -> Vec<HostSlots> {
        let candidate = |(host, free): (u32, &u32)| HostSlots::new(HostId(host), 8, 8 - free, 1);
        (0..).zip(free).map(candidate).collect()
    }

    fn place(shape: AllocationRequest, candidates: &[HostSlots]) -> Option<Vec<HostShare>> {
        super::place(shape, candidates, PlacementPolicy::BestFit)
    }

    fn shares(found: Option<Vec<HostShare>>) -> Vec<(u32, u32)> {
        found.unwrap().iter().map(|share| (share.host.0, share.procs)).collect()
    }

    #[test]
    fn a_grid_uses_the_hosts_with_the_fewest_sufficient_slots() {
        let found = place(
            AllocationRequest::HostsByProcs { hosts: 2, procs: 3 },
            &candidates_with_free(&[8, 3, 2, 4]),
        );
        assert_eq!(shares(found), [(1, 3), (3, 3)]);
        assert_eq!(
            place(
                AllocationRequest::HostsByProcs { hosts: 2, procs: 5 },
                &candidates_with_free(&[8, 3, 2, 4])
            ),
            None
        );
    }

    #[test]
    fn a_number_of_nodes_is_spread_evenly_over_the_fewest_hosts() {
        assert_eq!(
            shares(place(AllocationRequest::FewestHosts(4), &candidates_with_free(&[8, 4, 5]))),
            [(1, 4)]
        );
        assert_eq!(
            shares(place(AllocationRequest::FewestHosts(9), &candidates_with_free(&[4, 8, 8]))),
            [(1, 5), (2, 4)]
        );
        assert_eq!(
            shares(place(AllocationRequest::FewestHosts(9), &candidates_with_free(&[1, 4, 5, 2]))),
            [(2, 5), (1, 4)]
        );
        // An even distribution does not fit, because the second and the third host have one slot
        // each.
        assert_eq!(
            place(AllocationRequest::FewestHosts(9), &candidates_with_free(&[8, 1, 1])),
            None
        );
        assert_eq!(place(AllocationRequest::FewestHosts(3), &candidates_with_free(&[0, 2])), None);
        // Two hosts with two free slots have no room for the larger part of five.
        assert_eq!(
            shares(place(AllocationRequest::FewestHosts(5), &candidates_with_free(&[2, 2, 2]))),
            [(0, 2), (1, 2), (2, 1)]
        );
    }

    #[test]
    fn a_fill_shape_is_one_node_per_free_slot() {
        let shape = AllocationRequest::AllFreeSlots { min_nodes: 2, max_nodes: 100 };
        assert_eq!(shares(place(shape, &candidates_with_free(&[2, 0, 3]))), [(2, 3), (0, 2)]);
        assert_eq!(place(shape, &candidates_with_free(&[1, 0])), None);
        let capped = AllocationRequest::AllFreeSlots { min_nodes: 1, max_nodes: 4 };
        assert_eq!(shares(place(capped, &candidates_with_free(&[3, 3]))), [(0, 2), (1, 2)]);
    }

    // Promise of `a_job_can_request_kinds_of_hosts_whole_hosts_and_spares`.
    #[test]
    fn whole_hosts_are_idle_and_every_host_gets_its_part() {
        let mut candidates = candidates_with_free(&[8, 7, 8, 4]);
        candidates[3].slots = 4;
        let place_whole = |hosts, min_nodes, max_nodes| {
            place(AllocationRequest::Exclusive { hosts, min_nodes, max_nodes }, &candidates)
        };
        assert_eq!(shares(place_whole(1, 1, 100)), [(0, 8)]);
        assert_eq!(shares(place_whole(1, 1, 4)), [(3, 4)]);
        assert_eq!(shares(place_whole(2, 16, 16)), [(0, 8), (2, 8)]);
        assert_eq!(shares(place_whole(3, 1, 100)), [(0, 8), (2, 8), (3, 4)]);
        assert_eq!((place_whole(4, 1, 100), place_whole(2, 17, 100)), (None, None));
        let place_every = |procs, max_nodes| {
            place(AllocationRequest::EveryHost { procs, min_nodes: 1, max_nodes }, &candidates)
        };
        assert_eq!(shares(place_every(4, 100)), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        assert_eq!((place_every(5, 100), place_every(4, 15)), (None, None));
        assert_eq!(
            place(AllocationRequest::EveryHost { procs: 1, min_nodes: 1, max_nodes: 9 }, &[]),
            None
        );
    }

    // Promise of `slots_are_time_shared_when_all_slots_are_in_use`.
    #[test]
    fn jobs_in_further_rows_use_the_least_loaded_hosts() {
        let loaded: Vec<_> = (0..)
            .zip([4, 2, 6, 3])
            .map(|(host, used)| HostSlots::new(HostId(host), 4, used, 2))
            .collect();
        assert_eq!(loaded.iter().map(|candidate| candidate.free).collect::<Vec<_>>(), [4, 4, 2, 4]);
        let placed_pairs =
            |shape| shares(super::place(shape, &loaded, PlacementPolicy::LeastLoaded));
        assert_eq!(
            placed_pairs(AllocationRequest::HostsByProcs { hosts: 2, procs: 4 }),
            [(1, 4), (3, 4)]
        );
        assert_eq!(placed_pairs(AllocationRequest::FewestHosts(4)), [(1, 4)]);
        assert_eq!(placed_pairs(AllocationRequest::FewestHosts(7)), [(1, 4), (3, 3)]);
        assert_eq!(
            placed_pairs(AllocationRequest::Exclusive { hosts: 1, min_nodes: 1, max_nodes: 9 }),
            [(1, 4)]
        );
        // All slots of a row, and no more.
        assert_eq!(
            placed_pairs(AllocationRequest::AllFreeSlots { min_nodes: 1, max_nodes: 99 }),
            [(0, 4), (1, 4), (3, 4), (2, 2)]
        );
        assert_eq!(
            super::place(
                AllocationRequest::FewestHosts(5),
                &loaded[..1],
                PlacementPolicy::LeastLoaded
            ),
            None
        );
    }

    proptest! {
        #[test]
        fn every_placement_is_complete_even_and_within_the_free_slots(
            free in proptest::collection::vec(0u32..9, 0..12),
            hosts in 1u32..6, procs in 1u32..9, nodes in 1u32..60,
        ) {
            let sites = candidates_with_free(&free);
            let total: u32 = free.iter().sum();
            for (shape, wanted) in [
                (AllocationRequest::HostsByProcs { hosts, procs }, hosts * procs),
                (AllocationRequest::FewestHosts(nodes), nodes),
                (
                    AllocationRequest::AllFreeSlots { min_nodes: 1, max_nodes: nodes },
                    total.min(nodes),
                ),
            ] {
                let Some(found) = place(shape, &sites) else {
                    // If all hosts are equal, a request is never rejected if its sum fits.
                    let equal = free.iter().all(|slots| *slots == free[0]);
                    let is_grid = matches!(shape, AllocationRequest::HostsByProcs { .. });
                    let none = total == 0 || wanted > total;
                    prop_assert!(!equal || none || is_grid);
                    continue;
                };
                prop_assert_eq!(found.iter().map(|share| share.procs).sum::<u32>(), wanted);
                let mut seen: Vec<_> = found.iter().map(|share| share.host).collect();
                seen.sort_unstable();
                seen.dedup();
                prop_assert_eq!(seen.len(), found.len());
                for share in &found {
                    prop_assert!(share.procs >= 1 && share.procs <= free[share.host.index()]);
                }
                prop_assert!(found.windows(2).all(|pair| pair[0].procs >= pair[1].procs));
                if !matches!(shape, AllocationRequest::AllFreeSlots { .. }) {
                    prop_assert!(found[0].procs - found[found.len() - 1].procs <= 1);
                }
            }
        }
    }
}
