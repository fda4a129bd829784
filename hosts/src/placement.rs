//! The choice of hosts for a job. The input is a list of hosts with their processors, and the
//! requests of the user and the programs. The result is a list of hosts with the number of
//! processes on each. An error names the missing resource.
//!
//! If the request is a plain number N, the job gets the fewest hosts with enough processors, filled
//! as evenly as their processors allow. On one machine, N may exceed the number of processors, even
//! if the machine has virtual hosts.

use crate::database::Host;
use crate::error::{join_names, printable};
use crate::name_suggestion::nearest;
use crate::node_request::{HostType, Shape};
use crate::{MAX_HOSTS, MAX_NODES};
use std::collections::BTreeSet;

/// The request of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementRequest {
    /// The number part of `nodes`. `None` means one node per processor of the available hosts, or
    /// `procs` nodes on each.
    pub shape: Option<Shape>,
    /// The kind of hosts.
    pub kind: Option<HostType>,
    /// SCORE_RSRC_NUM_NODES: the smallest and the largest number of nodes.
    pub nodes: (u32, u32),
    /// SCORE_RSRC_NUM_PROCS: processes per host.
    pub procs: Option<u32>,
    /// Whether hosts of different kinds may be mixed.
    pub allows_hetero: bool,
}

impl Default for PlacementRequest {
    fn default() -> Self {
        Self { shape: None, kind: None, nodes: (1, MAX_NODES), procs: None, allows_hetero: false }
    }
}

/// The hosts of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Index among the available hosts and number of processes, in the order of the hosts.
    pub hosts: Vec<(usize, u32)>,
}

impl Placement {
    /// The number of nodes of every parallel process.
    pub fn nodes(&self) -> u32 {
        self.hosts.iter().fold(0, |sum, (_, procs)| sum.saturating_add(*procs))
    }
}

/// A host that may be chosen: its index and its processors.
type Candidate = (usize, u32);

/// The sets of hosts from which a job must choose one set. Hosts of the requested kind are in the
/// same set if they may be mixed.
///
/// # Errors
/// One line, if no host is of this kind.
pub fn homogeneous_pools(
    hosts: &[Host],
    kind: Option<&HostType>,
    hetero: bool,
) -> Result<Vec<Vec<usize>>, String> {
    let pools = pools(hosts, of_kind(hosts, kind)?, hetero);
    Ok(pools.into_iter().map(|pool| pool.into_iter().map(|(index, _)| index).collect()).collect())
}

/// Chooses hosts for a job among the available hosts.
///
/// # Errors
/// One line with the requested and the available numbers.
pub fn place(hosts: &[Host], request: &PlacementRequest) -> Result<Placement, String> {
    let matching = of_kind(hosts, request.kind.as_ref())?;
    let one_machine = hosts.len() == 1 || hosts.iter().all(|host| host.is_virtual);
    let pools = pools(hosts, matching, request.allows_hetero);
    let has_several_pools = pools.len() > 1;
    let mut best: Option<Placement> = None;
    let mut refusal: Option<(usize, String)> = None;
    for pool in pools {
        match choose_hosts(&pool, request, one_machine) {
            Ok(placement) if request.shape.is_some() => return Ok(placement),
            Ok(placement) => {
                if best.as_ref().is_none_or(|best| placement.nodes() > best.nodes()) {
                    best = Some(placement);
                }
            }
            Err(line) => {
                if refusal.as_ref().is_none_or(|(hosts, _)| pool.len() > *hosts) {
                    refusal = Some((pool.len(), line));
                }
            }
        }
    }
    best.ok_or_else(|| match refusal {
        Some((_, line)) if has_several_pools => {
            format!("{line}; use the option hetero to allow hosts of several kinds")
        }
        Some((_, line)) => line,
        None => "no host is available".into(),
    })
}

fn processors(host: &Host) -> u32 {
    host.processors.unwrap_or(1).clamp(1, MAX_NODES)
}

