//! Copies of messages and writes whose memory the program may change before they have left
//! ([`Retention::Volatile`](crate::Retention)). They stay until their receiver wants them, so
//! without a bound a program could fill its own memory by messages to a node that receives none.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::memory::UserBuffer;
use crate::transfers::OutgoingTransfer;

/// How many bytes of copies a process may have: all engines with clones of it together.
#[derive(Clone, Debug)]
pub struct CopyBudget {
    used: Arc<AtomicUsize>,
    max: usize,
}

impl CopyBudget {
    /// So many bytes.
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

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether the budget has room for a copy of `len` bytes. An empty one has room for any.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        let used = self.budget.used.load(Ordering::Relaxed);
        used == 0 || used.saturating_add(cost(len)) <= self.budget.max
    }

    /// Copies what the program sends.
    pub(crate) fn copy(&self, buffer: &UserBuffer) -> CopiedBytes {
        self.budget.used.fetch_add(cost(buffer.len()), Ordering::Relaxed);
        let mut copied = self.copy_beside_budget(buffer);
        copied.used = Some(self.budget.used.clone());
        copied
    }

    /// A copy that other nodes have caused, or that lets the program close something.
    pub(crate) fn copy_beside_budget(&self, buffer: &UserBuffer) -> CopiedBytes {
        self.count.fetch_add(1, Ordering::Relaxed);
        CopiedBytes { bytes: buffer.to_vec().into(), used: None, count: self.count.clone() }
    }

    /// Bytes of the budget that are used.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.budget.used.load(Ordering::Relaxed)
    }
}

/// What a copy takes: short messages are smaller than what is noted of them.
fn cost(len: usize) -> usize {
    len.saturating_add(size_of::<OutgoingTransfer>())
}

/// A copy of bytes that are to be sent.
#[derive(Debug)]
pub(crate) struct CopiedBytes {
    bytes: Box<[u8]>,
    /// None: the copy is no part of a budget.
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
