//! The network sets (manual 2.1): one composite each, whose members reach every node by the
//! fastest device that does (manual, figure 1.2).
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use score_proto::message::{NetworkDevice, NetworkMember, Welcome};

use crate::pm::Context;
use crate::session::Network;

/// Contexts that one process can be given.
pub(crate) const MAX_MEMBERS: usize = 128;

/// Whether every set reaches every node once; how many members there are in all.
///
/// # Errors
/// One line that names the set and the node.
pub(crate) fn check(welcome: &Welcome) -> Result<usize, String> {
    let (nodes, sets) = (welcome.num_node, welcome.networks.len());
    // One node has nobody to talk to (manual 2.1).
    if (nodes == 1) != (sets == 0) {
        return Err(format!("SCore-D says {sets} network sets for {nodes} nodes"));
    }
    let members: usize = welcome.networks.iter().map(|set| set.members.len()).sum();
    if members > MAX_MEMBERS {
        return Err(format!("SCore-D says {members} network contexts, {MAX_MEMBERS} at most"));
    }
    for (set, network) in welcome.networks.iter().enumerate() {
        let mut ranges: Vec<_> = network
            .members
            .iter()
            .flat_map(|member| &member.reach)
            .map(|reach| (reach.first, u64::from(reach.first) + u64::from(reach.count)))
            .collect();
        ranges.sort_unstable();
        let mut next = 0;
        for (first, end) in ranges {
            if u64::from(first) != next || end > u64::from(nodes) || end == next {
                return Err(format!("network set {set}: node {next} is not reached once"));
            }
            next = end;
        }
        if next != u64::from(nodes) {
            return Err(format!("network set {set}: node {next} is not reached"));
        }
    }
    Ok(members)
}

/// Attaches the members and joins those of each set. `descriptors` are as many as `check` said.
///
/// # Errors
/// One line that names the set, and the node where one is at fault.
pub(crate) fn join(welcome: &Welcome, descriptors: &[OwnedFd]) -> Result<Vec<Network>, String> {
    let mut descriptors = descriptors.iter();
    let mut networks = Vec::new();
    for (set, network) in welcome.networks.iter().enumerate() {
        let fault = |what: &str, e: std::io::Error| format!("network set {set}: {what}: {e}");
        let (composite, device) =
            Context::composite(welcome.num_node).map_err(|e| fault("composite", e))?;
        let mut members = Vec::new();
        for (member, fd) in network.members.iter().zip(&mut descriptors) {
            let kind = name(member);
            let context = Context::attach(kind, fd.as_fd())
                .map_err(|e| fault(&format!("attach {}", kind.to_string_lossy()), e))?;
            for reach in &member.reach {
                // This node's own entry tells the composite which node it is.
                for step in 0..reach.count {
                    let (node, there) = (reach.first + step, reach.there.saturating_add(step));
                    composite
                        .add_node(node, context, there)
                        .map_err(|e| fault(&format!("node {node}"), e))?;
                }
            }
            members.push(context);
        }
        networks.push(Network { composite, device, members });
    }
    Ok(networks)
}

/// As `pmAttachContext` wants it.
fn name(member: &NetworkMember) -> &'static CStr {
    match member.device {
        NetworkDevice::Shmem => c"shmem",
        NetworkDevice::Ethernet => c"ethernet",
        NetworkDevice::Verbs => c"verbs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::message::{NetworkSet, Reach};
    use score_proto::nodeset::NodeSet;

    fn welcome(num_node: u32, networks: Vec<NetworkSet>) -> Welcome {
        Welcome {
            job: 1,
            area: 0,
            self_node: 0,
            num_node,
            self_proc: 0,
            num_proc: 1,
            self_host: 0,
            num_host: 1,
            networks,
            options: Vec::new(),
            dir: "/tmp".to_owned(),
            bell: Vec::new(),
        }
    }

    #[test]
    fn sets_that_reach_every_node_once_are_accepted() {
        assert_eq!(check(&welcome(1, Vec::new())), Ok(0));
        assert_eq!(check(&welcome(4, vec![NetworkSet::one_host(4)])), Ok(1));
        for (own, by_verbs, members) in [
            (0..2, 0..0, 2),
            (3..7, 0..0, 2),
            (7..9, 0..7, 2),
            (4..5, 0..0, 1),
            (4..5, 5..9, 2),
            (3..6, 1..3, 3),
        ] {
            let others = |node: &u32| !own.contains(node);
            let (near, far): (NodeSet, NodeSet) = (
                (0..9).filter(others).filter(|node| by_verbs.contains(node)).collect(),
                (0..9).filter(others).filter(|node| !by_verbs.contains(node)).collect(),
            );
            let ways = [(NetworkDevice::Verbs, near), (NetworkDevice::Ethernet, far)];
            let ways = ways.into_iter().filter(|(_, nodes)| !nodes.is_empty()).collect::<Vec<_>>();
            let set = || NetworkSet::many_hosts(own.clone(), &ways);
            assert_eq!(check(&welcome(9, vec![set()])), Ok(members), "{own:?} {by_verbs:?}");
            assert_eq!(check(&welcome(9, vec![set(), set()])), Ok(2 * members));
        }
    }

    #[test]
    fn a_node_that_is_reached_never_twice_or_beyond_the_last_is_named() {
        let set = |ranges: &[(u32, u32)]| {
            let reach = |&(first, count)| Reach { first, count, there: 0 };
            let reach = ranges.iter().map(reach).collect();
            NetworkSet { members: vec![NetworkMember { device: NetworkDevice::Shmem, reach }] }
        };
        for (ranges, node) in [
            (&[][..], 0),
            (&[(1, 3)], 0),
            (&[(0, 2), (3, 1)], 2),
            (&[(0, 2), (1, 3)], 2),
            (&[(0, 3)], 3),
            (&[(0, 5)], 0),
            (&[(0, 2), (2, u32::MAX)], 2),
            (&[(0, 2), (2, 0), (2, 2)], 2),
        ] {
            let line = check(&welcome(4, vec![set(ranges)])).unwrap_err();
            assert!(line.contains(&format!("node {node} is not reached")), "{ranges:?}: {line}");
        }
        let many = vec![NetworkSet::one_host(4); MAX_MEMBERS + 1];
        assert!(check(&welcome(4, many)).unwrap_err().contains("contexts"));
    }
}
