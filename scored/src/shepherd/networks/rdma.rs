//! RDMA as a transport: which hosts of a job connect by RDMA. Adapters and permissions may differ
//! between hosts. Every host offers the adapter that works there. Hosts that can connect use RDMA,
//! and reach all others by UDP.

use std::net::IpAddr;

use score_pm::AdapterChoice;
use score_pm::rdma::Usable;
use score_proto::job_control::Placement;
use score_proto::message::Level;

use super::transport_offer::{Adapter, RdmaUnavailable, TransportOffer};

/// The parameters with which this host tries RDMA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaProbe {
    /// Address to which processes of other hosts send their queue pair numbers.
    pub address: IpAddr,
    /// The adapter that the database selects, or why the entry cannot be used.
    pub adapter: Result<AdapterChoice, String>,
    /// Whether the user or the database requests RDMA. Otherwise RDMA is used only if it is certain
    /// to work.
    pub is_requested: bool,
}

impl RdmaProbe {
    /// Checks whether an adapter may be used. Without a request, only hardware is used.
    ///
    /// # Errors
    /// The reason why the adapter is not used.
    pub fn check(&self, probed: &Usable) -> Result<(), RdmaUnavailable> {
        if self.is_requested || probed.is_hardware {
            return Ok(());
        }
        let reason = format!("{} is not hardware; network=verbs uses it anyway", probed.wires);
        Err(RdmaUnavailable { reason, has_adapter: false })
    }
}

fn usable_adapter(offer: &TransportOffer) -> Option<(&Adapter, bool)> {
    let rdma = offer.rdma.as_ref()?;
    Some((rdma.adapter.as_ref().ok()?, rdma.is_requested))
}

/// Whether two hosts can connect by RDMA.
pub fn can_connect(first: &TransportOffer, second: &TransportOffer) -> bool {
    let (Some((first, first_requested)), Some((second, second_requested))) =
        (usable_adapter(first), usable_adapter(second))
    else {
        return false;
    };
    first.fabric == second.fabric
        && (first_requested && second_requested || first.subnet == second.subnet)
}

/// Addresses of the nodes on hosts to which `local_offer` can connect. The entries of other nodes
/// are zero, which is not a valid address.
pub fn address_table(
    placement: &Placement,
    local_offer: &TransportOffer,
    offers: &[&TransportOffer],
) -> Vec<u8> {
    let addresses =
        |offer| usable_adapter(offer).map_or(&[][..], |(adapter, _)| &adapter.addresses.encoded);
    let nodes = placement.self_placement().map_or(1, |local_host| local_host.nodes.max(1)) as usize;
    let entry_len = addresses(local_offer).len() / nodes;
    let mut table = Vec::new();
    for (host, offer) in placement.hosts.iter().zip(offers) {
        match can_connect(local_offer, offer) {
            true => table.extend_from_slice(addresses(offer)),
            false => table.resize(table.len() + entry_len * host.nodes as usize, 0),
        }
    }
    table
}

/// A host's name, and its offer.
type NamedOffer<'a> = (&'a str, &'a TransportOffer);

/// The first host that offers an adapter, and the hosts that cannot connect to it.
fn split_by_reachability<'a>(
    offers: &'a [NamedOffer<'a>],
) -> (Option<&'a NamedOffer<'a>>, Vec<&'a NamedOffer<'a>>) {
    let reference = offers.iter().find(|(_, offer)| usable_adapter(offer).is_some());
    let is_disconnected = |(_, offer): &&NamedOffer<'_>| {
        reference.is_none_or(|(_, reference)| !can_connect(reference, offer))
    };
    (reference, offers.iter().filter(is_disconnected).collect())
}

