//! The interface of the pin-down cache for devices.

#![forbid(unsafe_code)]

use super::invalidation_log::Invalidation;
use super::mapping_monitor::{self, LogCursors, MappingMonitor};
use super::page_range::PageRange;
use super::regions::{InvalidationSource, PinnedRegions, UseId};
use crate::debug;
use crate::error::{Error, PmResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Registers memory with a device.
pub trait Registrar {
    /// The device's result of a registration.
    type Registration: Clone;

    /// Pins the pages of `span`.
    ///
    /// # Errors
    /// The errno value. ENOMEM, EAGAIN and EPERM: no more memory can be pinned.
    fn pin(&mut self, span: PageRange) -> std::result::Result<Self::Registration, i32>;

    /// Ends a registration.
    fn unpin(&mut self, registration: Self::Registration);
}

/// The options of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// The cache evicts unused registrations while all registrations together have more bytes.
    /// Registrations in use may exceed this limit.
    pub max_bytes: usize,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions { max_bytes: 256 << 20 }
    }
}

/// One use of a registration, until `unlock`.
#[derive(Clone, Copy, Debug)]
pub struct RegistrationRef<T> {
    /// The argument of `unlock`.
    pub id: UseId,
    /// The device's registration of a region that covers the requested bytes.
    pub registration: T,
}

/// Statistics of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// The number of locks that found their region in the cache.
    pub hits: u64,
    /// The number of locks that had to pin memory.
    pub misses: u64,
    /// The number of misses in memory that cannot be monitored and is pinned for one use only.
    pub unmonitored: u64,
}

/// The registrations of one registrar. Neither the monitor thread nor a thread in munmap ever waits
/// for the locks of a cache.
pub struct Cache<R: Registrar> {
    monitor: &'static MappingMonitor,
    inner: Mutex<Inner<R>>,
}

struct Inner<R: Registrar> {
    registrar: R,
    regions: PinnedRegions<R::Registration>,
    log_cursors: LogCursors,
    stats: CacheStats,
}

/// Whether the user was warned that some memory cannot be monitored.
static WARNED: AtomicBool = AtomicBool::new(false);

impl<R: Registrar> Cache<R> {
    /// Creates an empty cache. NoMemory: there is no memory for the log.
    pub fn new(registrar: R, options: CacheOptions) -> PmResult<Cache<R>> {
        let monitor = mapping_monitor::of_process()?;
        let log_cursors = monitor.initial_cursors().ok_or(Error::Invalid)?;
        let regions = PinnedRegions::new(options.max_bytes);
        let inner =
            Mutex::new(Inner { registrar, regions, log_cursors, stats: CacheStats::default() });
        Ok(Cache { monitor, inner })
    }

    fn inner(&self) -> MutexGuard<'_, Inner<R>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a registration that covers `len` bytes at `address`. Invalid: `len` is 0, the memory
    /// is not mapped, or the process is a child of fork. NoSpace: the limit of locked memory is
    /// reached; PM_DEBUG shows it. Io: the device refuses this memory for another reason.
    #[inline]
    pub fn lock(&self, address: usize, len: usize) -> PmResult<RegistrationRef<R::Registration>> {
        let span = PageRange::pages(address, len)?;
        // A child of fork has no registrations, and its copy of the lock may be held for ever.
        self.monitor.current_cursors().ok_or(Error::Invalid)?;
        let mut inner = self.inner();
        if let Some((slot, source)) = inner.regions.find(span)
            && (source == InvalidationSource::OwnMapping || !self.monitor.may_be_changing())
            // The logs then contain all changes that precede this call and the query to the kernel.
            && self.monitor.current_cursors() == Some(inner.log_cursors)
            && let Some((id, registration)) = inner.regions.reuse(slot)
        {
            inner.stats.hits += 1;
            return Ok(RegistrationRef { id, registration });
        }
        inner.lock_slow(self.monitor, span)
    }

    /// Ends a use. The registration may remain in the cache. Invalid: there is no such use.
    pub fn unlock(&self, id: UseId) -> PmResult<()> {
        self.monitor.current_cursors().ok_or(Error::Invalid)?;
        let mut inner = self.inner();
        inner.regions.release(id)?;
        inner.unpin();
        Ok(())
    }

