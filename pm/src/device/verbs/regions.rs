//! Locked regions. The pin-down cache pins them, and peers read their table by RDMA. A peer reads
//! an entry once and keeps it, because a region that is locked again has another number.

// UNSAFETY: registers memory of the application, which promises that it may be accessed.
#![expect(unsafe_code)]

use super::adapter::{AccessRights, Adapter, DmaBuffer, MemoryRegion};
use crate::debug;
use crate::error::{Error, PmResult};
use crate::pin::{Cache, CacheOptions, PageRange, Registrar, UseId};
use crate::rma::{AddrHandle, Region, RegionId, SLOTS};
use crate::sync::Ordering;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of an entry: state and number, address, length, key and number. The entry has the number
/// twice, so that a peer that reads the entry during a write reads two different numbers.
pub(super) const ENTRY_LEN: usize = 32;
const ENTRY_WORDS: usize = ENTRY_LEN / 8;
const ENTRY_VALID: u64 = 1 << 63;

/// Registers memory for the pin-down cache.
struct VerbsRegistrar(Arc<Adapter>);

impl Registrar for VerbsRegistrar {
    type Registration = Arc<MemoryRegion<()>>;

    fn pin(&mut self, span: PageRange) -> std::result::Result<Arc<MemoryRegion<()>>, i32> {
        let (start, len) = (span.start() as *mut u8, span.bytes());
        let pin = |access| -> io::Result<MemoryRegion<()>> {
            // SAFETY: the pages are pinned, so the adapter reaches these pages even if the
            // addresses are remapped. Unmapped memory is refused.
            unsafe { MemoryRegion::new(&self.0, (), start, len, access) }
        };
        let errno = |why: io::Error| why.raw_os_error().unwrap_or(libc::EIO);
        match pin(AccessRights::RemoteReadWrite).map_err(errno) {
            // The memory may be read-only.
            Err(libc::EFAULT | libc::EACCES | libc::EPERM) => {
                pin(AccessRights::ReadOnly).map_err(errno)
            }
            other => other,
        }
        .map(Arc::new)
    }

    fn unpin(&mut self, registration: Arc<MemoryRegion<()>>) {
        drop(registration);
    }
}

/// A region of this process.
struct LocalRegion {
    addr: usize,
    len: usize,
    lkey: u32,
    is_read_only: bool,
    id: UseId,
}

/// The locked regions of an endpoint.
pub(super) struct VerbsRegions {
    /// The cache, which is created with the first region. None inside: it cannot be created.
    cache: OnceLock<Option<Cache<VerbsRegistrar>>>,
    local_regions: Mutex<HashMap<u32, LocalRegion>>,
    table: MemoryRegion<Arc<DmaBuffer>>,
    adapter: Arc<Adapter>,
}

impl VerbsRegions {
    pub(super) fn new(adapter: &Arc<Adapter>) -> std::result::Result<VerbsRegions, String> {
        Ok(VerbsRegions {
            cache: OnceLock::new(),
            local_regions: Mutex::default(),
            table: MemoryRegion::allocate(adapter, SLOTS * ENTRY_LEN, AccessRights::RemoteRead)?,
            adapter: adapter.clone(),
        })
    }

    /// The address of the region table, and its key.
    pub(super) fn table_addr_and_key(&self) -> (u64, u32) {
        (self.table.memory.addr(0, 8).addr() as u64, self.table.rkey)
    }

    fn lock_local_regions(&self) -> MutexGuard<'_, HashMap<u32, LocalRegion>> {
        self.local_regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins the region, and enters it into the table. NoSpace: no more memory can be pinned.
    /// Invalid: the memory is not mapped.
    pub(super) fn publish(&self, region: &Region) -> PmResult<()> {
        let create_cache =
            || Cache::new(VerbsRegistrar(self.adapter.clone()), CacheOptions::default()).ok();
        let cache = self.cache.get_or_init(create_cache).as_ref().ok_or(Error::NoMemory)?;
        let lock = cache.lock(region.addr, region.len)?;
        let (lkey, rkey) = (lock.registration.lkey, lock.registration.rkey);
        let (number, addr, len) = (region.id.bits(), region.addr, region.len);
        let is_read_only = lock.registration.access == AccessRights::ReadOnly;
        self.lock_local_regions()
            .insert(number, LocalRegion { addr, len, lkey, is_read_only, id: lock.id });
        let key = u64::from(number) << 32 | u64::from(rkey);
        let state = ENTRY_VALID | u64::from(number);
        let words = [state, addr as u64, len as u64, key];
        // The state is written last.
        for index in [1, 2, 3, 0] {
            self.word(region.id, index).store(words[index], Ordering::Release);
        }
        Ok(())
    }