/// The note for the user: at most one line. `offers`: offers with host names.
pub fn note(name: &str, offers: &[(&str, &TransportOffer)]) -> Option<(Level, String)> {
    let is_requested =
        offers.iter().filter_map(|(_, offer)| offer.rdma.as_ref()).any(|rdma| rdma.is_requested);
    let unavailability =
        |offer: &'_ TransportOffer| offer.rdma.as_ref()?.adapter.as_ref().err().cloned();
    let (reference, disconnected) = split_by_reachability(offers);
    // If no host has RDMA and it was not requested, there is a note only if an adapter is unusable.
    let is_reportable = is_requested
        || reference.is_some()
        || disconnected
            .iter()
            .any(|(_, offer)| unavailability(offer).is_some_and(|lack| lack.has_adapter));
    let is_notable = |(_, offer): &&&NamedOffer<'_>| {
        unavailability(offer)
            .is_some_and(|lack| is_requested || reference.is_some() || lack.has_adapter)
    };
    let (host, offer) =
        disconnected.iter().find(is_notable).or(disconnected.first()).filter(|_| is_reportable)?;
    offer.rdma.as_ref()?;
    let reason =
        unavailability(offer).map_or_else(|| fabric_mismatch(offer, reference), |lack| lack.reason);
    let others_text = match disconnected.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let separator = if disconnected.len() + 1 < offers.len() { " to" } else { ":" };
    let level = if is_requested { Level::Warning } else { Level::Info };
    let text = "UDP is used instead of RDMA";
    Some((level, format!("network {name}: {text}{separator} host {host}{others_text}: {reason}")))
}

fn fabric_mismatch(offer: &TransportOffer, reference: Option<&NamedOffer<'_>>) -> String {
    let fabric_text = |offer: &TransportOffer| {
        let adapter = usable_adapter(offer).map(|(adapter, _)| adapter);
        adapter.map_or_else(String::new, |found| format!("{} ({})", found.fabric, found.subnet))
    };
    let (name, other) =
        reference.map_or(("?", String::new()), |(name, first)| (*name, fabric_text(first)));
    format!("its adapter is on {}, that of host {name} on {other}", fabric_text(offer))
}

