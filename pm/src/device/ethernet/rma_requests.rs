//! The RMA state that callers share with the engine: locked regions, queued operations, and the
//! counts of pending and failed operations. Any thread may call the functions.

#![forbid(unsafe_code)]

use super::rma_protocol::LocalOperation;
use crate::error::{Error, PmResult};
use crate::rma::{
    AddrHandle, Direction, OperationLog, Outcome, Region, RegionId, RemoteStatus, Table, find,
    new_table,
};
use crate::sync::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// See the module.
#[derive(Default)]
pub(super) struct RmaRequestQueue {
    /// The locked regions. The table is allocated with the first region.
    regions: OnceLock<Box<Table>>,
    queued: Mutex<Vec<(u32, LocalOperation)>>,
    /// The length of `queued`.
    queued_count: AtomicU64,
    /// The numbers of pending operations and of failed operations that were not reported yet, by
    /// direction.
    pending: [AtomicU64; 2],
    failed: [AtomicU64; 2],
    /// The operations on each node. The engine ends them in their order.
    logs: Mutex<BTreeMap<u32, OperationLog>>,
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

    /// Returns the address in this process of `len` bytes at `handle`. Returns `Invalid` if they
    /// are not locked.
    pub(super) fn find(&self, handle: AddrHandle, len: usize) -> PmResult<usize> {
        let table = self.regions.get().ok_or(Error::Invalid)?;
        let location = find(table, handle, len)?;
        usize::try_from(location.addr).map_err(|_| Error::Invalid)
    }

    fn lock_queue(&self) -> MutexGuard<'_, Vec<(u32, LocalOperation)>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_log<T>(&self, node: u32, use_log: impl FnOnce(&mut OperationLog) -> T) -> T {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        use_log(logs.entry(node).or_default())
    }

    /// Queues an operation for the engine, and counts it as pending.
    pub(super) fn push(&self, node: u32, operation: LocalOperation) {
        self.pending[operation.direction as usize].fetch_add(1, Ordering::AcqRel);
        let mut queue = self.lock_queue();
        self.with_log(node, OperationLog::start);
        queue.push((node, operation));
        // SYNC: operation (the engine takes a message that is sent later only after this operation)
        self.queued_count.store(queue.len() as u64, Ordering::Release);
    }

    /// Whether no operation was queued since the last `drain_into`.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // SYNC: operation
        self.queued_count.load(Ordering::Acquire) == 0
    }

    /// Moves all queued operations to `list`, which must be empty.
    pub(super) fn drain_into(&self, list: &mut Vec<(u32, LocalOperation)>) {
        let mut queue = self.lock_queue();
        self.queued_count.store(0, Ordering::Release);
        std::mem::swap(&mut *queue, list);
    }

    /// Counts an operation as completed.
    pub(super) fn on_completed(&self, node: u32, direction: Direction, failed: bool) {
        if failed {
            self.failed[direction as usize].fetch_add(1, Ordering::AcqRel);
        }
        let outcome = if failed { Outcome::Failed } else { Outcome::Done };
        self.with_log(node, |log| log.end_oldest(outcome));
        // SYNC: remote-done (a thread that reads the new count sees the bytes that were read)
        self.pending[direction as usize].fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of pending operations in one direction.
    pub(super) fn pending(&self, direction: Direction) -> u64 {
        // SYNC: remote-done
        self.pending[direction as usize].load(Ordering::Acquire)
    }

    /// Whether any operation is pending.
    pub(super) fn is_busy(&self) -> bool {
        self.pending(Direction::Write) + self.pending(Direction::Read) > 0
    }

    /// Counts an operation that has failed before it was queued.
    pub(super) fn count_failed(&self, node: u32, direction: Direction) {
        self.failed[direction as usize].fetch_add(1, Ordering::AcqRel);
        self.with_log(node, |log| {
            let number = log.start();
            log.end(number, Outcome::Failed);
        });
    }

    /// Returns how far the operations on `node` have progressed. The lock orders the bytes that
    /// were read before the caller's accesses.
    pub(super) fn report(&self, node: u32) -> RemoteStatus {
        self.with_log(node, OperationLog::report)
    }

    /// Returns `Busy` while operations are pending, and `Io` once if operations have failed.
    pub(super) fn is_done(&self, direction: Direction) -> PmResult<()> {
        let pending = self.pending(direction);
        let failed = &self.failed[direction as usize];
        if failed.load(Ordering::Acquire) != 0 && failed.swap(0, Ordering::AcqRel) != 0 {
            return Err(Error::Io);
        }
        if pending > 0 { Err(Error::Busy) } else { Ok(()) }
    }
}
