//! A log of changes of memory, which one thread writes and all others read without a lock.
//!
//! The monitor thread receives the event of an unmapping by read(), which at the same moment lets
//! the unmapping thread continue. Therefore the monitor thread sets `BUSY` before it reads. The
//! unmapping thread then reads this state or a later one, and reads the log before it uses any
//! older information. The writer never waits. If a reader has missed overwritten entries, it has to
//! assume that all memory has changed.

#![forbid(unsafe_code)]

use super::page_range::PageRange;
use crate::sync::{AtomicU64, Ordering, fence};

/// The number of entries of the log. A reader that is further behind has missed entries.
#[cfg(not(loom))]
const LOG_LEN: usize = 2048;
#[cfg(loom)]
const LOG_LEN: usize = 2;
/// The largest number of entries between `begin` and `end`.
#[cfg(not(loom))]
pub(super) const BATCH: u64 = 32;
#[cfg(loom)]
pub(super) const BATCH: u64 = 1;

/// The bit of the state that is set while memory may have changed without an entry in the log.
const BUSY: u64 = 1;
/// The state of a log without a writer.
const CLOSED: u64 = u64::MAX;
/// The count of a new log, so that its state is never 0, as it is in a child of fork.
const INITIAL_COUNT: u64 = 1;

struct Entry {
    start: AtomicU64,
    end: AtomicU64,
}

/// A log with one writer and any number of readers.
pub(super) struct Log {
    /// Twice the number of entries, and `BUSY`.
    state: AtomicU64,
    entries: [Entry; LOG_LEN],
}

/// The position of a reader. A reader is up to date if its cursor equals the log's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogCursor(u64);

impl LogCursor {
    /// Whether the log was wiped: a child of fork reads zeroes in its place.
    #[inline(always)]
    pub(super) fn is_wiped(self) -> bool {
        self.0 == 0
    }
}

/// A change that the log reports to a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Invalidation {
    /// This memory has changed.
    Changed(PageRange),
    /// Any memory may have changed.
    Everything,
}

impl Log {
    pub(super) fn new() -> Log {
        let entry = |_| Entry { start: AtomicU64::new(0), end: AtomicU64::new(0) };
        Log { state: AtomicU64::new(INITIAL_COUNT * 2), entries: std::array::from_fn(entry) }
    }

    /// The cursor of a new reader, which has not read the entries that are being written now.
    pub(super) fn initial_cursor(&self) -> LogCursor {
        LogCursor(self.cursor().0 & !BUSY)
    }

    /// The state as a cursor, to be compared with that of a reader.
    #[inline(always)]
    pub(super) fn cursor(&self) -> LogCursor {
        // SYNC: pin-log
        LogCursor(self.state.load(Ordering::Acquire))
    }

    /// Called by the writer before memory may change.
    pub(super) fn begin(&self) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state | BUSY, Ordering::Relaxed);
        // SYNC: pin-log (before the entries, and before the call that lets the unmapper continue)
        fence(Ordering::SeqCst);
    }

    /// Called by the writer between `begin` and `end`. `nth` is the number of the entry since
    /// `begin`, from 0.
    pub(super) fn push(&self, nth: u64, span: PageRange) {
        let index = self.state.load(Ordering::Relaxed) / 2 + nth;
        let entry = &self.entries[index as usize % LOG_LEN];
        entry.start.store(span.start() as u64, Ordering::Relaxed);
        entry.end.store(span.end() as u64, Ordering::Relaxed);
    }

    /// Called by the writer after it has pushed `count` entries since `begin`.
    pub(super) fn end(&self, count: u64) {
        let state = self.state.load(Ordering::Relaxed);
        // SYNC: pin-log (the entries are visible)
        self.state.store((state & !BUSY) + 2 * count, Ordering::Release);
    }

    /// Called by the writer when no more entries will follow.
    pub(super) fn close(&self) {
        self.state.store(CLOSED, Ordering::Release);
    }

    /// Whether the log has a writer.
    pub(super) fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) != CLOSED
    }

    /// Reads entries until `cursor` is up to date. Waits while the writer is busy, for one read()
    /// at most.
    pub(super) fn catch_up(
        &self,
        cursor: &mut LogCursor,
        mut on_invalidation: impl FnMut(Invalidation),
    ) {
        loop {
            let latest = self.cursor();
            if latest == *cursor {
                return;
            }
            if latest.0 == CLOSED {
                on_invalidation(Invalidation::Everything);
                *cursor = latest;
            } else if latest.0 & BUSY == 0 {
                self.read(cursor, latest, &mut on_invalidation);
            } else {
                pause();
            }
        }
    }

    fn read(
        &self,
        cursor: &mut LogCursor,
        latest: LogCursor,
        on_invalidation: &mut impl FnMut(Invalidation),
    ) {
        let (from, to) = (cursor.0 / 2, latest.0 / 2);
        let mut complete = to - from <= LOG_LEN as u64;
        for index in from..if complete { to } else { from } {
            let entry = &self.entries[index as usize % LOG_LEN];
            let start = entry.start.load(Ordering::Relaxed) as usize;
            let end = entry.end.load(Ordering::Relaxed) as usize;
            // An overwritten entry may be a mixture of two. This does no harm, because everything
            // is then invalidated.
            PageRange::new(start, end)
                .into_iter()
                .for_each(|span| on_invalidation(Invalidation::Changed(span)));
        }
        // SYNC: pin-log (a reader of an overwritten entry sees that the writer was busy with it)
        fence(Ordering::Acquire);
        let written = self.state.load(Ordering::Relaxed) / 2;
        complete &= written.saturating_add(BATCH) <= from + LOG_LEN as u64;
        if !complete {
            on_invalidation(Invalidation::Everything);
        }
        *cursor = latest;
    }
}

