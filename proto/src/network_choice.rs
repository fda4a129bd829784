//! The networks that a job uses, one for each network set (manual 2.1, scrun(1) `network`).

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::message::{HostKind, HostSpec};
use crate::network::{AUTO, ETHERNET, HostNetwork, MAX_LINKS, NetworkTransport, SHMEM, UDP, VERBS};

/// Largest number of network sets of one program.
pub const MAX_SETS: usize = 16;

/// The networks that every host is on without any configuration.
const ALWAYS_AVAILABLE: [&str; 4] = [UDP, ETHERNET, VERBS, AUTO];

impl HostSpec {
    /// A host's entry for a network, which is configured or available everywhere.
    pub fn network(&self, name: &str) -> Option<Cow<'_, HostNetwork>> {
        let described = self.networks.iter().find(|network| network.name == name);
        let always_available = || {
            ALWAYS_AVAILABLE
                .contains(&name)
                .then(|| Cow::Owned(HostNetwork::new(name, name, false, Vec::new())))
        };
        described.map(Cow::Borrowed).or_else(always_available)
    }

    /// The names of the networks that the host is on.
    fn network_names(&self) -> impl Iterator<Item = &str> {
        let described = self.networks.iter().map(|network| network.name.as_str());
        described.chain(ALWAYS_AVAILABLE)
    }
}

/// Chooses the networks of a job, one for each network set. `requested`: the user's choice.
/// `min_sets`: the number of sets that the programs request.
///
/// # Errors
/// One line that names the wrong word and the valid words, or both numbers.
pub fn choose(
    hosts: &[HostSpec],
    requested: &[String],
    min_sets: u32,
) -> Result<Vec<String>, String> {
    let sets = (min_sets as usize).max(1);
    if sets > MAX_SETS || requested.len() > MAX_SETS {
        let count = sets.max(requested.len());
        return Err(format!("{count} network sets: {MAX_SETS} are the most"));
    }
    if !requested.is_empty() {
        requested.iter().try_for_each(|name| check_network(hosts, name))?;
        if requested.len() < sets {
            let count = requested.len();
            let plural = if count == 1 { "" } else { "s" };
            return Err(format!(
                "{sets} network sets are requested (SCORE_RSRC_NUM_NETS({sets})), but {count} \
                 network{plural} named; a network may be named twice (network={0}+{0})",
                requested[0]
            ));
        }
        return Ok(requested.to_vec());
    }
    if hosts.len() < 2 {
        return Ok(vec![SHMEM.to_owned(); sets]);
    }
    let shared = common_networks(hosts);
    // Virtual hosts simulate a network, and have no hardware of their own.
    if hosts.iter().all(|host| host.kind == HostKind::Virtual) {
        return Ok(vec![UDP.to_owned(); sets]);
    }
    // Without configured networks, UDP reaches every host and can be used for any number of sets.
    // Faster hardware should be used if it is installed.
    if shared.is_empty() {
        return Ok(vec![AUTO.to_owned(); sets]);
    }
    if shared.len() < sets {
        let (count, list) = (shared.len(), shared.join(", "));
        return Err(format!(
            "{sets} network sets are requested (SCORE_RSRC_NUM_NETS({sets})), but the hosts share \
             {count} ({list}); network={0}+{0} uses one for two sets",
            shared[0]
        ));
    }
    let chosen: Vec<String> = shared.into_iter().take(sets).collect();
    chosen.iter().try_for_each(|name| check_network(hosts, name))?;
    Ok(chosen)
}

/// The configured networks that all hosts are on and whose device PM supports, in the order of the
/// first host.
fn common_networks(hosts: &[HostSpec]) -> Vec<String> {
    let Some((first, others)) = hosts.split_first() else { return Vec::new() };
    let is_on =
        |host: &HostSpec, name: &str| host.networks.iter().any(|network| network.name == name);
    let usable = |network: &&HostNetwork| {
        !matches!(network.transport, NetworkTransport::Unsupported(_))
            && others.iter().all(|host| is_on(host, &network.name))
    };
    first.networks.iter().filter(usable).map(|network| network.name.clone()).collect()
}

