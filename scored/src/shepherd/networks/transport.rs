//! The transports of one network set on one host: with which wires it reaches other hosts. The
//! wires that are permitted and that work may differ between hosts. Every host offers its wires,
//! and all hosts use the wires that all of them have.

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;
use score_pm::AdapterChoice;
use score_proto::job_control::Placement;
use score_proto::message::{HostKind, JobSpec, Level};
use score_proto::network::{ADDRESSING, AUTO, HostNetwork, NetworkTransport, SHMEM, UDP};

use super::rdma;
use super::transport_offer::TransportOffer;

/// The devices to open for one network set on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransportPlan {
    /// The network's name.
    pub name: String,
    /// Links for UDP: interfaces or addresses.
    pub links: Vec<String>,
    /// The interfaces for raw Ethernet, or the reason why it cannot be used. None if it was not
    /// requested.
    pub raw: Option<Result<Vec<String>, String>>,
    /// How RDMA is tried. None if it is not tried.
    pub rdma: Option<rdma::RdmaProbe>,
}

/// The name of each network set.
pub fn set_names(spec: &JobSpec) -> Vec<String> {
    let default_name = match &spec.hosts[..] {
        [] | [_] => SHMEM,
        hosts if hosts.iter().all(|host| host.kind == HostKind::Virtual) => UDP,
        _ => AUTO,
    };
    match spec.networks.is_empty() {
        true => vec![default_name.to_owned()],
        false => spec.networks.clone(),
    }
}

/// Plans the devices on this host for the network with this name.
///
/// # Errors
/// This host is not on the network.
pub fn plan(name: &str, spec: &JobSpec, placement: &Placement) -> Result<TransportPlan, String> {
    let host =
        spec.hosts.get(placement.self_host.index()).ok_or("this host is not part of the job")?;
    let network = host.network(name);
    let network = network.ok_or_else(|| format!("host {} is not on network {name}", host.name))?;
    let address =
        placement.self_placement().and_then(|local_host| local_host.address).map(|addr| addr.ip());
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    // Virtual hosts without namespaces only have addresses on the loopback link.
    let is_loopback = host.kind == HostKind::Virtual && address.is_loopback();
    let links = match network.links.is_empty() || is_loopback {
        true => vec![address.to_string()],
        false => network.links.clone(),
    };
    let owns_links = host.kind == HostKind::Virtual && !is_loopback;
    let raw = (network.transport == NetworkTransport::Raw).then(|| {
        let allowed = network.trusted || owns_links;
        if allowed { links.iter().map(|link| interface(link)).collect() } else { refusal(&network) }
    });
    let is_requested = network.transport == NetworkTransport::Verbs;
    let rdma = (is_requested || network.transport == NetworkTransport::Auto)
        .then(|| rdma::RdmaProbe { address, adapter: adapter_choice(&network), is_requested });
    Ok(TransportPlan { name: name.to_owned(), links, raw, rdma })
}

/// The adapter that the database selects.
///
/// # Errors
/// One line: the attribute whose value cannot be used.
fn adapter_choice(network: &HostNetwork) -> Result<AdapterChoice, String> {
    let configured = |name: &&str| network.addressing.iter().find(|(known, _)| known == name);
    let mut choice = AdapterChoice::default();
    for (name, value) in ADDRESSING.iter().filter_map(configured) {
        choice.set(name, value).map_err(|_| format!("{name}={value}: invalid value"))?;
    }
    Ok(choice)
}

/// The interfaces on this host for raw Ethernet, for each network set of a job. A set that does not
/// use raw Ethernet, or may not use it, has none.
pub fn raw_links(spec: &JobSpec, placement: &Placement) -> Vec<Vec<String>> {
    let links = |name: &String| match plan(name, spec, placement) {
        Ok(TransportPlan { raw: Some(Ok(links)), .. }) => links,
        _ => Vec::new(),
    };
    set_names(spec).iter().map(links).collect()
}

/// The reason why raw Ethernet is refused. A raw socket in a user's process can read and forge all
/// traffic on its link.
fn refusal<T>(network: &HostNetwork) -> Result<T, String> {
    Err(match network.links.is_empty() {
        true => "scorehosts.db describes no trusted network of this name".to_owned(),
        false => {
            "scorehosts.db does not mark it trusted, nor does the job own its links".to_owned()
        }
    })
}