/// The hosts of the requested kind.
fn of_kind(hosts: &[Host], kind: Option<&HostType>) -> Result<Vec<usize>, String> {
    let Some(kind) = kind else { return Ok((0..hosts.len()).collect()) };
    let is_match = |host: &Host| {
        let speed = |wanted: &String| host.speed.as_deref().is_some_and(|has| equal(wanted, has));
        host.bintype.as_ref() == Some(&kind.bintype)
            && kind.cpugen.as_ref().is_none_or(|wanted| host.cpugen.as_ref() == Some(wanted))
            && kind.speed.as_ref().is_none_or(speed)
    };
    let fitting: Vec<usize> = (0..hosts.len()).filter(|index| is_match(&hosts[*index])).collect();
    if !fitting.is_empty() {
        return Ok(fitting);
    }
    type AttributeGetter = fn(&Host) -> Option<&String>;
    let attributes: [(&str, Option<&String>, AttributeGetter); 3] = [
        ("bintype", Some(&kind.bintype), |host| host.bintype.as_ref()),
        ("cpugen", kind.cpugen.as_ref(), |host| host.cpugen.as_ref()),
        ("speed", kind.speed.as_ref(), |host| host.speed.as_ref()),
    ];
    for (name, requested, value) in attributes {
        let Some(requested) = requested else { continue };
        let available: BTreeSet<&str> =
            hosts.iter().filter_map(value).map(String::as_str).collect();
        if available.is_empty() {
            let (requested, where_to) = (printable(requested), "scorehosts.db defines none");
            return Err(format!("no available host has the {name} '{requested}': {where_to}"));
        }
        if !available
            .iter()
            .any(|has| *has == requested || name == "speed" && equal(requested, has))
        {
            let hint = match nearest(requested, available.iter().copied()) {
                Some(near) => format!("did you mean '{near}'?"),
                None => format!("there are: {}", join_names(available)),
            };
            return Err(format!(
                "no available host has the {name} '{}'; {hint}",
                printable(requested)
            ));
        }
    }
    Err(format!("no available host is of the kind {kind}"))
}

/// Whether two values are equal as numbers or as words.
fn equal(one: &str, other: &str) -> bool {
    let numbers = one.parse::<f64>().ok().zip(other.parse::<f64>().ok());
    one == other || numbers.is_some_and(|(one, other)| one == other)
}

/// Sets of hosts that one job may use together. With `hetero` all hosts are in one set; otherwise
/// each kind has its own set.
fn pools(hosts: &[Host], matching: Vec<usize>, hetero: bool) -> Vec<Vec<Candidate>> {
    let mut pools: Vec<(usize, Vec<Candidate>)> = Vec::new();
    // A missing attribute is compatible with every value.
    let alike = |one: &Option<String>, other: &Option<String>| {
        one.as_ref().zip(other.as_ref()).is_none_or(|(one, other)| equal(one, other))
    };
    let is_compatible = |one: usize, other: usize| {
        let (one, other) = (&hosts[one], &hosts[other]);
        hetero
            || alike(&one.bintype, &other.bintype)
                && alike(&one.cpugen, &other.cpugen)
                && alike(&one.speed, &other.speed)
    };
    for index in matching {
        let candidate = (index, processors(&hosts[index]));
        match pools.iter_mut().find(|(first, _)| is_compatible(*first, index)) {
            Some((_, pool)) => pool.push(candidate),
            None => pools.push((index, vec![candidate])),
        }
    }
    pools.into_iter().map(|(_, pool)| pool).collect()
}

