//! The destinations of datagrams: socket addresses in the kernel's form.

#![forbid(unsafe_code)]

use socket2::SockAddr;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// A peer's socket address in the kernel's form, and the properties of the route to it.
pub struct Destination {
    addr: SockAddr,
    /// The length of the longest packet.
    pub mtu: usize,
    /// Whether the kernel segments datagrams on this route.
    pub supports_segmentation: bool,
    /// A socket that sends only to this peer.
    pub connected_socket: Option<OwnedFd>,
}

impl Destination {
    pub fn new(to: SocketAddr, mtu: usize) -> Destination {
        let addr = to.into();
        Destination { addr, mtu, supports_segmentation: true, connected_socket: None }
    }

    /// Returns the address for the kernel, which only reads it. The pointer is valid while this
    /// value lives and does not move.
    pub fn sockaddr(&self) -> (*mut libc::c_void, libc::socklen_t) {
        (self.addr.as_ptr().cast_mut().cast(), self.addr.len())
    }
}