    fn word(&self, number: RegionId, index: usize) -> &crate::sync::AtomicU64 {
        self.table.memory.word(number.slot() * ENTRY_WORDS + index)
    }

    /// Removes the region from the table. The region stays pinned as long as the cache keeps it.
    pub(super) fn withdraw(&self, number: RegionId) {
        for index in [0, 3] {
            self.word(number, index).store(0, Ordering::Release);
        }
        let Some(local_region) = self.lock_local_regions().remove(&number.bits()) else { return };
        if let Some(Some(cache)) = self.cache.get()
            && cache.unlock(local_region.id).is_err()
        {
            debug::log(debug::WARNING, || "verbs: a region was pinned by another process".into());
        }
    }

    /// The address of the `len` bytes at a local handle, and their key. Invalid: the memory is not
    /// locked, is too short, or is read-only although `will_be_written`.
    pub(super) fn find(
        &self,
        handle: AddrHandle,
        len: usize,
        will_be_written: bool,
    ) -> PmResult<(u64, u32)> {
        let local_regions = self.lock_local_regions();
        let region = local_regions.get(&handle.region_bits()).ok_or(Error::Invalid)?;
        let offset = handle.offset();
        if will_be_written && region.is_read_only {
            return Err(Error::Invalid);
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > region.len as u64) {
            return Err(Error::Invalid);
        }
        Ok((region.addr as u64 + offset, region.lkey))
    }
}

/// A region of a peer, from its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemoteRegion {
    addr: u64,
    len: u64,
    pub(super) rkey: u32,
}

/// The address of a region's entry in the table at `table`.
pub(super) fn entry_addr(table: u64, number: u32) -> u64 {
    table.wrapping_add((number as usize % SLOTS * ENTRY_LEN) as u64)
}

impl RemoteRegion {
    /// Parses an entry of the table. None: there is no such region.
    pub(super) fn parse(words: [u64; ENTRY_WORDS], number: u32) -> Option<RemoteRegion> {
        let [state, addr, len, key] = words;
        let is_valid = state == ENTRY_VALID | u64::from(number) && key >> 32 == u64::from(number);
        is_valid.then_some(RemoteRegion { addr, len, rkey: key as u32 })
    }

    /// The address of `len` bytes at `offset`. None: not all of them are in the region.
    pub(super) fn addr_of(&self, offset: u64, len: usize) -> Option<u64> {
        let is_inside = offset.checked_add(len as u64).is_some_and(|end| end <= self.len);
        self.addr.checked_add(offset).filter(|_| is_inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_region_under_its_own_number_only_and_up_to_its_end() {
        let number = 0x7a_b00f;
        let words = [ENTRY_VALID | 0x7a_b00f, 4096, 100, 0x7a_b00f << 32 | 9];
        let region = RemoteRegion::parse(words, number).unwrap();
        assert_eq!((region.addr_of(0, 100), region.addr_of(99, 1)), (Some(4096), Some(4195)));
        for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 2), (1, usize::MAX)] {
            assert_eq!(region.addr_of(offset, len), None, "{offset} {len}");
        }
        assert_eq!(RemoteRegion::parse(words, number + 1), None);
        for word_index in 0..ENTRY_WORDS {
            let mut torn = words;
            torn[word_index] = 0;
            let is_torn = RemoteRegion::parse(torn, number).is_none();
            assert_eq!(is_torn, word_index == 0 || word_index == 3, "{word_index}");
        }
    }
}