/// Chooses among hosts that may be mixed.
fn choose_hosts(
    pool: &[Candidate],
    request: &PlacementRequest,
    one_machine: bool,
) -> Result<Placement, String> {
    let (min, max) = request.nodes;
    let host_count = pool.len();
    let chosen = match (request.shape, request.procs) {
        (None, None) => {
            let total = total(pool).min(u64::from(MAX_NODES)) as u32;
            spread(pool, total.clamp(min.min(max), max), one_machine)?
        }
        (None, Some(procs)) => {
            let hosts = (max / procs.max(1)).clamp(1, MAX_HOSTS as u32) as usize;
            with_procs_each(pool, hosts.min(host_count), procs)?
        }
        (Some(Shape::Nodes(nodes)), None) => {
            check_node_limits(u64::from(nodes), request)?;
            spread(pool, nodes, one_machine)?
        }
        (Some(Shape::Nodes(nodes)), Some(procs)) => {
            let fixed = format!("SCORE_RSRC_NUM_PROCS({procs})");
            if !nodes.is_multiple_of(procs) {
                return Err(format!("{nodes} nodes are not a multiple of the {procs} of {fixed}"));
            }
            with_procs_each(pool, (nodes / procs) as usize, procs)
                .map_err(|line| format!("{nodes} nodes by {procs} per host ({fixed}): {line}"))?
        }
        (Some(Shape::Hosts(hosts, procs)), fixed) => {
            if let Some(fixed) = fixed.filter(|fixed| *fixed != procs) {
                let declared = format!("the programs declare SCORE_RSRC_NUM_PROCS({fixed})");
                return Err(format!("{procs} processes per host, but {declared}"));
            }
            with_procs_each(pool, hosts.map_or(host_count, |hosts| hosts as usize), procs)?
        }
        (Some(Shape::WholeHosts(hosts)), Some(procs)) => {
            with_procs_each(pool, hosts as usize, procs)?
        }
        (Some(Shape::WholeHosts(hosts)), None) => first_hosts(pool, hosts as usize, 1)?,
    };
    check_node_limits(total(&chosen), request)?;
    Ok(Placement { hosts: chosen })
}

fn total(pool: &[Candidate]) -> u64 {
    pool.iter().map(|(_, processors)| u64::from(*processors)).sum()
}

fn check_node_limits(nodes: u64, request: &PlacementRequest) -> Result<(), String> {
    let (min, max) = request.nodes;
    if nodes < u64::from(min) || nodes > u64::from(max) {
        let allowed = format!("SCORE_RSRC_NUM_NODES({min}, {max})");
        return Err(format!("{nodes} nodes: the programs allow {min} to {max} ({allowed})"));
    }
    if nodes > u64::from(MAX_NODES) {
        return Err(format!("{nodes} nodes exceed the limit of {MAX_NODES} (PM_MAX_NODE)"));
    }
    Ok(())
}

/// Chooses this number of hosts, in their order. Hosts with enough processors are preferred.
fn first_hosts(pool: &[Candidate], hosts: usize, procs: u32) -> Result<Vec<Candidate>, String> {
    let host_count = pool.len();
    if hosts > host_count {
        let are = |count| if count == 1 { "is" } else { "are" };
        let plural = if hosts == 1 { "" } else { "s" };
        return Err(format!(
            "{hosts} host{plural} {} needed, {host_count} {} available",
            are(hosts),
            are(host_count)
        ));
    }
    let (mut sufficient, insufficient): (Vec<_>, Vec<_>) =
        pool.iter().partition(|(_, processors)| *processors >= procs);
    sufficient.extend(insufficient);
    sufficient.truncate(hosts);
    sufficient.sort_unstable();
    Ok(sufficient)
}

/// Chooses this many hosts, with this many processes on each.
fn with_procs_each(pool: &[Candidate], hosts: usize, procs: u32) -> Result<Vec<Candidate>, String> {
    let chosen = first_hosts(pool, hosts, procs)?;
    Ok(chosen.into_iter().map(|(index, _)| (index, procs)).collect())
}

