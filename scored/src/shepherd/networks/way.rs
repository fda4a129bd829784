//! One network of a job on one host: by which wires other hosts are reached over it. What is
//! allowed and what works may differ from host to host; every host offers what it has, and all
//! take what all have.

use std::net::{IpAddr, Ipv4Addr};

use nix::ifaddrs::getifaddrs;
use score_proto::message::{HostKind, JobSpec, Level};
use score_proto::network::{ADDRESSING, AUTO, HostNetwork, NetworkWire, SHMEM, UDP};
use score_proto::order::Placement;
use serde::{Deserialize, Serialize};

use super::rdma::{self, Rdma};

/// What is to be opened for one network set on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The network's name.
    pub name: String,
    /// What UDP goes over: interfaces or addresses.
    pub links: Vec<String>,
    /// The interfaces for raw Ethernet; why not, where it was asked for; nothing where it was not.
    pub raw: Option<Result<Vec<String>, String>>,
    /// How RDMA is tried; nothing where it is not.
    pub rdma: Option<rdma::Plan>,
}

/// What one host offers for one network set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// RDMA, if it is to be tried.
    pub rdma: Option<Rdma>,
    /// Raw Ethernet, if there is.
    pub raw: Option<Reached>,
    /// UDP.
    pub udp: Reached,
    /// Why raw Ethernet is not there, or not as good as it might be.
    pub why: Option<String>,
}

/// Where the nodes of a host are reached by one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// As the device says it; opaque.
    pub table: Vec<u8>,
    /// Its wires and links, for people.
    pub wires: String,
}

/// The name of each network set.
pub fn names(spec: &JobSpec) -> Vec<String> {
    let bare = match &spec.hosts[..] {
        [] | [_] => SHMEM,
        hosts if hosts.iter().all(|host| host.kind == HostKind::Virtual) => UDP,
        _ => AUTO,
    };
    match spec.networks.is_empty() {
        true => vec![bare.to_owned()],
        false => spec.networks.clone(),
    }
}

/// What is to be opened here for the network of that name.
///
/// # Errors
/// This host is not on it.
pub fn plan(name: &str, spec: &JobSpec, placement: &Placement) -> Result<Plan, String> {
    let host = spec.hosts.get(placement.own as usize).ok_or("this host is none of the job's")?;
    let network = host.network(name);
    let network = network.ok_or_else(|| format!("host {} is not on network {name}", host.name))?;
    let address = placement.here().and_then(|here| here.address).map(|at| at.ip());
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    // Virtual hosts without namespaces have addresses on the loopback link, and no other.
    let is_bare = host.kind == HostKind::Virtual && address.is_loopback();
    let links = match network.links.is_empty() || is_bare {
        true => vec![address.to_string()],
        false => network.links.clone(),
    };
    let owns_links = host.kind == HostKind::Virtual && !is_bare;
    let raw = (network.wire == NetworkWire::Raw).then(|| {
        let allowed = network.trusted || owns_links;
        if allowed { links.iter().map(|link| interface(link)).collect() } else { refusal(&network) }
    });
    let asked = network.wire == NetworkWire::Verbs;
    let rdma = (asked || network.wire == NetworkWire::Auto).then(|| rdma::Plan {
        address,
        options: options(&network),
        asked,
    });
    Ok(Plan { name: name.to_owned(), links, raw, rdma })
}

/// What the database says of the adapter, as options of the device.
fn options(network: &HostNetwork) -> Vec<String> {
    let said = |name: &&str| network.addressing.iter().find(|(known, _)| known == name);
    let pairs = ADDRESSING.iter().filter_map(said);
    pairs.flat_map(|(name, value)| [format!("-{name}"), value.clone()]).collect()
}

/// The interfaces of each network set of a job that raw Ethernet goes by here; none where it is not
/// that, or may not be.
pub fn raw_links(spec: &JobSpec, placement: &Placement) -> Vec<Vec<String>> {
    let links = |name: &String| match plan(name, spec, placement) {
        Ok(Plan { raw: Some(Ok(links)), .. }) => links,
        _ => Vec::new(),
    };
    names(spec).iter().map(links).collect()
}

/// A raw socket in a user's process can read and forge everything on its link.
fn refusal<T>(network: &HostNetwork) -> Result<T, String> {
    Err(match network.links.is_empty() {
        true => "scorehosts.db describes no network of that name that it marks trusted".to_owned(),
        false => {
            "scorehosts.db does not mark it trusted, nor does the job own its links".to_owned()
        }
    })
}

