//! Options of `pmOpenDevice("verbs")`, and the device's properties.

#![forbid(unsafe_code)]

use crate::device::option_words::{NetworkOptions, NetworkWords, parse_pairs};
use crate::error::{Error, PmResult};
use std::net::{IpAddr, Ipv4Addr};

/// The longest message.
pub(super) const MTU: usize = 16 << 10;
/// The most nodes. With more nodes, the entries of the receive buffers would not fit in the word of
/// a received message.
pub(super) const MAX_NODES: usize = 1 << 15;
/// InfiniBand numbers service levels with four bits.
const MAX_LEVEL: u8 = 15;

/// The options of a verbs device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsOptions {
    /// Nodes, channels and secret.
    pub network: NetworkOptions,
    /// The address that receives hellos (`-link ADDRESS`). None: loopback, which is possible only
    /// if all nodes are local.
    pub link: Option<IpAddr>,
    /// The adapter, and the attributes of its connections.
    pub adapter: AdapterChoice,
}

/// Which adapter a verbs device uses, and the attributes of its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// The adapter's name (`-device NAME`, default: the first with a port that can be used).
    pub device: Option<String>,
    /// The number of its port (`-port P`, default: the first that is active).
    pub port: Option<u8>,
    /// Index of the local address (`-gid I`, default: on Ethernet the first RoCE v2 address,
    /// preferably IPv4; on InfiniBand the first address).
    pub gid: Option<u32>,
    /// The partition key (`-partition KEY`, hexadecimal; default: the first in the port's table).
    pub partition: Option<u16>,
    /// The service level (`-level L`, 0 to 15, default 0).
    pub service_level: u8,
}

impl AdapterChoice {
    /// Sets the attribute with this name: `device`, `port`, `gid`, `partition` or `level`.
    ///
    /// # Errors
    /// Invalid: there is no such attribute, or the value is not of its type.
    pub fn set(&mut self, name: &str, value: &str) -> PmResult<()> {
        let invalid = |_| Error::Invalid;
        match name {
            "device" => self.device = Some(value.to_owned()),
            "port" => self.port = Some(value.parse().map_err(invalid)?),
            "gid" => self.gid = Some(value.parse().map_err(invalid)?),
            "partition" => {
                let digits = value.strip_prefix("0x").unwrap_or(value);
                self.partition = Some(u16::from_str_radix(digits, 16).map_err(invalid)?);
            }
            "level" => self.service_level = value.parse().map_err(invalid)?,
            _ => return Err(Error::Invalid),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.device.as_deref() == Some("") {
            return Err("-device: the name is empty".to_owned());
        }
        if self.port == Some(0) {
            return Err("-port 0: ports are numbered from 1".to_owned());
        }
        if self.service_level > MAX_LEVEL {
            return Err(format!("-level {}: the largest is {MAX_LEVEL}", self.service_level));
        }
        Ok(())
    }
}

impl VerbsOptions {
    /// The first usable adapter. Hellos are received on loopback.
    pub fn new(network: NetworkOptions) -> VerbsOptions {
        VerbsOptions { network, link: None, adapter: AdapterChoice::default() }
    }

    pub(in crate::device) fn parse(words: &[&str]) -> PmResult<VerbsOptions> {
        let mut network = NetworkWords::default();
        let mut parsed = VerbsOptions::new(NetworkOptions::on_one_host(0));
        parse_pairs(words, |name, value| {
            match name {
                "-link" => parsed.link = Some(value.parse().ok()?),
                _ => network
                    .set(name, value)
                    .or_else(|| parsed.adapter.set(name.strip_prefix('-')?, value).ok())?,
            }
            Some(())
        })?;
        Ok(VerbsOptions { network: network.complete(), ..parsed })
    }

    pub(in crate::device) fn checked(mut self) -> Result<VerbsOptions, String> {
        self.network.check()?;
        if self.network.nodes > MAX_NODES {
            let nodes = self.network.nodes;
            return Err(format!("-nodes {nodes}: the device verbs has at most {MAX_NODES} nodes"));
        }
        self.adapter.check()?;
        if self.link.is_none() && !self.network.is_on_one_host() {
            return Err("-link: missing; give an address that the other nodes can reach".into());
        }
        self.link.get_or_insert(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceOptions;

    fn open(words: &[&str]) -> PmResult<VerbsOptions> {
        match DeviceOptions::parse("verbs", words)?.checked()? {
            DeviceOptions::Verbs(options) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_are_pairs_of_a_known_name_and_a_value_in_range() {
        let words = ["-nodes", "4", "-device", "mlx5_0", "-port", "2", "-gid", "3"];
        let more = ["-partition", "0x8001", "-level", "15"];
        let parsed = open(&[&words[..], &more[..]].concat()).unwrap();
        assert_eq!(parsed.network, NetworkOptions::on_one_host(4));
        let adapter = AdapterChoice {
            device: Some("mlx5_0".to_owned()),
            port: Some(2),
            gid: Some(3),
            partition: Some(0x8001),
            service_level: 15,
        };
        assert_eq!(parsed.adapter, adapter);
        let multi_host = ["-nodes", "8", "-first", "2", "-local", "3", "-link", "10.0.0.1"];
        assert_eq!(open(&multi_host).unwrap().network.local, 2..5);
        assert!(open(&["-nodes", "32768", "-local", "1", "-link", "10.0.0.1"]).is_ok());
        for bad in [
            &["-nodes"][..],
            &["-nodes", "0"],
            &["-nodes", "32769", "-local", "1", "-link", "10.0.0.1"],
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
            &["level", "1"],
        ] {
            assert_eq!(open(bad), Err(Error::Invalid), "{bad:?}");
        }
    }
}
