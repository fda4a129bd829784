//! Options of `pmOpenDevice("verbs")`, and the device's properties.

#![forbid(unsafe_code)]

use crate::config::MAX_NODE;
use crate::debug;
use crate::device::net_common::layout::MAX_LOCAL;
use crate::error::{Error, PmResult};
use std::net::{IpAddr, Ipv4Addr};

/// The longest message.
pub(super) const MTU: usize = 16 << 10;
/// The largest number of channels of a device.
const MAX_CHANNELS: usize = 64;
/// InfiniBand numbers service levels with four bits.
const MAX_LEVEL: u8 = 15;

/// Options of `Device::open`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct VerbsOptions {
    /// `-nodes N` (default: the number of local nodes, otherwise of processors).
    pub(crate) nodes: usize,
    /// `-first F` (default 0) and `-local L` (default: all): the nodes of this host.
    pub(crate) first: usize,
    pub(crate) local: usize,
    /// `-link ADDRESS` (default: loopback, if all nodes are local): the address that receives
    /// hellos.
    pub(crate) link: Option<IpAddr>,
    /// `-secret HEX`: the secret in the hellos of the job (default: random).
    pub(crate) secret: Option<u64>,
    /// `-channels C` (default 1).
    pub(crate) channels: usize,
    /// `-device NAME` (default: the first with a port that can be used).
    pub(crate) adapter: Option<String>,
    /// `-port P` (default: the first that is active).
    pub(crate) port: Option<u8>,
    /// `-gid I`: index of the local address (default: on Ethernet the first RoCE v2 address,
    /// preferably IPv4; on InfiniBand the first address).
    pub(crate) gid: Option<u32>,
    /// `-partition KEY`, hexadecimal (default: the first in the port's table).
    pub(crate) partition: Option<u16>,
    /// `-level L`: service level, 0 to 15 (default 0).
    pub(crate) service_level: u8,
}

impl VerbsOptions {
    pub(crate) fn parse(options: &[&str]) -> PmResult<VerbsOptions> {
        let mut parsed = VerbsOptions { channels: 1, ..VerbsOptions::default() };
        for pair in options.chunks(2) {
            let is_accepted = match pair {
                [name, value] => parsed.set(name, value).is_some(),
                _ => false,
            };
            if !is_accepted {
                debug::log(debug::ERROR, || format!("device option {} is refused", pair.join(" ")));
                return Err(Error::Invalid);
            }
        }
        parsed.complete().map_err(|why| {
            debug::log(debug::ERROR, || format!("device verbs: {why}"));
            Error::Invalid
        })
    }

    fn complete(mut self) -> std::result::Result<VerbsOptions, String> {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.nodes == 0 {
            self.nodes = if self.local > 0 { self.local } else { processors() };
        }
        if self.local == 0 {
            self.local = self.nodes.saturating_sub(self.first);
        }
        let (first, local, nodes) = (self.first, self.local, self.nodes);
        if local == 0 || local > MAX_LOCAL || local > nodes || first > nodes - local {
            return Err(format!("nodes {first} to {} of {nodes} cannot be", first + local));
        }
        if self.link.is_none() && local < nodes {
            return Err("-link is missing: it names the address of this host for its peers".into());
        }
        self.link.get_or_insert(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(self)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let number = |max: usize| value.parse().ok().filter(|n| (1..=max).contains(n));
        match name {
            "-nodes" => self.nodes = number(MAX_NODE)?,
            "-first" => {
                self.first = value.parse().ok().filter(|&first: &usize| first < MAX_NODE)?
            }
            "-local" => self.local = number(MAX_LOCAL)?,
            "-link" => self.link = Some(value.parse().ok()?),
            "-secret" => self.secret = Some(u64::from_str_radix(value, 16).ok()?),
            "-channels" => self.channels = number(MAX_CHANNELS)?,
            "-device" if !value.is_empty() => self.adapter = Some(value.to_owned()),
            "-port" => self.port = Some(value.parse().ok().filter(|&port| port > 0)?),
            "-gid" => self.gid = Some(value.parse().ok()?),
            "-partition" => {
                let digits = value.strip_prefix("0x").unwrap_or(value);
                self.partition = Some(u16::from_str_radix(digits, 16).ok()?);
            }
            "-level" => {
                self.service_level = value.parse().ok().filter(|&level| level <= MAX_LEVEL)?
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_pairs_of_a_known_name_and_a_value_in_range() {
        let words = ["-nodes", "4", "-device", "mlx5_0", "-port", "2", "-gid", "3"];
        let more = ["-partition", "0x8001", "-level", "15"];
        let parsed = VerbsOptions::parse(&[&words[..], &more[..]].concat()).unwrap();
        assert_eq!((parsed.nodes, parsed.channels, parsed.service_level), (4, 1, 15));
        assert_eq!((parsed.port, parsed.gid, parsed.partition), (Some(2), Some(3), Some(0x8001)));
        assert_eq!(parsed.adapter.as_deref(), Some("mlx5_0"));
        let multi_host = ["-nodes", "8", "-first", "2", "-local", "3", "-link", "10.0.0.1"];
        let parsed = VerbsOptions::parse(&multi_host).unwrap();
        assert_eq!((parsed.first, parsed.local), (2, 3));
        assert_eq!(VerbsOptions::parse(&["-nodes", "3"]).unwrap().local, 3);
        for bad in [
            &["-nodes"][..],
            &["-nodes", "0"],
            &["-channels", "65"],
            &["-device", ""],
            &["-port", "0"],
            &["-port", "256"],
            &["-gid", "-1"],
            &["-partition", "10000"],
            &["-level", "16"],
            &["-nodes", "4", "-local", "2"],
            &["-nodes", "2", "-first", "2"],
            &["-nodes", "2", "-local", "3"],
            &["-link", "eth0"],
            &["-trunk", "1"],
        ] {
            assert_eq!(VerbsOptions::parse(bad), Err(Error::Invalid), "{bad:?}");
        }
    }
}
