//! Remote memory (manual 3.6): the regions that a context has locked, and the checks around an
//! operation.

#![forbid(unsafe_code)]

use super::{Context, LiveContext};
use crate::device::{RmaInterface, on_device};
use crate::error::{Error, PmResult};
use crate::idle;
use crate::rma::{self, AddrHandle, Direction, Region, RegionId, RemoteStatus, RmaOperation};
use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

/// Bits of a member mask.
const MAX_MEMBERS: usize = 32;

/// The regions that a context has locked, by address and length.
#[derive(Default)]
pub(super) struct LockedRegions(BTreeMap<(usize, usize), RegionLock>);

struct RegionLock {
    region_id: RegionId,
    /// How often the region was locked for each member.
    counts: [u32; MAX_MEMBERS],
    /// PM has allocated the whole region (`pmAlloc`).
    is_pm_allocated: bool,
}

fn member_indices(member_mask: u32) -> impl Iterator<Item = usize> {
    (0..MAX_MEMBERS).filter(move |member_index| member_mask >> member_index & 1 == 1)
}

impl LiveContext {
    fn locked_regions(&self) -> MutexGuard<'_, LockedRegions> {
        self.locked_regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks the options of the device. NoSys: the device has none of these options. Busy: the
    /// context was handed over to another process.
    fn check_options(&self, options: u64) -> PmResult<()> {
        if self.device_context.options() & options == 0 {
            return Err(Error::NoSys);
        }
        if self.is_handed_over() { Err(Error::Busy) } else { Ok(()) }
    }

    fn lock_region(&self, member_mask: u32, addr: usize, len: usize) -> PmResult<AddrHandle> {
        let mut locked_regions = self.locked_regions();
        let region_id = match locked_regions.0.get(&(addr, len)) {
            Some(locked) => locked.region_id,
            None => RegionId::allocate()?,
        };
        let retain_memory = || rma::retain(addr, len);
        let region_lock = locked_regions.0.entry((addr, len)).or_insert_with(|| RegionLock {
            region_id,
            counts: [0; MAX_MEMBERS],
            is_pm_allocated: retain_memory(),
        });
        let region = Region { id: region_id, addr, len };
        let mut published = 0u32;
        for member_index in member_indices(member_mask) {
            if region_lock.counts[member_index] == 0
                && let Err(error) = self.device_context.publish_region(member_index, &region)
            {
                member_indices(published)
                    .for_each(|member_index| region_lock.counts[member_index] -= 1);
                self.release_unlocked(&mut locked_regions, (addr, len), published);
                return Err(error);
            }
            region_lock.counts[member_index] += 1;
            published |= 1 << member_index;
        }
        Ok(AddrHandle::new(region_id))
    }

    fn unlock_region(&self, member_mask: u32, addr: usize, len: usize) -> PmResult<()> {
        let mut locked_regions = self.locked_regions();
        let region_lock = locked_regions.0.get_mut(&(addr, len)).ok_or(Error::NoEntry)?;
        let locked_mask = member_indices(member_mask)
            .filter(|&member_index| region_lock.counts[member_index] > 0)
            .fold(0, |sum, index| sum | 1 << index);
        if locked_mask == 0 {
            return Err(Error::NoEntry);
        }
        member_indices(locked_mask).for_each(|member_index| region_lock.counts[member_index] -= 1);
        self.release_unlocked(&mut locked_regions, (addr, len), locked_mask);
        Ok(())
    }

    /// Withdraws the region from each of these members for which it is not locked any more.
    fn release_unlocked(
        &self,
        locked_regions: &mut LockedRegions,
        key: (usize, usize),
        member_mask: u32,
    ) {
        let Some(region_lock) = locked_regions.0.get(&key) else { return };
        let region_id = region_lock.region_id;
        for member_index in member_indices(member_mask)
            .filter(|&member_index| region_lock.counts[member_index] == 0)
        {
            self.device_context.withdraw_region(member_index, region_id);
        }
        if region_lock.counts.iter().all(|&count| count == 0) {
            if region_lock.is_pm_allocated {
                rma::release(key.0, key.1);
            }
            locked_regions.0.remove(&key);
            region_id.release();
        }
    }

    /// Unlocks all regions of these members, which are about to be removed.
    pub(super) fn unlock_all_regions(&self, member_mask: u32) {
        let mut locked_regions = self.locked_regions();
        let keys: Vec<_> = locked_regions.0.keys().copied().collect();
        for key in keys {
            if let Some(region_lock) = locked_regions.0.get_mut(&key) {
                member_indices(member_mask)
                    .for_each(|member_index| region_lock.counts[member_index] = 0);
            }
            self.release_unlocked(&mut locked_regions, key, member_mask);
        }
    }

