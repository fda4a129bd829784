//! Selects the adapter, its port and the address of the port. This module is pure: the result
//! depends only on the library's data and the options.

#![forbid(unsafe_code)]

use super::bindings::TRANSPORT_IWARP;
use super::config::AdapterChoice;

/// An adapter, as the library describes it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdapterInfo {
    pub(crate) name: String,
    /// The `enum ibv_transport_type` of its library.
    pub(crate) transport: u32,
    pub(crate) ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) is_active: bool,
    /// Whether the port is RoCE. If not, it is InfiniBand.
    pub(crate) is_ethernet: bool,
    /// The payload of a packet, in bytes.
    pub(crate) mtu: usize,
    pub(crate) lid: u16,
    pub(crate) gids: Vec<Gid>,
    pub(crate) partitions: Vec<u16>,
}

/// One of a port's addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) bytes: [u8; 16],
    /// RoCE v2, which can be routed.
    pub(crate) is_roce_v2: bool,
}

impl Gid {
    fn is_ipv4(&self) -> bool {
        let [.., ten, eleven, _, _, _, _] = self.bytes;
        self.bytes[..10] == [0; 10] && (ten, eleven) == (0xff, 0xff)
    }
}

/// The selected port and its addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectedPort {
    pub(crate) adapter: String,
    pub(crate) port: Port,
    /// The address of the port. None: InfiniBand without global addresses.
    pub(crate) gid: Option<Gid>,
    /// Index of the partition key in the port's table.
    pub(crate) partition_index: usize,
    pub(crate) service_level: u8,
}

/// The adapter and port that `wanted` selects, otherwise the first usable one.
///
/// # Errors
/// The part of the selection that does not exist.
pub(crate) fn choose(
    adapters: &[AdapterInfo],
    wanted: &AdapterChoice,
) -> Result<SelectedPort, String> {
    let is_wanted =
        |adapter: &&AdapterInfo| wanted.device.as_deref().is_none_or(|name| name == adapter.name);
    let mut reasons = Vec::new();
    for adapter in adapters.iter().filter(is_wanted) {
        match choose_port(adapter, wanted) {
            Ok(chosen) => return Ok(chosen),
            Err(why) => reasons.push(format!("{}: {why}", adapter.name)),
        }
    }
    if reasons.is_empty() {
        let names: Vec<&str> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        let name = wanted.device.as_deref().unwrap_or_default();
        reasons.push(format!("there is no adapter {name}; there are {}", names.join(", ")));
    }
    Err(reasons.join("; "))
}

fn choose_port(adapter: &AdapterInfo, wanted: &AdapterChoice) -> Result<SelectedPort, String> {
    if adapter.transport == TRANSPORT_IWARP {
        return Err("iWARP is not supported".to_owned());
    }
    let port = match wanted.port {
        Some(number) => adapter.ports.iter().find(|port| port.number == number),
        None => adapter.ports.iter().find(|port| port.is_active),
    };
    let port = match (port, wanted.port) {
        (Some(port), _) if port.is_active => port,
        (Some(port), _) => return Err(format!("port {} is not active", port.number)),
        (None, Some(number)) => return Err(format!("there is no port {number}")),
        (None, None) => return Err("no port is active".to_owned()),
    };
    let partition = match wanted.partition {
        None => Some(0),
        Some(key) => port.partitions.iter().position(|&known| known == key),
    };
    let Some(partition_index) = partition else {
        let key = wanted.partition.unwrap_or_default();
        return Err(format!("port {} is in no partition {key:#06x}", port.number));
    };
    Ok(SelectedPort {
        adapter: adapter.name.clone(),
        gid: choose_gid(port, wanted)?,
        port: port.clone(),
        partition_index,
        service_level: wanted.service_level,
    })
}

