//! Memory that PM itself maps (`pmAlloc`). It needs no monitoring, because PM reports when it
//! unmaps it. A process that allocates but has no cache has this table, but neither logs nor a
//! monitor thread.

#![forbid(unsafe_code)]

use super::mapping_monitor;
use super::page_range::PageRange;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// PM's own memory: starts and ends. The lock also protects the writing end of the log. Readers of
/// the log never take it while they read.
static OWN_MAPPINGS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn own_mappings() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    OWN_MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers memory that PM has mapped. PM calls `remove` before it unmaps it.
pub(crate) fn add(span: PageRange) {
    own_mappings().insert(span.start(), span.end());
}

/// Removes all of PM's memory in `span`, just before it or its pages are unmapped. After this call
/// no registration of this memory is found.
pub(crate) fn remove(span: PageRange) {
    let mut mappings = own_mappings();
    mappings.retain(|&start, &mut end| end <= span.start() || span.end() <= start);
    // Without a monitor no log is needed, because a monitor that starts later does not find this
    // memory in the table.
    if let Some(log) = mapping_monitor::own_log() {
        log.begin();
        log.push(0, span);
        log.end(1);
    }
}

/// Whether all of `span` is PM's own.
pub(super) fn contains(span: PageRange) -> bool {
    let mappings = own_mappings();
    let last = mappings.range(..=span.start()).next_back();
    last.is_some_and(|(_, &end)| span.end() <= end)
}
