//! The frame header that the AF_PACKET and AF_XDP wires write in front of a packet.
//!
//! ```text
//! destination MAC 6 · source MAC 6 · EtherType 2 · port 2 · length of the packet 2
//! ```
//! The port distinguishes the processes of one NIC. The length is needed because an interface pads
//! short frames. Numbers are big-endian.

#![forbid(unsafe_code)]

use super::PACKET_MAX;

/// The first of the two EtherTypes that IEEE 802 reserves for local experiments.
pub const ETHERTYPE: u16 = 0x88b5;

/// The length of the header in bytes.
pub const HEADER: usize = 18;

/// The bytes of the header that count as payload of the link: port and length.
pub const LINK_PAYLOAD_OVERHEAD: usize = 4;

/// Returns the length of the longest packet on a link of this MTU.
pub fn packet_mtu(link_mtu: usize) -> usize {
    link_mtu.saturating_sub(LINK_PAYLOAD_OVERHEAD).min(PACKET_MAX)
}

/// The offset of the EtherType. The port follows it.
pub const ETHERTYPE_OFFSET: usize = 12;
pub const PORT_OFFSET: usize = 14;

/// The offset of the job's secret in the machine's header, which follows this one
/// (docs/dev/ethernet.md).
const SECRET_OFFSET: usize = HEADER + 8;

/// Returns the two halves of a secret as a frame contains them, with their offsets.
pub fn secret_words(secret: u64) -> [(usize, [u8; 4]); 2] {
    let [a, b, c, d, e, f, g, h] = secret.to_le_bytes();
    [(SECRET_OFFSET, [a, b, c, d]), (SECRET_OFFSET + 4, [e, f, g, h])]
}

/// The address of a process: its NIC and its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacEndpoint {
    pub mac: [u8; 6],
    pub port: u16,
}

/// Returns the header of a frame to `to` that carries `len` bytes.
pub fn header(to: MacEndpoint, from: [u8; 6], len: usize) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..6].copy_from_slice(&to.mac);
    out[6..12].copy_from_slice(&from);
    out[ETHERTYPE_OFFSET..PORT_OFFSET].copy_from_slice(&ETHERTYPE.to_be_bytes());
    out[PORT_OFFSET..16].copy_from_slice(&to.port.to_be_bytes());
    out[16..].copy_from_slice(&(len as u16).to_be_bytes());
    out
}

/// Returns the packet's length, if this is the header of a frame of `frame_len` bytes for `port`.
pub fn packet_len(header: &[u8; HEADER], frame_len: usize, port: u16) -> Option<usize> {
    let word = |offset: usize| u16::from_be_bytes([header[offset], header[offset + 1]]);
    let len = usize::from(word(16));
    let is_for_us = word(ETHERTYPE_OFFSET) == ETHERTYPE && word(PORT_OFFSET) == port;
    (is_for_us && len > 0 && HEADER + len <= frame_len).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: MacEndpoint = MacEndpoint { mac: [2, 0, 0, 0, 0, 1], port: 7 };

    #[test]
    fn a_header_is_checked_against_the_frame() {
        let made = header(TO, [2, 0, 0, 0, 0, 2], 40);
        assert_eq!(packet_len(&made, HEADER + 40, 7), Some(40));
        assert_eq!(packet_len(&made, 60, 7), Some(40), "padded by an interface");
        assert_eq!(packet_len(&made, HEADER + 39, 7), None, "cut short");
        assert_eq!(packet_len(&made, HEADER + 40, 8), None, "for another process");
        let mut other = made;
        other[13] ^= 1;
        assert_eq!(packet_len(&other, HEADER + 40, 7), None, "of another protocol");
        let empty = header(TO, [2, 0, 0, 0, 0, 2], 0);
        assert_eq!(packet_len(&empty, 60, 7), None);
    }
}
