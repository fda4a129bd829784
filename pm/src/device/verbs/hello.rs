//! The datagram by which two processes tell each other of their queue pairs.

#![forbid(unsafe_code)]

use super::connection::Claim;
use super::pair::Station;

/// Bytes of a hello.
pub(super) const LENGTH: usize = 128;
/// "SCPMVER" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SCPMVER\x02");

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// What datagrams of the job carry.
    pub(super) secret: u64,
    pub(super) channel: u32,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) claim: Claim,
    /// The speaker's queue pair.
    pub(super) station: Station,
    /// Which numbers of messages and control messages the speaker expects next.
    pub(super) expected: [u32; 2],
    /// What it has consumed, and where it wants to be told what the other has.
    pub(super) consumed: u64,
    pub(super) credit: (u64, u32),
    /// Where its table of locked regions can be read.
    pub(super) table: (u64, u32),
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = Vec::with_capacity(LENGTH);
        let Station { number, psn, gid, lid, mtu } = self.station;
        let Claim { own, other, ready } = self.claim;
        for word in [MAGIC, self.secret, own, other, self.consumed, self.credit.0] {
            bytes.extend(word.to_le_bytes());
        }
        let [data, control] = self.expected;
        for word in [self.channel, self.from, self.to, number, psn, data, control, self.credit.1] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(gid);
        bytes.extend(lid.to_le_bytes());
        bytes.extend([mtu, u8::from(ready)]);
        bytes.extend(self.table.0.to_le_bytes());
        bytes.extend(self.table.1.to_le_bytes());
        let mut all = [0; LENGTH];
        all[..bytes.len()].copy_from_slice(&bytes);
        all
    }

    /// None: it is none of ours.
    pub(super) fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if long(0)? != MAGIC || bytes[99] > 1 || bytes[112..] != [0; LENGTH - 112] {
            return None;
        }
        Some(Hello {
            secret: long(8)?,
            channel: word(48)?,
            from: word(52)?,
            to: word(56)?,
            claim: Claim { own: long(16)?, other: long(24)?, ready: bytes[99] == 1 },
            station: Station {
                number: word(60)?,
                psn: word(64)?,
                gid: bytes.get(80..96)?.try_into().ok()?,
                lid: u16::from_le_bytes(bytes.get(96..98)?.try_into().ok()?),
                mtu: bytes[98],
            },
            expected: [word(68)?, word(72)?],
            consumed: long(32)?,
            credit: (long(40)?, word(76)?),
            table: (long(100)?, word(108)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hello_reads_back_and_anything_shorter_or_longer_is_none() {
        let station = Station { number: 17, psn: 0xabcdef, gid: [9; 16], lid: 4, mtu: 3 };
        let claim = Claim { own: 1 << 60, other: 5, ready: true };
        let hello = Hello {
            secret: 7,
            channel: 1,
            from: 2,
            to: 3,
            claim,
            station,
            expected: [u32::MAX, 1],
            consumed: 1 << 33,
            credit: (0x7fff_0000_0000, 99),
            table: (0x7ffe_0000_0000, 98),
        };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        assert_eq!(Hello::decode(&bytes[..LENGTH - 1]), None);
        assert_eq!(Hello::decode(&[&bytes[..], &[0]].concat()), None);
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_reads_back(bytes in prop::collection::vec(any::<u8>(), LENGTH)) {
            let mut bytes = bytes;
            bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[99] &= 1;
            bytes[112..].fill(0);
            let hello = Hello::decode(&bytes).unwrap();
            prop_assert_eq!(&hello.encode()[..], &bytes[..]);
        }
    }
}