/// Descriptions of the adapters in use, and whether they reach all hosts. The list is empty if no
/// two hosts can connect.
pub fn adapters_in_use<'a>(offers: &'a [&'a TransportOffer]) -> (Vec<&'a str>, bool) {
    let named: Vec<NamedOffer<'_>> = offers.iter().map(|offer| ("", *offer)).collect();
    let (Some((_, reference)), disconnected) = split_by_reachability(&named) else {
        return (Vec::new(), false);
    };
    if disconnected.len() + 1 >= offers.len() {
        return (Vec::new(), false);
    }
    let members = offers.iter().filter(|offer| can_connect(reference, offer));
    let descriptions =
        members.filter_map(|offer| Some(usable_adapter(offer)?.0.addresses.description.as_str()));
    (descriptions.collect(), disconnected.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::transport_offer::{AddressTable, RdmaOffer};
    use super::*;

    fn offer(is_requested: bool, offered: Result<(&str, &str), (&str, bool)>) -> TransportOffer {
        let address_table = |description: &str| AddressTable {
            encoded: Vec::new(),
            description: description.to_owned(),
        };
        let offered = match offered {
            Ok((fabric, subnet)) => Ok(Adapter {
                addresses: address_table("mlx5_0 port 1"),
                fabric: fabric.to_owned(),
                subnet: subnet.to_owned(),
            }),
            Err((reason, has_adapter)) => {
                Err(RdmaUnavailable { reason: reason.to_owned(), has_adapter })
            }
        };
        let rdma = Some(RdmaOffer { is_requested, adapter: offered });
        TransportOffer { rdma, raw: None, udp: address_table("UDP over eth0"), raw_note: None }
    }

    #[test]
    fn hosts_of_one_fabric_connect_and_across_subnets_only_if_both_request_rdma() {
        let roce_offer = |is_requested, subnet| offer(is_requested, Ok(("RoCE", subnet)));
        assert!(can_connect(&roce_offer(false, "10.0.0.0/24"), &roce_offer(false, "10.0.0.0/24")));
        assert!(!can_connect(&roce_offer(false, "10.0.0.0/24"), &roce_offer(false, "10.0.1.0/24")));
        assert!(can_connect(&roce_offer(true, "10.0.0.0/24"), &roce_offer(true, "10.0.1.0/24")));
        assert!(!can_connect(&roce_offer(true, "x"), &offer(true, Ok(("InfiniBand", "x")))));
        assert!(!can_connect(&roce_offer(true, "x"), &offer(true, Err(("none", false)))));
    }

    // Promise (messages): Jobs use RDMA if it is requested, or certain to work, with every byte
    // checked, with several network sets, and in composites with shared memory and UDP. A host
    // without an adapter, or whose user may not open it or may pin too little memory, is named and
    // reached by UDP. A killed process leaves no queue pair. Jobs that share processors, and a job
    // that is suspended for longer than an adapter retransmits, lose nothing. Deadlocks are
    // detected, also of processes with registered memory, and no other job is reported. Messages
    // and bytes are counted.
    #[test]
    fn one_line_names_the_host_without_rdma_and_the_reason() {
        let usable = offer(true, Ok(("RoCE", "10.0.0.0/24")));
        let none = offer(true, Err(("no RDMA adapter", false)));
        assert_eq!(note("n", &[("a", &usable), ("b", &usable)]), None);
        let (level, line) = note("n", &[("a", &usable), ("b", &none)]).unwrap();
        assert_eq!(level, Level::Warning);
        assert_eq!(line, "network n: UDP is used instead of RDMA: host b: no RDMA adapter");
        let (_, line) =
            note("n", &[("a", &usable), ("b", &none), ("c", &usable), ("d", &none)]).unwrap();
        let expected =
            "network n: UDP is used instead of RDMA to host b (and 1 more): no RDMA adapter";
        assert_eq!(line, expected);
        let (_, line) = note("n", &[("a", &none), ("b", &none)]).unwrap();
        assert!(line.ends_with("RDMA: host a (and 1 more): no RDMA adapter"), "{line}");
        let infiniband = offer(true, Ok(("InfiniBand", "fe80::")));
        let (_, line) = note("n", &[("a", &usable), ("b", &infiniband)]).unwrap();
        let reason = "its adapter is on InfiniBand (fe80::), that of host a on RoCE (10.0.0.0/24)";
        assert!(line.ends_with(reason), "{line}");
    }

    // Promise of `one_line_names_the_host_without_rdma_and_the_reason`.
    #[test]
    fn unused_rdma_hardware_is_reported_even_if_rdma_was_not_requested() {
        let none = offer(false, Err(("no RDMA library", false)));
        assert_eq!(note("auto", &[("a", &none), ("b", &none)]), None);
        let inaccessible = offer(false, Err(("mlx5_0 cannot be opened: Permission denied", true)));
        let (level, line) = note("auto", &[("a", &none), ("b", &inaccessible)]).unwrap();
        assert_eq!(level, Level::Info);
        assert!(line.contains("host b") && line.ends_with("Permission denied"), "{line}");
        let usable = offer(false, Ok(("RoCE", "10.0.0.0/24")));
        let (_, line) = note("auto", &[("a", &none), ("b", &usable), ("c", &usable)]).unwrap();
        assert!(line.contains("RDMA to host a: no RDMA library"), "{line}");
    }

    #[test]
    fn software_rdma_is_used_only_on_request() {
        let probed = |is_hardware| Usable {
            wires: "rxe0".to_owned(),
            fabric: String::new(),
            subnet: String::new(),
            is_hardware,
        };
        let address = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let adapter = Ok(AdapterChoice::default());
        let plan = |is_requested| RdmaProbe { address, adapter: adapter.clone(), is_requested };
        assert!(
            plan(true).check(&probed(false)).is_ok() && plan(false).check(&probed(true)).is_ok()
        );
        let lack = plan(false).check(&probed(false)).unwrap_err();
        assert!(lack.reason.contains("network=verbs") && !lack.has_adapter);
    }

    #[test]
    fn adapters_in_use_are_listed_and_whether_they_reach_all_hosts() {
        let usable = offer(true, Ok(("RoCE", "x")));
        let none = offer(true, Err(("no", false)));
        assert_eq!(adapters_in_use(&[&usable, &usable]), (vec!["mlx5_0 port 1"; 2], true));
        assert_eq!(adapters_in_use(&[&usable, &none, &usable]), (vec!["mlx5_0 port 1"; 2], false));
        assert_eq!(adapters_in_use(&[&usable, &none]), (Vec::new(), false));
    }
}
