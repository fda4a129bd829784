//! The datagram by which two processes exchange the addresses of their queue pairs.

#![forbid(unsafe_code)]

use super::connection::HandshakeState;
use super::queue_pair::QpAddress;

/// Bytes of a hello.
pub(super) const HELLO_LEN: usize = 128;
/// "SCPMVER" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SCPMVER\x02");

/// The content of the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The secret that all datagrams of the job carry.
    pub(super) secret: u64,
    pub(super) channel: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) handshake: HandshakeState,
    /// The sender's queue pair.
    pub(super) qp_address: QpAddress,
    /// The numbers of the message and the control message that the sender expects next.
    pub(super) expected: [u32; 2],
    /// The numbers of messages and control messages that the sender has consumed. `credit_target`:
    /// the address and key of the words into which the peer writes its own count.
    pub(super) consumed: u64,
    pub(super) credit_target: (u64, u32),
    /// The address and key of the sender's table of locked regions.
    pub(super) region_table: (u64, u32),
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = Vec::with_capacity(HELLO_LEN);
        let QpAddress { number, psn, gid, lid, mtu } = self.qp_address;
        let HandshakeState { self_epoch, peer_epoch, is_ready } = self.handshake;
        for word in
            [MAGIC, self.secret, self_epoch, peer_epoch, self.consumed, self.credit_target.0]
        {
            bytes.extend(word.to_le_bytes());
        }
        let [data, control] = self.expected;
        for word in
            [self.channel, self.from, self.to, number, psn, data, control, self.credit_target.1]
        {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(gid);
        bytes.extend(lid.to_le_bytes());
        bytes.extend([mtu, u8::from(is_ready)]);
        bytes.extend(self.region_table.0.to_le_bytes());
        bytes.extend(self.region_table.1.to_le_bytes());
        let mut padded = [0; HELLO_LEN];
        padded[..bytes.len()].copy_from_slice(&bytes);
        padded
    }

    /// Decodes a hello. None: it is not a hello of this protocol.
    pub(super) fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; HELLO_LEN] = bytes.try_into().ok()?;
        let read_u64 = |offset: usize| {
            Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
        };
        let read_u32 = |offset: usize| {
            Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
        };
        if read_u64(0)? != MAGIC || bytes[99] > 1 || bytes[112..] != [0; HELLO_LEN - 112] {
            return None;
        }
        Some(Hello {
            secret: read_u64(8)?,
            channel: read_u32(48)?,
            from: read_u32(52)?,
            to: read_u32(56)?,
            handshake: HandshakeState {
                self_epoch: read_u64(16)?,
                peer_epoch: read_u64(24)?,
                is_ready: bytes[99] == 1,
            },
            qp_address: QpAddress {
                number: read_u32(60)?,
                psn: read_u32(64)?,
                gid: bytes.get(80..96)?.try_into().ok()?,
                lid: u16::from_le_bytes(bytes.get(96..98)?.try_into().ok()?),
                mtu: bytes[98],
            },
            expected: [read_u32(68)?, read_u32(72)?],
            consumed: read_u64(32)?,
            credit_target: (read_u64(40)?, read_u32(76)?),
            region_table: (read_u64(100)?, read_u32(108)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hello_is_decoded_unchanged_and_any_other_length_is_refused() {
        let qp_address = QpAddress { number: 17, psn: 0xabcdef, gid: [9; 16], lid: 4, mtu: 3 };
        let handshake = HandshakeState { self_epoch: 1 << 60, peer_epoch: 5, is_ready: true };
        let hello = Hello {
            secret: 7,
            channel: 1,
            from: 2,
            to: 3,
            handshake,
            qp_address,
            expected: [u32::MAX, 1],
            consumed: 1 << 33,
            credit_target: (0x7fff_0000_0000, 99),
            region_table: (0x7ffe_0000_0000, 98),
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        assert_eq!(Hello::decode(&bytes[..HELLO_LEN - 1]), None);
        assert_eq!(Hello::decode(&[&bytes[..], &[0]].concat()), None);
    }

    proptest! {
        #[test]
        fn every_accepted_hello_encodes_to_the_same_bytes(
            bytes in prop::collection::vec(any::<u8>(), HELLO_LEN)
        ) {
            let mut bytes = bytes;
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[99] &= 1;
            bytes[112..].fill(0);
            let hello = Hello::decode(&bytes).unwrap();
            prop_assert_eq!(&hello.encode()[..], &bytes[..]);
        }
    }
}
