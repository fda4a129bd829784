//! What has happened to memory, told by one thread to all others without a lock.
//!
//! The watching thread learns of an unmapping by read(), which at the same moment lets the
//! unmapping thread go on. So it sets `busy` before it reads: whoever was let go sees that word, or
//! what came after it, and asks the log before it believes in anything older. The writer waits for
//! nobody: a reader that is too far behind learns that everything may have happened.

#![forbid(unsafe_code)]

use super::span::Span;
use crate::sync::{AtomicU64, Ordering, fence};

/// How far behind a reader may be.
#[cfg(not(loom))]
const ENTRIES: usize = 2048;
#[cfg(loom)]
const ENTRIES: usize = 2;
/// The most entries between `begin` and `end`.
#[cfg(not(loom))]
pub(super) const BATCH: u64 = 32;
#[cfg(loom)]
pub(super) const BATCH: u64 = 1;

/// The bit of the word that says: more may have happened than was written.
const BUSY: u64 = 1;
/// The word of a log that nobody writes any more.
const CLOSED: u64 = u64::MAX;
/// A new log's count, so that a word is never 0: that is how a child of fork finds it.
const FIRST: u64 = 1;

struct Entry {
    start: AtomicU64,
    end: AtomicU64,
}

/// One writer, any readers.
pub(super) struct Log {
    /// Twice the count of entries, and `BUSY`.
    word: AtomicU64,
    entries: [Entry; ENTRIES],
}

/// How far a reader has read. It is up to date where it equals the log's word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen(u64);

impl Seen {
    /// Whether this is no log, but the zeroes that a child of fork finds in its place.
    #[inline(always)]
    pub(super) fn is_nothing(self) -> bool {
        self.0 == 0
    }
}

/// What a reader is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum News {
    /// This memory is not any more what it was.
    Changed(Span),
    /// Nothing is known of any memory.
    Everything,
}

impl Log {
    pub(super) fn new() -> Log {
        let entry = |_| Entry { start: AtomicU64::new(0), end: AtomicU64::new(0) };
        Log { word: AtomicU64::new(FIRST * 2), entries: std::array::from_fn(entry) }
    }

    /// Where a reader begins that has seen nothing of what is being written at this moment.
    pub(super) fn start(&self) -> Seen {
        Seen(self.word().0 & !BUSY)
    }

    /// The word as it is: to be compared with what was seen.
    #[inline(always)]
    pub(super) fn word(&self) -> Seen {
        // SYNC: pin-log
        Seen(self.word.load(Ordering::Acquire))
    }

    /// Writer: something may be about to happen.
    pub(super) fn begin(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store(word | BUSY, Ordering::Relaxed);
        // SYNC: pin-log (before the entries, and before the call that lets an unmapper go on)
        fence(Ordering::SeqCst);
    }

    /// Writer, between `begin` and `end`: the `number`th since `begin`.
    pub(super) fn push(&self, number: u64, span: Span) {
        let at = self.word.load(Ordering::Relaxed) / 2 + number;
        let entry = &self.entries[at as usize % ENTRIES];
        entry.start.store(span.start() as u64, Ordering::Relaxed);
        entry.end.store(span.end() as u64, Ordering::Relaxed);
    }

    /// Writer: `count` entries were pushed since `begin`.
    pub(super) fn end(&self, count: u64) {
        let word = self.word.load(Ordering::Relaxed);
        // SYNC: pin-log (the entries are there)
        self.word.store((word & !BUSY) + 2 * count, Ordering::Release);
    }

    /// Writer: the last word.
    pub(super) fn close(&self) {
        self.word.store(CLOSED, Ordering::Release);
    }

    /// Whether it has a writer.
    pub(super) fn is_open(&self) -> bool {
        self.word.load(Ordering::Relaxed) != CLOSED
    }

    /// Reads on until it is up to date. Waits while the writer is busy: for one read() at most.
    pub(super) fn catch_up(&self, seen: &mut Seen, mut tell: impl FnMut(News)) {
        loop {
            let word = self.word();
            if word == *seen {
                return;
            }
            if word.0 == CLOSED {
                tell(News::Everything);
                *seen = word;
            } else if word.0 & BUSY == 0 {
                self.read(seen, word, &mut tell);
            } else {
                pause();
            }
        }
    }

