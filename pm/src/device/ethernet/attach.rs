//! The message that waits in an attach descriptor: what the context is, beside the descriptors of
//! slab, addresses and sockets. A plain function from bytes, because whoever holds the socket's
//! other end may have written anything.

#![forbid(unsafe_code)]

use super::layout::{Geometry, MAGIC};
use crate::error::{Error, Result};
use score_proto::wire::MAX_LINKS;

/// The longest message.
pub(crate) const ATTACH_MAX: usize = 1024;
const WORDS: usize = 12;

/// A context on its way to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attach {
    /// The context's number on its device.
    pub(crate) number: u32,
    /// The channel it is bound to, of how many.
    pub(crate) channel: u32,
    pub(crate) channels: u32,
    /// Its node number.
    pub(crate) own: u32,
    pub(crate) geometry: Geometry,
    /// Names the slab.
    pub(crate) nonce: [u64; 2],
    /// What the job's packets carry.
    pub(crate) secret: u64,
    pub(crate) incarnation: u32,
    /// For each link what the wire says of itself, and how many descriptors go with it.
    pub(crate) links: Vec<(Vec<u8>, usize)>,
}

impl Attach {
    /// Writes the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let g = &self.geometry;
        let words: [u64; WORDS] = [
            MAGIC,
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
            u64::from(self.incarnation) | (self.links.len() as u64) << 32,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for (description, descriptors) in &self.links {
            bytes.push(*descriptors as u8);
            bytes.push(description.len() as u8);
            bytes.extend(description);
        }
        bytes
    }

    /// Reads and checks it. Invalid: any field is not what `encode` writes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Attach> {
        let (head, mut rest) = bytes.split_at_checked(WORDS * 8).ok_or(Error::Invalid)?;
        let mut words = [0; WORDS];
        for (word, eight) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_le_bytes(eight.try_into().map_err(|_| Error::Invalid)?);
        }
        let [magic, names, place, nodes, first, local, mtu, size, a, b, secret, tail] = words;
        let natural = |word: u64| usize::try_from(word).map_err(|_| Error::Invalid);
        let geometry =
            Geometry::new(natural(nodes)?, natural(first)?, natural(local)?, natural(mtu)?)?;
        let (own, channels) = (place as u32, (place >> 32) as u32);
        let channel = (names >> 32) as u32;
        let count = tail >> 32;
        if magic != MAGIC
            || geometry.size as u64 != size
            || geometry.place(own as usize).is_none()
            || channel >= channels
            || !(1..=u64::from(MAX_LINKS)).contains(&count)
        {
            return Err(Error::Invalid);
        }
        let mut links = Vec::new();
        for _ in 0..count {
            let (&[descriptors, len], more) = rest.split_first_chunk().ok_or(Error::Invalid)?;
            let (description, more) = more.split_at_checked(len.into()).ok_or(Error::Invalid)?;
            links.push((description.to_vec(), descriptors.into()));
            rest = more;
        }
        if !rest.is_empty() {
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
            incarnation: tail as u32,
            links,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Attach {
        Attach {
            number: 3,
            channel: 1,
            channels: 2,
            own: 5,
            geometry: Geometry::new(8, 4, 3, 1400).unwrap(),
            nonce: [7, 9],
            secret: u64::MAX,
            incarnation: 2,
            links: vec![(vec![1, 2, 3], 1), (vec![4; 200], 3)],
        }
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(Attach::decode(&sample().encode()), Ok(sample()));
        assert!(sample().encode().len() <= ATTACH_MAX);
    }

    #[test]
    fn a_short_a_long_and_a_foreign_message_are_refused() {
        let good = sample().encode();
        for len in 0..good.len() {
            assert_eq!(Attach::decode(&good[..len]), Err(Error::Invalid), "{len}");
        }
        assert_eq!(Attach::decode(&[good.as_slice(), &[0]].concat()), Err(Error::Invalid));
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_has_its_node_inside_and_reads_back(
            flips in prop::collection::vec((0..100usize, any::<u8>()), 0..4)
        ) {
            let mut bytes = sample().encode();
            for (at, with) in flips {
                bytes[at] = with;
            }
            if let Ok(attach) = Attach::decode(&bytes) {
                prop_assert!(attach.geometry.place(attach.own as usize).is_some());
                prop_assert_eq!(attach.encode(), bytes);
            }
        }
    }
}
