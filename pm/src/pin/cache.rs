//! The cache as a device uses it.

#![forbid(unsafe_code)]

use super::invalidation_log::Invalidation;
use super::mapping_monitor::{self, LogCursors, MappingMonitor};
use super::page_range::PageRange;
use super::regions::{InvalidationSource, PinnedRegions, UseId};
use crate::debug;
use crate::error::{Error, PmResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What registers memory with a device.
pub trait Registrar {
    /// What the device gives for it.
    type Registration: Clone;

    /// Pins the pages of `span`.
    ///
    /// # Errors
    /// The errno value. ENOMEM, EAGAIN and EPERM: there is no more room for pinned memory.
    fn pin(&mut self, span: PageRange) -> std::result::Result<Self::Registration, i32>;

    /// Gives a registration up.
    fn unpin(&mut self, registration: Self::Registration);
}

/// How a cache behaves.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Registrations that nobody uses are kept while all together have at most as many bytes.
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
    /// What `unlock` takes.
    pub id: UseId,
    /// What the device gave for a region that covers what was asked for.
    pub registration: T,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Locks that found their region.
    pub hits: u64,
    /// Locks that had to pin.
    pub misses: u64,
    /// Misses in memory that cannot be watched: pinned for this one use.
    pub unmonitored: u64,
}

/// The registrations of one registrar. Its locks are its own: neither the watching thread nor a
/// thread in munmap ever waits for one.
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

/// Whether the user was told that some memory cannot be watched.
static WARNED: AtomicBool = AtomicBool::new(false);

impl<R: Registrar> Cache<R> {
    /// Nothing pinned yet. NoMemory: not even the log.
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

    /// A registration that covers `len` bytes at `address`. Invalid: no byte, not mapped, or in a
    /// child of fork. NoSpace: the limit of locked memory, which PM_DEBUG names. Io: the device
    /// refuses this memory for another reason.
    #[inline]
    pub fn lock(&self, address: usize, len: usize) -> PmResult<RegistrationRef<R::Registration>> {
        let span = PageRange::pages(address, len)?;
        // In a child of fork there is nothing, and the lock may be held for ever.
        self.monitor.current_cursors().ok_or(Error::Invalid)?;
        let mut inner = self.inner();
        if let Some((slot, source)) = inner.regions.find(span)
            && (source == InvalidationSource::OwnMapping || !self.monitor.may_be_changing())
            // All that had happened before this call, and before the kernel was asked, is in there.
            && self.monitor.current_cursors() == Some(inner.log_cursors)
            && let Some((id, registration)) = inner.regions.reuse(slot)
        {
            inner.stats.hits += 1;
            return Ok(RegistrationRef { id, registration });
        }
        inner.lock_slow(self.monitor, span)
    }

    /// The use is over; the registration may stay. Invalid: there is no such use.
    pub fn unlock(&self, id: UseId) -> PmResult<()> {
        self.monitor.current_cursors().ok_or(Error::Invalid)?;
        let mut inner = self.inner();
        inner.regions.release(id)?;
        inner.unpin();
        Ok(())
    }

    /// Gives up everything that nobody uses.
    pub fn clear(&self) {
        let mut inner = self.inner();
        inner.regions.evict_bytes(usize::MAX);
        inner.unpin();
    }

    /// What it has done so far.
    pub fn stats(&self) -> CacheStats {
        self.inner().stats
    }

    /// The bytes of all registrations.
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
        // The thread that unmaps goes on soon: it waits for the watching thread only.
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
        if let Err(why) = &monitored {
            self.stats.unmonitored += 1;
            warn_once(span, why);
        }
        self.regions.evict_to_fit(span.bytes());
        self.unpin();
        let registration = self.pin(span)?;
        let id = self.regions.insert(
            span,
            monitored.unwrap_or(InvalidationSource::Unmonitored),
            registration.clone(),
        );
        // What happened while it was pinned: it is used this once then, and never again.
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

    /// Gives up others where there is no room, as long as there are any.
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
                    let why = std::io::Error::from_raw_os_error(errno);
                    debug::log(debug::ERROR, || {
                        format!("memory {start:#x}-{end:#x} cannot be registered: {why}")
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
        Ok((RLIM_INFINITY, _)) => "unlimited: it is the device or the machine that is full".into(),
        Ok((soft, _)) => format!("{soft} bytes (ulimit -l)"),
        Err(errno) => format!("unknown ({errno})"),
    };
    format!(
        "no room to register {} bytes: {pinned} bytes are in use; RLIMIT_MEMLOCK is {limit}",
        span.bytes()
    )
}

fn warn_once(span: PageRange, why: &str) {
    if !WARNED.swap(true, Ordering::Relaxed) {
        debug::warn_user(&format!(
            "memory at {:#x} is unregistered after each use, because it cannot be watched ({why}); \
             memory of pmAlloc stays registered",
            span.start()
        ));
    }
}
