//! The kernel's information about an interface. Most functions read it through a socket, so the
//! interface belongs to the socket's network namespace and not to that of the calling process.

// UNSAFETY: ioctl with a structure that the kernel fills.
#![expect(unsafe_code)]

use super::error::WireError;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The current state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkState {
    /// Whether the link is administratively up and has a carrier.
    pub up: bool,
    /// The interface's MTU, or 0 if the interface no longer exists.
    pub mtu: usize,
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: this is plain data. All zeros are an empty name and an empty union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let max_len = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..max_len].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn interface_ioctl(
    socket: BorrowedFd<'_>,
    name: &str,
    request_code: libc::c_ulong,
) -> nix::Result<libc::ifreq> {
    let mut request = request(name);
    // SAFETY: these requests read and write one ifreq.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), request_code as _, &raw mut request) };
    nix::errno::Errno::result(code).map(|_| request)
}

/// Reads the current state of an interface.
pub fn state(socket: BorrowedFd<'_>, name: &str) -> LinkState {
    let flags = interface_ioctl(socket, name, libc::SIOCGIFFLAGS).map_or(0, |answer| {
        // SAFETY: the request fills this member of the union.
        i32::from(unsafe { answer.ifr_ifru.ifru_flags })
    });
    // The kernel updates the flag for a carrier up to a second late. The driver reports a change at
    // once.
    let has_carrier = || carrier(socket, name).unwrap_or(flags & libc::IFF_RUNNING != 0);
    let up = flags & libc::IFF_UP != 0 && has_carrier();
    LinkState { up, mtu: mtu(socket, name).unwrap_or(0) }
}

/// Makes the driver execute the command at the beginning of `value`, and read or write the rest of
/// the structure. The kernel's `<linux/ethtool.h>` defines the structures.
fn ethtool<T>(socket: BorrowedFd<'_>, name: &str, value: &mut T) -> bool {
    let mut request = request(name);
    request.ifr_ifru.ifru_data = std::ptr::from_mut(value).cast();
    // SAFETY: both callers pass the structure of their command, which ifru_data points to.
    let code = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    code == 0
}

/// Whether the driver has a carrier, or None if the driver does not report it.
fn carrier(socket: BorrowedFd<'_>, name: &str) -> Option<bool> {
    const GET_LINK: u32 = 0xa;
    let mut value = [GET_LINK, 0];
    ethtool(socket, name, &mut value).then_some(value[1] != 0)
}

/// Reads the interface's MTU.
pub fn mtu(socket: BorrowedFd<'_>, name: &str) -> Result<usize, WireError> {
    let answer = interface_ioctl(socket, name, libc::SIOCGIFMTU)
        .map_err(|errno| WireError::with_cause(format!("interface {name}"), errno))?;
    // SAFETY: the request fills this member of the union.
    Ok(unsafe { answer.ifr_ifru.ifru_mtu }.max(0) as usize)
}

/// Reads the interface's index.
pub fn index(socket: BorrowedFd<'_>, name: &str) -> Result<u32, WireError> {
    let answer = interface_ioctl(socket, name, libc::SIOCGIFINDEX)
        .map_err(|errno| WireError::with_cause(format!("interface {name}"), errno))?;
    // SAFETY: the request fills this member of the union.
    Ok(unsafe { answer.ifr_ifru.ifru_ifindex } as u32)
}

/// Reads the interface's MAC address. Fails if the interface is not of type Ethernet.
pub fn mac(socket: BorrowedFd<'_>, name: &str) -> Result<[u8; 6], WireError> {
    let answer = interface_ioctl(socket, name, libc::SIOCGIFHWADDR)
        .map_err(|errno| WireError::with_cause(format!("interface {name}"), errno))?;
    // SAFETY: the request fills this member of the union.
    let address = unsafe { answer.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        let what =
            format!("interface {name} is not an Ethernet interface (type {})", address.sa_family);
        return Err(WireError::new(what));
    }
    Ok(std::array::from_fn(|index| address.sa_data[index] as u8))
}

/// Reads the number of receive queues, which is 1 if the driver does not report it.
pub fn receive_queues(socket: BorrowedFd<'_>, name: &str) -> u32 {
    const GET_CHANNELS: u32 = 0x3c;
    #[repr(C)]
    #[derive(Default)]
    struct EthtoolChannels {
        command: u32,
        max: [u32; 4],
        receive: u32,
        transmit: u32,
        other: u32,
        combined: u32,
    }
    let mut channels = EthtoolChannels { command: GET_CHANNELS, ..EthtoolChannels::default() };
    let is_supported = ethtool(socket, name, &mut channels);
    if is_supported { (channels.receive + channels.combined).max(1) } else { 1 }
}

/// An address of an interface in the network namespace of this process, with the mask of its
/// subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub link: String,
    pub ip: IpAddr,
    pub mask: Option<IpAddr>,
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = || address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    let v6 = || address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
    v4().or_else(v6)
}

/// Returns all addresses of all interfaces in the network namespace of this process.
pub fn interface_addresses() -> Result<Vec<InterfaceAddress>, WireError> {
    let all =
        getifaddrs().map_err(|errno| WireError::with_cause("cannot list the interfaces", errno))?;
    let to_interface_address = |entry: nix::ifaddrs::InterfaceAddress| {
        let mask = entry.netmask.as_ref().and_then(ip);
        Some(InterfaceAddress {
            ip: ip(entry.address.as_ref()?)?,
            link: entry.interface_name,
            mask,
        })
    };
    Ok(all.filter_map(to_interface_address).collect())
}

/// Returns the name of the interface that has this address.
pub fn interface_of(ip: IpAddr) -> Result<String, WireError> {
    let addresses = interface_addresses()?;
    let exact = addresses.iter().find(|local| local.ip == ip);
    // All addresses in 127.0.0.0/8 belong to the loopback interface, although only one is
    // configured.
    let loopback = || addresses.iter().find(|local| ip.is_loopback() && local.ip.is_loopback());
    let found = exact.or_else(loopback);
    found
        .map(|local| local.link.clone())
        .ok_or_else(|| WireError::new(format!("no interface of this host has the address {ip}")))
}

/// Returns the first IPv4 address of an interface, or else the first IPv6 address that is not
/// link-local.
pub fn first_address(link: &str) -> Result<IpAddr, WireError> {
    let addresses = interface_addresses()?;
    let on_link = || addresses.iter().filter(|local| local.link == link).map(|local| local.ip);
    let global = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if !ip.is_unicast_link_local());
    let found = on_link().find(IpAddr::is_ipv4).or_else(|| on_link().find(global));
    found.ok_or_else(|| WireError::new(format!("interface {link} has no IP address")))
}

/// Whether `ip` can be reached over `link` without a router.
pub fn is_neighbour(link: &str, ip: IpAddr) -> bool {
    if ip.is_loopback() {
        return true;
    }
    let is_same_subnet = |local_ip: IpAddr, mask: IpAddr| match (local_ip, mask, ip) {
        (IpAddr::V4(local), IpAddr::V4(mask), IpAddr::V4(ip)) => {
            u32::from(local) & u32::from(mask) == u32::from(ip) & u32::from(mask)
        }
        (IpAddr::V6(local), IpAddr::V6(mask), IpAddr::V6(ip)) => {
            u128::from(local) & u128::from(mask) == u128::from(ip) & u128::from(mask)
        }
        _ => false,
    };
    let addresses = interface_addresses().unwrap_or_default();
    let mut on_link = addresses.iter().filter(|local| local.link == link);
    on_link.any(|local| local.mask.is_some_and(|mask| is_same_subnet(local.ip, mask)))
}