/// The name of an interface, for its name or its address.
fn interface(link: &str) -> Result<String, String> {
    let Ok(address) = link.parse::<IpAddr>() else { return Ok(link.to_owned()) };
    let all = getifaddrs().map_err(|error| format!("the interfaces: {error}"))?;
    let has = |one: &nix::ifaddrs::InterfaceAddress| {
        let socket = one.address.as_ref();
        let four = socket.and_then(|at| at.as_sockaddr_in()).map(|at| IpAddr::V4(at.ip()));
        let six = || socket.and_then(|at| at.as_sockaddr_in6()).map(|at| IpAddr::V6(at.ip()));
        four.or_else(six) == Some(address)
    };
    let found = all.into_iter().find(has).map(|one| one.interface_name);
    found.ok_or_else(|| format!("no interface has the address {address}"))
}

/// Whether all hosts go by raw Ethernet: UDP and that do not understand each other.
pub fn is_raw<'a>(offers: impl IntoIterator<Item = &'a Offer>) -> bool {
    offers.into_iter().all(|offer| offer.raw.is_some())
}

/// Where all nodes are reached by ethernet.
pub fn table(offers: &[&Offer], raw: bool) -> Vec<u8> {
    let reached = |offer: &&Offer| offer.raw.clone().filter(|_| raw).unwrap_or(offer.udp.clone());
    offers.iter().flat_map(|offer| reached(offer).table).collect()
}

/// What the user has to know of the wires of a network: at most one line. `offers`: by host name.
pub fn note(name: &str, offers: &[(&str, &Offer)]) -> Option<(Level, String)> {
    rdma::note(name, offers).or_else(|| note_of_ethernet(name, offers))
}

fn note_of_ethernet(name: &str, offers: &[(&str, &Offer)]) -> Option<(Level, String)> {
    let raw = is_raw(offers.iter().map(|(_, offer)| *offer));
    let speaks = |offer: &Offer| offer.why.is_some() && offer.raw.is_some() == raw;
    let those: Vec<_> = offers.iter().filter(|(_, offer)| speaks(offer)).collect();
    let (host, offer) = those.first()?;
    let why = offer.why.as_deref().unwrap_or_default();
    let more = match those.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    Some(match raw {
        true => (Level::Info, format!("network {name}: host {host}{more}: {why}")),
        false => {
            let text = "UDP is used instead of raw Ethernet";
            (Level::Warning, format!("network {name}: {text}: host {host}{more}: {why}"))
        }
    })
}

/// The wires that a network uses, for people.
pub fn wires(offers: &[&Offer]) -> String {
    let (adapters, everywhere) = rdma::wires(offers);
    let mut parts = Vec::new();
    if !adapters.is_empty() {
        parts.push(format!("RDMA by {}", listed(adapters)));
    }
    if !everywhere {
        let raw = is_raw(offers.iter().copied());
        let wires = offers.iter().map(|offer| match &offer.raw {
            Some(reached) if raw => reached.wires.as_str(),
            _ => &offer.udp.wires,
        });
        parts.push(listed(wires));
    }
    parts.join(", ")
}