    fn read(&self, seen: &mut Seen, word: Seen, tell: &mut impl FnMut(News)) {
        let (from, to) = (seen.0 / 2, word.0 / 2);
        let mut whole = to - from <= ENTRIES as u64;
        for at in from..if whole { to } else { from } {
            let entry = &self.entries[at as usize % ENTRIES];
            let start = entry.start.load(Ordering::Relaxed) as usize;
            let end = entry.end.load(Ordering::Relaxed) as usize;
            // One that was overwritten may be a mixture: harmless, since then all is told.
            Span::new(start, end).into_iter().for_each(|span| tell(News::Changed(span)));
        }
        // SYNC: pin-log (who read an overwritten entry sees that the writer was busy with it)
        fence(Ordering::Acquire);
        let now = self.word.load(Ordering::Relaxed) / 2;
        whole &= now.saturating_add(BATCH) <= from + ENTRIES as u64;
        if !whole {
            tell(News::Everything);
        }
        *seen = word;
    }
}

/// While another thread finishes a few instructions, or waits for a processor.
fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn span(page: usize) -> Span {
        Span::pages(page * 4096, 1).unwrap()
    }

    #[test]
    fn a_reader_that_begins_while_the_writer_is_busy_is_told_what_is_written_then() {
        let log = Log::new();
        log.begin();
        let mut seen = log.start();
        assert_ne!(log.word(), seen, "not up to date");
        log.push(0, span(7));
        log.end(1);
        let mut news = Vec::new();
        log.catch_up(&mut seen, |one| news.push(one));
        assert_eq!(news, [News::Changed(span(7))]);
    }

    #[test]
    fn a_reader_is_told_all_since_it_last_asked_or_that_it_was_too_much() {
        let log = Log::new();
        let mut seen = log.word();
        let mut news = Vec::new();
        log.catch_up(&mut seen, |one| news.push(one));
        assert_eq!(news, []);
        log.begin();
        log.push(0, span(7));
        log.push(1, span(9));
        log.end(2);
        assert_ne!(log.word(), seen);
        log.catch_up(&mut seen, |one| news.push(one));
        assert_eq!(news, [News::Changed(span(7)), News::Changed(span(9))]);
        assert_eq!(log.word(), seen);
        for _ in 0..=ENTRIES {
            log.begin();
            log.push(0, span(1));
            log.end(1);
        }
        news.clear();
        log.catch_up(&mut seen, |one| news.push(one));
        assert_eq!(news, [News::Everything]);
        log.close();
        news.clear();
        log.catch_up(&mut seen, |one| news.push(one));
        log.catch_up(&mut seen, |one| news.push(one));
        assert_eq!((news, log.is_open()), (vec![News::Everything], false));
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as Flag;
    use loom::thread;

    /// A thread whose munmap has returned never finds the log as it was before.
    #[test]
    fn whoever_was_let_go_by_the_reading_sees_what_was_read() {
        loom::model(|| {
            let shared = Arc::new((Log::new(), Flag::new(0)));
            let of_watcher = shared.clone();
            let span = Span::new(4096, 8192).unwrap();
            let watcher = thread::spawn(move || {
                of_watcher.0.begin();
                // The kernel lets the unmapping thread go on.
                of_watcher.1.store(1, Ordering::Release);
                of_watcher.0.push(0, span);
                of_watcher.0.end(1);
            });
            let mut seen = Seen(FIRST * 2);
            if shared.1.load(Ordering::Acquire) == 1 {
                assert_ne!(shared.0.word(), seen);
                let mut told = 0;
                shared.0.catch_up(&mut seen, |news| {
                    assert!(news == News::Changed(span) || news == News::Everything);
                    told += 1;
                });
                assert!(told > 0);
            }
            watcher.join().unwrap();
        });
    }

    /// Entries that are overwritten while they are read are not believed.
    #[test]
    fn a_reader_that_is_overtaken_is_told_everything() {
        loom::model(|| {
            let log = Arc::new(Log::new());
            let of_writer = log.clone();
            let span = |number: u64| Span::new(4096 * number as usize, 4096 * 9).unwrap();
            let writer = thread::spawn(move || {
                for round in 0..3 {
                    of_writer.begin();
                    of_writer.push(0, span(round + 1));
                    of_writer.end(1);
                }
            });
            let mut seen = Seen(FIRST * 2);
            let (mut told, mut everything) = (Vec::new(), false);
            let mut look = |seen: &mut Seen| {
                log.catch_up(seen, |news| match news {
                    News::Changed(span) => told.push(span),
                    News::Everything => everything = true,
                });
            };
            look(&mut seen);
            writer.join().unwrap();
            look(&mut seen);
            assert!(everything || (1..4).all(|number| told.contains(&span(number))));
        });
    }
}
