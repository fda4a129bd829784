//! The message that waits in an attach descriptor: what the context is, beside the descriptors of
//! slab, addresses and what the network adds. A plain function from bytes, because whoever holds
//! the socket's other end may have written anything.

#![forbid(unsafe_code)]

use super::layout::Geometry;
use crate::error::{Error, Result};

/// The longest message.
pub(super) const ATTACH_MAX: usize = 1024;
const WORDS: usize = 11;

/// A context on its way to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attach {
    /// The context's number on its device.
    pub(super) number: u32,
    /// The channel it is bound to, of how many.
    pub(super) channel: u32,
    pub(super) channels: u32,
    /// Its node number.
    pub(super) own: u32,
    pub(super) geometry: Geometry,
    /// Names the slab.
    pub(super) nonce: [u64; 2],
    /// What the job's packets carry.
    pub(super) secret: u64,
    /// What the network says of the end.
    pub(super) end: Vec<u8>,
}

impl Attach {
    /// Writes the message. `magic`: whose it is.
    pub(super) fn encode(&self, magic: u64) -> Vec<u8> {
        let g = &self.geometry;
        let words: [u64; WORDS] = [
            magic,
            u64::from(self.number) | u64::from(self.channel) << 32,
            u64::from(self.own) | u64::from(self.channels) << 32,
            g.nodes as u64,
            g.first as u64,
            g.local as u64,
            g.mtu as u64,
            g.size as u64,
            self.nonce[0],
            self.nonce[1],
            self.secret,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(&self.end);
        bytes
    }

    /// Reads and checks it. Invalid: any field is not what `encode` writes.
    pub(super) fn decode(magic: u64, bytes: &[u8]) -> Result<Attach> {
        let (head, end) = bytes.split_at_checked(WORDS * 8).ok_or(Error::Invalid)?;
        let mut words = [0; WORDS];
        for (word, eight) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_le_bytes(eight.try_into().map_err(|_| Error::Invalid)?);
        }
        let [whose, names, place, nodes, first, local, mtu, size, a, b, secret] = words;
        let natural = |word: u64| usize::try_from(word).map_err(|_| Error::Invalid);
        let geometry =
            Geometry::new(natural(nodes)?, natural(first)?, natural(local)?, natural(mtu)?)?;
        let (own, channels) = (place as u32, (place >> 32) as u32);
        let channel = (names >> 32) as u32;
        if whose != magic
            || geometry.size as u64 != size
            || geometry.place(own as usize).is_none()
            || channel >= channels
        {
            return Err(Error::Invalid);
        }
        Ok(Attach {
            number: names as u32,
            channel,
            channels,
            own,
            geometry,
            nonce: [a, b],
            secret,
            end: end.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAGIC: u64 = 4711;

    fn sample() -> Attach {
        Attach {
            number: 3,
            channel: 1,
            channels: 2,
            own: 5,
            geometry: Geometry::new(8, 4, 3, 1400).unwrap(),
            nonce: [7, 9],
            secret: u64::MAX,
            end: vec![4; 200],
        }
    }

    #[test]
    fn a_message_reads_back_and_one_that_is_cut_or_foreign_is_refused() {
        let good = sample().encode(MAGIC);
        assert_eq!(Attach::decode(MAGIC, &good), Ok(sample()));
        assert_eq!(Attach::decode(MAGIC + 1, &good), Err(Error::Invalid));
        for len in 0..WORDS * 8 {
            assert_eq!(Attach::decode(MAGIC, &good[..len]), Err(Error::Invalid), "{len}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_has_its_node_inside_and_reads_back(
            flips in prop::collection::vec((0..100usize, any::<u8>()), 0..4)
        ) {
            let mut bytes = sample().encode(MAGIC);
            for (at, with) in flips {
                bytes[at] = with;
            }
            if let Ok(attach) = Attach::decode(MAGIC, &bytes) {
                prop_assert!(attach.geometry.place(attach.own as usize).is_some());
                prop_assert_eq!(attach.encode(MAGIC), bytes);
            }
        }
    }
}
