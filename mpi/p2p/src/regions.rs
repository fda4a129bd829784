//! Regions: parts of the program's memory that are open to other nodes. Each has a key.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::memory::UserBuffer;
use crate::network::HANDLE_OFFSET_BITS;
use crate::wire::RemoteAddress;

/// Keys from this value on are handles of the network. Lower keys are the numbers of regions that
/// can be used only by messages.
pub(crate) const FIRST_HANDLE: u64 = 1 << HANDLE_OFFSET_BITS;

/// The network's handle of an address in a region of another node. None: the region can be used
/// only by messages.
pub(crate) fn handle_of(address: RemoteAddress) -> Option<u64> {
    let is_handle = address.key >= FIRST_HANDLE && address.key.is_multiple_of(FIRST_HANDLE);
    (is_handle && address.offset < FIRST_HANDLE).then(|| address.key.wrapping_add(address.offset))
}

/// The access that other nodes have to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAccess {
    /// Whether other nodes may read the region.
    pub may_read: bool,
    /// Whether other nodes may write the region.
    pub may_write: bool,
}

impl RegionAccess {
    /// Read access only.
    pub const READ: Self = Self { may_read: true, may_write: false };
    /// Write access only.
    pub const WRITE: Self = Self { may_read: false, may_write: true };
    /// Read and write access.
    pub const ALL: Self = Self { may_read: true, may_write: true };

    fn includes(self, wanted: Self) -> bool {
        (self.may_read || !wanted.may_read) && (self.may_write || !wanted.may_write)
    }
}

#[derive(Debug)]
struct Region {
    buffer: UserBuffer,
    access: RegionAccess,
    /// How often the region was registered. The network returns the same handle for the same
    /// memory.
    registrations: usize,
}

#[derive(Debug, Default)]
struct Table {
    by_key: HashMap<u64, Region>,
    last_number: u64,
}

/// See the [module](self). Engines of one process may share the regions. A clone refers to the same
/// regions.
#[derive(Clone, Debug, Default)]
pub struct Regions(Rc<RefCell<Table>>);

impl Regions {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a region, with the handle of the network if there is one. Returns the key.
    pub(crate) fn add(&self, buffer: UserBuffer, access: RegionAccess, handle: Option<u64>) -> u64 {
        let mut table = self.0.borrow_mut();
        let key = handle.unwrap_or_else(|| {
            table.last_number = (table.last_number + 1) % FIRST_HANDLE;
            table.last_number
        });
        let region = Region { buffer, access, registrations: 0 };
        table.by_key.entry(key).or_insert(region).registrations += 1;
        key
    }

    /// Removes a registration. Returns the memory of the region, and whether this was its last
    /// registration.
    pub(crate) fn remove(&self, key: u64) -> Option<(UserBuffer, bool)> {
        let mut table = self.0.borrow_mut();
        let region = table.by_key.get_mut(&key)?;
        region.registrations -= 1;
        let buffer = region.buffer.clone();
        let is_removed = region.registrations == 0;
        if is_removed {
            table.by_key.remove(&key);
        }
        Some((buffer, is_removed))
    }

    /// The `len` bytes at this address. None: the bytes are not in a region, or the region does not
    /// permit the access.
    pub(crate) fn part(
        &self,
        address: RemoteAddress,
        len: u64,
        wanted: RegionAccess,
    ) -> Option<UserBuffer> {
        let table = self.0.borrow();
        let region = table.by_key.get(&address.key)?;
        let end = address.offset.checked_add(len)?;
        if !region.access.includes(wanted) || end > region.buffer.len() as u64 {
            return None;
        }
        Some(region.buffer.part(address.offset as usize, len as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::buffer_of;

    #[test]
    fn access_needs_an_address_in_the_region_and_the_right_for_it() {
        let mut bytes = [1, 2, 3, 4, 5];
        let (first, second) = bytes.split_at_mut(2);
        let parts = [(first.as_mut_ptr(), 2), (second.as_mut_ptr(), 3)];
        let regions = Regions::new();
        let key = regions.add(buffer_of(&parts), RegionAccess::READ, None);
        let part = |regions: &Regions, offset, len, access| {
            regions.part(RemoteAddress { key, offset }, len, access).map(|part| part.to_vec())
        };
        assert_eq!(part(&regions, 1, 3, RegionAccess::READ), Some(vec![2, 3, 4]));
        assert_eq!(part(&regions, 5, 0, RegionAccess::READ), Some(vec![]));
        for (offset, len) in [(3, 3), (6, 0), (u64::MAX, 2), (2, u64::MAX)] {
            assert_eq!(part(&regions, offset, len, RegionAccess::READ), None);
        }
        assert_eq!(part(&regions, 0, 1, RegionAccess::WRITE), None);
        assert_eq!(part(&regions, 0, 1, RegionAccess::ALL), None);
        assert!(regions.part(RemoteAddress { key: 7, offset: 0 }, 1, RegionAccess::READ).is_none());
        assert!(regions.remove(key).is_some_and(|(_, is_removed)| is_removed));
        assert!(regions.remove(key).is_none());
        assert_eq!(part(&regions, 0, 1, RegionAccess::READ), None);
    }

    #[test]
    fn memory_that_was_registered_twice_stays_until_it_is_removed_twice() {
        let mut bytes = [0; 8];
        let buffer = buffer_of(&[(bytes.as_mut_ptr(), 8)]);
        let regions = Regions::new();
        let keys =
            [0; 2].map(|_| regions.add(buffer.clone(), RegionAccess::ALL, Some(FIRST_HANDLE)));
        assert_eq!(keys, [FIRST_HANDLE; 2]);
        let address = RemoteAddress { key: FIRST_HANDLE, offset: 0 };
        assert!(regions.remove(FIRST_HANDLE).is_some_and(|(_, is_removed)| !is_removed));
        assert!(regions.part(address, 8, RegionAccess::WRITE).is_some());
        assert!(regions.remove(FIRST_HANDLE).is_some_and(|(_, is_removed)| is_removed));
        assert!(regions.part(address, 8, RegionAccess::WRITE).is_none());
    }
}