    /// Unpins all unused registrations.
    #[cfg(feature = "testing")]
    pub fn clear(&self) {
        let mut inner = self.inner();
        inner.regions.evict_bytes(usize::MAX);
        inner.unpin();
    }

    /// The statistics so far.
    #[cfg(feature = "testing")]
    pub fn stats(&self) -> CacheStats {
        self.inner().stats
    }

    /// The bytes of all registrations.
    #[cfg(feature = "testing")]
    pub fn bytes(&self) -> usize {
        self.inner().regions.bytes()
    }
}

impl<R: Registrar> Inner<R> {
    #[cold]
    fn lock_slow(
        &mut self,
        monitor: &MappingMonitor,
        span: PageRange,
    ) -> PmResult<RegistrationRef<R::Registration>> {
        // This ends soon, because the thread that unmaps waits only for the monitor thread.
        while monitor.may_be_changing() {
            std::thread::yield_now();
        }
        self.catch_up(monitor);
        let found = self.regions.find(span);
        if let Some((id, registration)) = found.and_then(|(slot, _)| self.regions.reuse(slot)) {
            self.stats.hits += 1;
            return Ok(RegistrationRef { id, registration });
        }
        self.stats.misses += 1;
        let monitored = monitor.monitor_range(span);
        if let Err(reason) = &monitored {
            self.stats.unmonitored += 1;
            warn_once(span, reason);
        }
        self.regions.evict_to_fit(span.bytes());
        self.unpin();
        let registration = self.pin(span)?;
        let id = self.regions.insert(
            span,
            monitored.unwrap_or(InvalidationSource::Unmonitored),
            registration.clone(),
        );
        // If the memory has changed while it was being pinned, the region is not reused.
        self.catch_up(monitor);
        Ok(RegistrationRef { id, registration })
    }

    fn catch_up(&mut self, monitor: &MappingMonitor) {
        let regions = &mut self.regions;
        monitor.catch_up(&mut self.log_cursors, |invalidation| match invalidation {
            Invalidation::Changed(span) => regions.invalidate(span),
            Invalidation::Everything => regions.invalidate_all(),
        });
        self.unpin();
    }

    fn unpin(&mut self) {
        while let Some(registration) = self.regions.next_unpin() {
            self.registrar.unpin(registration);
        }
    }

    /// Pins `span`. If there is no room, evicts unused registrations as long as there are any.
    fn pin(&mut self, span: PageRange) -> PmResult<R::Registration> {
        loop {
            let errno = match self.registrar.pin(span) {
                Ok(registration) => return Ok(registration),
                Err(errno) => errno,
            };
            match errno {
                libc::ENOMEM | libc::EAGAIN | libc::EPERM => {
                    if !self.regions.evict_bytes(span.bytes()) {
                        debug::log(debug::ERROR, || describe_full(span, self.regions.bytes()));
                        return Err(Error::NoSpace);
                    }
                    self.unpin();
                }
                libc::EFAULT | libc::EINVAL => return Err(Error::Invalid),
                _ => {
                    let (start, end) = (span.start(), span.end());
                    let error = std::io::Error::from_raw_os_error(errno);
                    debug::log(debug::ERROR, || {
                        format!("memory {start:#x}-{end:#x} cannot be registered: {error}")
                    });
                    return Err(Error::Io);
                }
            }
        }
    }
}

impl<R: Registrar> Drop for Cache<R> {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        for registration in inner.regions.take_all() {
            inner.registrar.unpin(registration);
        }
    }
}

fn describe_full(span: PageRange, pinned: usize) -> String {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => "unlimited: the device or the host's memory is full".into(),
        Ok((soft, _)) => format!("{soft} bytes (ulimit -l)"),
        Err(errno) => format!("unknown ({errno})"),
    };
    format!(
        "no room to register {} bytes: {pinned} bytes are in use; RLIMIT_MEMLOCK is {limit}",
        span.bytes()
    )
}

fn warn_once(span: PageRange, reason: &str) {
    if !WARNED.swap(true, Ordering::Relaxed) {
        debug::warn_user(&format!(
            "memory at {:#x} is unregistered after each use: it cannot be monitored ({reason}); \
             memory of pmAlloc stays registered",
            span.start()
        ));
    }
}
