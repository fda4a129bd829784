//! The endpoint of a wire consists of the sockets of one process for one link. The owner opens the
//! sockets (`open.rs`) and passes them to the process, together with a description.

#![forbid(unsafe_code)]

use super::address::Address;
use super::error::WireError;
use super::fault_injection::FaultConfig;
use super::link::{self, LinkState};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

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
    pub(super) fn new(
        opened: OpenedSockets,
        loss: Option<FaultConfig>,
        note: Option<String>,
    ) -> WireEndpoint {
        let OpenedSockets { kind, link, link_mtu, address, descriptors } = opened;
        WireEndpoint { kind, link, link_mtu, address, loss, descriptors, note }
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
            WireError::with_cause(format!("{}: cannot duplicate the sockets", self.link), error)
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
}

/// Kind, name and MTU of the link, address, loss.
type ParsedDescription = (WireKind, String, usize, Address, Option<FaultConfig>);

/// Parses a result of [`WireEndpoint::describe`]. None: the bytes are not such a result.
pub(super) fn parse_description(bytes: &[u8]) -> Option<ParsedDescription> {
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
    let to_error = |error| WireError::with_cause(format!("{link}: cannot claim a port"), error);
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
