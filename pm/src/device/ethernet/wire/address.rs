//! The addresses that processes exchange: opaque bytes that only the wires interpret.
//!
//! ```text
//! kind 'U' or 'R' · version 1 · longest packet that the process receives, 2 bytes ·
//!     U: IP version 4 or 6 · IP address, 4 or 16 bytes · port, 2 bytes
//!     R: MAC address, 6 bytes · process's port on that NIC, 2 bytes
//! ```
//! Numbers are big-endian.

#![forbid(unsafe_code)]

use super::error::WireError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const VERSION: u8 = 1;

/// The address of a process on one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The longest packet that the process receives.
    pub mtu: u16,
    /// The address on its wire.
    pub location: WireAddress,
}

/// The wire, and the address on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WireAddress {
    /// UDP.
    Udp(IpAddr, u16),
    /// AF_PACKET and AF_XDP: the MAC address and the process's port.
    Raw([u8; 6], u16),
}

impl Address {
    /// Encodes the address for other processes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        let kind = if matches!(self.location, WireAddress::Udp(..)) { b'U' } else { b'R' };
        out.extend([kind, VERSION]);
        out.extend(self.mtu.to_be_bytes());
        let port = match self.location {
            WireAddress::Udp(IpAddr::V4(ip), port) => {
                out.push(4);
                out.extend(ip.octets());
                port
            }
            WireAddress::Udp(IpAddr::V6(ip), port) => {
                out.push(6);
                out.extend(ip.octets());
                port
            }
            WireAddress::Raw(mac, port) => {
                out.extend(mac);
                port
            }
        };
        out.extend(port.to_be_bytes());
        out
    }

    /// Decodes and checks an address of another process.
    ///
    /// # Errors
    /// The bytes are not an address.
    pub fn decode(bytes: &[u8]) -> Result<Address, WireError> {
        parse(bytes).ok_or_else(|| WireError::new(format!("not an address: {bytes:02x?}")))
    }
}

fn parse(bytes: &[u8]) -> Option<Address> {
    let (header, rest) = bytes.split_first_chunk::<4>()?;
    let [kind, VERSION, high, low] = *header else { return None };
    let (rest, port) = rest.split_last_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    let location = match (kind, rest) {
        (b'U', [4, ip @ ..]) => {
            WireAddress::Udp(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?).into(), port)
        }
        (b'U', [6, ip @ ..]) => {
            WireAddress::Udp(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?).into(), port)
        }
        (b'R', mac) => WireAddress::Raw(mac.try_into().ok()?, port),
        _ => return None,
    };
    // Port 0 is invalid. Every host accepts datagrams with 512 bytes of data (RFC 791).
    let mtu = u16::from_be_bytes([high, low]);
    (port != 0 && mtu >= 512).then_some(Address { mtu, location })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Address; 3] = [
        Address {
            mtu: 1472,
            location: WireAddress::Udp(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7)), 4000),
        },
        Address { mtu: 8952, location: WireAddress::Udp(IpAddr::V6(Ipv6Addr::LOCALHOST), 1) },
        Address { mtu: 1496, location: WireAddress::Raw([2, 0, 0, 0, 0, 9], 0xfffe) },
    ];

    #[test]
    fn an_address_survives_its_encoding() {
        for address in ALL {
            assert_eq!(Address::decode(&address.encode()), Ok(address));
        }
    }

    #[test]
    fn bytes_that_are_no_address_are_refused() {
        for address in ALL {
            let bytes = address.encode();
            for len in 0..bytes.len() {
                assert!(Address::decode(&bytes[..len]).is_err(), "{len} of {bytes:02x?}");
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(Address::decode(&longer).is_err());
            for (index, value) in [(0, b'X'), (1, 2), (2, 0)] {
                let mut wrong = bytes.clone();
                wrong[index] = value;
                assert!(Address::decode(&wrong).is_err(), "{index}");
            }
        }
    }
}
