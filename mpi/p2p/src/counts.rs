//! How many operations have ended, for counters (fi_cntr(3)).

/// Kinds of operations that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Messages that were sent.
    Sends,
    /// Messages that were received.
    Receives,
    /// Bytes of other nodes that were read, and atomic operations with a result.
    Reads,
    /// Bytes of other nodes that were written, and atomic operations without a result.
    Writes,
}

/// A number of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Those that have succeeded.
    pub done: u64,
    /// Those that have failed.
    pub failed: u64,
}

/// The numbers of all kinds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts([Count; 4]);

impl Counts {
    pub(crate) fn get(&self, counted: Counted) -> Count {
        self.0[counted as usize]
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, counted: Counted, is_failed: bool) {
        let count = &mut self.0[counted as usize];
        match is_failed {
            false => count.done += 1,
            true => count.failed += 1,
        }
    }
}
