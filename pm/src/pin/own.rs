//! Memory that PM itself maps (`pmAlloc`): it needs no watching, because PM says when it goes.

#![forbid(unsafe_code)]

use super::log::Log;
use super::span::Span;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is PM's own: starts and ends. The lock is also that of the writer of the log, whose readers
/// take it never.
#[derive(Default)]
pub(super) struct Own(Mutex<BTreeMap<usize, usize>>);

impl Own {
    fn spans(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, span: Span) {
        self.spans().insert(span.start(), span.end());
    }

    pub(super) fn remove(&self, span: Span, log: &Log) {
        let mut spans = self.spans();
        log.begin();
        spans.remove(&span.start());
        log.push(0, span);
        log.end(1);
    }

    pub(super) fn has(&self, span: Span) -> bool {
        let spans = self.spans();
        let last = spans.range(..=span.start()).next_back();
        last.is_some_and(|(_, &end)| span.end() <= end)
    }
}
