//! Names and addresses of this host, which daemons use to reach each other.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use score_sys::host_name::system_host_name;

/// The variable in which Slurm passes the name of a task's node.
const SLURM_NODE_ENV: &str = "SLURMD_NODENAME";

/// The addresses at which other hosts can reach this one: those of all interfaces that are up, IPv4
/// first. Loopback addresses are included only if there are no others.
pub fn local_addresses() -> Vec<IpAddr> {
    let required_flags = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let mut found: Vec<IpAddr> = getifaddrs()
        .into_iter()
        .flatten()
        .filter(|interface| interface.flags.contains(required_flags))
        .filter_map(|interface| {
            let address = interface.address?;
            let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
            four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
        })
        .filter(|address| !is_link_local(address))
        .collect();
    let has_non_loopback = found.iter().any(|address| !address.is_loopback());
    found.retain(|address| !has_non_loopback || !address.is_loopback());
    found.sort_by_key(IpAddr::is_ipv6);
    found.dedup();
    found
}

/// Whether an address is link-local. Such an address cannot be used without a scope on other hosts.
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    }
}

/// The name of this host for a daemon that was not given one: the name assigned by the batch
/// system, or else the host name.
pub fn local_name() -> String {
    let node = std::env::var(SLURM_NODE_ENV).ok().filter(|name| !name.is_empty());
    node.unwrap_or_else(system_host_name)
}

/// The position of a host in `names`. If no name matches in full, compares the parts in front of
/// the first dot; exactly one host must match then.
pub fn position_of(host_name: &str, names: &[String]) -> Option<usize> {
    if let Some(exact) = names.iter().position(|name| name.eq_ignore_ascii_case(host_name)) {
        return Some(exact);
    }
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let short_name = short(host_name);
    let mut matches = names
        .iter()
        .enumerate()
        .filter(|(_, name)| !short_name.is_empty() && short(name) == short_name);
    match (matches.next(), matches.next()) {
        (Some((position, _)), None) => Some(position),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_identified_by_its_full_or_its_short_name() {
        let names = ["n1.site", "n2", "a.x", "a.y"].map(String::from);
        assert_eq!(position_of("n1.site", &names), Some(0));
        assert_eq!(position_of("N1", &names), Some(0));
        assert_eq!(position_of("n2.site", &names), Some(1));
        assert_eq!(position_of("a.y", &names), Some(3));
        assert_eq!(position_of("a", &names), None);
        assert_eq!(position_of("", &names), None);
        assert_eq!(position_of("n3", &names), None);
    }

    #[test]
    fn this_host_has_a_name_and_an_address_without_scope() {
        assert!(!local_name().is_empty());
        assert!(local_addresses().iter().all(|address| !is_link_local(address)));
    }
}
