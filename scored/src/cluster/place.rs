//! Where a job runs: each host has so many slots, normally its processors, and so many rows of
//! them, one for each time slice. Pure arithmetic on a list of hosts that the caller has chosen
//! from, for one row: what is free in the first is for a job alone, what is free in a further one
//! is shared in time.

use std::ops::RangeInclusive;

use score_proto::peer::HostId;
use score_proto::shape::Shape;

/// A host that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Its number.
    pub host: HostId,
    /// All of its slots.
    pub slots: u32,
    /// Those that a job may have.
    pub free: u32,
    /// Processes that jobs have there already, for 1024 slots.
    pub load: u64,
}

impl Site {
    /// A host where jobs have `used` slots, when it has so many rows.
    pub fn new(host: HostId, slots: u32, used: u32, rows: u32) -> Self {
        let free = slots.saturating_mul(rows).saturating_sub(used).min(slots);
        Self { host, slots, free, load: u64::from(used) * 1024 / u64::from(slots.max(1)) }
    }
}

/// Which hosts are taken first of those that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefer {
    /// The tightest: what is large stays whole for those who need it.
    Tight,
    /// Those where the job waits least for its turns.
    Idle,
}

impl Prefer {
    fn key(self, site: &Site) -> (u64, HostId) {
        match self {
            Prefer::Tight => (site.free.into(), site.host),
            Prefer::Idle => (site.load, site.host),
        }
    }
}

/// The part of a job that runs on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The host.
    pub host: HostId,
    /// Processes there.
    pub procs: u32,
}

/// Finds room among the free slots of `sites`. Shares come in the order of the job's hosts: those
/// with more processes first, then by number.
pub fn place(shape: Shape, sites: &[Site], prefer: Prefer) -> Option<Vec<Share>> {
    match shape {
        Shape::Grid { hosts, procs } => grid(hosts, procs, sites, prefer),
        Shape::Spread(nodes) => spread(nodes, sites, prefer),
        Shape::Fill { least, most } => fill(least, most, sites, prefer),
        Shape::Whole { hosts, least, most } => whole(hosts, least..=most, sites),
        Shape::Every { .. } if sites.is_empty() => None,
        Shape::Every { procs, least, most } => {
            let all = grid(u32::try_from(sites.len()).ok()?, procs, sites, prefer)?;
            (least..=most).contains(&total(&all)).then_some(all)
        }
    }
}

fn total(shares: &[Share]) -> u32 {
    shares.iter().fold(0, |sum, share| sum.saturating_add(share.procs))
}

/// Hosts that are free with all of their slots: those with the least load and the first ones,
/// unless only the largest or the smallest ones make a number of nodes that is wanted.
fn whole(hosts: u32, nodes: RangeInclusive<u32>, sites: &[Site]) -> Option<Vec<Share>> {
    let mut idle: Vec<_> = sites.iter().filter(|site| site.free == site.slots).collect();
    let mut chosen = None;
    for order in [0, -1, 1] {
        idle.sort_by_key(|site| (order * i64::from(site.slots), site.load, site.host));
        let share = |site: &&Site| Share { host: site.host, procs: site.slots };
        let shares: Vec<Share> = idle.get(..hosts as usize)?.iter().map(share).collect();
        if nodes.contains(&total(&shares)) {
            chosen = Some(shares);
            break;
        }
    }
    let mut chosen = chosen.filter(|chosen| !chosen.is_empty())?;
    chosen.sort_by_key(|share| (std::cmp::Reverse(share.procs), share.host));
    Some(chosen)
}

/// Finds room without regard to slots: only a job that has all hosts for itself may do so.
pub fn place_beyond(shape: Shape, sites: &[Site]) -> Option<Vec<Share>> {
    let (count, nodes) = match shape {
        Shape::Grid { hosts, procs } => (hosts, hosts.checked_mul(procs)?),
        Shape::Spread(nodes) => ((sites.len() as u64).min(nodes.into()) as u32, nodes),
        Shape::Fill { least, most } => {
            return fill(least, most, sites, Prefer::Tight)
                .or_else(|| place_beyond(Shape::Spread(least), sites));
        }
        Shape::Whole { .. } | Shape::Every { .. } => {
            let idle: Vec<_> = sites.iter().map(|one| Site { free: one.slots, ..*one }).collect();
            return place(shape, &idle, Prefer::Tight);
        }
    };
    let mut best = sites.to_vec();
    best.sort_by_key(|site| (std::cmp::Reverse(site.slots), site.host));
    let chosen = best.get(..count as usize).filter(|chosen| !chosen.is_empty())?;
    Some(even(nodes, chosen.iter().map(|site| site.host).collect(), count))
}

