//! The options of `pmOpenDevice("ethernet")`.

#![forbid(unsafe_code)]

use super::wire::{self, WirePreference, fault_injection::FaultConfig};
use crate::device::option_words::{NetworkOptions, NetworkWords, parse_pairs, refuse_options};
use crate::error::PmResult;
use score_pm_reliability::packet_header::MAX_LINKS;
use std::net::IpAddr;

/// The options of an ethernet device.
#[derive(Clone, Debug, PartialEq)]
pub struct EthernetOptions {
    /// Nodes, channels and secret.
    pub network: NetworkOptions,
    /// The wire of all links (`-wire udp|raw|packet|xdp`, default `udp`).
    pub wire: WirePreference,
    /// An interface or address for each link (`-link`, once for each). It may be empty if all nodes
    /// are local: the device then uses loopback.
    pub links: Vec<String>,
    /// The number of restarts of the job (`-incarnation I`, default 0).
    pub incarnation: u32,
    /// Fault injection, for tests (`-loss drop=P,duplicate=P,reorder=P,seed=N`).
    pub loss: Option<FaultConfig>,
}

impl EthernetOptions {
    /// The options for UDP over these links.
    pub fn udp(network: NetworkOptions, links: Vec<String>) -> EthernetOptions {
        EthernetOptions { network, wire: WirePreference::Udp, links, incarnation: 0, loss: None }
    }

    pub(in crate::device) fn parse(words: &[&str]) -> PmResult<EthernetOptions> {
        let mut network = NetworkWords::default();
        let mut parsed = EthernetOptions::udp(NetworkOptions::on_one_host(0), Vec::new());
        parse_pairs(words, |name, value| {
            match name {
                "-wire" => parsed.wire = WirePreference::parse(value).ok()?,
                "-link" => parsed.links.push(value.to_owned()),
                "-incarnation" => parsed.incarnation = value.parse().ok()?,
                "-loss" => parsed.loss = Some(FaultConfig::parse(value).ok()?),
                _ => network.set(name, value)?,
            }
            Some(())
        })?;
        Ok(EthernetOptions { network: network.complete(), ..parsed })
    }

    /// Parses the options of `agent-udp`, which has no wire except UDP.
    pub(in crate::device) fn parse_agent_udp(words: &[&str]) -> PmResult<EthernetOptions> {
        let parsed = EthernetOptions::parse(words)?;
        match parsed.wire {
            WirePreference::Udp => Ok(parsed),
            WirePreference::Raw | WirePreference::Packet | WirePreference::Xdp => {
                let reason = "-wire: agent-udp always uses UDP; open ethernet for other wires";
                Err(refuse_options("agent-udp", reason))
            }
        }
    }

    pub(in crate::device) fn checked(mut self) -> Result<EthernetOptions, String> {
        self.network.check()?;
        if self.links.is_empty() {
            if !self.network.is_on_one_host() || self.wire != WirePreference::Udp {
                return Err(
                    "-link: missing; name an interface or address that reaches the other nodes"
                        .into(),
                );
            }
            self.links.push("127.0.0.1".into());
        }
        if self.links.len() > usize::from(MAX_LINKS) || self.links.iter().any(String::is_empty) {
            return Err(format!("-link: name at least 1 and at most {MAX_LINKS} links"));
        }
        Ok(self)
    }

    /// Returns the options for opening the wire of `node` over link number `link`.
    pub(crate) fn wire_options(&self, link: usize, node: u32) -> wire::WireOptions {
        let name = &self.links[link];
        let mut options = match name.parse::<IpAddr>() {
            Ok(address) => {
                wire::WireOptions { preference: self.wire, ..wire::WireOptions::udp(address) }
            }
            Err(_) => wire::WireOptions::on_interface(self.wire, name),
        };
        // Each process has its own sequence of faults.
        let seed = |loss: FaultConfig| loss.seed.wrapping_add(u64::from(node) << 8 | link as u64);
        options.loss = self.loss.map(|loss| FaultConfig { seed: seed(loss), ..loss });
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceOptions;
    use crate::error::Error;

    fn open(kind: &str, words: &[&str]) -> PmResult<EthernetOptions> {
        match DeviceOptions::parse(kind, words)?.checked()? {
            DeviceOptions::Ethernet(options) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_are_pairs_of_a_known_name_and_a_value_in_range() {
        let words = ["-nodes", "8", "-first", "2", "-local", "3", "-link", "10.0.0.1"];
        let parsed = open("ethernet", &words).unwrap();
        assert_eq!(
            parsed,
            EthernetOptions::udp(NetworkOptions::new(8, 2..5), parsed.links.clone())
        );
        assert_eq!(parsed.links, ["10.0.0.1"]);
        let alone = open("agent-udp", &["-nodes", "2", "-secret", "0badcafe"]).unwrap();
        assert_eq!((alone.network.local, alone.network.secret), (0..2, Some(0x0bad_cafe)));
        assert_eq!(alone.links, ["127.0.0.1"]);
        for bad in [
            &["-nodes"][..],
            &["-nodes", "0"],
            &["-nodes", "1048577"],
            &["-nodes", "2", "-first", "2"],
            &["-nodes", "2", "-local", "0"],
            &["-nodes", "2", "-local", "3"],
            &["-nodes", "4", "-local", "2"],
            &["-first", "18446744073709551615", "-local", "1", "-nodes", "2", "-link", "lo"],
            &["-nodes", "2", "-channels", "65"],
            &["-nodes", "2", "-link", ""],
            &["-link", "lo"].repeat(usize::from(MAX_LINKS) + 1),
            &["-nodes", "2", "-wire", "carrier-pigeon"],
            &["-nodes", "2", "-wire", "packet"],
            &["-nodes", "2", "-secret", "xyz"],
            &["-nodes", "2", "-loss", "drop=2"],
            &["-trunk", "1"],
        ] {
            assert_eq!(open("ethernet", bad), Err(Error::Invalid), "{bad:?}");
        }
        let raw = ["-nodes", "2", "-wire", "packet", "-link", "lo"];
        assert!(open("agent-udp", &raw).is_err());
        assert!(open("ethernet", &raw).is_ok());
    }
}
