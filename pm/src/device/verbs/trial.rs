//! Whether this process could reach others by RDMA, for an owner that has another way to offer:
//! tried by the calls that a context makes, because what an adapter or a limit refuses is known by
//! no other means.

#![forbid(unsafe_code)]

use super::adapter::{Access, Adapter, Registered, Sizes};
use super::arrivals::Arrivals;
use super::choice::{self, Chosen};
use super::config::{MTU, Options};
use super::library::{Lack, Library};
use super::manager;
use super::open::describe;
use super::pair::Pair;
use crate::device::network::layout::Geometry;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The vendors of rdma_rxe and siw.
const SOFTWARE: [u32; 2] = [0xff_ffff, 0x62_6d74];

/// An adapter that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// Adapter, port and address, for people.
    pub wires: String,
    /// The kind of network and the partition: adapters of different ones never meet.
    pub fabric: String,
    /// Its part of that: who is on the same subnet is reached without anybody's leave.
    pub subnet: String,
    /// It is a device, and not a module of the kernel that does the same in software.
    pub is_hardware: bool,
}

/// Why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Nothing here could be meant: no library, no adapter, none that is connected.
    Absent(String),
    /// There is one, which refuses.
    Refused(String),
}

/// Tries what `Device::open("verbs", options)` and its contexts would use, and gives it back.
///
/// # Errors
/// Why that would not do.
pub fn try_out(options: &[&str]) -> Result<Usable, Unusable> {
    let refused = Unusable::Refused;
    let options = Options::parse(options).map_err(|error| refused(error.to_string()))?;
    let adapters = Library::get().and_then(Library::adapters).map_err(|lack| match lack {
        Lack::Trouble(why) => Unusable::Refused(why),
        other => Unusable::Absent(other.to_string()),
    })?;
    let chosen = choice::choose(&adapters, &options).map_err(Unusable::Absent)?;
    let vendor = pass_through(&chosen, &options).map_err(refused)?;
    let near = options.link.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let (kind, subnet) = match (chosen.iwarp, chosen.port.ethernet) {
        (true, _) => ("iWARP", subnet_of(manager::probe(&chosen, near).map_err(refused)?)),
        (false, true) => ("RoCE", chosen.gid.and_then(|gid| subnet_of(mapped(gid.bytes)))),
        (false, false) => ("InfiniBand", Some(prefix_of(&chosen))),
    };
    // The membership bit does not tell partitions apart.
    let key = chosen.port.partitions.get(chosen.partition);
    let partition = key.map(|key| format!(", partition {:#06x}", key & 0x7fff));
    Ok(Usable {
        wires: describe(&chosen),
        fabric: format!("{kind}{}", partition.unwrap_or_default()),
        subnet: subnet.unwrap_or_else(|| "unknown subnet".to_owned()),
        is_hardware: !SOFTWARE.contains(&vendor),
    })
}

/// Makes, and drops, what a process with one peer has; answers the adapter's vendor.
fn pass_through(chosen: &Chosen, options: &Options) -> Result<u32, String> {
    let geometry = Geometry::new(options.nodes, options.first, options.local, MTU);
    let geometry = geometry.map_err(|error| error.to_string())?;
    let mut arrivals = Arrivals::new(geometry.nodes, MTU);
    let sizes = Sizes { receives: arrivals.entries(), sends: geometry.slots };
    let adapter = Adapter::open(chosen, sizes)?;
    let _frames = Registered::buffers(&adapter, geometry.slots * MTU, Access::Own)?;
    arrivals.bring(&adapter, 0)?;
    // Those of iWARP are made by who connects them.
    if !chosen.iwarp {
        Pair::new(&adapter, 0)?;
    }
    Ok(adapter.vendor)
}

/// Of InfiniBand: the upper half of the address, which its subnet manager gives.
fn prefix_of(chosen: &Chosen) -> String {
    let bytes = chosen.gid.map_or([0; 16], |gid| gid.bytes);
    let mut prefix = [0; 16];
    prefix[..8].copy_from_slice(&bytes[..8]);
    Ipv6Addr::from(prefix).to_string()
}

/// RoCE's addresses are IP addresses; IPv4 stands in IPv6.
fn mapped(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// Of an IPv4 address of this host: that of its interface.
fn subnet_of(own: IpAddr) -> Option<String> {
    let IpAddr::V4(own) = own else { return None };
    let four = |at: Option<SockaddrStorage>| Some(at?.as_sockaddr_in()?.ip());
    let mut all = getifaddrs().ok()?;
    let mask = all.find_map(|one| four(one.netmask).filter(|_| four(one.address) == Some(own)))?;
    let base = Ipv4Addr::from(own.to_bits() & mask.to_bits());
    Some(format!("{base}/{}", mask.to_bits().count_ones()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subnet_of_an_own_address_is_that_of_its_interface() {
        let of = |text: &str| subnet_of(text.parse().unwrap());
        assert_eq!(of("127.0.0.1").as_deref(), Some("127.0.0.0/8"));
        assert_eq!((of("192.0.2.77"), of("fe80::1")), (None, None));
        assert_eq!(
            mapped([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 9, 0, 1]).to_string(),
            "10.9.0.1"
        );
    }

    #[test]
    fn where_there_is_no_adapter_the_reason_is_absence_and_bad_options_are_refused() {
        let bad = try_out(&["-nodes", "0"]).unwrap_err();
        assert!(matches!(bad, Unusable::Refused(_)), "{bad:?}");
        let none = try_out(&["-nodes", "2", "-device", "nowhere0"]).unwrap_err();
        assert!(matches!(none, Unusable::Absent(_)), "{none:?}");
    }
}