/// `nodes` processes on these hosts, blocks differing by at most one; the first `nodes % count`
/// get one more, and among equals the numbers go up.
fn even(nodes: u32, mut hosts: Vec<HostId>, count: u32) -> Vec<Share> {
    let larger = (nodes % count) as usize;
    hosts[..larger].sort_unstable();
    hosts[larger..].sort_unstable();
    let procs = |index: usize| nodes / count + u32::from(index < larger);
    hosts.into_iter().enumerate().map(|(index, host)| Share { host, procs: procs(index) }).collect()
}

fn grid(hosts: u32, procs: u32, sites: &[Site], prefer: Prefer) -> Option<Vec<Share>> {
    let mut fit: Vec<_> = sites.iter().filter(|site| site.free >= procs).collect();
    fit.sort_by_key(|site| prefer.key(site));
    let chosen = fit.get(..hosts as usize)?;
    Some(even(hosts.checked_mul(procs)?, chosen.iter().map(|site| site.host).collect(), hosts))
}

fn spread(nodes: u32, sites: &[Site], prefer: Prefer) -> Option<Vec<Share>> {
    let mut widest: Vec<_> = sites.iter().filter(|site| site.free > 0).collect();
    widest.sort_by_key(|site| (std::cmp::Reverse(site.free), site.host));
    let most = widest.len().min(nodes as usize);
    let fits = |count: &usize| {
        let (block, larger) = (nodes / *count as u32, nodes as usize % count);
        widest[count - 1].free >= block && (larger == 0 || widest[larger - 1].free > block)
    };
    let count = (1..=most).find(fits)?;
    // The fewest hosts are known; those that can take the larger block are preferred, if there
    // are enough of them.
    let block = nodes.div_ceil(count as u32);
    let roomy = widest.partition_point(|site| site.free >= block);
    let first = match prefer {
        Prefer::Tight => roomy.saturating_sub(count),
        Prefer::Idle if roomy > count => {
            widest[..roomy].sort_by_key(|site| prefer.key(site));
            0
        }
        Prefer::Idle => 0,
    };
    let chosen = &widest[first..first + count];
    Some(even(nodes, chosen.iter().map(|site| site.host).collect(), count as u32))
}

