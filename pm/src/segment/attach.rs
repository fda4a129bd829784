//! The message in an attach descriptor: the properties of the context. The segment's descriptor is
//! passed with it. The decoder checks everything, because a process that has the other end of the
//! socket can write any bytes.

#![forbid(unsafe_code)]

use super::layout::{MAGIC, SegmentGeometry};
use crate::error::{Error, PmResult};

/// Bytes of the message.
pub const ATTACH_LEN: usize = 64;

/// A context that is passed to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachMessage {
    /// The context's number on its device.
    pub number: u32,
    /// The channel to which the context is bound.
    pub channel: u32,
    /// The node number of the context.
    pub self_node: u32,
    /// Layout of the segment.
    pub geometry: SegmentGeometry,
    /// The nonce that identifies the segment. The segment's header has the same nonce.
    pub nonce: [u64; 2],
}

impl AttachMessage {
    /// Writes the message.
    pub fn encode(&self) -> [u8; ATTACH_LEN] {
        let words = [
            MAGIC,
            u64::from(self.number) | u64::from(self.channel) << 32,
            u64::from(self.self_node),
            self.geometry.nodes as u64,
            self.geometry.size as u64,
            self.nonce[0],
            self.nonce[1],
            0,
        ];
        let mut bytes = [0; ATTACH_LEN];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes and checks a message. Invalid: `encode` does not write such a message.
    pub fn decode(bytes: &[u8]) -> PmResult<AttachMessage> {
        let bytes: &[u8; ATTACH_LEN] = bytes.try_into().map_err(|_| Error::Invalid)?;
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
            u64::from_le_bytes(word)
        };
        if word(0) != MAGIC || word(7) != 0 {
            return Err(Error::Invalid);
        }
        let nodes = usize::try_from(word(3)).map_err(|_| Error::Invalid)?;
        let geometry = SegmentGeometry::for_nodes(nodes)?;
        if geometry.size as u64 != word(4) || word(2) >= word(3) {
            return Err(Error::Invalid);
        }
        Ok(AttachMessage {
            number: word(1) as u32,
            channel: (word(1) >> 32) as u32,
            self_node: word(2) as u32,
            geometry,
            nonce: [word(5), word(6)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> AttachMessage {
        let geometry = SegmentGeometry::for_nodes(4).unwrap();
        AttachMessage { number: 3, channel: 1, self_node: 3, geometry, nonce: [7, 9] }
    }

    #[test]
    fn an_encoded_message_is_decoded_unchanged() {
        assert_eq!(AttachMessage::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn a_short_a_long_and_a_foreign_message_are_refused() {
        let good = sample().encode();
        assert_eq!(AttachMessage::decode(&good[..63]), Err(Error::Invalid));
        assert_eq!(AttachMessage::decode(&[good.as_slice(), &[0]].concat()), Err(Error::Invalid));
        for (byte, field) in [(0, "magic"), (8 * 2, "self_node"), (8 * 4, "size"), (56, "rest")] {
            let mut bad = good;
            bad[byte] ^= 0x7f;
            assert_eq!(AttachMessage::decode(&bad), Err(Error::Invalid), "{field}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_message_has_a_valid_node_and_is_encoded_unchanged(
            flips in prop::collection::vec((0..ATTACH_LEN, any::<u8>()), 0..4)
        ) {
            let mut bytes = sample().encode();
            for (index, byte) in flips {
                bytes[index] = byte;
            }
            if let Ok(attach) = AttachMessage::decode(&bytes) {
                prop_assert!((attach.self_node as usize) < attach.geometry.nodes);
                prop_assert_eq!(attach.encode(), bytes);
            }
        }
    }
}
