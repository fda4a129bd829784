//! PM's own threads, and whether the program has but one beside them.
//!
//! The C library says of a process that it has one thread until the first other is created, be it
//! PM's. PM's threads keep to the networks: none calls a function of a context, creates threads,
//! or unmaps memory that could be the program's. So what one thread may do without locks it may
//! beside these, too, and the library's count of threads, which debuggers read, tells of them.

// UNSAFETY: reads variables of the C library, and a count on a page of its own.
#![expect(unsafe_code)]

use crate::wiped;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// What is counted.
struct Counts {
    /// All threads, by the C library.
    all: &'static AtomicU32,
    /// Those of PM that run. A child of fork has none, and reads so.
    ours: &'static AtomicU32,
}

/// Null: PM has no thread yet, or the C library does not count.
static COUNTS: AtomicPtr<Counts> = AtomicPtr::new(null_mut());

/// Whether the calling thread is the only one of the program. A lock that is taken while it is so
/// is seen by a thread that it creates afterwards, because creation orders the two.
#[inline(always)]
pub fn is_alone() -> bool {
    is_single_threaded() || has_only_ours()
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[inline(always)]
fn is_single_threaded() -> bool {
    unsafe extern "C" {
        // glibc 2.32: true until the first thread is created.
        static __libc_single_threaded: std::sync::atomic::AtomicU8;
    }
    // SAFETY: a byte of the C library that lives as long as the process; loaded atomically.
    unsafe { __libc_single_threaded.load(Ordering::Relaxed) != 0 }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn is_single_threaded() -> bool {
    false
}

/// The library counts a thread before it can run and until it runs no more. We count ours once it
/// is started, and no more before it ends: so never one that the library does not.
#[inline(always)]
fn has_only_ours() -> bool {
    // SYNC: counts
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or leaked by `count`.
    unsafe { counts.as_ref() }.is_some_and(|counts| {
        let ours = counts.ours.load(Ordering::Relaxed);
        // One that has ended before it was counted makes it less than none.
        counts.all.load(Ordering::Relaxed) == ours.wrapping_add(1)
    })
}

/// Starts a thread of PM's own. It takes no signals: those are for the application's.
///
/// # Errors
/// The kernel gives none.
pub fn spawn(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let ours = count();
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(stack);
    let counted = move || {
        let _end = ours.map(End);
        run();
    };
    without_signals(|| builder.spawn(counted).map(drop))?;
    if let Some(ours) = ours {
        ours.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// A thread of ours counts no more, however it ends.
struct End(&'static AtomicU32);

impl Drop for End {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Has `start` start a thread that takes no signals.
///
/// # Errors
/// Those of `start`.
pub(crate) fn without_signals(start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (mut before, all) = (SigSet::empty(), SigSet::all());
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&all), Some(&mut before))?;
    let started = start();
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    started
}

/// The count of our threads. None: the library's is not known, so that this would tell nothing.
fn count() -> Option<&'static AtomicU32> {
    // SYNC: counts
    // SAFETY: null, or leaked below.
    if let Some(counts) = unsafe { COUNTS.load(Ordering::Acquire).as_ref() } {
        return Some(counts.ours);
    }
    let all = all_threads()?;
    // SAFETY: a page of zeroes that is never unmapped.
    let ours = unsafe { wiped::pages(size_of::<AtomicU32>()).ok()?.cast().as_ref() };
    let made = Box::leak(Box::new(Counts { all, ours }));
    let known = COUNTS.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: another thread's, leaked as ours is.
    Some(known.map_or_else(|other| unsafe { (*other).ours }, |_| made.ours))
}

/// What thread_db reads for debuggers. Only where an atomic decrement is a fence, too: who sees a
/// thread gone sees what it did.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
fn all_threads() -> Option<&'static AtomicU32> {
    let (name, version) = (c"__nptl_nthreads".as_ptr(), c"GLIBC_PRIVATE".as_ptr());
    // SAFETY: two texts that end.
    let at = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name, version) };
    // SAFETY: an unsigned int of the C library that lives as long as the process and is changed
    // atomically.
    NonNull::new(at.cast()).map(|at| unsafe { at.as_ref() })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
fn all_threads() -> Option<&'static AtomicU32> {
    None
}
