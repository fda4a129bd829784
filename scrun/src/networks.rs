//! The networks of a job (manual 4.1, SCORE_RSRC_NUM_NETS; scrun(1), `network`): one network of its
//! hosts for each network set.

use crate::options::ScrunOptions;
use crate::usage::{ErrorPosition, StartError};
use score_hosts::{Host, HostInterface};
use score_proto::message::HostSpec;
use score_proto::network::{ETHERNET, HostNetwork, UDP};
use score_proto::network_choice::choose;

/// The networks that the option names, in this order. Empty if the option is not given.
pub fn requested_networks(options: &ScrunOptions) -> Vec<String> {
    let value = options.get("network").and_then(|given| given.value.as_deref());
    value.into_iter().flat_map(|value| value.split('+').map(str::to_owned)).collect()
}

/// Selects the networks of a job on these hosts, with programs that request `sets` network sets.
///
/// # Errors
/// An unknown network, a network that a host is not on, or too few networks.
pub fn select_networks(
    options: &ScrunOptions,
    hosts: &[HostSpec],
    sets: u32,
) -> Result<Vec<String>, StartError> {
    let names = requested_networks(options);
    choose(hosts, &names, sets).map_err(|line| match options.get("network") {
        Some(given) => {
            let value = given.value.as_deref().unwrap_or_default();
            // The network that the message names, or the first one.
            let network = names.iter().find(|name| line.contains(&format!("{name:?}")));
            let offset = network.and_then(|name| value.find(name.as_str())).unwrap_or(0);
            StartError::usage(given.in_value(offset), format!("network={value}: {line}"))
        }
        None => StartError::usage(ErrorPosition::Unspecified, line),
    })
}

/// The networks of a host: the networks of its record in the database or of its scout session. A
/// virtual host without any has the networks of its links.
pub fn host_networks(host: &Host, links: u32) -> Vec<HostNetwork> {
    if host.is_virtual && host.interfaces.is_empty() {
        return virtual_host_networks(links);
    }
    let endpoints = host.interfaces.iter();
    endpoints.map(endpoint_network).collect()
}

fn endpoint_network(end: &HostInterface) -> HostNetwork {
    let network = HostNetwork::new(&end.network, &end.device, end.trusted, end.links.clone());
    network.with_addressing(end.addressing.clone())
}

/// The inverse of [`host_networks`], for a host of a scout session.
pub fn endpoints(networks: &[HostNetwork]) -> Vec<HostInterface> {
    let end = |network: &HostNetwork| HostInterface {
        network: network.name.clone(),
        device: network.device().to_owned(),
        trusted: network.trusted,
        links: network.links.clone(),
        addressing: network.addressing.clone(),
    };
    networks.iter().map(end).collect()
}

/// Two networks that are a trunk of all links: one by UDP, one by raw packets. If there are several
/// links, each is also a network of its own, by UDP.
fn virtual_host_networks(links: u32) -> Vec<HostNetwork> {
    let link = |number: u32| format!("eth{number}");
    let all_links: Vec<String> = (0..links).map(link).collect();
    let trunk = |name| HostNetwork::new(name, name, false, all_links.clone());
    let single = |number| HostNetwork::new(&format!("net{number}"), UDP, false, vec![link(number)]);
    let singles = (0..links).filter(|_| links > 1).map(single);
    [trunk(UDP), trunk(ETHERNET)].into_iter().chain(singles).collect()
}

/// The number of links of each virtual host. scored rejects invalid numbers.
pub fn links(options: &ScrunOptions) -> u32 {
    let value = options.get("links").and_then(|given| given.value.as_deref());
    let links = value.and_then(|value| value.parse().ok()).unwrap_or(1);
    links.clamp(1, u32::from(score_proto::network::MAX_LINKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_hosts_have_a_trunk_over_udp_and_raw_ethernet_and_single_links() {
        let host = Host { is_virtual: true, ..Host::default() };
        let networks_of = |links| {
            let networks = host_networks(&host, links).into_iter();
            networks
                .map(|network| format!("{} {}", network.name, network.links.join("+")))
                .collect::<Vec<_>>()
        };
        assert_eq!(networks_of(1), ["agent-udp eth0", "ethernet eth0"]);
        assert_eq!(
            networks_of(2),
            ["agent-udp eth0+eth1", "ethernet eth0+eth1", "net0 eth0", "net1 eth1"]
        );
        let session = Host { interfaces: endpoints(&host_networks(&host, 3)), ..host.clone() };
        assert_eq!(host_networks(&session, 1), host_networks(&host, 3));
    }
}
