//! The options of `pmOpenDevice("ethernet")`.

#![forbid(unsafe_code)]

use super::wire::{self, WirePreference, fault_injection::FaultConfig};
use crate::config::MAX_NODE;
use crate::debug;
use crate::device::net_common::layout::MAX_LOCAL;
use crate::error::{Error, PmResult};
use score_pm_reliability::packet_header::MAX_LINKS;
use std::net::IpAddr;

/// The most channels of a device.
const MAX_CHANNELS: usize = 64;

/// The options of `Device::open`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EthernetOptions {
    /// `-nodes N`: the number of nodes of the job. Default: the value of `-local`, or else the
    /// number of processors.
    pub(crate) nodes: usize,
    /// `-first F` (default 0) and `-local L` (default: all nodes from F on): the nodes of this
    /// host.
    pub(crate) first_node: usize,
    pub(crate) local_nodes: usize,
    /// `-channels C` (default 1).
    pub(crate) channels: usize,
    /// `-wire udp|raw|packet|xdp` (default `udp`).
    pub(crate) wire: WirePreference,
    /// `-link NAME-or-ADDRESS`, once for each link (default: loopback, if all nodes are local).
    pub(crate) links: Vec<String>,
    /// `-secret HEX`: the secret in the packets of the job (default: a random number).
    pub(crate) secret: Option<u64>,
    /// `-incarnation I` (default 0): the number of restarts of the job.
    pub(crate) incarnation: u32,
    /// `-loss drop=P,duplicate=P,reorder=P,seed=N`: fault injection, for tests.
    pub(crate) loss: Option<FaultConfig>,
}

impl EthernetOptions {
    pub(crate) fn parse(kind: &str, options: &[&str]) -> PmResult<EthernetOptions> {
        let mut parsed = ParsedOptions::default();
        for pair in options.chunks(2) {
            let accepted = match pair {
                [name, value] => parsed.set(name, value).is_some(),
                _ => false,
            };
            if !accepted {
                debug::log(debug::ERROR, || format!("device option {} is refused", pair.join(" ")));
                return Err(Error::Invalid);
            }
        }
        parsed.complete(kind).map_err(|why| {
            debug::log(debug::ERROR, || format!("device {kind}: {why}"));
            Error::Invalid
        })
    }

    /// Returns the options for opening the wire of `node` over link number `link`.
    pub(crate) fn wire_options(&self, link: usize, node: usize) -> wire::WireOptions {
        let name = &self.links[link];
        let mut options = match name.parse::<IpAddr>() {
            Ok(address) => {
                wire::WireOptions { preference: self.wire, ..wire::WireOptions::udp(address) }
            }
            Err(_) => wire::WireOptions::on_interface(self.wire, name),
        };
        // Each process has its own sequence of faults.
        let seed = |loss: FaultConfig| loss.seed.wrapping_add((node << 8 | link) as u64);
        options.loss = self.loss.map(|loss| FaultConfig { seed: seed(loss), ..loss });
        options
    }
}

#[derive(Default)]
struct ParsedOptions {
    nodes: Option<usize>,
    first_node: Option<usize>,
    local_nodes: Option<usize>,
    channels: Option<usize>,
    wire: Option<WirePreference>,
    links: Vec<String>,
    secret: Option<u64>,
    incarnation: u32,
    loss: Option<FaultConfig>,
}

impl ParsedOptions {
    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let parse_in_range =
            |min: usize, max: usize| value.parse().ok().filter(|n| (min..=max).contains(n));
        match name {
            "-nodes" => self.nodes = Some(parse_in_range(1, MAX_NODE)?),
            "-first" => self.first_node = Some(parse_in_range(0, MAX_NODE - 1)?),
            "-local" => self.local_nodes = Some(parse_in_range(1, MAX_LOCAL)?),
            "-channels" => self.channels = Some(parse_in_range(1, MAX_CHANNELS)?),
            "-wire" => self.wire = Some(WirePreference::parse(value).ok()?),
            "-link" => {
                if value.is_empty() || self.links.len() >= usize::from(MAX_LINKS) {
                    return None;
                }
                self.links.push(value.to_owned());
            }
            "-secret" => self.secret = Some(u64::from_str_radix(value, 16).ok()?),
            "-incarnation" => self.incarnation = value.parse().ok()?,
            "-loss" => self.loss = Some(FaultConfig::parse(value).ok()?),
            _ => return None,
        }
        Some(())
    }

    fn complete(self, kind: &str) -> std::result::Result<EthernetOptions, String> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let nodes = self.nodes.or(self.local_nodes).unwrap_or(processors);
        let first_node = self.first_node.unwrap_or(0);
        let local_nodes = self.local_nodes.unwrap_or(nodes.saturating_sub(first_node));
        if local_nodes == 0
            || local_nodes > MAX_LOCAL
            || first_node > nodes - local_nodes.min(nodes)
            || local_nodes > nodes
        {
            return Err(format!(
                "-nodes {nodes}, -first {first_node}, -local {local_nodes}: out of range"
            ));
        }
        let wire = self.wire.unwrap_or(WirePreference::Udp);
        if kind == "agent-udp" && wire != WirePreference::Udp {
            return Err("-wire: agent-udp always uses UDP; open ethernet for other wires".into());
        }
        let mut links = self.links;
        if links.is_empty() {
            if local_nodes < nodes || wire != WirePreference::Udp {
                return Err(
                    "-link: missing; name an interface or address that reaches the other nodes"
                        .into(),
                );
            }
            links.push("127.0.0.1".into());
        }
        Ok(EthernetOptions {
            nodes,
            first_node,
            local_nodes,
            channels: self.channels.unwrap_or(1),
            wire,
            links,
            secret: self.secret,
            incarnation: self.incarnation,
            loss: self.loss,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_pairs_of_a_known_name_and_a_value_in_range() {
        let words = ["-nodes", "8", "-first", "2", "-local", "3", "-link", "10.0.0.1"];
        let parsed = EthernetOptions::parse("ethernet", &words).unwrap();
        assert_eq!(
            (parsed.nodes, parsed.first_node, parsed.local_nodes, parsed.channels),
            (8, 2, 3, 1)
        );
        assert_eq!((parsed.wire, parsed.links), (WirePreference::Udp, vec!["10.0.0.1".to_owned()]));
        let alone =
            EthernetOptions::parse("agent-udp", &["-nodes", "2", "-secret", "0badcafe"]).unwrap();
        assert_eq!((alone.local_nodes, alone.secret), (2, Some(0x0bad_cafe)));
        assert_eq!(alone.links, ["127.0.0.1"]);
        for bad in [
            &["-nodes"][..],
            &["-nodes", "0"],
            &["-nodes", "2", "-first", "2"],
            &["-nodes", "2", "-local", "3"],
            &["-nodes", "4", "-local", "2"],
            &["-nodes", "2", "-wire", "carrier-pigeon"],
            &["-nodes", "2", "-wire", "packet"],
            &["-nodes", "2", "-secret", "xyz"],
            &["-nodes", "2", "-loss", "drop=2"],
            &["-trunk", "1"],
        ] {
            assert_eq!(EthernetOptions::parse("ethernet", bad), Err(Error::Invalid), "{bad:?}");
        }
        let raw = ["-nodes", "2", "-wire", "packet", "-link", "lo"];
        assert!(EthernetOptions::parse("agent-udp", &raw).is_err());
        assert!(EthernetOptions::parse("ethernet", &raw).is_ok());
    }
}
