//! What goes with an attach descriptor: which port of which adapter, and how it is addressed.

#![forbid(unsafe_code)]

use super::choice::Chosen;
use super::config::Options;
use crate::error::{Error, Result};

/// Bytes before the adapter's name.
const HEAD: usize = 8;
/// The longest name of an adapter.
const NAME: usize = 64;
/// No address is chosen.
const NONE: u32 = u32::MAX;

/// The end that a context had with its owner.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct End {
    adapter: String,
    port: u8,
    gid: Option<u32>,
    /// 0, which no partition has: none (iWARP).
    partition: u16,
    level: u8,
}

impl End {
    pub(super) fn of(chosen: &Chosen) -> End {
        let partition = chosen.port.partitions.get(chosen.partition).copied();
        End {
            adapter: chosen.adapter.clone(),
            port: chosen.port.number,
            gid: chosen.gid.as_ref().map(|gid| gid.index),
            partition: partition.unwrap_or(0),
            level: chosen.level,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.port, self.level];
        bytes.extend(self.partition.to_le_bytes());
        bytes.extend(self.gid.unwrap_or(NONE).to_le_bytes());
        bytes.extend(self.adapter.as_bytes());
        bytes
    }

    /// Invalid: not what `encode` writes.
    pub(super) fn decode(bytes: &[u8]) -> Result<End> {
        let (&[port, level, p, q, a, b, c, d], name) =
            bytes.split_first_chunk::<HEAD>().ok_or(Error::Invalid)?;
        if !(1..=NAME).contains(&name.len()) {
            return Err(Error::Invalid);
        }
        Ok(End {
            adapter: String::from_utf8(name.to_vec()).map_err(|_| Error::Invalid)?,
            port,
            gid: Some(u32::from_le_bytes([a, b, c, d])).filter(|&gid| gid != NONE),
            partition: u16::from_le_bytes([p, q]),
            level,
        })
    }

    /// What the adapter is opened with again.
    pub(super) fn options(&self) -> Options {
        Options {
            adapter: Some(self.adapter.clone()),
            port: Some(self.port),
            gid: self.gid,
            partition: Some(self.partition).filter(|&key| key != 0),
            level: self.level,
            ..Options::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_reads_back_and_one_without_a_name_is_refused() {
        for gid in [Some(3), None] {
            let (adapter, partition) = ("mlx5_0".to_owned(), 0x8001);
            let end = End { adapter, port: 2, gid, partition, level: 4 };
            assert_eq!(End::decode(&end.encode()), Ok(end.clone()));
            for len in 0..=HEAD {
                assert_eq!(End::decode(&end.encode()[..len]), Err(Error::Invalid));
            }
            let long = End { adapter: "x".repeat(NAME + 1), ..end };
            assert_eq!(End::decode(&long.encode()), Err(Error::Invalid));
        }
    }
}
