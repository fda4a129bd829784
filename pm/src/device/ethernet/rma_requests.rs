//! What callers and whoever makes progress hand each other about remote memory: regions that are
//! locked, operations that begin, and how many have ended. Any thread may be at either side.

#![forbid(unsafe_code)]

use super::rma_protocol::LocalOperation;
use crate::error::{Error, PmResult};
use crate::rma::{AddrHandle, Direction, Region, RegionId, Table, find, new_table};
use crate::sync::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// See the module.
#[derive(Default)]
pub(super) struct RmaRequestQueue {
    /// Made with the first region.
    regions: OnceLock<Box<Table>>,
    queued: Mutex<Vec<(u32, LocalOperation)>>,
    /// How many of these there are.
    queued_count: AtomicU64,
    /// Operations under way, and those that have failed and were not told of, by direction.
    pending: [AtomicU64; 2],
    failed: [AtomicU64; 2],
}

impl RmaRequestQueue {
    pub(super) fn publish(&self, region: &Region) {
        let table = self.regions.get_or_init(new_table);
        table[region.id.slot()].publish(region, None);
    }

    pub(super) fn withdraw(&self, number: RegionId) {
        if let Some(table) = self.regions.get() {
            table[number.slot()].withdraw();
        }
    }

    /// Where these bytes are in this process. Invalid: they are not locked.
    pub(super) fn find(&self, handle: AddrHandle, len: usize) -> PmResult<usize> {
        let table = self.regions.get().ok_or(Error::Invalid)?;
        let location = find(table, handle, len)?;
        usize::try_from(location.addr).map_err(|_| Error::Invalid)
    }

    fn lock_queue(&self) -> MutexGuard<'_, Vec<(u32, LocalOperation)>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation begins.
    pub(super) fn push(&self, node: u32, operation: LocalOperation) {
        self.pending[operation.direction as usize].fetch_add(1, Ordering::AcqRel);
        let mut queue = self.lock_queue();
        queue.push((node, operation));
        // SYNC: operation (a message that is sent afterwards is taken afterwards)
        self.queued_count.store(queue.len() as u64, Ordering::Release);
    }

    /// Whether none has begun since `drain_into`.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // SYNC: operation
        self.queued_count.load(Ordering::Acquire) == 0
    }

    /// All that have begun, for an empty list.
    pub(super) fn drain_into(&self, list: &mut Vec<(u32, LocalOperation)>) {
        let mut queue = self.lock_queue();
        self.queued_count.store(0, Ordering::Release);
        std::mem::swap(&mut *queue, list);
    }

    /// An operation has ended.
    pub(super) fn on_completed(&self, direction: Direction, failed: bool) {
        if failed {
            self.failed[direction as usize].fetch_add(1, Ordering::AcqRel);
        }
        // SYNC: remote-done (who sees it sees the bytes that were read)
        self.pending[direction as usize].fetch_sub(1, Ordering::AcqRel);
    }

    /// Operations under way.
    pub(super) fn pending(&self, direction: Direction) -> u64 {
        // SYNC: remote-done
        self.pending[direction as usize].load(Ordering::Acquire)
    }

    /// Whether any are.
    pub(super) fn is_busy(&self) -> bool {
        self.pending(Direction::Write) + self.pending(Direction::Read) > 0
    }

    /// One has failed before it began.
    pub(super) fn count_failed(&self, direction: Direction) {
        self.failed[direction as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Busy: some are under way. Io, once: some have failed.
    pub(super) fn is_done(&self, direction: Direction) -> PmResult<()> {
        let pending = self.pending(direction);
        let failed = &self.failed[direction as usize];
        if failed.load(Ordering::Acquire) != 0 && failed.swap(0, Ordering::AcqRel) != 0 {
            return Err(Error::Io);
        }
        if pending > 0 { Err(Error::Busy) } else { Ok(()) }
    }
}