/// Places a plain number of nodes on the fewest hosts.
fn spread(pool: &[Candidate], nodes: u32, one_machine: bool) -> Result<Vec<Candidate>, String> {
    let processor_count = total(pool);
    if u64::from(nodes) > processor_count && !one_machine {
        let (hosts, plural) = (pool.len(), if pool.len() == 1 { "" } else { "s" });
        let more = "HxP puts P processes on each host regardless of its processors";
        let at_hand = format!("{hosts} host{plural} with {processor_count} processors");
        return Err(format!("{nodes} nodes are requested, {at_hand} available ({more})"));
    }
    let mut largest_first = pool.to_vec();
    largest_first.sort_by_key(|(index, processors)| (std::cmp::Reverse(*processors), *index));
    let mut sum = 0;
    let enough = largest_first.iter().position(|(_, processors)| {
        sum += u64::from(*processors);
        sum >= u64::from(nodes)
    });
    let count = match enough {
        Some(last) => last + 1,
        None => pool.len().min(nodes as usize),
    };
    largest_first.truncate(count);
    let mut left = nodes;
    let mut chosen = Vec::with_capacity(count);
    // The smallest hosts come first. Processes that do not fit on one host are left for the next
    // hosts.
    for (assigned_count, (index, processors)) in largest_first.into_iter().rev().enumerate() {
        let share = left / (count - assigned_count) as u32;
        let capacity = if enough.is_some() { processors } else { u32::MAX };
        chosen.push((index, share.min(capacity)));
        left -= share.min(capacity);
    }
    chosen.sort_unstable();
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_request::{parse_hosts, parse_nodes};
    use proptest::prelude::*;

    fn host(index: usize, processors: u32, kind: &str) -> Host {
        let mut parts = kind.split('.').map(str::to_owned);
        Host {
            name: format!("h{index}"),
            processors: Some(processors),
            bintype: parts.next().filter(|part| !part.is_empty()),
            cpugen: parts.next(),
            speed: parts.next(),
            ..Host::default()
        }
    }

    fn hosts(processors: &[u32]) -> Vec<Host> {
        processors.iter().enumerate().map(|(index, has)| host(index, *has, "")).collect()
    }

    fn wanted(option: &str) -> PlacementRequest {
        let parsed = match option.strip_prefix("hosts=") {
            Some(value) => Some(parse_hosts(value).unwrap()),
            None => Some(option).filter(|o| !o.is_empty()).map(|o| parse_nodes(o).unwrap()),
        };
        let (shape, kind) = parsed.map_or((None, None), |nodes| (Some(nodes.shape), nodes.kind));
        PlacementRequest { shape, kind, ..PlacementRequest::default() }
    }

    /// The number of processes on each host; 0 if the host is not chosen.
    fn process_counts(hosts: &[Host], request: &PlacementRequest) -> Result<Vec<u32>, String> {
        let placement = place(hosts, request)?;
        let mut counts = vec![0; hosts.len()];
        placement.hosts.iter().for_each(|(index, procs)| counts[*index] = *procs);
        Ok(counts)
    }

    #[test]
    fn a_node_count_is_spread_evenly_over_the_fewest_hosts() {
        for (processors, option, counts) in [
            (&[4, 4, 4, 4][..], "4", &[4, 0, 0, 0][..]),
            (&[4, 4, 4, 4], "6", &[3, 3, 0, 0]),
            (&[4, 4, 4, 4], "9", &[3, 3, 3, 0]),
            (&[4, 4, 4, 4], "10", &[4, 3, 3, 0]),
            (&[4, 4, 4, 4], "16", &[4, 4, 4, 4]),
            (&[2, 8, 2], "5", &[0, 5, 0]),
            (&[2, 8], "10", &[2, 8]),
            (&[2, 8], "9", &[2, 7]),
            (&[8], "20", &[20]),
            (&[4, 4, 8, 2], "", &[4, 4, 8, 2]),
        ] {
            assert_eq!(
                process_counts(&hosts(processors), &wanted(option)).unwrap(),
                counts,
                "{option}"
            );
        }
    }

    #[test]
    fn a_request_of_hosts_by_processes_is_placed_exactly() {
        for (processors, option, counts) in [
            (&[4, 4, 4][..], "2x2", &[2, 2, 0][..]),
            (&[2, 4, 4], "2x4", &[0, 4, 4]),
            (&[2, 4, 2], "2x4", &[4, 4, 0]),
            (&[2, 4, 2], "x3", &[3, 3, 3]),
            (&[8, 8, 8], "16/8", &[8, 8, 0]),
            (&[8, 4, 8], "hosts=2", &[8, 4, 0]),
            (&[8, 4, 8], "hosts=3x1", &[1, 1, 1]),
        ] {
            assert_eq!(
                process_counts(&hosts(processors), &wanted(option)).unwrap(),
                counts,
                "{option}"
            );
        }
    }

    #[test]
    fn node_limits_declared_by_programs_are_respected() {
        let four = hosts(&[4, 4, 4, 4]);
        let with = |option: &str, nodes, procs| PlacementRequest { nodes, procs, ..wanted(option) };
        assert_eq!(process_counts(&four, &with("", (1, 6), None)).unwrap(), [3, 3, 0, 0]);
        assert_eq!(process_counts(&four, &with("", (1, 99), Some(2))).unwrap(), [2, 2, 2, 2]);
        assert_eq!(process_counts(&four, &with("", (1, 5), Some(2))).unwrap(), [2, 2, 0, 0]);
        assert_eq!(process_counts(&four, &with("6", (1, 99), Some(3))).unwrap(), [3, 3, 0, 0]);
        assert_eq!(
            process_counts(&four, &with("hosts=2", (1, 99), Some(3))).unwrap(),
            [3, 3, 0, 0]
        );
        for (option, nodes, procs, part) in [
            ("5", (1, 4), None, "5 nodes: the programs allow 1 to 4 (SCORE_RSRC_NUM_NODES(1, 4))"),
            ("2x1", (4, 9), None, "2 nodes: the programs allow 4 to 9"),
            (
                "5",
                (1, 99),
                Some(2),
                "5 nodes are not a multiple of the 2 of SCORE_RSRC_NUM_PROCS(2)",
            ),
            ("10", (1, 99), Some(2), "10 nodes by 2 per host"),
            ("10", (1, 99), Some(2), "5 hosts are needed, 4 are available"),
            ("2x3", (1, 99), Some(2), "3 processes per host, but the programs declare"),
            ("", (1, 2), Some(3), "3 nodes: the programs allow 1 to 2"),
            ("", (10, 99), Some(2), "8 nodes: the programs allow 10 to 99"),
            ("", (20, 99), None, "20 nodes are requested, 4 hosts with 16 processors available"),
        ] {
            let error = process_counts(&four, &with(option, nodes, procs)).unwrap_err();
            assert!(error.contains(part), "{option}: {error}");
        }
    }

    #[test]
    fn too_few_hosts_are_refused_with_both_numbers() {
        for (processors, option, part) in [
            (&[4, 4][..], "3x1", "3 hosts are needed, 2 are available"),
            (&[4], "2x1", "2 hosts are needed, 1 is available"),
            (&[4, 4], "9", "9 nodes are requested, 2 hosts with 8 processors available"),
            (&[], "1", "no host is available"),
        ] {
            let error = process_counts(&hosts(processors), &wanted(option)).unwrap_err();
            assert!(error.contains(part), "{option}: {error}");
            assert!(!error.contains("hetero"), "all hosts are of one kind: {error}");
        }
    }

    #[test]
    fn a_job_has_at_most_the_largest_number_of_nodes() {
        let two = hosts(&[MAX_NODES, MAX_NODES]);
        assert_eq!(process_counts(&two, &wanted("")).unwrap(), [MAX_NODES, 0]);
        let unlimited = PlacementRequest { nodes: (1, u32::MAX), ..wanted("hosts=2") };
        let error = process_counts(&two, &unlimited).unwrap_err();
        assert_eq!(error, "2097152 nodes exceed the limit of 1048576 (PM_MAX_NODE)");
    }

    #[test]
    fn virtual_hosts_accept_more_nodes_than_processors() {
        let mut local = hosts(&[1, 1, 1, 1]);
        local.iter_mut().for_each(|host| host.is_virtual = true);
        assert_eq!(process_counts(&local, &wanted("4x2")).unwrap(), [2, 2, 2, 2]);
        assert_eq!(process_counts(&local, &wanted("2")).unwrap(), [1, 1, 0, 0]);
        assert_eq!(process_counts(&local, &wanted("6")).unwrap(), [2, 2, 1, 1]);
        assert_eq!(process_counts(&local, &wanted("")).unwrap(), [1, 1, 1, 1]);
    }

    #[test]
    fn only_hosts_of_the_requested_kind_are_used() {
        let some = [
            host(0, 2, "linux.pentium.500"),
            host(1, 2, "linux.opteron.2400"),
            host(2, 2, "linux.opteron.2400.0"),
            host(3, 2, "netbsd.pentium"),
        ];
        assert_eq!(process_counts(&some, &wanted("4.linux.opteron.2400")).unwrap(), [0, 2, 2, 0]);
        assert_eq!(process_counts(&some, &wanted("1.netbsd")).unwrap(), [0, 0, 0, 1]);
        for (option, part) in [
            ("1.solaris", "no available host has the bintype 'solaris'; there are: linux, netbsd"),
            ("1.linx", "no available host has the bintype 'linx'; did you mean 'linux'?"),
            ("1.linux.opteron.3", "no available host has the speed '3'; there are: 2400"),
            ("1.netbsd.opteron", "no available host is of the kind netbsd.opteron"),
            ("1.netbsd.pentium.500.0", "no available host is of the kind netbsd.pentium.500.0"),
            ("3x1.netbsd", "3 hosts are needed, 1 is available"),
        ] {
            let error = process_counts(&some, &wanted(option)).unwrap_err();
            assert!(error.contains(part), "{option}: {error}");
        }
        let error = process_counts(&hosts(&[2]), &wanted("1.linux")).unwrap_err();
        assert!(error.contains("scorehosts.db defines none"), "{error}");
    }

    #[test]
    fn hosts_of_different_kinds_are_mixed_by_permission_only() {
        let some = [host(0, 2, "linux.a"), host(1, 2, "linux.b"), host(2, 2, "linux.b")];
        assert_eq!(process_counts(&some, &wanted("")).unwrap(), [0, 2, 2]);
        assert_eq!(process_counts(&some, &wanted("2x1")).unwrap(), [0, 1, 1]);
        let error = process_counts(&some, &wanted("6")).unwrap_err();
        assert!(error.contains("6 nodes are requested, 2 hosts with 4 processors"), "{error}");
        assert!(error.contains("hetero"), "{error}");
        let permitted = PlacementRequest { allows_hetero: true, ..wanted("6") };
        assert_eq!(process_counts(&some, &permitted).unwrap(), [2, 2, 2]);
    }

    #[test]
    fn a_pool_has_the_hosts_that_one_job_may_use_together() {
        let some = [host(0, 2, "linux.a"), host(1, 2, "linux.b"), host(2, 2, "linux.b")];
        assert_eq!(homogeneous_pools(&some, None, false), Ok(vec![vec![0], vec![1, 2]]));
        assert_eq!(homogeneous_pools(&some, None, true), Ok(vec![vec![0, 1, 2]]));
        let kind = wanted("1.linux.b").kind;
        assert_eq!(homogeneous_pools(&some, kind.as_ref(), true), Ok(vec![vec![1, 2]]));
    }

    #[test]
    fn a_job_gets_the_first_pool_that_fits_or_without_a_request_the_largest_pool() {
        let some = [host(0, 2, "linux.a"), host(1, 4, "linux.b")];
        assert_eq!(process_counts(&some, &wanted("hosts=1")).unwrap(), [2, 0]);
        assert_eq!(process_counts(&some, &wanted("")).unwrap(), [0, 4]);
        let error = process_counts(&some, &wanted("6")).unwrap_err();
        assert!(error.contains("1 host with 2 processors"), "the first pool: {error}");
        let alike = [host(0, 2, "linux.a"), host(1, 2, "linux.b")];
        assert_eq!(process_counts(&alike, &wanted("")).unwrap(), [2, 0]);
    }

    proptest! {
        // Promise (hosts): N nodes take the fewest hosts and no processor twice.
        #[test]
        fn a_number_is_met_exactly_and_no_processor_is_used_twice(
            processors in proptest::collection::vec(1u32..20, 1..12),
            nodes in 1u32..120,
        ) {
            let total: u32 = processors.iter().sum();
            let got = process_counts(&hosts(&processors), &wanted(&nodes.to_string()));
            if nodes > total && processors.len() > 1 {
                prop_assert!(got.is_err());
            } else {
                let got = got.unwrap();
                prop_assert_eq!(got.iter().sum::<u32>(), nodes);
                let used: Vec<usize> = (0..got.len()).filter(|host| got[*host] > 0).collect();
                if nodes <= total {
                    prop_assert!(got.iter().zip(&processors).all(|(got, has)| got <= has));
                    let mut sorted = processors.clone();
                    sorted.sort_unstable_by(|a, b| b.cmp(a));
                    let fewer: u32 = sorted.iter().take(used.len() - 1).sum();
                    prop_assert!(fewer < nodes, "fewer hosts would do");
                    // Two hosts differ by more than one only if the smaller host is full.
                    let fullest = used.iter().map(|host| got[*host]).max().unwrap();
                    for host in used {
                        prop_assert!(fullest <= got[host] + 1 || got[host] == processors[host]);
                    }
                }
            }
        }
    }
}
