//! Memory that PM itself maps (`pmAlloc`): it needs no watching, because PM says when it goes.
//! A process that only allocates has a table and no more: neither log nor watching thread.

#![forbid(unsafe_code)]

use super::mapping_monitor;
use super::page_range::PageRange;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is PM's own: starts and ends. Its lock is that of the writer of the log, too, whose readers
/// take it never while they read.
static OWN_MAPPINGS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn own_mappings() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    OWN_MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// PM has mapped this memory and will say when it goes.
pub(crate) fn add(span: PageRange) {
    own_mappings().insert(span.start(), span.end());
}

/// All of it in `span` goes, or its pages do: before that is done. Whoever looks for a registration
/// after this call finds none of it.
pub(crate) fn remove(span: PageRange) {
    let mut mappings = own_mappings();
    mappings.retain(|&start, &mut end| end <= span.start() || span.end() <= start);
    // A watch that starts later finds the memory gone from the table.
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
