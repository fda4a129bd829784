//! The header of every packet of PM/Ethernet: 64 bytes, little-endian, the same on each wire.
//! `docs/dev/ethernet.md` contains the table. The payload follows immediately and has the alignment
//! of the header.
//!
//! A packet is checked in this order: its length, the job's secret ([`secret`]), then everything
//! else ([`Header::parse`]). Padding after the payload is permitted, because short Ethernet frames
//! are padded.

use thiserror::Error;

/// Length of a header in bytes.
pub const PACKET_HEADER_LEN: usize = 64;
/// First two bytes: `P` and the version of the format.
pub const MAGIC: u16 = u16::from_le_bytes([b'P', 1]);
/// EtherType of the raw wires. It is one of two values that IEEE 802 reserves for local use.
pub const ETHERTYPE: u16 = 0x88b5;
/// Largest number of links that join two hosts.
pub const MAX_LINKS: u8 = 8;
/// Number of sequence numbers that one bitmap of selective acknowledgement covers.
pub const SACK_BLOCK: u32 = 64;

/// Flag: `ack`, `window`, `sack_block` and `sack_bitmap` are valid.
pub const ACK: u8 = 1;
/// Flag: `timestamp_echo` is valid.
pub const TIMESTAMP_ECHO: u8 = 2;
/// Flag: the receiver must send an acknowledgement at once.
pub const ACK_REQUESTED: u8 = 4;
/// Flag: `mac` contains a keyed MAC. Reserved: no sender sets it, and receivers drop packets that
/// have it.
pub const MAC: u8 = 8;

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PacketKind {
    /// A message of `pmSend`; numbered.
    Data = 1,
    /// A message of `pmControlSend`; numbered like data.
    Control = 2,
    /// Acknowledges and grants credit; no payload, not numbered.
    Ack = 3,
    /// Requests an acknowledgement because the window is closed.
    WindowProbe = 4,
    /// Checks whether a link carries packets.
    LinkProbe = 5,
    /// Answers [`PacketKind::LinkProbe`] over the same link.
    LinkAnswer = 6,
    /// A frame of remote memory access ([`crate::rma_frame`]); numbered like data.
    Remote = 7,
    /// More bytes of the previous frame of remote memory access; numbered like data.
    Continuation = 8,
    /// Replaces a numbered packet of remote memory access whose bytes are lost. Its payload is
    /// meaningless.
    PayloadLost = 9,
}

impl PacketKind {
    /// Whether packets of this kind have a payload and a sequence number.
    #[inline]
    pub fn is_numbered(self) -> bool {
        matches!(
            self,
            PacketKind::Data
                | PacketKind::Control
                | PacketKind::Remote
                | PacketKind::Continuation
                | PacketKind::PayloadLost
        )
    }

    /// The kind with this number, which is the header's third byte.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<PacketKind> {
        Some(match byte {
            1 => PacketKind::Data,
            2 => PacketKind::Control,
            3 => PacketKind::Ack,
            4 => PacketKind::WindowProbe,
            5 => PacketKind::LinkProbe,
            6 => PacketKind::LinkAnswer,
            7 => PacketKind::Remote,
            8 => PacketKind::Continuation,
            9 => PacketKind::PayloadLost,
            _ => return None,
        })
    }
}

