//! The adapter, port and address that an attach descriptor names.

#![forbid(unsafe_code)]

use super::config::AdapterChoice;
use super::port_selection::SelectedPort;
use crate::error::{Error, PmResult};

/// Bytes before the adapter's name.
const HEADER_LEN: usize = 8;
/// The longest name of an adapter.
const MAX_NAME_LEN: usize = 64;
/// No address is chosen.
const NO_GID: u32 = u32::MAX;

/// The port that the owner's context uses.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PortParams {
    adapter: String,
    port: u8,
    gid: Option<u32>,
    /// The partition key; 0 if the port has none, because no partition has the key 0.
    partition: u16,
    service_level: u8,
}

impl PortParams {
    pub(super) fn of(chosen: &SelectedPort) -> PortParams {
        let partition = chosen.port.partitions.get(chosen.partition_index).copied();
        PortParams {
            adapter: chosen.adapter.clone(),
            port: chosen.port.number,
            gid: chosen.gid.as_ref().map(|gid| gid.index),
            partition: partition.unwrap_or(0),
            service_level: chosen.service_level,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.port, self.service_level];
        bytes.extend(self.partition.to_le_bytes());
        bytes.extend(self.gid.unwrap_or(NO_GID).to_le_bytes());
        bytes.extend(self.adapter.as_bytes());
        bytes
    }

    /// Decodes a result of `encode`. Invalid: the bytes are not such a result.
    pub(super) fn decode(bytes: &[u8]) -> PmResult<PortParams> {
        let (&[port, service_level, p, q, a, b, c, d], name) =
            bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Invalid)?;
        if !(1..=MAX_NAME_LEN).contains(&name.len()) {
            return Err(Error::Invalid);
        }
        Ok(PortParams {
            adapter: String::from_utf8(name.to_vec()).map_err(|_| Error::Invalid)?,
            port,
            gid: Some(u32::from_le_bytes([a, b, c, d])).filter(|&gid| gid != NO_GID),
            partition: u16::from_le_bytes([p, q]),
            service_level,
        })
    }

    /// The choice that opens the same adapter again.
    pub(super) fn choice(&self) -> AdapterChoice {
        AdapterChoice {
            device: Some(self.adapter.clone()),
            port: Some(self.port),
            gid: self.gid,
            partition: Some(self.partition).filter(|&key| key != 0),
            service_level: self.service_level,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_address_is_decoded_unchanged_and_an_address_without_a_name_is_refused() {
        for gid in [Some(3), None] {
            let (adapter, partition) = ("mlx5_0".to_owned(), 0x8001);
            let port_address = PortParams { adapter, port: 2, gid, partition, service_level: 4 };
            assert_eq!(PortParams::decode(&port_address.encode()), Ok(port_address.clone()));
            for len in 0..=HEADER_LEN {
                assert_eq!(PortParams::decode(&port_address.encode()[..len]), Err(Error::Invalid));
            }
            let too_long = PortParams { adapter: "x".repeat(MAX_NAME_LEN + 1), ..port_address };
            assert_eq!(PortParams::decode(&too_long.encode()), Err(Error::Invalid));
        }
    }
}
