//! Opens the sockets of an endpoint, and checks sockets that another process has passed. The owner
//! opens the sockets with its own rights, so that the process needs no rights. Opening requires
//! CAP_NET_RAW for raw wires, and for AF_XDP also CAP_BPF and CAP_NET_ADMIN.

#![forbid(unsafe_code)]

use super::endpoint::{OpenedSockets, WireEndpoint, WireKind, parse_description};
use super::error::WireError;
use super::fault_injection::FaultConfig;
use super::{packet, udp, xdp};
use socket2::{Domain, SockRef};
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// The wire that the user requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WirePreference {
    /// UDP.
    Udp,
    /// AF_XDP, or AF_PACKET if AF_XDP cannot be opened ([`WireEndpoint::note`] gives the reason).
    Raw,
    /// AF_PACKET.
    Packet,
    /// AF_XDP.
    Xdp,
}

impl WirePreference {
    /// Parses `udp`, `raw`, `packet` or `xdp`.
    ///
    /// # Errors
    /// The word is none of these four.
    pub fn parse(word: &str) -> Result<WirePreference, WireError> {
        match word {
            "udp" => Ok(WirePreference::Udp),
            "raw" => Ok(WirePreference::Raw),
            "packet" => Ok(WirePreference::Packet),
            "xdp" => Ok(WirePreference::Xdp),
            _ => Err(WireError::new(format!(
                "wire {word:?}: unknown (valid: udp, raw, packet, xdp)"
            ))),
        }
    }
}

/// The options of [`WireEndpoint::open`].
#[derive(Debug, Clone, PartialEq)]
pub struct WireOptions {
    /// The requested wire.
    pub preference: WirePreference,
    /// The name of the interface. It is required for raw wires. For UDP it can be derived from the
    /// address.
    pub link: Option<String>,
    /// The local address for UDP. The default is the first address of the interface.
    pub address: Option<IpAddr>,
    /// Fault injection, for tests.
    pub loss: Option<FaultConfig>,
    /// For raw wires, a secret that the packet of each received frame must carry. Other frames
    /// never reach the socket, and a process that receives the socket cannot change this. Set it if
    /// the process has fewer rights than the owner.
    pub secret: Option<u64>,
}

impl WireOptions {
    /// Returns options for a wire over an interface.
    pub fn on_interface(preference: WirePreference, link: &str) -> WireOptions {
        WireOptions { preference, link: Some(link.into()), address: None, loss: None, secret: None }
    }

    /// Returns options for UDP from an address of this host.
    pub fn udp(address: IpAddr) -> WireOptions {
        let (link, address) = (None, Some(address));
        WireOptions { preference: WirePreference::Udp, link, address, loss: None, secret: None }
    }
}

impl WireEndpoint {
    /// Opens and binds the sockets.
    ///
    /// # Errors
    /// The interface or address does not exist, a right is missing, or the kernel does not support
    /// this wire.
    pub fn open(options: &WireOptions) -> Result<WireEndpoint, WireError> {
        let (opened, note) = match options.preference {
            WirePreference::Udp => (udp::open(options.link.as_deref(), options.address)?, None),
            WirePreference::Packet => (packet::open(raw_link(options)?, options.secret)?, None),
            WirePreference::Xdp => (xdp::open(raw_link(options)?, options.secret)?, None),
            WirePreference::Raw => {
                let link = raw_link(options)?;
                match xdp::open(link, options.secret) {
                    Ok(opened) => (opened, None),
                    Err(error) => {
                        let note = format!("{error}; AF_PACKET is used instead");
                        (packet::open(link, options.secret)?, Some(note))
                    }
                }
            }
        };
        Ok(WireEndpoint::new(opened, options.loss, note))
    }

    /// Rebuilds an endpoint from a description and descriptors that another process has passed.
    ///
    /// # Errors
    /// The description is malformed, or the descriptors do not match it.
    pub fn rebuild(
        description: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<WireEndpoint, WireError> {
        let (kind, link, link_mtu, address, loss) = parse_description(description)
            .ok_or_else(|| WireError::new("endpoint: malformed description"))?;
        let (count, expected) = (descriptors.len(), fd_count(kind));
        if count != expected {
            return Err(WireError::new(format!(
                "endpoint: {count} descriptors instead of {expected}"
            )));
        }
        // A descriptor that is not a socket has no domain.
        let domain = SockRef::from(&descriptors[0]).domain().ok();
        let fits = match kind {
            WireKind::Udp => [Some(Domain::IPV4), Some(Domain::IPV6)].contains(&domain),
            WireKind::Packet => domain == Some(Domain::PACKET),
            WireKind::Xdp => domain == Some(xdp::domain()),
        };
        if !fits {
            return Err(WireError::new(format!("endpoint: no {kind:?} socket was passed")));
        }
        let sockets = OpenedSockets { kind, link, link_mtu, address, descriptors };
        Ok(WireEndpoint::new(sockets, loss, None))
    }
}

/// Returns the number of descriptors of an endpoint of this kind. The first one is the socket.
fn fd_count(kind: WireKind) -> usize {
    match kind {
        WireKind::Udp => 1,
        WireKind::Packet => packet::FD_COUNT,
        WireKind::Xdp => xdp::FD_COUNT,
    }
}

fn raw_link(options: &WireOptions) -> Result<&str, WireError> {
    options
        .link
        .as_deref()
        .ok_or_else(|| WireError::new("a raw wire needs the name of an interface"))
}
