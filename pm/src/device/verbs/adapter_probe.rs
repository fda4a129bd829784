//! Checks whether this process could reach other hosts by RDMA. An owner that can offer another
//! network uses the probe. The probe makes the calls that a context makes, because only these show
//! whether an adapter or a limit refuses them.

#![forbid(unsafe_code)]

use super::adapter::{AccessRights, Adapter, MemoryRegion, QueueSizes};
use super::config::{MTU, VerbsOptions};
use super::ibverbs_library::{Library, Unavailable};
use super::open::describe;
use super::port_selection::{self, SelectedPort};
use super::queue_pair::QueuePair;
use super::receive_buffers::SharedReceiveBuffers;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The vendor number of rdma_rxe.
const SOFTWARE_VENDOR_ID: u32 = 0xff_ffff;

/// An adapter that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// Adapter, port and address, as text for the user.
    pub wires: String,
    /// The kind of network and the partition. Adapters of different fabrics cannot connect.
    pub fabric: String,
    /// The subnet inside the fabric. Hosts on the same subnet reach each other without a router.
    pub subnet: String,
    /// Whether the adapter is hardware and not emulated by a kernel module.
    pub is_hardware: bool,
}

/// Why no adapter is usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// There is no library, no adapter, or no adapter that is connected.
    Absent(String),
    /// There is an adapter, but the adapter or a limit refuses a resource, or the options are
    /// invalid.
    Refused(String),
}

/// Creates the resources that a device with these options and its contexts would use, and releases
/// them.
///
/// # Errors
/// The reason why they cannot be created.
pub fn probe_adapter(options: &VerbsOptions) -> Result<Usable, Unusable> {
    let refused = Unusable::Refused;
    let options = options.clone().checked().map_err(refused)?;
    let adapters =
        Library::get().and_then(Library::adapters).map_err(|unavailable| match unavailable {
            Unavailable::QueryFailed(why) => Unusable::Refused(why),
            other => Unusable::Absent(other.to_string()),
        })?;
    let chosen = port_selection::choose(&adapters, &options.adapter).map_err(Unusable::Absent)?;
    let vendor = open_and_drop_resources(&chosen, &options).map_err(refused)?;
    let (kind, subnet) = if chosen.port.is_ethernet {
        ("RoCE", chosen.gid.and_then(|gid| subnet_of(ip_of_gid(gid.bytes))))
    } else {
        ("InfiniBand", Some(subnet_prefix(&chosen)))
    };
    // The membership bit does not distinguish partitions.
    let key = chosen.port.partitions.get(chosen.partition_index);
    let partition = key.map(|key| format!(", partition {:#06x}", key & 0x7fff));
    Ok(Usable {
        wires: describe(&chosen),
        fabric: format!("{kind}{}", partition.unwrap_or_default()),
        subnet: subnet.unwrap_or_else(|| "unknown subnet".to_owned()),
        is_hardware: vendor != SOFTWARE_VENDOR_ID,
    })
}

/// Creates and drops the resources of a process with one peer. Returns the adapter's vendor.
fn open_and_drop_resources(chosen: &SelectedPort, options: &VerbsOptions) -> Result<u32, String> {
    let geometry = options.network.slab_geometry(MTU);
    let geometry = geometry.map_err(|error| error.to_string())?;
    let mut receive_buffers = SharedReceiveBuffers::new(geometry.nodes as usize, MTU);
    let sizes =
        QueueSizes { receive_count: receive_buffers.buffer_count(), send_count: geometry.slots };
    let adapter = Adapter::open(chosen, sizes)?;
    let _frames = MemoryRegion::allocate(&adapter, geometry.slots * MTU, AccessRights::Local)?;
    receive_buffers.post_buffers(&adapter, 0)?;
    QueuePair::new(&adapter, 0)?;
    Ok(adapter.vendor_id)
}

/// Returns the upper half of an InfiniBand address, which the subnet manager assigns.
fn subnet_prefix(chosen: &SelectedPort) -> String {
    let bytes = chosen.gid.map_or([0; 16], |gid| gid.bytes);
    let mut prefix = [0; 16];
    prefix[..8].copy_from_slice(&bytes[..8]);
    Ipv6Addr::from(prefix).to_string()
}

/// RoCE addresses are IP addresses; IPv4 addresses are mapped into IPv6.
fn ip_of_gid(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The subnet of an IPv4 address of this host, from its interface.
fn subnet_of(addr: IpAddr) -> Option<String> {
    let IpAddr::V4(ipv4) = addr else { return None };
    let ipv4_of = |sockaddr: Option<SockaddrStorage>| Some(sockaddr?.as_sockaddr_in()?.ip());
    let mut interfaces = getifaddrs().ok()?;
    let mask = interfaces.find_map(|interface| {
        ipv4_of(interface.netmask).filter(|_| ipv4_of(interface.address) == Some(ipv4))
    })?;
    let base = Ipv4Addr::from(ipv4.to_bits() & mask.to_bits());
    Some(format!("{base}/{}", mask.to_bits().count_ones()))
}

#[cfg(test)]
mod tests {
    use super::super::config::AdapterChoice;
    use super::*;
    use crate::device::NetworkOptions;

    #[test]
    fn the_subnet_of_a_local_address_is_that_of_its_interface() {
        let subnet = |text: &str| subnet_of(text.parse().unwrap());
        assert_eq!(subnet("127.0.0.1").as_deref(), Some("127.0.0.0/8"));
        assert_eq!((subnet("192.0.2.77"), subnet("fe80::1")), (None, None));
        assert_eq!(
            ip_of_gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 9, 0, 1]).to_string(),
            "10.9.0.1"
        );
    }

    #[test]
    fn a_missing_adapter_is_absent_and_bad_options_are_refused() {
        let no_nodes = VerbsOptions::new(NetworkOptions::on_one_host(0));
        let bad = probe_adapter(&no_nodes).unwrap_err();
        assert!(matches!(bad, Unusable::Refused(_)), "{bad:?}");
        let device = Some("nowhere0".to_owned());
        let adapter = AdapterChoice { device, ..AdapterChoice::default() };
        let options = VerbsOptions { adapter, ..VerbsOptions::new(NetworkOptions::on_one_host(2)) };
        let absent = probe_adapter(&options).unwrap_err();
        assert!(matches!(absent, Unusable::Absent(_)), "{absent:?}");
    }
}
