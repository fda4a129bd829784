//! Which port of which adapter is used, and how it is addressed. Pure: from what the library tells
//! and what the options ask for.

#![forbid(unsafe_code)]

use super::config::Options;

/// An adapter, as the library tells.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Adapter {
    pub(crate) name: String,
    /// It speaks iWARP: addresses come from connecting, not from tables.
    pub(crate) iwarp: bool,
    pub(crate) ports: Vec<Port>,
}

/// A port of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Port {
    pub(crate) number: u8,
    pub(crate) active: bool,
    /// RoCE or iWARP; else InfiniBand.
    pub(crate) ethernet: bool,
    /// Payload of a packet of the wire.
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
    /// RoCE v2: the one that is routed.
    pub(crate) second: bool,
}

impl Gid {
    fn is_ipv4(&self) -> bool {
        let [.., ten, eleven, _, _, _, _] = self.bytes;
        self.bytes[..10] == [0; 10] && (ten, eleven) == (0xff, 0xff)
    }
}

/// What is used from now on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) adapter: String,
    pub(crate) iwarp: bool,
    pub(crate) port: Port,
    /// None: InfiniBand without global addresses, or iWARP.
    pub(crate) gid: Option<Gid>,
    /// Index of the partition key in the port's table.
    pub(crate) partition: usize,
    pub(crate) level: u8,
}

/// The adapter and port that `options` ask for, else the first that can be used.
///
/// # Errors
/// What of it is not there.
pub(crate) fn choose(adapters: &[Adapter], options: &Options) -> Result<Chosen, String> {
    let wanted =
        |adapter: &&Adapter| options.adapter.as_deref().is_none_or(|name| name == adapter.name);
    let mut reasons = Vec::new();
    for adapter in adapters.iter().filter(wanted) {
        match of_adapter(adapter, options) {
            Ok(chosen) => return Ok(chosen),
            Err(why) => reasons.push(format!("{}: {why}", adapter.name)),
        }
    }
    if reasons.is_empty() {
        let names: Vec<&str> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        let name = options.adapter.as_deref().unwrap_or_default();
        reasons.push(format!("there is no adapter {name}; there are {}", names.join(", ")));
    }
    Err(reasons.join("; "))
}

fn of_adapter(adapter: &Adapter, options: &Options) -> Result<Chosen, String> {
    let port = match options.port {
        Some(number) => adapter.ports.iter().find(|port| port.number == number),
        None => adapter.ports.iter().find(|port| port.active),
    };
    let port = match (port, options.port) {
        (Some(port), _) if port.active => port,
        (Some(port), _) => return Err(format!("port {} is not active", port.number)),
        (None, Some(number)) => return Err(format!("there is no port {number}")),
        (None, None) => return Err("no port is active".to_owned()),
    };
    let partition = match options.partition {
        None => Some(0),
        Some(key) => port.partitions.iter().position(|&known| known == key),
    };
    let Some(partition) = partition else {
        let key = options.partition.unwrap_or_default();
        return Err(format!("port {} is in no partition {key:#06x}", port.number));
    };
    Ok(Chosen {
        adapter: adapter.name.clone(),
        iwarp: adapter.iwarp,
        gid: gid(adapter, port, options)?,
        port: port.clone(),
        partition,
        level: options.level,
    })
}

fn gid(adapter: &Adapter, port: &Port, options: &Options) -> Result<Option<Gid>, String> {
    if let Some(index) = options.gid {
        let known = port.gids.iter().find(|gid| gid.index == index);
        let none = || format!("port {} has no GID {index}", port.number);
        return known.copied().map(Some).ok_or_else(none);
    }
    if adapter.iwarp {
        return Ok(None);
    }
    if !port.ethernet {
        return Ok(port.gids.first().copied());
    }
    let second = || port.gids.iter().filter(|gid| gid.second);
    let best = second().find(|gid| gid.is_ipv4()).or_else(|| second().next());
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
            Gid { index, bytes, second }
        };
        let gids = vec![gid(0, false, false), gid(1, false, true), gid(3, true, true)];
        let partitions = vec![0xffff, 0x8001];
        Port { number, active, ethernet: true, mtu: 1024, lid: 0, gids, partitions }
    }

    fn adapter(name: &str, ports: Vec<Port>) -> Adapter {
        Adapter { name: name.to_owned(), iwarp: false, ports }
    }

    #[test]
    fn without_options_the_first_port_that_works_is_used_by_ipv4() {
        let down = adapter("mlx5_0", vec![port(1, false)]);
        let up = adapter("mlx5_1", vec![port(1, false), port(2, true)]);
        let chosen = choose(&[down, up], &Options::default()).unwrap();
        assert_eq!((chosen.adapter.as_str(), chosen.port.number), ("mlx5_1", 2));
        assert_eq!((chosen.gid.unwrap().index, chosen.partition, chosen.level), (3, 0, 0));
        let mut infiniband = adapter("ib0", vec![port(1, true)]);
        infiniband.ports[0].ethernet = false;
        let chosen = choose(&[infiniband], &Options::default()).unwrap();
        assert_eq!(chosen.gid.unwrap().index, 0);
        let mut iwarp = adapter("siw0", vec![port(1, true)]);
        iwarp.iwarp = true;
        assert_eq!(choose(&[iwarp], &Options::default()).unwrap().gid, None);
    }

    #[test]
    fn options_name_each_part_and_what_is_not_there_is_told_by_name() {
        let all = [adapter("a", vec![port(1, true), port(2, false)]), adapter("b", vec![])];
        let told = |words: &[&str]| choose(&all, &Options::parse(words).unwrap());
        let chosen = told(&["-port", "1", "-gid", "1", "-partition", "8001", "-level", "3"]);
        let chosen = chosen.unwrap();
        assert_eq!((chosen.gid.unwrap().index, chosen.partition, chosen.level), (1, 1, 3));
        for (words, why) in [
            (&["-device", "c"][..], "there is no adapter c; there are a, b"),
            (&["-device", "b"], "b: no port is active"),
            (&["-device", "a", "-port", "2"], "a: port 2 is not active"),
            (&["-device", "a", "-port", "3"], "a: there is no port 3"),
            (&["-device", "a", "-gid", "2"], "a: port 1 has no GID 2"),
            (&["-device", "a", "-partition", "1"], "a: port 1 is in no partition 0x0001"),
            (&["-port", "7"], "a: there is no port 7; b: there is no port 7"),
        ] {
            assert_eq!(told(words).unwrap_err(), why);
        }
    }
}