/// Each once, and three at most.
fn listed<'a>(wires: impl IntoIterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = Vec::new();
    for wires in wires {
        if !all.contains(&wires) {
            all.push(wires);
        }
    }
    let shown = all.len().min(3);
    let more = if all.len() > shown { "; others" } else { "" };
    format!("{}{more}", all[..shown].join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::message::{HostSpec, OsBytes};
    use std::net::SocketAddr;

    fn offer(raw: Option<&str>, why: Option<&str>) -> Offer {
        let reached = |wires: &str| Reached { table: Vec::new(), wires: wires.to_owned() };
        let udp = reached("UDP over eth0");
        Offer { rdma: None, raw: raw.map(reached), udp, why: why.map(str::to_owned) }
    }

    fn job(kind: HostKind, trusted: bool) -> JobSpec {
        let network = HostNetwork::new("fast", "ethernet", trusted, vec!["eth1".to_owned()]);
        let host = |name: &str| HostSpec {
            name: name.to_owned(),
            kind,
            networks: vec![network.clone()],
            ..HostSpec::this(1)
        };
        JobSpec {
            hosts: vec![host("a"), host("b")],
            stages: Vec::new(),
            environment: Vec::new(),
            directory: OsBytes(Vec::new()),
            umask: 0,
            options: Vec::new(),
            statistics: false,
            stdin: false,
            separate: false,
            networks: Vec::new(),
            sets: 0,
        }
    }

    fn planned(name: &str, spec: &JobSpec, address: &str) -> Plan {
        let at: SocketAddr = format!("{address}:9").parse().unwrap();
        let hosts = spec.hosts.iter().map(|host| (host.name.clone(), Some((at, 0)), 1));
        plan(name, spec, &Placement::new(0, hosts)).unwrap()
    }

    #[test]
    fn raw_wires_are_for_trusted_networks_and_links_of_virtual_hosts() {
        use HostKind::{Other, Virtual};
        let raw = |kind, trusted, address: &str| {
            planned("fast", &job(kind, trusted), address).raw.unwrap()
        };
        assert_eq!(raw(Other, true, "10.0.0.1"), Ok(vec!["eth1".to_owned()]));
        assert_eq!(raw(Virtual, false, "10.0.0.1"), Ok(vec!["eth1".to_owned()]));
        assert!(raw(Other, false, "10.0.0.1").unwrap_err().contains("trusted"));
        assert!(raw(Virtual, false, "127.0.0.2").unwrap_err().contains("trusted"));
    }

    #[test]
    fn what_nobody_describes_goes_by_the_address_of_the_daemon() {
        let spec = job(HostKind::Other, false);
        let plan = planned("agent-udp", &spec, "10.0.0.1");
        assert_eq!((plan.links, plan.raw), (vec!["10.0.0.1".to_owned()], None));
        assert!(planned("ethernet", &spec, "10.0.0.1").raw.unwrap().is_err());
        assert_eq!((names(&spec), plan.rdma), (vec!["auto".to_owned()], None));
        assert_eq!(interface("127.0.0.1"), Ok("lo".to_owned()));
        assert!(interface("192.0.2.77").unwrap_err().contains("192.0.2.77"));
    }

    #[test]
    fn rdma_is_tried_as_the_database_addresses_it_and_by_itself_where_nothing_is_said() {
        let mut spec = job(HostKind::Other, false);
        for host in &mut spec.hosts {
            let said = [("level", "3"), ("device", "mlx5_1"), ("nodes", "9")];
            let said = said.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let ib = HostNetwork::new("ib", "verbs", false, Vec::new()).addressed(said.into());
            host.networks.push(ib);
        }
        let rdma = |name| planned(name, &spec, "10.0.0.1").rdma;
        let plan = rdma("ib").unwrap();
        assert_eq!((plan.address.to_string(), plan.asked), ("10.0.0.1".to_owned(), true));
        assert_eq!(plan.options, ["-device", "mlx5_1", "-level", "3"]);
        assert!(rdma("auto").is_some_and(|plan| !plan.asked && plan.options.is_empty()));
        assert_eq!((rdma("fast"), rdma("agent-udp")), (None, None));
    }

    #[test]
    fn one_host_without_raw_wires_is_named_and_all_take_udp() {
        let good = offer(Some("AF_XDP over eth0"), None);
        let lesser = offer(Some("AF_PACKET over eth0"), Some("no room; AF_PACKET is used"));
        let bad = offer(None, Some("operation not permitted"));
        assert_eq!(note("n", &[("a", &good), ("b", &good)]), None);
        assert_eq!(wires(&[&good, &good]), "AF_XDP over eth0");
        assert_eq!(wires(&[&good, &lesser]), "AF_XDP over eth0; AF_PACKET over eth0");
        let (level, line) = note("n", &[("a", &good), ("b", &lesser)]).unwrap();
        assert_eq!(level, Level::Info);
        assert_eq!(line, "network n: host b: no room; AF_PACKET is used");
        let (level, line) = note("n", &[("a", &lesser), ("b", &bad), ("c", &bad)]).unwrap();
        assert_eq!(level, Level::Warning);
        let wanted = "network n: UDP is used instead of raw Ethernet: host b (and 1 more): \
                      operation not permitted";
        assert_eq!(line, wanted);
        assert_eq!(wires(&[&good, &bad]), "UDP over eth0");
        assert_eq!(note("n", &[("a", &offer(None, None))]), None);
    }
}
