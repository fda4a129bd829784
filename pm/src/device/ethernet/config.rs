//! Options of `pmOpenDevice("ethernet")`, and the device's properties.

#![forbid(unsafe_code)]

use super::wire::{self, Choice, loss::Loss};
use crate::config::MAX_NODE;
use crate::debug;
use crate::device::network::layout::MAX_LOCAL;
use crate::error::{Error, Result};
use score_proto::wire::MAX_LINKS;
use std::net::IpAddr;

/// The most channels of a device.
const MAX_CHANNELS: usize = 64;

/// What `Device::open` is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// `-nodes N`: nodes of the job. Default: as many as are local.
    pub(crate) nodes: usize,
    /// `-first F` (default 0) and `-local L` (default: all): the nodes of this host.
    pub(crate) first: usize,
    pub(crate) local: usize,
    /// `-channels C` (default 1).
    pub(crate) channels: usize,
    /// `-wire udp|raw|packet|xdp` (default `udp`).
    pub(crate) wire: Choice,
    /// `-link NAME-or-ADDRESS`, once for each link (default: loopback, if all nodes are local).
    pub(crate) links: Vec<String>,
    /// `-secret HEX`: what packets of the job carry (default: a random one).
    pub(crate) secret: Option<u64>,
    /// `-incarnation I` (default 0): how often the job was restarted.
    pub(crate) incarnation: u32,
    /// `-loss drop=P,duplicate=P,reorder=P,seed=N`: for tests.
    pub(crate) loss: Option<Loss>,
}

impl Options {
    pub(crate) fn parse(kind: &str, options: &[&str]) -> Result<Options> {
        let mut given = Given::default();
        for pair in options.chunks(2) {
            let taken = match pair {
                [name, value] => given.set(name, value).is_some(),
                _ => false,
            };
            if !taken {
                debug::say(debug::ERROR, || format!("device option {} is refused", pair.join(" ")));
                return Err(Error::Invalid);
            }
        }
        given.complete(kind).map_err(|why| {
            debug::say(debug::ERROR, || format!("device {kind}: {why}"));
            Error::Invalid
        })
    }

    /// What a wire of `node` over link number `link` is opened with.
    pub(crate) fn wire(&self, link: usize, node: usize) -> wire::Options {
        let name = &self.links[link];
        let mut options = match name.parse::<IpAddr>() {
            Ok(address) => wire::Options { choice: self.wire, ..wire::Options::udp(address) },
            Err(_) => wire::Options::over(self.wire, name),
        };
        // Each process has its own sequence of losses.
        let seed = |loss: Loss| loss.seed.wrapping_add((node << 8 | link) as u64);
        options.loss = self.loss.map(|loss| Loss { seed: seed(loss), ..loss });
        options
    }
}

#[derive(Default)]
struct Given {
    nodes: Option<usize>,
    first: Option<usize>,
    local: Option<usize>,
    channels: Option<usize>,
    wire: Option<Choice>,
    links: Vec<String>,
    secret: Option<u64>,
    incarnation: u32,
    loss: Option<Loss>,
}

impl Given {
    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let number =
            |least: usize, most: usize| value.parse().ok().filter(|n| (least..=most).contains(n));
        match name {
            "-nodes" => self.nodes = Some(number(1, MAX_NODE)?),
            "-first" => self.first = Some(number(0, MAX_NODE - 1)?),
            "-local" => self.local = Some(number(1, MAX_LOCAL)?),
            "-channels" => self.channels = Some(number(1, MAX_CHANNELS)?),
            "-wire" => self.wire = Some(Choice::parse(value).ok()?),
            "-link" => {
                if value.is_empty() || self.links.len() >= usize::from(MAX_LINKS) {
                    return None;
                }
                self.links.push(value.to_owned());
            }
            "-secret" => self.secret = Some(u64::from_str_radix(value, 16).ok()?),
            "-incarnation" => self.incarnation = value.parse().ok()?,
            "-loss" => self.loss = Some(Loss::parse(value).ok()?),
            _ => return None,
        }
        Some(())
    }

    fn complete(self, kind: &str) -> std::result::Result<Options, String> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let nodes = self.nodes.or(self.local).unwrap_or(processors);
        let first = self.first.unwrap_or(0);
        let local = self.local.unwrap_or(nodes.saturating_sub(first));
        if local == 0 || local > MAX_LOCAL || first > nodes - local.min(nodes) || local > nodes {
            return Err(format!("nodes {first} to {} of {nodes} cannot be", first + local));
        }
        let wire = self.wire.unwrap_or(Choice::Udp);
        if kind == "agent-udp" && wire != Choice::Udp {
            return Err("-wire: agent-udp is the UDP wire; use ethernet".into());
        }
        let mut links = self.links;
        if links.is_empty() {
            if local < nodes || wire != Choice::Udp {
                return Err(
                    "-link says by which interface or address the others are reached".into()
                );
            }
            links.push("127.0.0.1".into());
        }
        Ok(Options {
            nodes,
            first,
            local,
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
        let parsed = Options::parse("ethernet", &words).unwrap();
        assert_eq!((parsed.nodes, parsed.first, parsed.local, parsed.channels), (8, 2, 3, 1));
        assert_eq!((parsed.wire, parsed.links), (Choice::Udp, vec!["10.0.0.1".to_owned()]));
        let alone = Options::parse("agent-udp", &["-nodes", "2", "-secret", "0badcafe"]).unwrap();
        assert_eq!((alone.local, alone.secret), (2, Some(0x0bad_cafe)));
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
            assert_eq!(Options::parse("ethernet", bad), Err(Error::Invalid), "{bad:?}");
        }
        let raw = ["-nodes", "2", "-wire", "packet", "-link", "lo"];
        assert!(Options::parse("agent-udp", &raw).is_err());
        assert!(Options::parse("ethernet", &raw).is_ok());
    }
}