/// A packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of packet.
    pub kind: PacketKind,
    /// A combination of [`ACK`], [`TIMESTAMP_ECHO`], [`ACK_REQUESTED`] and [`MAC`].
    pub flags: u8,
    /// The link over which it was sent.
    pub link: u8,
    /// The block of 64 sequence numbers that `sack_bitmap` covers.
    pub sack_block: u8,
    /// Number of bytes of payload.
    pub len: u16,
    /// The job's secret.
    pub secret: u64,
    /// Number of times that the job has been restarted.
    pub incarnation: u32,
    /// The sending node.
    pub source: u32,
    /// The receiving node.
    pub destination: u32,
    /// Number of this packet in the sequence from source to destination.
    pub sequence: u32,
    /// The first number that the sender has not received.
    pub ack: u32,
    /// The first number that the other side must not send yet.
    pub window: u32,
    /// Bit i: `ack + 1 + 64 * sack_block + i` has been received.
    pub sack_bitmap: u64,
    /// The sender's clock, in the sender's own units.
    pub timestamp: u32,
    /// The timestamp of the oldest packet that this packet acknowledges.
    pub timestamp_echo: u32,
    /// Space for a keyed MAC, which is zero.
    pub mac: u64,
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The packet is shorter than a header.
    #[error("a packet of {0} bytes is shorter than its header")]
    Short(usize),
    /// The packet belongs to another protocol, or to another version of this one.
    #[error("a packet begins with {0:#06x}, not {MAGIC:#06x}")]
    Magic(u16),
    /// The kind is unknown to this version.
    #[error("a packet is of unknown kind {0}")]
    Kind(u8),
    /// A flag is unknown to this version, or there is a MAC, which cannot be checked yet.
    #[error("a packet has flags {0:#04x}")]
    Flags(u8),
    /// The link is beyond [`MAX_LINKS`].
    #[error("a packet names link {0}")]
    Link(u8),
    /// The payload's length does not match the packet or the kind.
    #[error("a packet with {1} bytes after the header announces {0}")]
    Length(u16, usize),
}

/// The secret of a packet, which is checked first. Returns `None` if the packet is shorter than a
/// header.
#[inline]
pub fn secret(packet: &[u8]) -> Option<u64> {
    packet.first_chunk::<PACKET_HEADER_LEN>().map(|header| read_u64(header, 8))
}

#[inline]
fn read_u32(header: &[u8; PACKET_HEADER_LEN], offset: usize) -> u32 {
    u32::from_le_bytes([header[offset], header[offset + 1], header[offset + 2], header[offset + 3]])
}

#[inline]
fn read_u64(header: &[u8; PACKET_HEADER_LEN], offset: usize) -> u64 {
    u64::from(read_u32(header, offset)) | u64::from(read_u32(header, offset + 4)) << 32
}

impl Header {
    /// Parses the header at the start of `packet`. Checks everything that does not depend on the
    /// job.
    ///
    /// # Errors
    /// See [`HeaderError`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Header, HeaderError> {
        let Some(header) = packet.first_chunk::<PACKET_HEADER_LEN>() else {
            return Err(HeaderError::Short(packet.len()));
        };
        let magic = u16::from_le_bytes([header[0], header[1]]);
        if magic != MAGIC {
            return Err(HeaderError::Magic(magic));
        }
        let Some(kind) = PacketKind::from_byte(header[2]) else {
            return Err(HeaderError::Kind(header[2]));
        };
        let (flags, link) = (header[3], header[4]);
        if flags & !(ACK | TIMESTAMP_ECHO | ACK_REQUESTED) != 0 {
            return Err(HeaderError::Flags(flags));
        }
        if link >= MAX_LINKS {
            return Err(HeaderError::Link(link));
        }
        let len = u16::from_le_bytes([header[6], header[7]]);
        let available_len = packet.len() - PACKET_HEADER_LEN;
        if usize::from(len) > available_len || (len != 0) != kind.is_numbered() {
            return Err(HeaderError::Length(len, available_len));
        }
        Ok(Header {
            kind,
            flags,
            link,
            sack_block: header[5],
            len,
            secret: read_u64(header, 8),
            incarnation: read_u32(header, 16),
            source: read_u32(header, 20),
            destination: read_u32(header, 24),
            sequence: read_u32(header, 28),
            ack: read_u32(header, 32),
            window: read_u32(header, 36),
            sack_bitmap: read_u64(header, 40),
            timestamp: read_u32(header, 48),
            timestamp_echo: read_u32(header, 52),
            mac: read_u64(header, 56),
        })
    }

    /// Writes the header to `out`.
    #[inline]
    pub fn encode(&self, out: &mut [u8; PACKET_HEADER_LEN]) {
        let mut put =
            |offset: usize, bytes: &[u8]| out[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(2, &[self.kind as u8, self.flags, self.link, self.sack_block]);
        put(6, &self.len.to_le_bytes());
        put(8, &self.secret.to_le_bytes());
        put(16, &self.incarnation.to_le_bytes());
        put(20, &self.source.to_le_bytes());
        put(24, &self.destination.to_le_bytes());
        put(28, &self.sequence.to_le_bytes());
        put(32, &self.ack.to_le_bytes());
        put(36, &self.window.to_le_bytes());
        put(40, &self.sack_bitmap.to_le_bytes());
        put(48, &self.timestamp.to_le_bytes());
        put(52, &self.timestamp_echo.to_le_bytes());
        put(56, &self.mac.to_le_bytes());
    }
}

