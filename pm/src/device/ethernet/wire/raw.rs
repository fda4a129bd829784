//! The frame that AF_PACKET and AF_XDP put before a packet.
//!
//! ```text
//! destination MAC 6 · source MAC 6 · EtherType 2 · port 2 · length of the packet 2
//! ```
//! The port tells the processes of one NIC apart. The length stands there because an interface
//! pads short frames. Numbers are big-endian.

#![forbid(unsafe_code)]

/// The first of the two EtherTypes that IEEE 802 sets aside for local experiments.
pub const ETHERTYPE: u16 = 0x88b5;

/// Bytes before the packet.
pub const HEADER: usize = 18;

/// Of these, what counts as payload of the link: port and length.
pub const INSIDE: usize = 4;

/// Where EtherType and port stand.
pub const TYPE_AT: usize = 12;
pub const PORT_AT: usize = 14;

/// Where the job's secret stands, in the machine's header behind this one (docs/ethernet.md).
const SECRET_AT: usize = HEADER + 8;

/// The two halves of a secret as a frame has them, and where.
pub fn secret_words(secret: u64) -> [(usize, [u8; 4]); 2] {
    let [a, b, c, d, e, f, g, h] = secret.to_le_bytes();
    [(SECRET_AT, [a, b, c, d]), (SECRET_AT + 4, [e, f, g, h])]
}

/// A process behind a NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Station {
    pub mac: [u8; 6],
    pub port: u16,
}

/// The header of a frame for `to` that carries `len` bytes.
pub fn header(to: Station, from: [u8; 6], len: usize) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..6].copy_from_slice(&to.mac);
    out[6..12].copy_from_slice(&from);
    out[TYPE_AT..PORT_AT].copy_from_slice(&ETHERTYPE.to_be_bytes());
    out[PORT_AT..16].copy_from_slice(&to.port.to_be_bytes());
    out[16..].copy_from_slice(&(len as u16).to_be_bytes());
    out
}

/// The packet's length, where this is the header of a frame of `frame` bytes for `port`.
pub fn check(header: &[u8; HEADER], frame: usize, port: u16) -> Option<usize> {
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let len = usize::from(word(16));
    let ours = word(TYPE_AT) == ETHERTYPE && word(PORT_AT) == port;
    (ours && len > 0 && HEADER + len <= frame).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Station = Station { mac: [2, 0, 0, 0, 0, 1], port: 7 };

    #[test]
    fn a_header_is_checked_against_the_frame() {
        let made = header(TO, [2, 0, 0, 0, 0, 2], 40);
        assert_eq!(check(&made, HEADER + 40, 7), Some(40));
        assert_eq!(check(&made, 60, 7), Some(40), "padded by an interface");
        assert_eq!(check(&made, HEADER + 39, 7), None, "cut short");
        assert_eq!(check(&made, HEADER + 40, 8), None, "for somebody else");
        let mut other = made;
        other[13] ^= 1;
        assert_eq!(check(&other, HEADER + 40, 7), None, "of another protocol");
        let empty = header(TO, [2, 0, 0, 0, 0, 2], 0);
        assert_eq!(check(&empty, 60, 7), None);
    }
}
