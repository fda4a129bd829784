//! The process's watch over its memory: one userfaultfd, one thread that reads it, and the logs
//! that all caches of the process read. A mapping can have one watcher only.
//!
//! The thread (`thread.rs`) allocates nothing and takes no lock, because a thread that is inside
//! munmap, perhaps within malloc and with locks of its own, waits for it.

// UNSAFETY: maps the page of the logs, which a child of fork finds zeroed.
#![expect(unsafe_code)]

use super::log::{Log, News, Seen};
use super::maps;
use super::own;
use super::regions::Kept;
use super::span::Span;
use super::thread;
use super::uffd::Uffd;
use crate::error::Result;
use crate::threads;
use crate::wiped;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// How often memory that changes while it is looked at is looked at again.
const TRIES: usize = 3;

/// In a page that a child of fork finds zeroed.
struct Logs {
    watched: Log,
    own: Log,
}

/// How far a cache has read both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Read {
    watched: Seen,
    own: Seen,
}

/// The watch of this process.
pub(super) struct Watch {
    logs: &'static Logs,
    /// Why there is none, else.
    uffd: std::result::Result<&'static Uffd, String>,
    /// Other threads of the program were seen.
    had_others: AtomicBool,
}

/// The watch, by process number: a child of fork has none.
static WATCH: Mutex<Option<(u32, &'static Watch)>> = Mutex::new(None);

/// The watch of this process, started where it is not yet. NoMemory: no page for its logs.
pub(super) fn of_process() -> Result<&'static Watch> {
    let mut known = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    match &*known {
        Some((owner, watch)) if *owner == process => Ok(watch),
        _ => {
            let watch = Box::leak(Box::new(Watch::start()?));
            *known = Some((process, watch));
            Ok(watch)
        }
    }
}

/// The log of PM's own memory, where this process has a watch.
pub(super) fn own_log() -> Option<&'static Log> {
    let known = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let of_process = |(owner, _): &&(u32, _)| *owner == std::process::id();
    known.as_ref().filter(of_process).map(|(_, watch)| &watch.logs.own)
}

impl Watch {
    fn start() -> Result<Watch> {
        let logs = new_logs()?;
        let uffd = Uffd::open().and_then(|uffd| {
            let uffd: &'static Uffd = Box::leak(Box::new(uffd));
            thread::start(uffd, &logs.watched)?;
            Ok(uffd)
        });
        let uffd = uffd.map_err(|error| format!("userfaultfd: {error}"));
        if uffd.is_err() {
            logs.watched.close();
        }
        Ok(Watch { logs, uffd, had_others: AtomicBool::new(false) })
    }

    /// Where the logs stand. None: this is a child of the process that they tell of.
    #[inline(always)]
    pub(super) fn now(&self) -> Option<Read> {
        let read = Read { watched: self.logs.watched.word(), own: self.logs.own.word() };
        (!read.watched.is_nothing()).then_some(read)
    }

    /// Where a cache begins to read. None: as `now`.
    pub(super) fn start_of_reading(&self) -> Option<Read> {
        let read = Read { watched: self.logs.watched.start(), own: self.logs.own.start() };
        (!read.watched.is_nothing()).then_some(read)
    }

    /// Tells all that has happened since `read`.
    pub(super) fn catch_up(&self, read: &mut Read, mut tell: impl FnMut(News)) {
        self.logs.watched.catch_up(&mut read.watched, &mut tell);
        self.logs.own.catch_up(&mut read.own, &mut tell);
    }

    /// Whether watched memory may be changing at this moment without the log telling of it yet: the
    /// kernel unmaps first, then tells, and only then lets the unmapping thread go on. Meanwhile
    /// another thread may map and use the same addresses; so one has to ask where there is another,
    /// or was since memory is watched: it may be unmapping its stack although it counts no more.
    #[inline(always)]
    pub(super) fn may_be_changing(&self) -> bool {
        let alone = threads::is_alone() && !self.had_others.load(Ordering::Relaxed);
        !alone && self.is_changing_among_others()
    }

    #[inline(never)]
    fn is_changing_among_others(&self) -> bool {
        self.had_others.store(true, Ordering::Relaxed);
        self.is_changing()
    }

    fn is_changing(&self) -> bool {
        self.uffd.as_ref().is_ok_and(|uffd| self.logs.watched.is_open() && uffd.is_changing())
    }

    /// Sees to it that changes of `span` are told.
    ///
    /// # Errors
    /// Why that cannot be.
    pub(super) fn cover(&self, span: Span) -> std::result::Result<Kept, String> {
        if own::has(span) {
            return Ok(Kept::Own);
        }
        let uffd = *self.uffd.as_ref().map_err(Clone::clone)?;
        if !self.logs.watched.is_open() {
            return Err("its userfaultfd was closed".to_owned());
        }
        let mut refused = String::new();
        for _ in 0..TRIES {
            let around = maps::anonymous_around(span)?;
            match uffd.watch(around) {
                Ok(()) => return Ok(Kept::Watched),
                Err(error) => refused = format!("userfaultfd: {error}"),
            }
        }
        Err(refused)
    }
}

fn new_logs() -> Result<&'static Logs> {
    let logs = wiped::pages(size_of::<Logs>())?.cast::<Logs>();
    // SAFETY: large enough, aligned to a page, and never unmapped. All of it is atomic words, so
    // that the zeroes of a child are a value, too.
    unsafe {
        logs.write(Logs { watched: Log::new(), own: Log::new() });
        Ok(logs.as_ref())
    }
}

/// Whether this process can have its memory watched; for `scored -probe`.
///
/// # Errors
/// Why not.
pub fn probe() -> io::Result<()> {
    let uffd = Uffd::open()?;
    // SAFETY: asks for new memory anywhere; touches none that exists.
    let page = unsafe {
        let (none, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(none, super::PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let tried = Span::pages(page as usize, super::PAGE).map(|span| uffd.watch(span));
    // Nobody would read what the unmapping reports.
    drop(uffd);
    // SAFETY: what was just mapped; nobody knows it.
    unsafe { libc::munmap(page, super::PAGE) };
    tried.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?
}
