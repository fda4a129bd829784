//! What callers and whoever makes progress hand each other about remote memory: regions that are
//! locked, operations that begin, and how many have ended. Any thread may be at either side.

#![forbid(unsafe_code)]

use super::transfers::Operation;
use crate::error::{Error, Result};
use crate::remote::{AddrHandle, Direction, Number, Region, Table, find, new_table};
use crate::sync::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// See the module.
#[derive(Default)]
pub(super) struct Desk {
    /// Made with the first region.
    regions: OnceLock<Box<Table>>,
    begun: Mutex<Vec<(u32, Operation)>>,
    /// How many of these there are.
    waiting: AtomicU64,
    /// Operations under way, and those that have failed and were not told of, by direction.
    pending: [AtomicU64; 2],
    failed: [AtomicU64; 2],
}

impl Desk {
    pub(super) fn publish(&self, region: &Region) {
        let table = self.regions.get_or_init(new_table);
        table[region.number.slot()].publish(region, None);
    }

    pub(super) fn withdraw(&self, number: Number) {
        if let Some(table) = self.regions.get() {
            table[number.slot()].withdraw();
        }
    }

    /// Where these bytes are in this process. Invalid: they are not locked.
    pub(super) fn find(&self, handle: AddrHandle, len: usize) -> Result<usize> {
        let table = self.regions.get().ok_or(Error::Invalid)?;
        let place = find(table, handle, len)?;
        usize::try_from(place.addr).map_err(|_| Error::Invalid)
    }

    fn begun(&self) -> MutexGuard<'_, Vec<(u32, Operation)>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation begins.
    pub(super) fn put(&self, node: u32, operation: Operation) {
        self.pending[operation.direction as usize].fetch_add(1, Ordering::AcqRel);
        let mut begun = self.begun();
        begun.push((node, operation));
        // SYNC: operation (a message that is sent afterwards is taken afterwards)
        self.waiting.store(begun.len() as u64, Ordering::Release);
    }

    /// Whether none has begun since `take`.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // SYNC: operation
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// All that have begun, for an empty list.
    pub(super) fn take(&self, list: &mut Vec<(u32, Operation)>) {
        let mut begun = self.begun();
        self.waiting.store(0, Ordering::Release);
        std::mem::swap(&mut *begun, list);
    }

    /// An operation has ended.
    pub(super) fn end(&self, direction: Direction, failed: bool) {
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
    pub(super) fn fail(&self, direction: Direction) {
        self.failed[direction as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Busy: some are under way. Io, once: some have failed.
    pub(super) fn is_done(&self, direction: Direction) -> Result<()> {
        let pending = self.pending(direction);
        let failed = &self.failed[direction as usize];
        if failed.load(Ordering::Acquire) != 0 && failed.swap(0, Ordering::AcqRel) != 0 {
            return Err(Error::Io);
        }
        if pending > 0 { Err(Error::Busy) } else { Ok(()) }
    }
}
