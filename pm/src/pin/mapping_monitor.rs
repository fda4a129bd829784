//! The monitor of the process's mappings: one userfaultfd, one thread that reads it, and the logs
//! that all caches of the process read. There is one monitor for all caches, because a mapping can
//! have only one userfaultfd.
//!
//! The thread (`monitor_thread.rs`) allocates no memory and takes no lock, because a thread inside
//! munmap waits for it. That thread may be inside malloc and may hold locks.

// UNSAFETY: maps the page of the logs, which is zeroed in a child of fork.
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

/// How often PM tries to monitor memory if the mappings change meanwhile.
const MAX_RETRIES: usize = 3;

/// The logs, in a page that is zeroed in a child of fork.
struct InvalidationLogs {
    monitored: Log,
    own_mappings: Log,
}

/// The positions of a cache in both logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogCursors {
    monitored: LogCursor,
    own_mappings: LogCursor,
}

/// The monitor of this process.
pub(super) struct MappingMonitor {
    logs: &'static InvalidationLogs,
    /// The userfaultfd, or the reason why there is none.
    uffd: std::result::Result<&'static Uffd, String>,
    /// Whether the program has, or had, other threads.
    had_other_threads: AtomicBool,
}

/// The monitor and the process id of its process. A child of fork, which has another id, has no
/// monitor.
static MONITOR: Mutex<Option<(u32, &'static MappingMonitor)>> = Mutex::new(None);

/// The monitor of this process, which is started if there is none. NoMemory: there is no page for
/// its logs.
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

/// The log of PM's own memory, if this process has a monitor.
fn own_log() -> Option<&'static Log> {
    let current = MONITOR.lock().unwrap_or_else(PoisonError::into_inner);
    let of_process = |(owner_pid, _): &&(u32, _)| *owner_pid == std::process::id();
    current.as_ref().filter(of_process).map(|(_, monitor)| &monitor.logs.own_mappings)
}

/// Removes all of PM's memory in `span`, just before it or its pages are unmapped. After this call
/// no registration of this memory is found.
pub(crate) fn remove_own_mappings(span: PageRange) {
    let _lock = own_mappings::take_out(span);
    // Without a monitor no log is needed, because a monitor that starts later does not find this
    // memory in the table.
    if let Some(log) = own_log() {
        log.begin();
        log.push(0, span);
        log.end(1);
    }
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

    /// The current ends of the logs. None: this is a child of the process that writes them.
    #[inline(always)]
    pub(super) fn current_cursors(&self) -> Option<LogCursors> {
        let cursors = LogCursors {
            monitored: self.logs.monitored.cursor(),
            own_mappings: self.logs.own_mappings.cursor(),
        };
        (!cursors.monitored.is_wiped()).then_some(cursors)
    }

    /// The cursors of a new cache. None: see `current_cursors`.
    pub(super) fn initial_cursors(&self) -> Option<LogCursors> {
        let cursors = LogCursors {
            monitored: self.logs.monitored.initial_cursor(),
            own_mappings: self.logs.own_mappings.initial_cursor(),
        };
        (!cursors.monitored.is_wiped()).then_some(cursors)
    }

    /// Reports all changes since `cursors`.
    pub(super) fn catch_up(
        &self,
        cursors: &mut LogCursors,
        mut on_invalidation: impl FnMut(Invalidation),
    ) {
        self.logs.monitored.catch_up(&mut cursors.monitored, &mut on_invalidation);
        self.logs.own_mappings.catch_up(&mut cursors.own_mappings, &mut on_invalidation);
    }

    /// Whether monitored memory may be changing at this moment without an entry in the log yet. The
    /// kernel unmaps first, then reports, and only then lets the unmapping thread continue.
    /// Meanwhile another thread may map and use the same addresses. Therefore PM must query the
    /// kernel if the program has another thread, or has had one since memory was first monitored.
    /// An ending thread may still be unmapping its stack when it no longer counts as a thread.
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

    /// Starts to monitor the mappings of `span`.
    ///
    /// # Errors
    /// The reason why this memory cannot be monitored.
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
    // SAFETY: large enough, aligned to a page, and never unmapped. It consists of atomic words, for
    // which the zeroes of a child are valid values.
    unsafe {
        logs.write(InvalidationLogs { monitored: Log::new(), own_mappings: Log::new() });
        Ok(logs.as_ref())
    }
}

/// Checks whether this process can monitor its memory. `scored -probe` calls it.
///
/// # Errors
/// The reason why it cannot.
pub fn probe_memory_monitor() -> io::Result<()> {
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
    // The descriptor is closed before the unmapping, because no thread would read the event of the
    // unmapping.
    drop(uffd);
    // SAFETY: the page that was just mapped, without other references.
    unsafe { libc::munmap(page, super::PAGE) };
    monitored.map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?
}