/// The name of an interface, from its name or its address.
///
/// # Errors
/// One line: no interface has the address.
pub fn interface(link: &str) -> Result<String, String> {
    let Ok(address) = link.parse::<IpAddr>() else { return Ok(link.to_owned()) };
    let interfaces = getifaddrs().map_err(|error| format!("the interfaces: {error}"))?;
    let has_address = |candidate: &nix::ifaddrs::InterfaceAddress| {
        let sockaddr = candidate.address.as_ref();
        let ipv4 = sockaddr.and_then(|at| at.as_sockaddr_in()).map(|at| IpAddr::V4(at.ip()));
        let ipv6 = || sockaddr.and_then(|at| at.as_sockaddr_in6()).map(|at| IpAddr::V6(at.ip()));
        ipv4.or_else(ipv6) == Some(address)
    };
    let interface_name =
        interfaces.into_iter().find(has_address).map(|candidate| candidate.interface_name);
    interface_name.ok_or_else(|| format!("no interface has the address {address}"))
}

/// Whether the set uses raw Ethernet. All hosts must offer it, because raw Ethernet does not
/// interoperate with UDP.
pub fn is_raw<'a>(offers: impl IntoIterator<Item = &'a TransportOffer>) -> bool {
    offers.into_iter().all(|offer| offer.raw.is_some())
}

/// Addresses of all nodes on ethernet.
pub fn address_table(offers: &[&TransportOffer], raw: bool) -> Vec<u8> {
    let chosen_table =
        |offer: &&TransportOffer| offer.raw.clone().filter(|_| raw).unwrap_or(offer.udp.clone());
    offers.iter().flat_map(|offer| chosen_table(offer).encoded).collect()
}

/// The note for the user on the wires of a network: at most one line. `offers`: offers with host
/// names.
pub fn note(name: &str, offers: &[(&str, &TransportOffer)]) -> Option<(Level, String)> {
    rdma::note(name, offers).or_else(|| ethernet_note(name, offers))
}

fn ethernet_note(name: &str, offers: &[(&str, &TransportOffer)]) -> Option<(Level, String)> {
    let raw = is_raw(offers.iter().map(|(_, offer)| *offer));
    let has_note = |offer: &TransportOffer| offer.raw_note.is_some() && offer.raw.is_some() == raw;
    let noted_offers: Vec<_> = offers.iter().filter(|(_, offer)| has_note(offer)).collect();
    let (host, offer) = noted_offers.first()?;
    let reason = offer.raw_note.as_deref().unwrap_or_default();
    let others_text = match noted_offers.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    Some(match raw {
        true => (Level::Info, format!("network {name}: host {host}{others_text}: {reason}")),
        false => {
            let text = "UDP is used instead of raw Ethernet";
            (Level::Warning, format!("network {name}: {text}: host {host}{others_text}: {reason}"))
        }
    })
}

/// The wires that a network uses, for the user.
pub fn describe_transports(offers: &[&TransportOffer]) -> String {
    let (rdma_adapters, covers_all) = rdma::adapters_in_use(offers);
    let mut parts = Vec::new();
    if !rdma_adapters.is_empty() {
        parts.push(format!("RDMA by {}", join_unique(rdma_adapters)));
    }
    if !covers_all {
        let raw = is_raw(offers.iter().copied());
        let descriptions = offers.iter().map(|offer| match &offer.raw {
            Some(raw_table) if raw => raw_table.description.as_str(),
            _ => &offer.udp.description,
        });
        parts.push(join_unique(descriptions));
    }
    parts.join(", ")
}

