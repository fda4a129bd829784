//! The networks of a host: its interfaces, as `scorehosts.db` describes them, and the transport of
//! each network.

use serde::{Deserialize, Serialize};

/// Largest number of links of one network that join two hosts: the links of a trunk.
pub const MAX_LINKS: u8 = 8;

/// The network of every host: UDP through the address at which its daemon is reached.
pub const UDP: &str = "agent-udp";
/// Raw Ethernet on the same link.
pub const ETHERNET: &str = "ethernet";
/// Shared memory, for jobs on one host.
pub const SHMEM: &str = "shmem";
/// RDMA hardware, and UDP to hosts without it.
pub const VERBS: &str = "verbs";
/// RDMA if hosts have the hardware and its addressing needs no configuration. Otherwise UDP.
pub const AUTO: &str = "auto";

/// The attributes of `scorehosts.db` that select and address a host's RDMA adapter. They are
/// options of the device.
pub const ADDRESSING: [&str; 5] = ["device", "port", "gid", "partition", "level"];

/// The connection of one host to a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetwork {
    /// The name of the network in `scorehosts.db`.
    pub name: String,
    /// The transport to other hosts.
    pub transport: NetworkTransport,
    /// Whether the operator trusts all users of this network. Raw wires are then permitted.
    pub trusted: bool,
    /// The interfaces or addresses of this host. Several of them form a trunk. An empty list means
    /// the interface with the address at which the daemon is reached.
    pub links: Vec<String>,
    /// The configured attributes of [`ADDRESSING`], with their values.
    pub addressing: Vec<(String, String)>,
}

/// The transport of a network to other hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkTransport {
    /// UDP.
    Udp,
    /// PM's own Ethernet frames if they are permitted. Otherwise UDP.
    Raw,
    /// RDMA, and UDP to hosts without it.
    Verbs,
    /// The same as `Verbs`, if the adapter needs no further configuration.
    Auto,
    /// Not available: PM has no device of this name.
    Unsupported(String),
}

impl HostNetwork {
    /// A network with this device of PM (manual, table 1.1).
    pub fn new(name: &str, device: &str, trusted: bool, links: Vec<String>) -> Self {
        let transport = match device {
            UDP => NetworkTransport::Udp,
            ETHERNET => NetworkTransport::Raw,
            VERBS => NetworkTransport::Verbs,
            AUTO => NetworkTransport::Auto,
            other => NetworkTransport::Unsupported(other.to_owned()),
        };
        Self { name: name.to_owned(), transport, trusted, links, addressing: Vec::new() }
    }

    /// The same network with these addressing attributes of the adapter.
    #[must_use]
    pub fn with_addressing(self, addressing: Vec<(String, String)>) -> Self {
        Self { addressing, ..self }
    }

    /// The name of its device.
    pub fn device(&self) -> &str {
        match &self.transport {
            NetworkTransport::Udp => UDP,
            NetworkTransport::Raw => ETHERNET,
            NetworkTransport::Verbs => VERBS,
            NetworkTransport::Auto => AUTO,
            NetworkTransport::Unsupported(device) => device,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_keeps_the_name_of_its_device_and_its_addressing() {
        for device in [UDP, ETHERNET, VERBS, AUTO, SHMEM, "myrinet"] {
            let network = HostNetwork::new("lab", device, true, vec!["eth0".to_owned()]);
            assert_eq!(network.device(), device);
            let addressing = vec![("port".to_owned(), "2".to_owned())];
            let expected = HostNetwork { addressing: addressing.clone(), ..network.clone() };
            assert_eq!(network.with_addressing(addressing), expected);
        }
    }
}
