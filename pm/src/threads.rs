//! Starts PM's own threads, and checks whether the program has only one other thread.
//!
//! The C library reports a process as single-threaded until a second thread is created, even if
//! that thread belongs to PM. PM's threads serve the networks. They call no function of a context,
//! create no threads, and unmap no memory that could be the program's. Therefore a program with one
//! thread of its own needs no locks even if PM has threads. The library's thread count, which
//! debuggers read, shows whether the program has other threads.

// UNSAFETY: reads variables of the C library, and a count on a page of its own; names a thread.
#![expect(unsafe_code)]

use crate::wipe_on_fork;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::ffi::CString;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// The thread counts of this process.
struct ThreadCounts {
    /// All threads, from the C library.
    total: &'static AtomicU32,
    /// PM's running threads. A child of fork has none, and reads 0.
    pm_threads: &'static AtomicU32,
}

/// The thread counts. Null: PM has no thread yet, or the C library does not count.
static COUNTS: AtomicPtr<ThreadCounts> = AtomicPtr::new(null_mut());

/// Whether the calling thread is the only one of the program. If it takes a lock and then creates a
/// thread, the new thread finds the lock held, because creation orders the two.
#[inline(always)]
pub fn is_only_app_thread() -> bool {
    is_single_threaded() || has_only_pm_threads()
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

/// The library counts a thread from before its start until after its end. PM counts its thread from
/// after the start until before the end, and thus counts only threads that the library also counts.
#[inline(always)]
fn has_only_pm_threads() -> bool {
    // SYNC: counts
    let counts = COUNTS.load(Ordering::Acquire);
    // SAFETY: null, or leaked by `pm_thread_count`.
    unsafe { counts.as_ref() }.is_some_and(|counts| {
        let pm_threads = counts.pm_threads.load(Ordering::Relaxed);
        // A thread that ends before it is counted makes the count wrap below 0.
        counts.total.load(Ordering::Relaxed) == pm_threads.wrapping_add(1)
    })
}

/// Starts a thread of PM. It blocks all signals, which are for the application's threads.
///
/// # Errors
/// The kernel cannot create the thread.
pub fn spawn(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let pm_threads = pm_thread_count();
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(stack);
    let run_counted = move || {
        let _guard = pm_threads.map(ThreadCountGuard);
        run();
    };
    without_signals(|| {
        let thread = builder.spawn(run_counted)?;
        set_name(&thread, name);
        Ok(())
    })?;
    if let Some(pm_threads) = pm_threads {
        pm_threads.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Names a thread at once, because the thread names itself only when it first runs. At exit
/// libscore closes the contexts only if all other threads have names of PM's threads.
fn set_name(thread: &JoinHandle<()>, name: &str) {
    let Ok(name) = CString::new(name) else { return };
    // SAFETY: the handle is not joined and not detached yet, so that its thread id is valid, also
    // if the thread has ended. A failure leaves the name to the thread.
    let _ = unsafe { libc::pthread_setname_np(thread.as_pthread_t(), name.as_ptr()) };
}

/// Ends the counting of a thread of PM, however the thread ends.
struct ThreadCountGuard(&'static AtomicU32);

impl Drop for ThreadCountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls `start`, which starts a thread, with all signals blocked, so that the thread gets none.
///
/// # Errors
/// Those of `start`.
pub(crate) fn without_signals(start: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (mut old_mask, all_signals) = (SigSet::empty(), SigSet::all());
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&all_signals), Some(&mut old_mask))?;
    let started = start();
    let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&old_mask), None);
    started
}

/// The count of PM's threads. None: the library's count, with which it is compared, is not
/// available.
fn pm_thread_count() -> Option<&'static AtomicU32> {
    // SYNC: counts
    // SAFETY: null, or leaked below.
    if let Some(counts) = unsafe { COUNTS.load(Ordering::Acquire).as_ref() } {
        return Some(counts.pm_threads);
    }
    let total = all_threads()?;
    // SAFETY: a page of zeroes that is never unmapped.
    let pm_threads =
        unsafe { wipe_on_fork::map_pages(size_of::<AtomicU32>()).ok()?.cast().as_ref() };
    let new_counts = Box::leak(Box::new(ThreadCounts { total, pm_threads }));
    let exchanged =
        COUNTS.compare_exchange(null_mut(), new_counts, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: set by another thread, and leaked like the one of this thread.
    Some(exchanged.map_or_else(|other| unsafe { (*other).pm_threads }, |_| new_counts.pm_threads))
}

/// The count that thread_db reads for debuggers. It is used only on processors on which an atomic
/// decrement is also a fence: a thread that reads the lower count also reads the last writes of the
/// thread that has ended.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
fn all_threads() -> Option<&'static AtomicU32> {
    let (name, version) = (c"__nptl_nthreads".as_ptr(), c"GLIBC_PRIVATE".as_ptr());
    // SAFETY: two strings with a final zero.
    let addr = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name, version) };
    // SAFETY: an unsigned int of the C library that lives as long as the process and is changed
    // atomically.
    NonNull::new(addr.cast()).map(|addr| unsafe { addr.as_ref() })
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
fn all_threads() -> Option<&'static AtomicU32> {
    None
}