/// Joins distinct descriptions, at most three.
fn join_unique<'a>(descriptions: impl IntoIterator<Item = &'a str>) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for description in descriptions {
        if !unique.contains(&description) {
            unique.push(description);
        }
    }
    let shown_count = unique.len().min(3);
    let others_text = if unique.len() > shown_count { "; others" } else { "" };
    format!("{}{others_text}", unique[..shown_count].join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::transport_offer::AddressTable;
    use super::*;
    use score_proto::message::HostSpec;
    use score_proto::peer_message::{Incarnation, JobIncarnation};
    use std::net::SocketAddr;

    fn offer(raw: Option<&str>, raw_note: Option<&str>) -> TransportOffer {
        let address_table = |description: &str| AddressTable {
            encoded: Vec::new(),
            description: description.to_owned(),
        };
        let udp = address_table("UDP over eth0");
        TransportOffer {
            rdma: None,
            raw: raw.map(address_table),
            udp,
            raw_note: raw_note.map(str::to_owned),
        }
    }

    fn job(kind: HostKind, trusted: bool) -> JobSpec {
        let network = HostNetwork::new("fast", "ethernet", trusted, vec!["eth1".to_owned()]);
        let host = |name: &str| HostSpec {
            name: name.to_owned(),
            kind,
            networks: vec![network.clone()],
            ..HostSpec::local(1)
        };
        JobSpec { hosts: vec![host("a"), host("b")], ..JobSpec::default() }
    }

    fn plan_for(name: &str, spec: &JobSpec, address: &str) -> TransportPlan {
        let addr: SocketAddr = format!("{address}:9").parse().unwrap();
        let hosts =
            spec.hosts.iter().map(|host| (host.name.clone(), Some((addr, Incarnation(0))), 1));
        plan(name, spec, &Placement::new(JobIncarnation(0), hosts)).unwrap()
    }

    #[test]
    fn raw_wires_are_for_trusted_networks_and_links_of_virtual_hosts() {
        use HostKind::{Remote, Virtual};
        let raw = |kind, trusted, address: &str| {
            plan_for("fast", &job(kind, trusted), address).raw.unwrap()
        };
        assert_eq!(raw(Remote, true, "10.0.0.1"), Ok(vec!["eth1".to_owned()]));
        assert_eq!(raw(Virtual, false, "10.0.0.1"), Ok(vec!["eth1".to_owned()]));
        assert!(raw(Remote, false, "10.0.0.1").unwrap_err().contains("trusted"));
        assert!(raw(Virtual, false, "127.0.0.2").unwrap_err().contains("trusted"));
    }

    #[test]
    fn an_undescribed_network_uses_the_address_of_the_daemon() {
        let spec = job(HostKind::Remote, false);
        let plan = plan_for("agent-udp", &spec, "10.0.0.1");
        assert_eq!((plan.links, plan.raw), (vec!["10.0.0.1".to_owned()], None));
        assert!(plan_for("ethernet", &spec, "10.0.0.1").raw.unwrap().is_err());
        assert_eq!((set_names(&spec), plan.rdma), (vec!["auto".to_owned()], None));
        assert_eq!(interface("127.0.0.1"), Ok("lo".to_owned()));
        assert!(interface("192.0.2.77").unwrap_err().contains("192.0.2.77"));
    }

    #[test]
    fn rdma_is_tried_with_the_options_of_the_database_and_by_default_without_any() {
        let mut spec = job(HostKind::Remote, false);
        for host in &mut spec.hosts {
            let configured = [("level", "3"), ("device", "mlx5_1"), ("nodes", "9")];
            let configured = configured.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let ib = HostNetwork::new("ib", "verbs", false, Vec::new())
                .with_addressing(configured.into());
            host.networks.push(ib);
            let typo = HostNetwork::new("typo", "verbs", false, Vec::new())
                .with_addressing(vec![("port".to_owned(), "one".to_owned())]);
            host.networks.push(typo);
        }
        let rdma = |name| plan_for(name, &spec, "10.0.0.1").rdma;
        let plan = rdma("ib").unwrap();
        assert_eq!((plan.address.to_string(), plan.is_requested), ("10.0.0.1".to_owned(), true));
        let device = Some("mlx5_1".to_owned());
        let choice = AdapterChoice { device, service_level: 3, ..AdapterChoice::default() };
        assert_eq!(plan.adapter, Ok(choice));
        let auto = rdma("auto").unwrap();
        assert_eq!((auto.adapter, auto.is_requested), (Ok(AdapterChoice::default()), false));
        assert_eq!(rdma("typo").unwrap().adapter, Err("port=one: invalid value".to_owned()));
        assert_eq!((rdma("fast"), rdma("agent-udp")), (None, None));
    }

    #[test]
    fn one_host_without_raw_wires_is_named_and_all_hosts_use_udp() {
        let good = offer(Some("AF_XDP over eth0"), None);
        let degraded = offer(Some("AF_PACKET over eth0"), Some("no room; AF_PACKET is used"));
        let unavailable = offer(None, Some("operation not permitted"));
        assert_eq!(note("n", &[("a", &good), ("b", &good)]), None);
        assert_eq!(describe_transports(&[&good, &good]), "AF_XDP over eth0");
        assert_eq!(
            describe_transports(&[&good, &degraded]),
            "AF_XDP over eth0; AF_PACKET over eth0"
        );
        let (level, line) = note("n", &[("a", &good), ("b", &degraded)]).unwrap();
        assert_eq!(level, Level::Info);
        assert_eq!(line, "network n: host b: no room; AF_PACKET is used");
        let (level, line) =
            note("n", &[("a", &degraded), ("b", &unavailable), ("c", &unavailable)]).unwrap();
        assert_eq!(level, Level::Warning);
        let expected = "network n: UDP is used instead of raw Ethernet: host b (and 1 more): \
                      operation not permitted";
        assert_eq!(line, expected);
        assert_eq!(describe_transports(&[&good, &unavailable]), "UDP over eth0");
        assert_eq!(note("n", &[("a", &offer(None, None))]), None);
    }
}
