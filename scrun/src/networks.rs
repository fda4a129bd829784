//! The networks of a job (manual 4.1, SCORE_RSRC_NUM_NETS; scrun(1), `network`): which of those
//! that its hosts are on, one for each network set.

use crate::options::Options;
use crate::usage::{Place, Refusal};
use score_hosts::{End, Host};
use score_proto::message::HostSpec;
use score_proto::network::{HostNetwork, RAW, UDP, choose};

/// What the option names, in its order; nothing where it is not given.
pub fn named(options: &Options) -> Vec<String> {
    let value = options.get("network").and_then(|given| given.value.as_deref());
    value.into_iter().flat_map(|value| value.split('+').map(str::to_owned)).collect()
}

/// The networks of a job on these hosts, whose programs ask for so many network sets.
///
/// # Errors
/// A network that is unknown, or that a host is not on; too few of them.
pub fn settle(options: &Options, hosts: &[HostSpec], sets: u32) -> Result<Vec<String>, Refusal> {
    let names = named(options);
    choose(hosts, &names, sets).map_err(|line| match options.get("network") {
        Some(given) => {
            let value = given.value.as_deref().unwrap_or_default();
            // The word that the line is about, else the first.
            let at = names.iter().find(|name| line.contains(&format!("{name:?}")));
            let at = at.and_then(|name| value.find(name.as_str())).unwrap_or(0);
            Refusal::usage(given.in_value(at), format!("network={value}: {line}"))
        }
        None => Refusal::usage(Place::Nowhere, line),
    })
}

/// The networks that a host is on: those that the database, or its scout session, gives it; else
/// for a virtual one those that its links make.
pub fn of_host(host: &Host, links: u32) -> Vec<HostNetwork> {
    if host.is_virtual && host.ends.is_empty() {
        return of_virtual_host(links);
    }
    let ends = host.ends.iter();
    ends.map(of_end).collect()
}

fn of_end(end: &End) -> HostNetwork {
    let network = HostNetwork::new(&end.network, &end.device, end.trusted, end.links.clone());
    network.addressed(end.addressing.clone())
}

/// The way back, for a host of a scout session.
pub fn ends(networks: &[HostNetwork]) -> Vec<End> {
    let end = |network: &HostNetwork| End {
        network: network.name.clone(),
        device: network.device().to_owned(),
        trusted: network.trusted,
        links: network.links.clone(),
        addressing: network.addressing.clone(),
    };
    networks.iter().map(end).collect()
}

/// All links as one trunk, by UDP or raw; with several links also each for itself, by UDP.
fn of_virtual_host(links: u32) -> Vec<HostNetwork> {
    let link = |number: u32| format!("eth{number}");
    let all: Vec<String> = (0..links).map(link).collect();
    let trunk = |name| HostNetwork::new(name, name, false, all.clone());
    let single = |number| HostNetwork::new(&format!("net{number}"), UDP, false, vec![link(number)]);
    let singles = (0..links).filter(|_| links > 1).map(single);
    [trunk(UDP), trunk(RAW)].into_iter().chain(singles).collect()
}

/// The links of each virtual host. A number that cannot be is scored's to refuse.
pub fn links(options: &Options) -> u32 {
    let value = options.get("links").and_then(|given| given.value.as_deref());
    let links = value.and_then(|value| value.parse().ok()).unwrap_or(1);
    links.clamp(1, u32::from(score_proto::wire::MAX_LINKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_hosts_have_a_trunk_by_udp_and_raw_and_each_link_for_itself() {
        let host = Host { is_virtual: true, ..Host::default() };
        let shown = |links| {
            let of_one = of_host(&host, links).into_iter();
            of_one.map(|one| format!("{} {}", one.name, one.links.join("+"))).collect::<Vec<_>>()
        };
        assert_eq!(shown(1), ["agent-udp eth0", "ethernet eth0"]);
        assert_eq!(
            shown(2),
            ["agent-udp eth0+eth1", "ethernet eth0+eth1", "net0 eth0", "net1 eth1"]
        );
        let session = Host { ends: ends(&of_host(&host, 3)), ..host.clone() };
        assert_eq!(of_host(&session, 1), of_host(&host, 3));
    }
}