/// The host in messages. The machine on which the job is submitted has no name.
fn host_label(host: &HostSpec) -> String {
    if host.name.is_empty() { "this host".to_owned() } else { format!("host {}", host.name) }
}

/// Checks that all hosts are on a network, each with the same number of links.
fn check_network(hosts: &[HostSpec], name: &str) -> Result<(), String> {
    if name == SHMEM {
        return match hosts.len() {
            0 | 1 => Ok(()),
            count => Err(format!("{SHMEM} reaches only one host, and the job has {count} hosts")),
        };
    }
    let mut links: Option<(&HostSpec, usize)> = None;
    for host in hosts {
        let label = host_label(host);
        let Some(network) = host.network(name) else {
            let known = hosts.iter().any(|host| host.network(name).is_some());
            let mut names: BTreeSet<&str> = match known {
                true => host.network_names().collect(),
                false => hosts.iter().flat_map(HostSpec::network_names).collect(),
            };
            if hosts.len() < 2 {
                names.insert(SHMEM);
            }
            let list = names.into_iter().collect::<Vec<_>>().join(", ");
            return Err(match known {
                true => format!("{label} is not on the network {name:?}; it is on: {list}"),
                false => format!("unknown network {name:?}; there are: {list}"),
            });
        };
        match &network.transport {
            NetworkTransport::Unsupported(device) if device == SHMEM => {
                return check_network(hosts, SHMEM);
            }
            NetworkTransport::Unsupported(device) => {
                return Err(format!("network {name}: PM has no device {device} here"));
            }
            NetworkTransport::Udp
            | NetworkTransport::Raw
            | NetworkTransport::Verbs
            | NetworkTransport::Auto => {}
        }
        let count = network.links.len();
        if count > usize::from(MAX_LINKS) {
            return Err(format!(
                "network {name}: {label} has {count} links; the limit is {MAX_LINKS}"
            ));
        }
        match links {
            Some((first, first_count)) if first_count.max(1) != count.max(1) => {
                return Err(format!(
                    "network {name}: {} has {} links, but {label} has {}; a trunk needs the same \
                     number on every host",
                    host_label(first),
                    first_count.max(1),
                    count.max(1)
                ));
            }
            _ => links = Some((host, count)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, networks: &[(&str, &str, usize)]) -> HostSpec {
        let network = |(name, device, links): &(&str, &str, usize)| {
            let links = (0..*links).map(|link| format!("eth{link}")).collect();
            HostNetwork::new(name, device, false, links)
        };
        HostSpec {
            name: name.to_owned(),
            kind: HostKind::Remote,
            networks: networks.iter().map(network).collect(),
            ..HostSpec::local(1)
        }
    }

    fn named(words: &str) -> Vec<String> {
        words.split('+').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    fn pair() -> [HostSpec; 2] {
        let all = [("slow", ETHERNET, 1), ("old", "myrinet", 0), ("fast", UDP, 2)];
        [host("a", &all), host("b", &[("fast", UDP, 2), ("slow", ETHERNET, 1), ("mine", UDP, 1)])]
    }

    // Promise of `raw_ethernet_carries_a_job_on_virtual_hosts`.
    #[test]
    fn the_first_common_networks_are_used_unless_the_user_names_others() {
        let choose_for = |words: &str, sets| choose(&pair(), &named(words), sets);
        assert_eq!(choose_for("", 0), Ok(named("slow")));
        assert_eq!(choose_for("", 2), Ok(named("slow+fast")));
        assert_eq!(choose_for("fast+slow+fast", 1), Ok(named("fast+slow+fast")));
        assert_eq!(choose_for("agent-udp+ethernet", 2), Ok(named("agent-udp+ethernet")));
    }

    #[test]
    fn undescribed_hosts_get_the_automatic_network_and_a_single_host_shared_memory() {
        let plain = [host("a", &[]), host("b", &[("x", UDP, 1)])];
        assert_eq!(choose(&plain, &[], 3), Ok(vec![AUTO.to_owned(); 3]));
        assert_eq!(choose(&plain, &named("verbs+auto"), 1), Ok(named("verbs+auto")));
        let mut virtual_hosts = plain.clone();
        virtual_hosts.iter_mut().for_each(|host| host.kind = HostKind::Virtual);
        assert_eq!(choose(&virtual_hosts, &[], 2), Ok(vec![UDP.to_owned(); 2]));
        assert_eq!(choose(&plain[..1], &[], 2), Ok(vec![SHMEM.to_owned(); 2]));
        assert_eq!(choose(&plain[..1], &named("shmem+ethernet"), 2), Ok(named("shmem+ethernet")));
        let links = |name| plain[0].network(name).map(|network| network.links.clone());
        assert_eq!((links(ETHERNET), links("x")), (Some(Vec::new()), None));
    }

    #[test]
    fn an_impossible_choice_is_refused_with_the_word_and_the_alternatives() {
        let odd = [host("a", &[("t", ETHERNET, 2)]), host("b", &[("t", ETHERNET, 1)])];
        let wide = [host("a", &[("t", ETHERNET, 9)]), host("b", &[("t", ETHERNET, 9)])];
        let one = [host("", &[])];
        for (hosts, words, sets, parts) in [
            (
                &pair()[..],
                "fats",
                1,
                &["\"fats\"", "agent-udp, auto, ethernet, fast, mine, old, slow, verbs"][..],
            ),
            (&pair(), "mine", 1, &["host a", "not on", "\"mine\""]),
            (&pair(), "old", 1, &["old", "no device myrinet"]),
            (&pair(), "fast", 3, &["3 network sets", "1 network named", "fast+fast"]),
            (&pair(), "", 3, &["3 network sets", "share 2 (slow, fast)"]),
            (&pair(), "shmem", 1, &["shmem", "one host", "2"]),
            (&pair()[..1], "old", 1, &["old", "no device myrinet"]),
            (&odd, "t", 1, &["host a has 2 links", "host b has 1"]),
            (&odd, "", 1, &["host a has 2 links"]),
            (&wide, "t", 1, &["9 links; the limit is 8"]),
            (&one, "t", 1, &["unknown network \"t\"", "agent-udp, auto, ethernet, shmem, verbs"]),
            (&one, "", 17, &["17 network sets: 16"]),
        ] {
            let line = choose(hosts, &named(words), sets).unwrap_err();
            assert!(parts.iter().all(|part| line.contains(part)), "{words}: {line}");
        }
    }

    #[test]
    fn a_network_of_only_one_of_the_hosts_is_not_chosen() {
        let first = host("a", &[("mine", UDP, 1), ("fast", UDP, 1)]);
        let hosts = [first, host("b", &[("fast", UDP, 1)])];
        assert_eq!(choose(&hosts, &[], 1), Ok(named("fast")));
    }

    #[test]
    fn the_largest_numbers_of_sets_and_links_are_accepted() {
        let one = [host("a", &[])];
        let most = vec![SHMEM.to_owned(); MAX_SETS];
        assert_eq!(choose(&one, &[], MAX_SETS as u32).as_ref(), Ok(&most));
        assert_eq!(choose(&one, &most, 1).as_ref(), Ok(&most));
        let too_many = vec![SHMEM.to_owned(); MAX_SETS + 1];
        let reason = "17 network sets: 16 are the most".to_owned();
        assert_eq!(choose(&one, &too_many, 1), Err(reason));
        let wide = [("t", ETHERNET, usize::from(MAX_LINKS))];
        assert_eq!(choose(&[host("a", &wide), host("b", &wide)], &[], 1), Ok(named("t")));
    }

    #[test]
    fn a_configured_network_of_shared_memory_reaches_only_one_host() {
        let networks = [("local", SHMEM, 0)];
        let hosts = [host("a", &networks), host("b", &networks)];
        assert_eq!(choose(&hosts[..1], &named("local"), 1), Ok(named("local")));
        let line = choose(&hosts, &named("local"), 1).unwrap_err();
        assert!(line.starts_with("shmem reaches only one host"), "{line}");
    }
}