fn choose_gid(port: &Port, wanted: &AdapterChoice) -> Result<Option<Gid>, String> {
    if let Some(index) = wanted.gid {
        let known = port.gids.iter().find(|gid| gid.index == index);
        let no_such_gid = || format!("port {} has no GID {index}", port.number);
        return known.copied().map(Some).ok_or_else(no_such_gid);
    }
    if !port.is_ethernet {
        return Ok(port.gids.first().copied());
    }
    let roce_v2_gids = || port.gids.iter().filter(|gid| gid.is_roce_v2);
    let best = roce_v2_gids().find(|gid| gid.is_ipv4()).or_else(|| roce_v2_gids().next());
    let best = best.or_else(|| port.gids.first()).copied();
    best.map(Some)
        .ok_or_else(|| format!("port {} has no GID: give its link an address", port.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u8, active: bool) -> Port {
        let gid = |index, ipv4: bool, second| {
            let mut bytes = [0; 16];
            if ipv4 {
                bytes[10..].copy_from_slice(&[0xff, 0xff, 10, 9, 0, number]);
            } else {
                bytes[..2].copy_from_slice(&[0xfe, 0x80]);
            }
            Gid { index, bytes, is_roce_v2: second }
        };
        let gids = vec![gid(0, false, false), gid(1, false, true), gid(3, true, true)];
        let partitions = vec![0xffff, 0x8001];
        Port { number, is_active: active, is_ethernet: true, mtu: 1024, lid: 0, gids, partitions }
    }

    fn adapter(name: &str, ports: Vec<Port>) -> AdapterInfo {
        AdapterInfo { name: name.to_owned(), transport: 0, ports }
    }

    fn wanted(attributes: &[(&str, &str)]) -> AdapterChoice {
        let mut choice = AdapterChoice::default();
        attributes.iter().for_each(|(name, value)| choice.set(name, value).unwrap());
        choice
    }

    #[test]
    fn without_options_the_first_active_port_is_used_and_its_ipv4_gid() {
        let down = adapter("mlx5_0", vec![port(1, false)]);
        let up = adapter("mlx5_1", vec![port(1, false), port(2, true)]);
        let chosen = choose(&[down, up], &AdapterChoice::default()).unwrap();
        assert_eq!((chosen.adapter.as_str(), chosen.port.number), ("mlx5_1", 2));
        assert_eq!(
            (chosen.gid.unwrap().index, chosen.partition_index, chosen.service_level),
            (3, 0, 0)
        );
        let mut infiniband = adapter("ib0", vec![port(1, true)]);
        infiniband.ports[0].is_ethernet = false;
        let chosen = choose(&[infiniband], &AdapterChoice::default()).unwrap();
        assert_eq!(chosen.gid.unwrap().index, 0);
    }

    #[test]
    fn an_iwarp_adapter_is_passed_over_and_named_in_the_error() {
        let mut iwarp = adapter("siw0", vec![port(1, true)]);
        iwarp.transport = TRANSPORT_IWARP;
        let roce = adapter("rxe0", vec![port(1, true)]);
        let any = AdapterChoice::default();
        assert_eq!(choose(&[iwarp.clone(), roce], &any).unwrap().adapter, "rxe0");
        let by_name = wanted(&[("device", "siw0")]);
        for options in [any, by_name] {
            let why = choose(std::slice::from_ref(&iwarp), &options).unwrap_err();
            assert_eq!(why, "siw0: iWARP is not supported");
        }
    }

    // Promise of `the_device_opens_if_there_is_an_adapter_and_reports_the_reason_otherwise`.
    #[test]
    fn options_choose_each_part_and_a_missing_one_is_named_in_the_error() {
        let adapters = [adapter("a", vec![port(1, true), port(2, false)]), adapter("b", vec![])];
        let choose_with = |attributes: &[(&str, &str)]| choose(&adapters, &wanted(attributes));
        let chosen =
            choose_with(&[("port", "1"), ("gid", "1"), ("partition", "8001"), ("level", "3")]);
        let chosen = chosen.unwrap();
        assert_eq!(
            (chosen.gid.unwrap().index, chosen.partition_index, chosen.service_level),
            (1, 1, 3)
        );
        for (attributes, why) in [
            (&[("device", "c")][..], "there is no adapter c; there are a, b"),
            (&[("device", "b")], "b: no port is active"),
            (&[("device", "a"), ("port", "2")], "a: port 2 is not active"),
            (&[("device", "a"), ("port", "3")], "a: there is no port 3"),
            (&[("device", "a"), ("gid", "2")], "a: port 1 has no GID 2"),
            (&[("device", "a"), ("partition", "1")], "a: port 1 is in no partition 0x0001"),
            (&[("port", "7")], "a: there is no port 7; b: there is no port 7"),
        ] {
            assert_eq!(choose_with(attributes).unwrap_err(), why);
        }
    }
}