    /// Like `Context::write`, which tries `write_fast` first.
    pub fn write(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> PmResult<()> {
        self.operate(Direction::Write, node, handles, len)
    }

    /// Like `Context::read`, which tries `read_fast` first.
    pub fn read(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> PmResult<()> {
        self.operate(Direction::Read, node, handles, len)
    }

    fn operate(
        &self,
        direction: Direction,
        node: u32,
        [remote, local]: [AddrHandle; 2],
        len: usize,
    ) -> PmResult<()> {
        self.check_options(direction.option())?;
        idle::before_send();
        let is_serialized = self.is_serialized();
        let operation = RmaOperation { is_serialized, direction, remote, local, len };
        on_device!(opened &self.device_context, device => device.start_rma(node, &operation))
    }
}

impl Context {
    /// Locks `len` bytes at `addr` for remote access from `node`, or from every node (None,
    /// `PM_NODE_ANY`). Returns the handle of the first byte (`pmMLock`, manual 3.6.4). Address and
    /// length are arbitrary, because the memory is not read. If the same region is locked again, it
    /// has the same handle, and it must be unlocked as often as it was locked.
    ///
    /// # Errors
    /// Invalid: no such node, this node itself, address 0, or a length of 0 or above 1 TiB.
    /// NoSpace: 4,096 regions are locked, or the device cannot pin this region. NoSys: there is no
    /// remote memory. Busy: the context belongs to another process.
    pub fn lock_memory(&self, node: Option<u32>, addr: usize, len: usize) -> PmResult<AddrHandle> {
        let inner = self.live()?;
        inner.check_options(u64::MAX)?;
        if addr == 0
            || len == 0
            || len > AddrHandle::MAX_REGION_LEN
            || addr.checked_add(len).is_none()
        {
            return Err(Error::Invalid);
        }
        let member_mask = inner.device_context.paths(node)?;
        inner.lock_region(member_mask, addr, len)
    }

    /// Unlocks a region (`pmMUnlock`). When its last lock is removed, its handle becomes invalid.
    ///
    /// # Errors
    /// NoEntry: the region was not locked. Invalid, NoSys and Busy: see `lock_memory`.
    pub fn unlock_memory(&self, node: Option<u32>, addr: usize, len: usize) -> PmResult<()> {
        let inner = self.live()?;
        inner.check_options(u64::MAX)?;
        if len == 0 {
            return Err(Error::Invalid);
        }
        let member_mask = inner.device_context.paths(node)?;
        inner.unlock_region(member_mask, addr, len)
    }

    /// Copies `len` bytes at `local` of this process to `remote` on `node` (`pmWrite`, manual
    /// 3.6.5). Later messages to `node` and later remote operations on `node` arrive after these
    /// bytes.
    ///
    /// # Errors
    /// Invalid: no such node, this node itself, a handle of no locked region, a region that ends
    /// too early, or a length of 0 or above `RMA_MTU`. NoBuffers: too many operations are
    /// outstanding. NoSys: there is no remote memory, or the kernel refuses to copy between
    /// processes, and a region is not from `allocate_memory`.
    pub fn write(
        &self,
        node: u32,
        remote: AddrHandle,
        local: AddrHandle,
        len: usize,
    ) -> PmResult<()> {
        let (inner, handles) = (self.live()?, [remote, local]);
        if inner.write_fast(node, handles, len) { Ok(()) } else { inner.write(node, handles, len) }
    }

    /// Copies `len` bytes at `remote` on `node` to `local` of this process (`pmRead`).
    ///
    /// # Errors
    /// Those of `write`.
    pub fn read(
        &self,
        node: u32,
        remote: AddrHandle,
        local: AddrHandle,
        len: usize,
    ) -> PmResult<()> {
        let (inner, handles) = (self.live()?, [remote, local]);
        if inner.read_fast(node, handles, len) { Ok(()) } else { inner.read(node, handles, len) }
    }

    /// Whether the local memory of all writes may be changed again (`pmIsWriteDone`).
    ///
    /// # Errors
    /// Busy: some writes have not ended. Io: some writes have failed; PM reports this once. NoSys:
    /// there is no remote memory.
    pub fn is_write_done(&self) -> PmResult<()> {
        let inner = self.live()?;
        inner.check_options(Direction::Write.option())?;
        let context = &inner.device_context;
        on_device!(opened context, device => device.is_remote_done(Direction::Write))
    }

    /// Whether all reads are complete (`pmIsReadDone`).
    ///
    /// # Errors
    /// Those of `is_write_done`.
    pub fn is_read_done(&self) -> PmResult<()> {
        let inner = self.live()?;
        inner.check_options(Direction::Read.option())?;
        let context = &inner.device_context;
        on_device!(opened context, device => device.is_remote_done(Direction::Read))
    }

    /// Returns the progress of the remote operations on `node` (`pmGetRemoteStatus`, which is not
    /// in the manual). Writes and reads are numbered together, from 1, in the order of their calls.
    /// Therefore the number of an operation is `started` after its call, if no other thread calls
    /// meanwhile. A call that returns an error starts no operation.
    ///
    /// # Errors
    /// Invalid: no such node, or this node itself. NoSys: there is no remote memory.
    pub fn remote_status(&self, node: u32) -> PmResult<RemoteStatus> {
        let inner = self.live()?;
        inner.check_options(Direction::Write.option() | Direction::Read.option())?;
        on_device!(opened &inner.device_context, device => device.remote_status(node))
    }

    /// Allocates at least `len` bytes of zeroes, aligned to a page (`pmAlloc`, which is not in the
    /// manual). Processes on the same host copy such memory directly. The memory stays until
    /// `free_memory`, even after the context was closed.
    ///
    /// # Errors
    /// Invalid: `len` is 0. NoMemory: there is no memory. Busy: the context belongs to another
    /// process.
    pub fn allocate_memory(&self, len: usize) -> PmResult<*mut u8> {
        let inner = self.live()?;
        if inner.is_handed_over() {
            return Err(Error::Busy);
        }
        let arena = on_device!(active &inner.device_context, device => device.arena(), else None);
        rma::allocate(arena, len).map(|addr| addr as *mut u8)
    }

    /// Frees memory (`pmFree`).
    ///
    /// # Errors
    /// Invalid: `addr` was not returned by `allocate_memory`. Busy: a region in this memory is
    /// locked.
    pub fn free_memory(&self, addr: *mut u8) -> PmResult<()> {
        self.live()?;
        rma::free(addr.addr())
    }
}
