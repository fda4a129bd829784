//! An endpoint consists of the sockets of one process for one link. The owner opens the sockets
//! with its own rights and passes them to the process, which needs no rights. Opening requires
//! CAP_NET_RAW for raw wires, and for AF_XDP also CAP_BPF and CAP_NET_ADMIN.

#![forbid(unsafe_code)]

use super::address::Address;
use super::error::WireError;
use super::fault_injection::FaultConfig;
use super::link::{self, LinkState};
use super::{packet, udp, xdp};
use socket2::{Domain, SockRef};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

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
    /// The word is not one of these.
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

/// The kind of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WireKind {
    /// UDP.
    Udp,
    /// AF_PACKET.
    Packet,
    /// AF_XDP.
    Xdp,
}

impl WireKind {
    const ALL: [WireKind; 3] = [WireKind::Udp, WireKind::Packet, WireKind::Xdp];

    fn code(self) -> u8 {
        match self {
            WireKind::Udp => b'U',
            WireKind::Packet => b'P',
            WireKind::Xdp => b'X',
        }
    }

    /// Returns the number of descriptors of an endpoint. The first one is the socket.
    fn fd_count(self) -> usize {
        match self {
            WireKind::Udp => 1,
            WireKind::Packet => packet::FD_COUNT,
            WireKind::Xdp => xdp::FD_COUNT,
        }
    }
}

/// Writes the name for users.
impl fmt::Display for WireKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WireKind::Udp => "UDP",
            WireKind::Packet => "AF_PACKET",
            WireKind::Xdp => "AF_XDP",
        })
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
    /// never reach the socket, and a process that receives the socket cannot change this. It is for
    /// processes that have fewer rights than the owner.
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

/// The result of opening the sockets of a wire.
pub(super) struct OpenedSockets {
    pub(super) kind: WireKind,
    pub(super) link: String,
    pub(super) link_mtu: usize,
    pub(super) address: Address,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// The sockets of one process for one link.
pub struct WireEndpoint {
    kind: WireKind,
    link: String,
    link_mtu: usize,
    address: Address,
    loss: Option<FaultConfig>,
    descriptors: Vec<OwnedFd>,
    note: Option<String>,
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
        let OpenedSockets { kind, link, link_mtu, address, descriptors } = opened;
        Ok(WireEndpoint { kind, link, link_mtu, address, loss: options.loss, descriptors, note })
    }

    /// Returns the kind of the wire.
    pub fn kind(&self) -> WireKind {
        self.kind
    }

    /// Returns the name of the interface.
    pub fn link_name(&self) -> &str {
        &self.link
    }

    /// Returns one line for the user if the wire is not the requested one.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Sets the note and the fault injection.
    #[must_use]
    pub fn with_note_and_loss(
        self,
        note: Option<String>,
        loss: Option<FaultConfig>,
    ) -> WireEndpoint {
        WireEndpoint { note, loss, ..self }
    }

    /// Returns the address for peers: opaque bytes for their [`add_peer`](super::Wire::add_peer).
    pub fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    /// Returns the length of the longest packet that the link carries.
    pub fn mtu(&self) -> usize {
        usize::from(self.address.mtu)
    }

    pub(super) fn decoded_address(&self) -> &Address {
        &self.address
    }

    /// Returns the interface's MTU at the time of opening, which determines the sizes of the rings.
    pub(super) fn link_mtu(&self) -> usize {
        self.link_mtu
    }

    pub(super) fn loss(&self) -> Option<FaultConfig> {
        self.loss
    }

