//! Memory that PM itself maps (`pmAlloc`): it needs no watching, because PM says when it goes.
//! A process that only allocates has a table and no more: neither log nor watching thread.

#![forbid(unsafe_code)]

use super::span::Span;
use super::watch;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is PM's own: starts and ends. Its lock is that of the writer of the log, too, whose readers
/// take it never while they read.
static SPANS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn spans() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    SPANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// PM has mapped this memory and will say when it goes.
pub(crate) fn add(span: Span) {
    spans().insert(span.start(), span.end());
}

/// All of it in `span` goes, or its pages do: before that is done. Whoever looks for a registration
/// after this call finds none of it.
pub(crate) fn remove(span: Span) {
    let mut spans = spans();
    spans.retain(|&start, &mut end| end <= span.start() || span.end() <= start);
    // A watch that starts later finds the memory gone from the table.
    if let Some(log) = watch::own_log() {
        log.begin();
        log.push(0, span);
        log.end(1);
    }
}

/// Whether all of `span` is PM's own.
pub(super) fn has(span: Span) -> bool {
    let spans = spans();
    let last = spans.range(..=span.start()).next_back();
    last.is_some_and(|(_, &end)| span.end() <= end)
}
