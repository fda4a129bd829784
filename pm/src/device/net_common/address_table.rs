//! The table of the addresses of all nodes. Each host has one read-only table for each job. An
//! entry has [`ENTRY_LEN`] bytes: the length of the address in the first byte, and the address as
//! opaque bytes of the wire. The entries are ordered by node, channel and link.

// UNSAFETY: reads memory that it has mapped.
#![expect(unsafe_code)]

use crate::debug;
use crate::error::{Error, PmResult, from_io};
use memmap2::{MmapOptions, MmapRaw};
use score_sys::memfd::{self, Seals};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The size of an entry in bytes.
pub(crate) const ENTRY_LEN: usize = 32;

/// The dimensions of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressTableShape {
    pub(crate) nodes: u32,
    pub(crate) channels: u32,
    pub(crate) links: usize,
}

/// Identifies an address of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressKey {
    pub(crate) node: u32,
    pub(crate) channel: u32,
    pub(crate) link: usize,
}

impl AddressTableShape {
    pub(crate) fn bytes(&self) -> usize {
        self.nodes as usize * self.channels as usize * self.links * ENTRY_LEN
    }

    /// Returns the offset of an entry, or None if there is no such node, channel or link.
    fn entry_offset(&self, key: AddressKey) -> Option<usize> {
        let AddressKey { node, channel, link } = key;
        if node >= self.nodes || channel >= self.channels || link >= self.links {
            return None;
        }
        let endpoint = node as usize * self.channels as usize + channel as usize;
        Some((endpoint * self.links + link) * ENTRY_LEN)
    }
}

/// The mapped table.
pub(crate) struct AddressTable {
    map: MmapRaw,
    shape: AddressTableShape,
    memory: OwnedFd,
}

/// Appends an address to a table. Returns `NoSpace` if the address is too long.
pub(crate) fn append(table: &mut Vec<u8>, address: &[u8]) -> PmResult<()> {
    let mut entry = [0; ENTRY_LEN];
    entry.get_mut(1..=address.len()).ok_or(Error::NoSpace)?.copy_from_slice(address);
    entry[0] = address.len() as u8;
    table.extend(entry);
    Ok(())
}

impl AddressTable {
    /// Creates a table from entries that [`append`] has encoded. Returns `Invalid` if the number of
    /// bytes does not match the shape.
    pub(crate) fn create(shape: AddressTableShape, table: &[u8]) -> PmResult<AddressTable> {
        if table.len() != shape.bytes() {
            debug::log(debug::ERROR, || {
                format!(
                    "network: the address table has {} bytes instead of {}",
                    table.len(),
                    shape.bytes()
                )
            });
            return Err(Error::Invalid);
        }
        let mut file = memfd::create("score-pm-addresses").map_err(from_io)?;
        file.write_all(table).map_err(|_| Error::NoMemory)?;
        memfd::seal(&file, Seals::SizeAndContent).map_err(from_io)?;
        AddressTable::open(file.into(), shape)
    }

    /// Maps the table of another process. Returns `Invalid` if the table is writable or has another
    /// size.
    pub(crate) fn open(memory: OwnedFd, shape: AddressTableShape) -> PmResult<AddressTable> {
        let len = memfd::sealed_len(&memory, Seals::SizeAndContent).map_err(|_| Error::Invalid)?;
        if len != Some(shape.bytes() as u64) {
            debug::log(debug::ERROR, || "network: invalid address table".into());
            return Err(Error::Invalid);
        }
        let map = MmapOptions::new().len(shape.bytes()).map_raw_read_only(&memory);
        Ok(AddressTable { map: map.map_err(|_| Error::NoMemory)?, shape, memory })
    }

    pub(crate) fn shape(&self) -> AddressTableShape {
        self.shape
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Returns one address, or None if there is no such node, channel or link.
    pub(crate) fn get(&self, key: AddressKey) -> Option<Vec<u8>> {
        let offset = self.shape.entry_offset(key)?;
        // SAFETY: the entry is inside the mapping, and the seals prevent every process from writing
        // or shrinking it.
        let entry = unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(offset), ENTRY_LEN) };
        entry.get(1..=usize::from(entry[0])).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_found_by_node_channel_and_link() {
        let shape = AddressTableShape { nodes: 2, channels: 2, links: 3 };
        let mut table = Vec::new();
        for i in 0..12 {
            append(&mut table, &vec![i; 5 + i as usize]).unwrap();
        }
        let made = AddressTable::create(shape, &table).unwrap();
        let again =
            AddressTable::open(made.memory().try_clone_to_owned().unwrap(), made.shape()).unwrap();
        let get = |node, channel, link| again.get(AddressKey { node, channel, link });
        assert_eq!(get(1, 0, 2), Some(vec![8; 13]));
        assert_eq!(get(0, 1, 0), Some(vec![3; 8]));
        assert_eq!((get(2, 0, 0), get(0, 2, 0), get(0, 0, 3)), (None, None, None));
        assert!(AddressTable::create(shape, &table[1..]).is_err());
        assert!(append(&mut table, &[0; ENTRY_LEN]).is_err());
    }

    #[test]
    fn a_table_that_can_still_be_written_is_refused() {
        let shape = AddressTableShape { nodes: 1, channels: 1, links: 1 };
        let memory = memfd::create_sealed("test", shape.bytes() as u64).unwrap();
        assert!(AddressTable::open(memory, shape).is_err());
    }
}
