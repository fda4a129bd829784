//! The socket on which an endpoint exchanges hellos with the endpoints of other nodes.

#![forbid(unsafe_code)]

use super::hello::{HELLO_LEN, Hello};
use crate::device::net_common::EndpointIdentity;
use crate::device::net_common::address_table::{AddressKey, AddressTable};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

/// See the module.
pub(super) struct HelloSocket {
    socket: UdpSocket,
    addresses: Arc<AddressTable>,
    identity: EndpointIdentity,
}

/// Encodes a socket address for the address table.
pub(super) fn encode_address(address: SocketAddr) -> Vec<u8> {
    let mut bytes = address.port().to_le_bytes().to_vec();
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
    bytes
}

/// Decodes an address of the address table. None: these bytes are not an address.
fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (port, ip) = bytes.split_first_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_le_bytes(*port)))
}

impl HelloSocket {
    pub(super) fn new(
        socket: UdpSocket,
        addresses: Arc<AddressTable>,
        identity: EndpointIdentity,
    ) -> HelloSocket {
        HelloSocket { socket, addresses, identity }
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// The identity that each hello of this endpoint contains.
    pub(super) fn identity(&self) -> EndpointIdentity {
        self.identity
    }

    /// Sends a hello to its node, unless that node has no address.
    pub(super) fn send(&self, hello: &Hello) {
        let key = AddressKey { node: hello.to, channel: self.identity.channel, link: 0 };
        let to = self.addresses.get(key);
        let Some(to) = to.as_deref().and_then(decode_address) else { return };
        // If this hello cannot be sent now, a later hello replaces it.
        let _ = self.socket.send_to(&hello.encode(), to);
    }

    /// Reads datagrams up to the next hello of another node to this endpoint. Takes each datagram
    /// from `budget`. None: no such hello waits, or the budget is spent.
    pub(super) fn receive(&self, budget: &mut usize) -> Option<Hello> {
        let mut bytes = [0; HELLO_LEN + 1];
        while *budget > 0 {
            *budget -= 1;
            let len = self.socket.recv(&mut bytes).ok()?;
            let hello = Hello::decode(&bytes[..len]).filter(|hello| self.is_for_us(hello));
            if hello.is_some() {
                return hello;
            }
        }
        None
    }

    fn is_for_us(&self, hello: &Hello) -> bool {
        let EndpointIdentity { self_node, channel, secret } = self.identity;
        let is_of_channel = hello.secret == secret && hello.channel == channel;
        is_of_channel && hello.to == self_node && hello.from != self_node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_decoded_unchanged_and_other_bytes_are_refused() {
        for text in ["10.0.0.2:4711", "[fe80::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(decode_address(&encode_address(address)), Some(address));
        }
        assert_eq!((decode_address(&[]), decode_address(&[1, 2, 3])), (None, None));
    }
}
