//! The network sets (manual 2.1). Each set is one composite, whose members reach every node by the
//! fastest possible device (manual, figure 1.2).
#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use score_proto::message::{NetworkDevice, NetworkMember, Welcome};

use crate::pm::Context;
use crate::session::NetworkSet;

/// The largest number of contexts of one process.
pub(crate) const MAX_MEMBERS: usize = 128;

/// Checks that every set reaches every node exactly once. Returns the number of members of all
/// sets.
///
/// # Errors
/// One line that names the set and the node.
pub(crate) fn check_networks(welcome: &Welcome) -> Result<usize, String> {
    let (nodes, sets) = (welcome.num_node, welcome.networks.len());
    // A single node has no other node to communicate with (manual 2.1).
    if (nodes == 1) != (sets == 0) {
        return Err(format!("SCore-D reports {sets} network sets for {nodes} nodes"));
    }
    let members: usize = welcome.networks.iter().map(|set| set.members.len()).sum();
    if members > MAX_MEMBERS {
        return Err(format!("SCore-D reports {members} contexts; the limit is {MAX_MEMBERS}"));
    }
    for (set, network) in welcome.networks.iter().enumerate() {
        let mut ranges: Vec<_> = network
            .members
            .iter()
            .flat_map(|member| &member.node_ranges)
            .map(|range| (range.first, u64::from(range.first) + u64::from(range.count)))
            .collect();
        ranges.sort_unstable();
        let mut next = 0;
        for (first, end) in ranges {
            if u64::from(first) != next || end > u64::from(nodes) || end == next {
                return Err(format!("network set {set}: node {next} is not reached exactly once"));
            }
            next = end;
        }
        if next != u64::from(nodes) {
            return Err(format!("network set {set}: node {next} is not reached"));
        }
    }
    Ok(members)
}

/// Attaches the members, and joins the members of each set. The number of `descriptors` is the
/// number that `check_networks` has returned.
///
/// # Errors
/// One line that names the set, and the node if one is wrong.
pub(crate) fn join(welcome: &Welcome, descriptors: &[OwnedFd]) -> Result<Vec<NetworkSet>, String> {
    let mut descriptors = descriptors.iter();
    let mut networks = Vec::new();
    for (set, network) in welcome.networks.iter().enumerate() {
        let error = |name: &str, e: std::io::Error| format!("network set {set}: {name}: {e}");
        let (composite, device) =
            Context::composite(welcome.num_node).map_err(|e| error("composite", e))?;
        let mut members = Vec::new();
        for (member, fd) in network.members.iter().zip(&mut descriptors) {
            let kind = device_type(member);
            let context = Context::attach(kind, fd.as_fd())
                .map_err(|e| error(&format!("attach {}", kind.to_string_lossy()), e))?;
            for range in &member.node_ranges {
                // This node's own entry determines the composite's node number.
                for offset in 0..range.count {
                    let (node, member_node) =
                        (range.first + offset, range.first_in_context.saturating_add(offset));
                    composite
                        .add_node(node, context, member_node)
                        .map_err(|e| error(&format!("node {node}"), e))?;
                }
            }
            members.push(context);
        }
        networks.push(NetworkSet { composite, device, members });
    }
    Ok(networks)
}

/// The device type in the form of `pmAttachContext`.
fn device_type(member: &NetworkMember) -> &'static CStr {
    match member.device {
        NetworkDevice::Shmem => c"shmem",
        NetworkDevice::Ethernet => c"ethernet",
        NetworkDevice::Verbs => c"verbs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::ids::{JobHostId, JobId, ProcessIndex};
    use score_proto::message::{NetworkSet, NodeMapping};
    use score_proto::nodeset::NodeSet;

    fn welcome(num_node: u32, networks: Vec<NetworkSet>) -> Welcome {
        Welcome {
            job: JobId(1),
            area: 0,
            self_node: 0,
            num_node,
            self_proc: ProcessIndex(0),
            num_proc: 1,
            self_host: JobHostId(0),
            num_host: 1,
            networks,
            options: Vec::new(),
            dir: "/tmp".to_owned(),
            notify_socket_name: Vec::new(),
        }
    }

    #[test]
    fn sets_that_reach_every_node_once_are_accepted() {
        assert_eq!(check_networks(&welcome(1, Vec::new())), Ok(0));
        assert_eq!(check_networks(&welcome(4, vec![NetworkSet::one_host(4)])), Ok(1));
        for (local_nodes, by_verbs, members) in [
            (0..2, 0..0, 2),
            (3..7, 0..0, 2),
            (7..9, 0..7, 2),
            (4..5, 0..0, 1),
            (4..5, 5..9, 2),
            (3..6, 1..3, 3),
        ] {
            let others = |node: &u32| !local_nodes.contains(node);
            let (verbs_nodes, ethernet_nodes): (NodeSet, NodeSet) = (
                (0..9).filter(others).filter(|node| by_verbs.contains(node)).collect(),
                (0..9).filter(others).filter(|node| !by_verbs.contains(node)).collect(),
            );
            let devices =
                [(NetworkDevice::Verbs, verbs_nodes), (NetworkDevice::Ethernet, ethernet_nodes)];
            let devices =
                devices.into_iter().filter(|(_, nodes)| !nodes.is_empty()).collect::<Vec<_>>();
            let set = || NetworkSet::many_hosts(local_nodes.clone(), &devices);
            assert_eq!(
                check_networks(&welcome(9, vec![set()])),
                Ok(members),
                "{local_nodes:?} {by_verbs:?}"
            );
            assert_eq!(check_networks(&welcome(9, vec![set(), set()])), Ok(2 * members));
        }
    }

    #[test]
    fn a_node_without_a_network_with_two_or_outside_the_range_is_named() {
        let set = |ranges: &[(u32, u32)]| {
            let node_range = |&(first, count)| NodeMapping { first, count, first_in_context: 0 };
            let node_ranges = ranges.iter().map(node_range).collect();
            NetworkSet {
                members: vec![NetworkMember { device: NetworkDevice::Shmem, node_ranges }],
            }
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
            let line = check_networks(&welcome(4, vec![set(ranges)])).unwrap_err();
            assert!(line.contains(&format!("node {node} is not reached")), "{ranges:?}: {line}");
        }
        let many = vec![NetworkSet::one_host(4); MAX_MEMBERS + 1];
        assert!(check_networks(&welcome(4, many)).unwrap_err().contains("contexts"));
    }
}
