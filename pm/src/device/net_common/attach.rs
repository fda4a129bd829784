//! The message in an attach descriptor. It describes the context, and accompanies the descriptors
//! of the slab, of the addresses and of the network. The process at the other end of the socket may
//! have written any bytes, so decoding validates them and does nothing else.

#![forbid(unsafe_code)]

use super::layout::SlabGeometry;
use crate::error::{Error, PmResult};

/// The length of the longest message.
pub(super) const ATTACH_MAX: usize = 1024;
const WORDS: usize = 11;

/// The description of a context for another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetworkAttachMessage {
    /// The number of the context on its device.
    pub(super) number: u32,
    /// The channel to which the context is bound, and the number of channels.
    pub(super) channel: u32,
    pub(super) channels: u32,
    /// The node number of the context.
    pub(super) self_node: u32,
    pub(super) geometry: SlabGeometry,
    /// Identifies the slab.
    pub(super) nonce: [u64; 2],
    /// The secret in the job's packets.
    pub(super) secret: u64,
    /// The description of the sockets by the network.
    pub(super) socket_description: Vec<u8>,
}

impl NetworkAttachMessage {
    /// Encodes the message. `magic` identifies the device and the version of the format.
    pub(super) fn encode(&self, magic: u64) -> Vec<u8> {
        let g = &self.geometry;
        let words: [u64; WORDS] = [
            magic,
            u64::from(self.number) | u64::from(self.channel) << 32,
            u64::from(self.self_node) | u64::from(self.channels) << 32,
            g.nodes.into(),
            g.first_node.into(),
            g.local_nodes.into(),
            g.mtu as u64,
            g.size as u64,
            self.nonce[0],
            self.nonce[1],
            self.secret,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(&self.socket_description);
        bytes
    }

    /// Decodes and validates the message. Returns `Invalid` if it is not a result of `encode`.
    pub(super) fn decode(magic: u64, bytes: &[u8]) -> PmResult<NetworkAttachMessage> {
        let (header, socket_description) =
            bytes.split_at_checked(WORDS * 8).ok_or(Error::Invalid)?;
        let mut words = [0; WORDS];
        for (word, eight) in words.iter_mut().zip(header.chunks_exact(8)) {
            *word = u64::from_le_bytes(eight.try_into().map_err(|_| Error::Invalid)?);
        }
        let [
            actual_magic,
            number_and_channel,
            node_and_channels,
            nodes,
            first,
            local,
            mtu,
            size,
            a,
            b,
            secret,
        ] = words;
        let to_node = |word: u64| u32::try_from(word).map_err(|_| Error::Invalid);
        let first = to_node(first)?;
        let local = first..first.checked_add(to_node(local)?).ok_or(Error::Invalid)?;
        let mtu = usize::try_from(mtu).map_err(|_| Error::Invalid)?;
        let geometry = SlabGeometry::new(to_node(nodes)?, local, mtu)?;
        let (self_node, channels) = (node_and_channels as u32, (node_and_channels >> 32) as u32);
        let channel = (number_and_channel >> 32) as u32;
        if actual_magic != magic
            || geometry.size as u64 != size
            || geometry.local_index(self_node).is_none()
            || channel >= channels
        {
            return Err(Error::Invalid);
        }
        Ok(NetworkAttachMessage {
            number: number_and_channel as u32,
            channel,
            channels,
            self_node,
            geometry,
            nonce: [a, b],
            secret,
            socket_description: socket_description.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAGIC: u64 = 4711;

    fn sample() -> NetworkAttachMessage {
        NetworkAttachMessage {
            number: 3,
            channel: 1,
            channels: 2,
            self_node: 5,
            geometry: SlabGeometry::new(8, 4..7, 1400).unwrap(),
            nonce: [7, 9],
            secret: u64::MAX,
            socket_description: vec![4; 200],
        }
    }

    #[test]
    fn a_message_is_decoded_unchanged_and_a_truncated_or_foreign_message_is_refused() {
        let good = sample().encode(MAGIC);
        assert_eq!(NetworkAttachMessage::decode(MAGIC, &good), Ok(sample()));
        assert_eq!(NetworkAttachMessage::decode(MAGIC + 1, &good), Err(Error::Invalid));
        for len in 0..WORDS * 8 {
            let decoded = NetworkAttachMessage::decode(MAGIC, &good[..len]);
            assert_eq!(decoded, Err(Error::Invalid), "{len}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_message_has_a_local_node_and_is_encoded_unchanged(
            flips in prop::collection::vec((0..100usize, any::<u8>()), 0..4)
        ) {
            let mut bytes = sample().encode(MAGIC);
            for (index, value) in flips {
                bytes[index] = value;
            }
            if let Ok(attach) = NetworkAttachMessage::decode(MAGIC, &bytes) {
                prop_assert!(attach.geometry.local_index(attach.self_node).is_some());
                prop_assert_eq!(attach.encode(MAGIC), bytes);
            }
        }
    }
}