fn fill(least: u32, most: u32, sites: &[Site], prefer: Prefer) -> Option<Vec<Share>> {
    let free: u64 = sites.iter().map(|site| u64::from(site.free)).sum();
    if free < u64::from(least.max(1)) {
        return None;
    }
    if free > u64::from(most)
        && let Some(even) = spread(most, sites, prefer)
    {
        return Some(even);
    }
    let mut all: Vec<_> = sites.iter().filter(|site| site.free > 0).collect();
    all.sort_by_key(|site| (std::cmp::Reverse(site.free), site.host));
    let mut rest = most;
    let share = |site: &Site| {
        let procs = site.free.min(rest);
        rest -= procs;
        Share { host: site.host, procs }
    };
    Some(all.into_iter().map(share).take_while(|share| share.procs > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sites(free: &[u32]) -> Vec<Site> {
        let site = |(host, free): (u32, &u32)| Site::new(host, 8, 8 - free, 1);
        (0..).zip(free).map(site).collect()
    }

    fn place(shape: Shape, sites: &[Site]) -> Option<Vec<Share>> {
        super::place(shape, sites, Prefer::Tight)
    }

    fn shares(found: Option<Vec<Share>>) -> Vec<(u32, u32)> {
        found.unwrap().iter().map(|share| (share.host, share.procs)).collect()
    }

    #[test]
    fn a_grid_takes_the_tightest_hosts_that_fit() {
        let found = place(Shape::Grid { hosts: 2, procs: 3 }, &sites(&[8, 3, 2, 4]));
        assert_eq!(shares(found), [(1, 3), (3, 3)]);
        assert_eq!(place(Shape::Grid { hosts: 2, procs: 5 }, &sites(&[8, 3, 2, 4])), None);
    }

    #[test]
    fn a_number_of_nodes_goes_evenly_to_the_fewest_hosts() {
        assert_eq!(shares(place(Shape::Spread(4), &sites(&[8, 4, 5]))), [(1, 4)]);
        assert_eq!(shares(place(Shape::Spread(9), &sites(&[4, 8, 8]))), [(1, 5), (2, 4)]);
        assert_eq!(shares(place(Shape::Spread(9), &sites(&[1, 4, 5, 2]))), [(2, 5), (1, 4)]);
        // Evenly over two hosts does not fit into one slot of the second, over all three neither.
        assert_eq!(place(Shape::Spread(9), &sites(&[8, 1, 1])), None);
        assert_eq!(place(Shape::Spread(3), &sites(&[0, 2])), None);
    }

    #[test]
    fn nothing_said_is_one_node_per_free_slot() {
        let wanted = Shape::Fill { least: 2, most: 100 };
        assert_eq!(shares(place(wanted, &sites(&[2, 0, 3]))), [(2, 3), (0, 2)]);
        assert_eq!(place(wanted, &sites(&[1, 0])), None);
        let capped = Shape::Fill { least: 1, most: 4 };
        assert_eq!(shares(place(capped, &sites(&[3, 3]))), [(0, 2), (1, 2)]);
    }

    #[test]
    fn whole_hosts_are_idle_and_every_host_takes_its_part() {
        let mut three = sites(&[8, 7, 8, 4]);
        three[3].slots = 4;
        let whole = |hosts, least, most| place(Shape::Whole { hosts, least, most }, &three);
        assert_eq!(shares(whole(1, 1, 100)), [(0, 8)]);
        assert_eq!(shares(whole(1, 1, 4)), [(3, 4)]);
        assert_eq!(shares(whole(2, 16, 16)), [(0, 8), (2, 8)]);
        assert_eq!(shares(whole(3, 1, 100)), [(0, 8), (2, 8), (3, 4)]);
        assert_eq!((whole(4, 1, 100), whole(2, 17, 100)), (None, None));
        let every = |procs, most| place(Shape::Every { procs, least: 1, most }, &three);
        assert_eq!(shares(every(4, 100)), [(0, 4), (1, 4), (2, 4), (3, 4)]);
        assert_eq!((every(5, 100), every(4, 15)), (None, None));
        assert_eq!(place(Shape::Every { procs: 1, least: 1, most: 9 }, &[]), None);
    }

    #[test]
    fn in_further_rows_the_least_loaded_hosts_are_taken() {
        let loaded: Vec<_> =
            (0..).zip([4, 2, 6, 3]).map(|(host, used)| Site::new(host, 4, used, 2)).collect();
        assert_eq!(loaded.iter().map(|site| site.free).collect::<Vec<_>>(), [4, 4, 2, 4]);
        let two = |shape| shares(super::place(shape, &loaded, Prefer::Idle));
        assert_eq!(two(Shape::Grid { hosts: 2, procs: 4 }), [(1, 4), (3, 4)]);
        assert_eq!(two(Shape::Spread(4)), [(1, 4)]);
        assert_eq!(two(Shape::Spread(7)), [(1, 4), (3, 3)]);
        assert_eq!(two(Shape::Whole { hosts: 1, least: 1, most: 9 }), [(1, 4)]);
        // All of a row, and no more than a row.
        assert_eq!(two(Shape::Fill { least: 1, most: 99 }), [(0, 4), (1, 4), (3, 4), (2, 2)]);
        assert_eq!(super::place(Shape::Spread(5), &loaded[..1], Prefer::Idle), None);
    }

    #[test]
    fn beyond_the_slots_the_largest_hosts_are_taken() {
        let mut three = sites(&[1, 1, 1]);
        three[2].slots = 9;
        let grid = Shape::Grid { hosts: 2, procs: 5 };
        assert_eq!(shares(place_beyond(grid, &three)), [(0, 5), (2, 5)]);
        assert_eq!(shares(place_beyond(Shape::Spread(7), &three)), [(2, 3), (0, 2), (1, 2)]);
        assert_eq!(place_beyond(Shape::Grid { hosts: 4, procs: 1 }, &three), None);
        assert_eq!(place_beyond(Shape::Spread(7), &[]), None);
    }

    proptest! {
        #[test]
        fn every_placement_is_complete_even_and_within_the_free_slots(
            free in proptest::collection::vec(0u32..9, 0..12),
            hosts in 1u32..6, procs in 1u32..9, nodes in 1u32..60,
        ) {
            let sites = sites(&free);
            let total: u32 = free.iter().sum();
            for (shape, wanted) in [
                (Shape::Grid { hosts, procs }, hosts * procs),
                (Shape::Spread(nodes), nodes),
                (Shape::Fill { least: 1, most: nodes }, total.min(nodes)),
            ] {
                let Some(found) = place(shape, &sites) else {
                    // All hosts alike: then nothing that fits in sum is turned away.
                    let equal = free.iter().all(|one| *one == free[0]);
                    let is_grid = matches!(shape, Shape::Grid { .. });
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
                    prop_assert!(share.procs >= 1 && share.procs <= free[share.host as usize]);
                }
                prop_assert!(found.windows(2).all(|pair| pair[0].procs >= pair[1].procs));
                if !matches!(shape, Shape::Fill { .. }) {
                    prop_assert!(found[0].procs - found[found.len() - 1].procs <= 1);
                }
            }
        }
    }
}