    /// Returns the socket for sending, receiving and polling.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.descriptors[0].as_fd()
    }

    pub(super) fn descriptor(&self, index: usize) -> BorrowedFd<'_> {
        self.descriptors[index].as_fd()
    }

    /// Reads the current state of the link.
    pub fn link(&self) -> LinkState {
        // AF_XDP sockets do not support this request, but the last descriptor of each kind does.
        let fd = self.descriptors.last().map_or(self.socket(), OwnedFd::as_fd);
        link::state(fd, &self.link)
    }

    /// Returns all descriptors in the order that [`WireEndpoint::rebuild`] expects.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.descriptors.iter().map(OwnedFd::as_fd)
    }

    /// Duplicates the endpoint, for the owner that continues after the process has exited. Only one
    /// of the duplicates may be attached at a time.
    ///
    /// # Errors
    /// The process has no free descriptors.
    pub fn try_clone(&self) -> Result<WireEndpoint, WireError> {
        let clone = |fd: &OwnedFd| fd.try_clone();
        let descriptors: Result<Vec<_>, _> = self.descriptors.iter().map(clone).collect();
        let descriptors = descriptors.map_err(|error| {
            WireError::with_cause(format!("duplicates for {}", self.link), error)
        })?;
        Ok(WireEndpoint { link: self.link.clone(), descriptors, note: self.note.clone(), ..*self })
    }

    /// Returns the description that accompanies the descriptors to another process. Numbers are
    /// big-endian.
    ///
    /// ```text
    /// 'W' · version 1 · kind · length of the link's name · name · link's MTU, 4 bytes ·
    /// length of the address · address · loss: nothing, or drop, duplicate, reorder, seed, 8 each
    /// ```
    pub fn describe(&self) -> Vec<u8> {
        let mut out = vec![b'W', 1, self.kind.code(), self.link.len() as u8];
        out.extend(self.link.bytes());
        out.extend((self.link_mtu as u32).to_be_bytes());
        let address = self.address.encode();
        out.push(address.len() as u8);
        out.extend(address);
        if let Some(FaultConfig { drop, duplicate, reorder, seed }) = self.loss {
            out.extend([drop, duplicate, reorder].iter().flat_map(|value| value.to_be_bytes()));
            out.extend(seed.to_be_bytes());
        }
        out
    }

    /// Rebuilds an endpoint from a description and descriptors that another process has passed.
    ///
    /// # Errors
    /// The description is malformed, or the descriptors do not match it.
    pub fn rebuild(
        description: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<WireEndpoint, WireError> {
        let (kind, link, link_mtu, address, loss) =
            parse(description).ok_or_else(|| WireError::new("endpoint: malformed description"))?;
        if descriptors.len() != kind.fd_count() {
            let (count, expected) = (descriptors.len(), kind.fd_count());
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
        Ok(WireEndpoint { kind, link, link_mtu, address, loss, descriptors, note: None })
    }
}

fn raw_link(options: &WireOptions) -> Result<&str, WireError> {
    options
        .link
        .as_deref()
        .ok_or_else(|| WireError::new("a raw wire needs the name of an interface"))
}

type ParsedDescription = (WireKind, String, usize, Address, Option<FaultConfig>);

fn parse(bytes: &[u8]) -> Option<ParsedDescription> {
    let (&[b'W', 1, code, name_len], rest) = bytes.split_first_chunk()? else { return None };
    let kind = WireKind::ALL.into_iter().find(|kind| kind.code() == code)?;
    let (name, rest) = rest.split_at_checked(name_len.into())?;
    let link = std::str::from_utf8(name).ok()?;
    if link.is_empty() || link.len() >= libc::IFNAMSIZ || link.contains('\0') {
        return None;
    }
    let (mtu, rest) = rest.split_first_chunk()?;
    let (&address_len, rest) = rest.split_first()?;
    let (address, rest) = rest.split_at_checked(address_len.into())?;
    let address = Address::decode(address).ok()?;
    let mut words = rest.chunks_exact(8).map(|word| word.try_into().unwrap_or_default());
    let loss = match rest.len() {
        0 => None,
        32 => {
            let mut next_f64 = || f64::from_be_bytes(words.next().unwrap_or_default());
            let (drop, duplicate, reorder) = (next_f64(), next_f64(), next_f64());
            let seed = u64::from_be_bytes(words.next().unwrap_or_default());
            let is_probability = |value: f64| (0.0..=1.0).contains(&value);
            if ![drop, duplicate, reorder].into_iter().all(is_probability) {
                return None;
            }
            Some(FaultConfig { drop, duplicate, reorder, seed })
        }
        _ => return None,
    };
    Some((kind, link.into(), u32::from_be_bytes(*mtu) as usize, address, loss))
}

/// Claims a port on a NIC that no other process of the network namespace has. The port is claimed
/// as a name in the abstract socket name space, which also belongs to the network namespace. It is
/// held until the last descriptor of the returned socket is closed. The socket is also used for
/// interface requests.
pub(super) fn claim_port(link: &str) -> Result<(OwnedFd, u16), WireError> {
    let to_error = |error| WireError::with_cause(format!("{link}: a port for this process"), error);
    for _ in 0..64 {
        // Port 0 is invalid.
        let port = (RandomState::new().build_hasher().finish() as u16).max(1);
        let name = format!("score-wire-{link}-{port}");
        let address = SocketAddr::from_abstract_name(name).map_err(to_error)?;
        match UnixDatagram::bind_addr(&address) {
            Ok(socket) => return Ok((socket.into(), port)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(to_error(error)),
        }
    }
    Err(WireError::new(format!("{link}: no port is free for this process")))
}
