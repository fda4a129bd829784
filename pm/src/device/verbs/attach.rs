//! The message that waits in an attach descriptor: what the context is, beside the descriptors of
//! slab, addresses and socket. A plain function from bytes, because whoever holds the socket's
//! other end may have written anything.

#![forbid(unsafe_code)]

use super::config::{MTU, Options};
use crate::device::ethernet::layout::Geometry;
use crate::error::{Error, Result};

/// The longest message.
pub(super) const ATTACH_MAX: usize = 256;
/// "SCPMVAT" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SCPMVAT\x01");
const WORDS: usize = 11;
/// The longest name of an adapter.
const NAME: usize = 64;
/// No address is chosen.
const NONE: u32 = u32::MAX;

/// A context on its way to another process.
#[derive(Clone, Debug, PartialEq)]
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
    /// What the job's hellos carry.
    pub(super) secret: u64,
    pub(super) adapter: String,
    pub(super) port: u8,
    pub(super) gid: Option<u32>,
    pub(super) partition: u16,
    pub(super) level: u8,
}

impl Attach {
    /// Writes the message.
    pub(super) fn encode(&self) -> Vec<u8> {
        let g = &self.geometry;
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let place = u32::from(self.port) | u32::from(self.level) << 8;
        let words: [u64; WORDS] = [
            MAGIC,
            two(self.number, self.channel),
            two(self.own, self.channels),
            g.nodes as u64,
            two(g.first as u32, g.local as u32),
            g.size as u64,
            self.nonce[0],
            self.nonce[1],
            self.secret,
            two(self.gid.unwrap_or(NONE), place | u32::from(self.partition) << 16),
            self.adapter.len() as u64,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(self.adapter.as_bytes());
        bytes
    }

    /// Reads and checks it. Invalid: any field is not what `encode` writes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Attach> {
        let (head, name) = bytes.split_at_checked(WORDS * 8).ok_or(Error::Invalid)?;
        let mut words = [0; WORDS];
        for (word, eight) in words.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_le_bytes(eight.try_into().map_err(|_| Error::Invalid)?);
        }
        let [magic, names, place, nodes, range, size, a, b, secret, way, len] = words;
        let natural = |word: u64| usize::try_from(word).map_err(|_| Error::Invalid);
        let (first, local) = (range as u32 as usize, (range >> 32) as usize);
        let geometry = Geometry::new(natural(nodes)?, first, local, MTU)?;
        let (own, channels) = (place as u32, (place >> 32) as u32);
        let channel = (names >> 32) as u32;
        if magic != MAGIC
            || geometry.size as u64 != size
            || geometry.place(own as usize).is_none()
            || channel >= channels
            || len != name.len() as u64
            || !(1..=NAME).contains(&name.len())
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
            adapter: String::from_utf8(name.to_vec()).map_err(|_| Error::Invalid)?,
            port: (way >> 32) as u8,
            gid: Some(way as u32).filter(|&gid| gid != NONE),
            partition: (way >> 48) as u16,
            level: (way >> 40) as u8,
        })
    }

    /// What the adapter is opened with again.
    pub(super) fn options(&self) -> Options {
        Options {
            adapter: Some(self.adapter.clone()),
            port: Some(self.port),
            gid: self.gid,
            partition: Some(self.partition),
            level: self.level,
            ..Options::default()
        }
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
            geometry: Geometry::new(8, 4, 3, MTU).unwrap(),
            nonce: [7, 9],
            secret: 11,
            adapter: "mlx5_0".into(),
            port: 2,
            gid: Some(3),
            partition: 0x8001,
            level: 4,
        }
    }

    #[test]
    fn a_message_reads_back_and_one_that_is_cut_is_refused() {
        let good = sample().encode();
        assert!(good.len() <= ATTACH_MAX);
        assert_eq!(Attach::decode(&good), Ok(sample()));
        for len in 0..good.len() {
            assert_eq!(Attach::decode(&good[..len]), Err(Error::Invalid), "{len}");
        }
        assert_eq!(Attach::decode(&[good.as_slice(), &[0]].concat()), Err(Error::Invalid));
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_has_its_node_inside_and_reads_back(
            flips in prop::collection::vec((0..90usize, any::<u8>()), 0..4)
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
