//! The cache as a device uses it.

#![forbid(unsafe_code)]

use super::log::News;
use super::regions::{Id, Kept, Regions};
use super::span::Span;
use super::watch::{self, Read, Watch};
use crate::debug;
use crate::error::{Error, Result};
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
    fn pin(&mut self, span: Span) -> std::result::Result<Self::Registration, i32>;

    /// Gives a registration up.
    fn unpin(&mut self, registration: Self::Registration);
}

/// How a cache behaves.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Registrations that nobody uses are kept while all together have at most as many bytes.
    pub limit: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { limit: 256 << 20 }
    }
}

/// One use of a registration, until `unlock`.
#[derive(Clone, Copy, Debug)]
pub struct Lock<T> {
    /// What `unlock` takes.
    pub id: Id,
    /// What the device gave for a region that covers what was asked for.
    pub registration: T,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locks that found their region.
    pub hits: u64,
    /// Locks that had to pin.
    pub misses: u64,
    /// Misses in memory that cannot be watched: pinned for this one use.
    pub unwatched: u64,
}

/// The registrations of one registrar. Its locks are its own: neither the watching thread nor a
/// thread in munmap ever waits for one.
pub struct Cache<R: Registrar> {
    watch: &'static Watch,
    inner: Mutex<Inner<R>>,
}

struct Inner<R: Registrar> {
    registrar: R,
    regions: Regions<R::Registration>,
    read: Read,
    counts: Counts,
}

/// Whether the user was told that some memory cannot be watched.
static WARNED: AtomicBool = AtomicBool::new(false);

impl<R: Registrar> Cache<R> {
    /// Nothing pinned yet. NoMemory: not even the log.
    pub fn new(registrar: R, options: Options) -> Result<Cache<R>> {
        let watch = watch::of_process()?;
        let read = watch.start_of_reading().ok_or(Error::Invalid)?;
        let regions = Regions::new(options.limit);
        let inner = Mutex::new(Inner { registrar, regions, read, counts: Counts::default() });
        Ok(Cache { watch, inner })
    }

    fn inner(&self) -> MutexGuard<'_, Inner<R>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A registration that covers `len` bytes at `address`. Invalid: no byte, not mapped, or in a
    /// child of fork. NoSpace: the limit of locked memory, which PM_DEBUG names. Io: the device
    /// refuses this memory for another reason.
    #[inline]
    pub fn lock(&self, address: usize, len: usize) -> Result<Lock<R::Registration>> {
        let span = Span::pages(address, len)?;
        // In a child of fork there is nothing, and the lock may be held for ever.
        self.watch.now().ok_or(Error::Invalid)?;
        let mut inner = self.inner();
        if let Some((slot, kept)) = inner.regions.find(span)
            && (kept == Kept::Own || !self.watch.may_be_changing())
            // All that had happened before this call, and before the kernel was asked, is in there.
            && self.watch.now() == Some(inner.read)
            && let Some((id, registration)) = inner.regions.reuse(slot)
        {
            inner.counts.hits += 1;
            return Ok(Lock { id, registration });
        }
        inner.lock_slowly(self.watch, span)
    }

    /// The use is over; the registration may stay. Invalid: there is no such use.
    pub fn unlock(&self, id: Id) -> Result<()> {
        self.watch.now().ok_or(Error::Invalid)?;
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
    pub fn counts(&self) -> Counts {
        self.inner().counts
    }

    /// The bytes of all registrations.
    pub fn bytes(&self) -> usize {
        self.inner().regions.bytes()
    }
}

impl<R: Registrar> Inner<R> {
    #[cold]
    fn lock_slowly(&mut self, watch: &Watch, span: Span) -> Result<Lock<R::Registration>> {
        // The thread that unmaps goes on soon: it waits for the watching thread only.
        while watch.may_be_changing() {
            std::thread::yield_now();
        }
        self.catch_up(watch);
        let found = self.regions.find(span);
        if let Some((id, registration)) = found.and_then(|(slot, _)| self.regions.reuse(slot)) {
            self.counts.hits += 1;
            return Ok(Lock { id, registration });
        }
        self.counts.misses += 1;
        let covered = watch.cover(span);
        if let Err(why) = &covered {
            self.counts.unwatched += 1;
            warn_once(span, why);
        }
        self.regions.make_room(span.bytes());
        self.unpin();
        let registration = self.pin(span)?;
        let id = self.regions.insert(span, covered.unwrap_or(Kept::Not), registration.clone());
        // What happened while it was pinned: it is used this once then, and never again.
        self.catch_up(watch);
        Ok(Lock { id, registration })
    }

    fn catch_up(&mut self, watch: &Watch) {
        let regions = &mut self.regions;
        watch.catch_up(&mut self.read, |news| match news {
            News::Changed(span) => regions.invalidate(span),
            News::Everything => regions.invalidate_all(),
        });
        self.unpin();
    }

    fn unpin(&mut self) {
        while let Some(registration) = self.regions.next_unpin() {
            self.registrar.unpin(registration);
        }
    }

    /// Gives up others where there is no room, as long as there are any.
    fn pin(&mut self, span: Span) -> Result<R::Registration> {
        loop {
            let errno = match self.registrar.pin(span) {
                Ok(registration) => return Ok(registration),
                Err(errno) => errno,
            };
            match errno {
                libc::ENOMEM | libc::EAGAIN | libc::EPERM => {
                    if !self.regions.evict_bytes(span.bytes()) {
                        debug::say(debug::ERROR, || no_room(span, self.regions.bytes()));
                        return Err(Error::NoSpace);
                    }
                    self.unpin();
                }
                libc::EFAULT | libc::EINVAL => return Err(Error::Invalid),
                _ => {
                    let (start, end) = (span.start(), span.end());
                    let why = std::io::Error::from_raw_os_error(errno);
                    debug::say(debug::ERROR, || {
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

fn no_room(span: Span, pinned: usize) -> String {
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

fn warn_once(span: Span, why: &str) {
    if !WARNED.swap(true, Ordering::Relaxed) {
        debug::warn_user(&format!(
            "memory at {:#x} is unregistered after each use, because it cannot be watched ({why}); \
             memory of pmAlloc stays registered",
            span.start()
        ));
    }
}
