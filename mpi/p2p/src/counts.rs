//! The numbers of operations that have ended, for counters (fi_cntr(3)).

/// The kinds of operations that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Sends.
    Sends,
    /// Receives.
    Receives,
    /// Reads of other nodes' memory, and atomic operations with a result.
    Reads,
    /// Writes to other nodes' memory, and atomic operations without a result.
    Writes,
}

/// A number of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The operations that have succeeded.
    pub done: u64,
    /// The operations that have failed.
    pub failed: u64,
}

/// The counts of all kinds.
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
