//! Copies of messages and writes whose memory the program may change before the bytes are sent
//! ([`Retention::Volatile`](crate::Retention)). A copy exists until the receiver fetches it.
//! Without a limit, messages to a node that does not receive would exhaust the program's memory.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::OutgoingTransfer;
use crate::memory::UserBuffer;

/// The most bytes of copies that a process may have. Clones share the budget, so it can limit
/// several engines together.
#[derive(Clone, Debug)]
pub struct CopyBudget {
    used: Arc<AtomicUsize>,
    max: usize,
}

impl CopyBudget {
    /// A budget of `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { used: Arc::new(AtomicUsize::new(0)), max }
    }
}

/// The copies of an engine.
#[derive(Debug)]
pub(crate) struct Copies {
    budget: CopyBudget,
    count: Arc<AtomicUsize>,
}

impl Copies {
    pub(crate) fn new(budget: CopyBudget) -> Self {
        Self { budget, count: Arc::new(AtomicUsize::new(0)) }
    }

    /// Whether there are no copies.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether the budget has room for a copy of `len` bytes. An unused budget has room for a copy
    /// of any length.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let used = self.budget.used.load(Ordering::Relaxed);
        used == 0 || used.saturating_add(cost(len)) <= self.budget.max
    }

    /// Copies a buffer that the program sends, and charges the budget.
    pub(crate) fn copy(&self, buffer: &UserBuffer) -> CopiedBytes {
        self.budget.used.fetch_add(cost(buffer.len()), Ordering::Relaxed);
        let mut copied = self.copy_beside_budget(buffer);
        copied.used = Some(self.budget.used.clone());
        copied
    }

    /// Copies a buffer without charging the budget: for requests of other nodes, and when the
    /// program closes an endpoint or a region.
    pub(crate) fn copy_beside_budget(&self, buffer: &UserBuffer) -> CopiedBytes {
        self.count.fetch_add(1, Ordering::Relaxed);
        CopiedBytes { bytes: buffer.to_vec().into(), used: None, count: self.count.clone() }
    }

    /// The bytes of the budget that are used.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.budget.used.load(Ordering::Relaxed)
    }
}

/// The cost of a copy. It includes the bookkeeping, which is larger than a short message.
fn cost(len: usize) -> usize {
    len.saturating_add(size_of::<OutgoingTransfer>())
}

/// A copy of bytes to be sent.
#[derive(Debug)]
pub(crate) struct CopiedBytes {
    bytes: Box<[u8]>,
    /// The budget that the copy is charged to. None: it is not charged.
    used: Option<Arc<AtomicUsize>>,
    count: Arc<AtomicUsize>,
}

impl Deref for CopiedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CopiedBytes {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(used) = &self.used {
            used.fetch_sub(cost(self.bytes.len()), Ordering::Relaxed);
        }
    }
}
