//! The destinations of datagrams: socket addresses in the kernel's form.

// UNSAFETY: forms socket addresses for the kernel.
#![expect(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// A peer's socket address in the kernel's form, and the properties of the route to it.
pub struct Destination {
    /// The address. The type is also large enough for an IPv4 address.
    addr: libc::sockaddr_in6,
    addr_len: libc::socklen_t,
    /// The length of the longest packet.
    pub mtu: usize,
    /// Whether the kernel segments datagrams on this route.
    pub supports_segmentation: bool,
    /// A socket that sends only to this peer.
    pub connected_socket: Option<OwnedFd>,
}

impl Destination {
    pub fn new(to: SocketAddr, mtu: usize) -> Destination {
        // SAFETY: this is plain data, for which all zeros are valid.
        let mut addr: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let addr_len = match to {
            SocketAddr::V4(to) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: to.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: an IPv4 address is shorter than the variable, and its alignment is no
                // larger.
                unsafe { (&raw mut addr).cast::<libc::sockaddr_in>().write(v4) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(to) => {
                addr.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                addr.sin6_port = to.port().to_be();
                addr.sin6_addr.s6_addr = to.ip().octets();
                addr.sin6_scope_id = to.scope_id();
                size_of::<libc::sockaddr_in6>()
            }
        };
        let addr_len = addr_len as libc::socklen_t;
        Destination { addr, addr_len, mtu, supports_segmentation: true, connected_socket: None }
    }

    /// Returns the address for the kernel, which only reads it. The pointer is valid while this
    /// value lives and does not move.
    pub fn sockaddr(&self) -> (*mut libc::c_void, libc::socklen_t) {
        ((&raw const self.addr).cast_mut().cast(), self.addr_len)
    }
}