/// Lets another thread run, which has a few instructions to finish or waits for a processor.
fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn span(page: usize) -> PageRange {
        PageRange::pages(page * 4096, 1).unwrap()
    }

    #[test]
    fn a_reader_that_begins_during_a_write_gets_the_written_entries() {
        let log = Log::new();
        log.begin();
        let mut cursor = log.initial_cursor();
        assert_ne!(log.cursor(), cursor, "not up to date");
        log.push(0, span(7));
        log.end(1);
        let mut invalidations = Vec::new();
        log.catch_up(&mut cursor, |invalidation| invalidations.push(invalidation));
        assert_eq!(invalidations, [Invalidation::Changed(span(7))]);
    }

    #[test]
    fn a_reader_gets_every_entry_since_its_cursor_or_an_entry_that_invalidates_all() {
        let log = Log::new();
        let mut cursor = log.cursor();
        let mut invalidations = Vec::new();
        log.catch_up(&mut cursor, |invalidation| invalidations.push(invalidation));
        assert_eq!(invalidations, []);
        log.begin();
        log.push(0, span(7));
        log.push(1, span(9));
        log.end(2);
        assert_ne!(log.cursor(), cursor);
        log.catch_up(&mut cursor, |invalidation| invalidations.push(invalidation));
        assert_eq!(invalidations, [Invalidation::Changed(span(7)), Invalidation::Changed(span(9))]);
        assert_eq!(log.cursor(), cursor);
        for _ in 0..=LOG_LEN {
            log.begin();
            log.push(0, span(1));
            log.end(1);
        }
        invalidations.clear();
        log.catch_up(&mut cursor, |invalidation| invalidations.push(invalidation));
        assert_eq!(invalidations, [Invalidation::Everything]);
        log.close();
        invalidations.clear();
        log.catch_up(&mut cursor, |invalidation| invalidations.push(invalidation));
        log.catch_up(&mut cursor, |invalidation| invalidations.push(invalidation));
        assert_eq!((invalidations, log.is_open()), (vec![Invalidation::Everything], false));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Flag;
    use loom::thread;

    #[test]
    fn a_thread_whose_munmap_returned_never_sees_the_log_as_it_was_before() {
        loom::model(|| {
            let shared = Arc::new((Log::new(), Flag::new(0)));
            let monitor_log = shared.clone();
            let span = PageRange::new(4096, 8192).unwrap();
            let monitor = thread::spawn(move || {
                monitor_log.0.begin();
                // The kernel lets the unmapping thread continue.
                monitor_log.1.store(1, Ordering::Release);
                monitor_log.0.push(0, span);
                monitor_log.0.end(1);
            });
            let mut cursor = LogCursor(INITIAL_COUNT * 2);
            if shared.1.load(Ordering::Acquire) == 1 {
                assert_ne!(shared.0.cursor(), cursor);
                let mut count = 0;
                shared.0.catch_up(&mut cursor, |invalidation| {
                    assert!(
                        invalidation == Invalidation::Changed(span)
                            || invalidation == Invalidation::Everything
                    );
                    count += 1;
                });
                assert!(count > 0);
            }
            monitor.join().unwrap();
        });
    }

    /// A reader does not use entries that are overwritten while it reads them.
    #[test]
    fn a_reader_that_is_overtaken_invalidates_all_registrations() {
        loom::model(|| {
            let log = Arc::new(Log::new());
            let writer_log = log.clone();
            let span = |number: u64| PageRange::new(4096 * number as usize, 4096 * 9).unwrap();
            let writer = thread::spawn(move || {
                for round in 0..3 {
                    writer_log.begin();
                    writer_log.push(0, span(round + 1));
                    writer_log.end(1);
                }
            });
            let mut cursor = LogCursor(INITIAL_COUNT * 2);
            let (mut changed, mut everything) = (Vec::new(), false);
            let mut catch_up = |cursor: &mut LogCursor| {
                log.catch_up(cursor, |invalidation| match invalidation {
                    Invalidation::Changed(span) => changed.push(span),
                    Invalidation::Everything => everything = true,
                });
            };
            catch_up(&mut cursor);
            writer.join().unwrap();
            catch_up(&mut cursor);
            assert!(everything || (1..4).all(|number| changed.contains(&span(number))));
        });
    }
}
