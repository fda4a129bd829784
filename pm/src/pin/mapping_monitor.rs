//! The process's watch over its memory: one userfaultfd, one thread that reads it, and the logs
//! that all caches of the process read. A mapping can have one watcher only.
//!
//! The thread (`thread.rs`) allocates nothing and takes no lock, because a thread that is inside
//! munmap, perhaps within malloc and with locks of its own, waits for it.

// UNSAFETY: maps the page of the logs, which a child of fork finds zeroed.
#![expect(unsafe_code)]

use super::invalidation_log::{Invalidation, Log, LogCursor};
use super::maps;
use super::monitor_thread;
use super::own_mappings;
use super::page_range::PageRange;
use super::regions::InvalidationSource;
use super::uffd::Uffd;
use crate::error::PmResult;
use crate::threads;
use crate::wipe_on_fork;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// How often memory that changes while it is looked at is looked at again.
const MAX_RETRIES: usize = 3;

/// In a page that a child of fork finds zeroed.
struct InvalidationLogs {
    monitored: Log,
    own_mappings: Log,
}

/// How far a cache has read both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogCursors {
    monitored: LogCursor,
    own_mappings: LogCursor,
}

/// The watch of this process.
pub(super) struct MappingMonitor {
    logs: &'static InvalidationLogs,
    /// Why there is none, else.
    uffd: std::result::Result<&'static Uffd, String>,
    /// Other threads of the program were seen.
    had_other_threads: AtomicBool,
}

/// The watch, by process number: a child of fork has none.
static MONITOR: Mutex<Option<(u32, &'static MappingMonitor)>> = Mutex::new(None);

/// The watch of this process, started where it is not yet. NoMemory: no page for its logs.
pub(super) fn of_process() -> PmResult<&'static MappingMonitor> {
    let mut current = MONITOR.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    match &*current {
        Some((owner_pid, monitor)) if *owner_pid == pid => Ok(monitor),
        _ => {
            let monitor = Box::leak(Box::new(MappingMonitor::start()?));
            *current = Some((pid, monitor));
            Ok(monitor)
        }
    }
}

/// The log of PM's own memory, where this process has a watch.
pub(super) fn own_log() -> Option<&'static Log> {
    let current = MONITOR.lock().unwrap_or_else(PoisonError::into_inner);
    let of_process = |(owner_pid, _): &&(u32, _)| *owner_pid == std::process::id();
    current.as_ref().filter(of_process).map(|(_, monitor)| &monitor.logs.own_mappings)
}

impl MappingMonitor {
    fn start() -> PmResult<MappingMonitor> {
        let logs = new_logs()?;
        let uffd = Uffd::open().and_then(|uffd| {
            let uffd: &'static Uffd = Box::leak(Box::new(uffd));
            monitor_thread::start(uffd, &logs.monitored)?;
            Ok(uffd)
        });
        let uffd = uffd.map_err(|error| format!("userfaultfd: {error}"));
        if uffd.is_err() {
            logs.monitored.close();
        }
        Ok(MappingMonitor { logs, uffd, had_other_threads: AtomicBool::new(false) })
    }

    /// Where the logs stand. None: this is a child of the process that they tell of.
    #[inline(always)]
    pub(super) fn current_cursors(&self) -> Option<LogCursors> {
        let cursors = LogCursors {
            monitored: self.logs.monitored.cursor(),
            own_mappings: self.logs.own_mappings.cursor(),
        };
        (!cursors.monitored.is_wiped()).then_some(cursors)
    }

    /// Where a cache begins to read. None: as `current_cursors`.
    pub(super) fn initial_cursors(&self) -> Option<LogCursors> {
        let cursors = LogCursors {
            monitored: self.logs.monitored.initial_cursor(),
            own_mappings: self.logs.own_mappings.initial_cursor(),
        };
        (!cursors.monitored.is_wiped()).then_some(cursors)
    }

    /// Tells all that has happened since `cursors`.
    pub(super) fn catch_up(
        &self,
        cursors: &mut LogCursors,
        mut on_invalidation: impl FnMut(Invalidation),
    ) {
        self.logs.monitored.catch_up(&mut cursors.monitored, &mut on_invalidation);
        self.logs.own_mappings.catch_up(&mut cursors.own_mappings, &mut on_invalidation);
    }

    /// Whether watched memory may be changing at this moment without the log telling of it yet: the
    /// kernel unmaps first, then tells, and only then lets the unmapping thread go on. Meanwhile
    /// another thread may map and use the same addresses; so one has to ask where there is another,
    /// or was since memory is watched: it may be unmapping its stack although it counts no more.
    #[inline(always)]
    pub(super) fn may_be_changing(&self) -> bool {
        let single_threaded =
            threads::is_only_app_thread() && !self.had_other_threads.load(Ordering::Relaxed);
        !single_threaded && self.is_changing_multithreaded()
    }

    #[inline(never)]
    fn is_changing_multithreaded(&self) -> bool {
        self.had_other_threads.store(true, Ordering::Relaxed);
        self.is_changing()
    }

    fn is_changing(&self) -> bool {
        self.uffd.as_ref().is_ok_and(|uffd| self.logs.monitored.is_open() && uffd.is_changing())
    }

    /// Sees to it that changes of `span` are told.
    ///
    /// # Errors
    /// Why that cannot be.
    pub(super) fn monitor_range(
        &self,
        span: PageRange,
    ) -> std::result::Result<InvalidationSource, String> {
        if own_mappings::contains(span) {
            return Ok(InvalidationSource::OwnMapping);
        }
        let uffd = *self.uffd.as_ref().map_err(Clone::clone)?;
        if !self.logs.monitored.is_open() {
            return Err("its userfaultfd was closed".to_owned());
        }
        let mut reason = String::new();
        for _ in 0..MAX_RETRIES {
            let mappings = maps::anonymous_around(span)?;
            match uffd.monitor(mappings) {
                Ok(()) => return Ok(InvalidationSource::Monitored),
                Err(error) => reason = format!("userfaultfd: {error}"),
            }
        }
        Err(reason)
    }
}

fn new_logs() -> PmResult<&'static InvalidationLogs> {
    let logs = wipe_on_fork::map_pages(size_of::<InvalidationLogs>())?.cast::<InvalidationLogs>();
    // SAFETY: large enough, aligned to a page, and never unmapped. All of it is atomic words, so
    // that the zeroes of a child are a value, too.
    unsafe {
        logs.write(InvalidationLogs { monitored: Log::new(), own_mappings: Log::new() });
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
        let (any_addr, flags) = (std::ptr::null_mut(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(any_addr, super::PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let monitored = PageRange::pages(page as usize, super::PAGE).map(|span| uffd.monitor(span));
    // Nobody would read what the unmapping reports.
    drop(uffd);
    // SAFETY: what was just mapped; nobody knows it.
    unsafe { libc::munmap(page, super::PAGE) };
    monitored.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?
}
