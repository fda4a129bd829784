//! Where datagrams go.

// UNSAFETY: forms socket addresses for the kernel.
#![expect(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// A peer's socket address as the kernel wants it, and what its way carries.
pub struct Destination {
    /// Large enough for IPv4's too.
    name: libc::sockaddr_in6,
    name_len: libc::socklen_t,
    /// The longest packet.
    pub mtu: usize,
    /// Whether the kernel segments datagrams on this way.
    pub segments: bool,
    /// A socket that sends here alone.
    pub connected: Option<OwnedFd>,
}

impl Destination {
    pub fn new(to: SocketAddr, mtu: usize) -> Destination {
        // SAFETY: plain data; all zero is valid.
        let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let name_len = match to {
            SocketAddr::V4(to) => {
                let four = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: to.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: an IPv4 address is shorter and less aligned than the place for it.
                unsafe { (&raw mut name).cast::<libc::sockaddr_in>().write(four) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(to) => {
                name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                name.sin6_port = to.port().to_be();
                name.sin6_addr.s6_addr = to.ip().octets();
                name.sin6_scope_id = to.scope_id();
                size_of::<libc::sockaddr_in6>()
            }
        };
        let name_len = name_len as libc::socklen_t;
        Destination { name, name_len, mtu, segments: true, connected: None }
    }

    /// For the kernel, which only reads it: valid as long as this lives and does not move.
    pub fn name(&self) -> (*mut libc::c_void, libc::socklen_t) {
        ((&raw const self.name).cast_mut().cast(), self.name_len)
    }
}
