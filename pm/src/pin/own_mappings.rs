//! Memory that PM itself maps (`pmAlloc`). It needs no monitoring, because PM reports each
//! unmapping of such memory. A process that allocates but has no cache has this table, but neither
//! logs nor a monitor thread.

#![forbid(unsafe_code)]

use super::page_range::PageRange;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// PM's own memory: starts and ends. The lock also protects the writing end of the log. Readers of
/// the log never take the lock while they read.
static OWN_MAPPINGS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

/// The lock of the table.
pub(super) type OwnMappingsGuard = MutexGuard<'static, BTreeMap<usize, usize>>;

fn own_mappings() -> OwnMappingsGuard {
    OWN_MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers memory that PM has mapped. PM calls `mapping_monitor::remove_own_mappings` before it
/// unmaps this memory.
pub(crate) fn add(span: PageRange) {
    own_mappings().insert(span.start(), span.end());
}

/// Takes all memory in `span` out of the table. The caller keeps the lock while it writes the log.
pub(super) fn take_out(span: PageRange) -> OwnMappingsGuard {
    let mut mappings = own_mappings();
    mappings.retain(|&start, &mut end| end <= span.start() || span.end() <= start);
    mappings
}

/// Whether all of `span` is PM's own.
pub(super) fn contains(span: PageRange) -> bool {
    let mappings = own_mappings();
    let last = mappings.range(..=span.start()).next_back();
    last.is_some_and(|(_, &end)| span.end() <= end)
}