/// Fuzzing entry: parses any bytes, as a network may deliver them.
///
/// # Panics
/// If an accepted header parses differently after it has been encoded again.
pub fn fuzz(packet: &[u8]) {
    let Ok(header) = Header::parse(packet) else { return };
    assert_eq!(secret(packet), Some(header.secret));
    assert!(PACKET_HEADER_LEN + usize::from(header.len) <= packet.len());
    let mut encoded = [0; PACKET_HEADER_LEN];
    header.encode(&mut encoded);
    assert_eq!(encoded, packet[..PACKET_HEADER_LEN]);
    if header.kind == PacketKind::Remote {
        crate::rma_frame::fuzz(&packet[PACKET_HEADER_LEN..][..header.len.into()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet() -> Vec<u8> {
        let header = Header {
            kind: PacketKind::Data,
            flags: ACK | TIMESTAMP_ECHO,
            link: 1,
            sack_block: 2,
            len: 8,
            secret: 0x0123_4567_89ab_cdef,
            incarnation: 3,
            source: 4,
            destination: 5,
            sequence: 6,
            ack: 7,
            window: 8,
            sack_bitmap: 9,
            timestamp: 10,
            timestamp_echo: 11,
            mac: 0,
        };
        let mut header_bytes = [0; PACKET_HEADER_LEN];
        header.encode(&mut header_bytes);
        [header_bytes.as_slice(), b"12345678"].concat()
    }

    #[test]
    fn the_bytes_of_a_header_are_fixed() {
        let first = [b'P', 1, 1, 3, 1, 2, 8, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 1];
        assert_eq!(packet()[..16], first);
        let fields = (16..40).step_by(4).map(|offset| packet()[offset]);
        assert_eq!(fields.collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8]);
        assert_eq!((packet()[40], packet()[48], packet()[52]), (9, 10, 11));
    }

    #[test]
    fn each_header_defect_has_its_own_error() {
        let with = |offset: usize, byte: u8| {
            let mut packet = packet();
            packet[offset] = byte;
            Header::parse(&packet).unwrap_err()
        };
        assert_eq!(with(1, 2), HeaderError::Magic(0x0250));
        assert_eq!(with(2, 0), HeaderError::Kind(0));
        assert_eq!(with(3, MAC), HeaderError::Flags(MAC));
        assert_eq!(with(4, 8), HeaderError::Link(8));
        assert_eq!(with(6, 9), HeaderError::Length(9, 8));
        assert_eq!(with(6, 0), HeaderError::Length(0, 8));
        assert_eq!(with(2, PacketKind::Ack as u8), HeaderError::Length(8, 8));
        assert_eq!(Header::parse(&packet()[..63]), Err(HeaderError::Short(63)));
        assert_eq!(secret(&packet()[..63]), None);
    }

    #[test]
    fn each_kind_has_its_number_and_five_kinds_have_a_payload() {
        let kinds: Vec<PacketKind> = (0..=u8::MAX).filter_map(PacketKind::from_byte).collect();
        let bytes: Vec<u8> = kinds.iter().map(|kind| *kind as u8).collect();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let numbered = kinds.iter().filter(|kind| kind.is_numbered()).map(|kind| *kind as u8);
        assert_eq!(numbered.collect::<Vec<_>>(), [1, 2, 7, 8, 9]);
    }

    #[test]
    fn padding_of_a_short_frame_is_no_payload() {
        let padded = [packet(), vec![0; 30]].concat();
        assert_eq!(Header::parse(&padded).unwrap().len, 8);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200), valid in any::<bool>()
        ) {
            if valid && bytes.len() > 8 {
                bytes[..8].copy_from_slice(&packet()[..8]);
            }
            fuzz(&bytes);
        }
    }
}
