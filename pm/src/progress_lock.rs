//! Decides which thread makes progress on a context whose messages cross a network: a thread of the
//! application that polls, or the process's progress thread.
//!
//! - [`ProgressLock`]: one thread at a time runs the engine. A thread that finds the lock held
//!   requests a rerun and continues. The holder serves again before it releases the lock, and
//!   thereby does the work that the other thread has left.
//! - [`PollOwner`]: each poll of the application advances a count, which the progress thread reads
//!   at long intervals. If the thread finds the same count twice, the application is computing, and
//!   the thread watches the wires. The next poll of the application takes the wires back.
//! - [`WakeupFlag`]: a receiver that is about to sleep sets it, takes the lock, and then checks its
//!   queue once more. A thread that delivers a message checks the flag under the lock. Therefore
//!   the receiver finds the message, or the thread wakes it.
//!
//! This module relies on atomic exchanges and on the lock. Otherwise each poll would need a fence,
//! which costs several times as much as an exchange.

// UNSAFETY: implements a lock around a value.
#![expect(unsafe_code)]

use crate::sync::{AtomicU32, AtomicU64, Ordering, yield_now};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// The lock is free.
const FREE: u32 = 0;
/// A thread holds the lock.
const HELD: u32 = 1;
/// A thread holds the lock, and another one has requested that it serves once more.
const RERUN_REQUESTED: u32 = 2;

/// How often a thread that waits for the lock yields the processor before it sleeps.
const MAX_YIELDS: u32 = 100;
const LOCK_RETRY_INTERVAL: Duration = Duration::from_micros(50);

/// A value that only one thread at a time may serve. One word records whether the lock is held and
/// whether a rerun is requested, so that one run costs two exchanges.
pub(crate) struct ProgressLock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed under the lock only, by one thread at a time.
unsafe impl<T: Send> Sync for ProgressLock<T> {}

/// The lock, held.
pub(crate) struct ProgressGuard<'a, T>(&'a ProgressLock<T>);

impl<T> ProgressLock<T> {
    pub(crate) fn new(value: T) -> ProgressLock<T> {
        ProgressLock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Calls `serve` under the lock, and again as long as other threads request it meanwhile. If
    /// another thread holds the lock and `has_work` returns true, requests a rerun. The holder then
    /// does all work that precedes this call.
    #[inline(always)]
    pub(crate) fn run_exclusive(&self, mut serve: impl FnMut(&mut T), has_work: impl Fn() -> bool) {
        if !self.try_run_exclusive(&mut serve)
            && let Some(guard) = self.request_rerun(&has_work)
        {
            guard.run_exclusive(serve);
        }
    }

    /// Like `run_exclusive`, but never requests a rerun. False: another thread holds the lock.
    #[inline(always)]
    pub(crate) fn try_run_exclusive(&self, serve: impl FnMut(&mut T)) -> bool {
        let guard = self.try_lock();
        guard.map(|guard| guard.run_exclusive(serve)).is_some()
    }

    /// Requests that the holder serves once more. If the lock has become free, takes it and returns
    /// it. `RERUN_REQUESTED` is then set, which costs one unnecessary run.
    #[cold]
    pub(crate) fn request_rerun(
        &self,
        has_work: impl Fn() -> bool,
    ) -> Option<ProgressGuard<'_, T>> {
        if !has_work() {
            return None;
        }
        // SYNC: progress-lock (the holder or this thread sees the earlier work)
        let previous = self.state.swap(RERUN_REQUESTED, Ordering::AcqRel);
        (previous == FREE).then(|| ProgressGuard(self))
    }

    /// Tries to take the lock. None: another thread holds it.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<ProgressGuard<'_, T>> {
        // SYNC: progress-lock
        let acquired =
            self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        acquired.is_ok().then(|| ProgressGuard(self))
    }

    /// Releases the lock. False: it stays held, because another thread has requested a rerun.
    #[inline(always)]
    fn try_unlock(&self) -> bool {
        // SYNC: progress-lock
        let released = self.state.compare_exchange(HELD, FREE, Ordering::AcqRel, Ordering::Relaxed);
        released.is_ok() || {
            self.state.swap(HELD, Ordering::AcqRel);
            false
        }
    }

    /// Waits for the lock, which no thread holds for long.
    pub(crate) fn lock(&self) -> ProgressGuard<'_, T> {
        let mut tries = 0;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            tries += 1;
            wait(tries);
        }
    }
}

fn wait(tries: u32) {
    if tries < MAX_YIELDS {
        yield_now();
    } else {
        std::thread::sleep(LOCK_RETRY_INTERVAL);
    }
}

impl<T> ProgressGuard<'_, T> {
    /// Calls `serve`, and again as long as other threads request it meanwhile.
    #[inline(always)]
    fn run_exclusive(mut self, mut serve: impl FnMut(&mut T)) {
        serve(&mut self);
        self.unlock_or_rerun(serve);
    }

    /// Releases the lock, but first serves again as long as other threads request it.
    #[inline(always)]
    pub(crate) fn unlock_or_rerun(self, mut serve: impl FnMut(&mut T)) {
        if self.0.try_unlock() {
            return std::mem::forget(self);
        }
        self.rerun(&mut serve);
    }

    #[cold]
    fn rerun(mut self, serve: &mut dyn FnMut(&mut T)) {
        loop {
            serve(&mut self);
            if self.0.try_unlock() {
                return std::mem::forget(self);
            }
        }
    }
}

impl<T> Deref for ProgressGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as this lives.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ProgressGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ProgressGuard<'_, T> {
    fn drop(&mut self) {
        // The next run finds the work of a rerun that was requested meanwhile.
        // SYNC: progress-lock
        self.0.state.store(FREE, Ordering::Release);
    }
}

/// Whether the application or the progress thread watches the wires. Changed under the lock.
#[derive(Default)]
pub(crate) struct PollOwner {
    polls: AtomicU64,
    /// 1: the thread watches the wires.
    owned_by_thread: AtomicU32,
}

impl PollOwner {
    /// Called by the application, under the lock, at a poll. True: the thread watched the wires,
    /// and the caller has to take them back.
    #[inline(always)]
    pub(crate) fn on_app_poll(&self) -> bool {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.is_owned_by_thread() && {
            self.owned_by_thread.store(0, Ordering::Relaxed);
            true
        }
    }

    /// Called by the thread, without the lock: whether the application has not polled since
    /// `last_polls`, which is updated.
    pub(crate) fn has_stalled(&self, last_polls: &mut u64) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        std::mem::replace(last_polls, polls) == polls
    }

    /// Gives the wires to the thread if the application has not polled since `last_polls`. Called
    /// under the lock. True: the application watched the wires until now.
    pub(crate) fn hand_to_thread_if_stalled(&self, last_polls: u64) -> bool {
        let stalled = self.polls.load(Ordering::Relaxed) == last_polls;
        stalled && self.owned_by_thread.swap(1, Ordering::Relaxed) == 0
    }

    /// Like `hand_to_thread_if_stalled`, but without a condition. Called when the application goes
    /// to sleep.
    pub(crate) fn hand_to_thread(&self) -> bool {
        self.owned_by_thread.swap(1, Ordering::Relaxed) == 0
    }

    /// Whether the thread watches the wires.
    #[inline(always)]
    pub(crate) fn is_owned_by_thread(&self) -> bool {
        self.owned_by_thread.load(Ordering::Relaxed) != 0
    }
}

/// Whether a receiver sleeps, or is about to.
#[derive(Default)]
pub(crate) struct WakeupFlag(AtomicU32);

impl WakeupFlag {
    /// Called by the receiver before it takes the lock. The receiver may rely only on values that
    /// it reads afterwards.
    pub(crate) fn set_sleeping(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Called by the receiver when it is awake.
    pub(crate) fn clear_sleeping(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Called under the lock by a thread that has delivered a message. True for one thread, which
    /// then rings the doorbell.
    #[inline(always)]
    pub(crate) fn take_wakeup(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two threads leave work and try to serve; no work is left after both calls.
    #[test]
    fn no_work_remains_if_another_thread_held_the_lock() {
        loom::model(|| {
            let shared = Arc::new((ProgressLock::new(0u64), AtomicU64::new(0), AtomicU64::new(0)));
            let work = |shared: &(ProgressLock<u64>, AtomicU64, AtomicU64)| {
                let (lock, requested, done) = shared;
                requested.fetch_add(1, Ordering::Relaxed);
                let serve = |_: &mut u64| {
                    done.store(requested.load(Ordering::Relaxed), Ordering::Relaxed);
                };
                let has_work = || done.load(Ordering::Relaxed) != requested.load(Ordering::Relaxed);
                lock.run_exclusive(serve, has_work);
            };
            let other = shared.clone();
            let thread = thread::spawn(move || work(&other));
            work(&shared);
            thread.join().unwrap();
            assert_eq!(shared.2.load(Ordering::Relaxed), 2);
        });
    }

    /// Threads that wait for the lock, try it or request a rerun never hold it together. Each of
    /// them reads the last writes of the previous holder.
    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        loom::model(|| {
            let shared = Arc::new((ProgressLock::new(()), AtomicU64::new(0), AtomicU64::new(0)));
            let step = |shared: &(ProgressLock<()>, AtomicU64, AtomicU64)| {
                let steps = shared.1.load(Ordering::Relaxed);
                shared.1.store(steps + 1, Ordering::Relaxed);
                shared.2.fetch_add(1, Ordering::Relaxed);
            };
            let other = shared.clone();
            let thread = thread::spawn(move || other.0.run_exclusive(|()| step(&other), || true));
            let guard = shared.0.lock();
            step(&shared);
            drop(guard);
            shared.0.run_exclusive(|()| step(&shared), || true);
            thread.join().unwrap();
            assert_eq!(shared.1.load(Ordering::Relaxed), shared.2.load(Ordering::Relaxed));
        });
    }

    /// The receiver sets the flag and checks for a message; the thread delivers one and checks the
    /// flag.
    #[test]
    fn a_sleeper_sees_the_message_or_is_woken() {
        loom::model(|| {
            let shared =
                Arc::new((WakeupFlag::default(), AtomicU64::new(0), ProgressLock::new(())));
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let _guard = other.2.lock();
                other.1.store(1, Ordering::Relaxed);
                other.0.take_wakeup()
            });
            shared.0.set_sleeping();
            drop(shared.2.lock());
            let received = shared.1.load(Ordering::Relaxed) == 1;
            let woken = thread.join().unwrap();
            assert!(received || woken);
        });
    }

    /// [`PollOwner`] always names the side that watches the wires. After the last poll the thread
    /// gets the wires within its next two checks.
    #[test]
    fn the_progress_thread_watches_the_wires_only_after_the_last_poll() {
        loom::model(|| {
            // The value under the lock: whether the thread watches the wires.
            let shared = Arc::new((ProgressLock::new(false), PollOwner::default()));
            let check = |shared: &(ProgressLock<bool>, PollOwner), last_polls: &mut u64| {
                if shared.1.has_stalled(last_polls) {
                    let mut by_thread = shared.0.lock();
                    if shared.1.hand_to_thread_if_stalled(*last_polls) {
                        assert!(!*by_thread);
                        *by_thread = true;
                    }
                }
            };
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let mut last_polls = 0;
                check(&other, &mut last_polls);
                last_polls
            });
            for _ in 0..2 {
                let mut by_thread = shared.0.lock();
                if shared.1.on_app_poll() {
                    assert!(*by_thread);
                    *by_thread = false;
                }
                assert!(!*by_thread, "a thread that polls has the wires");
            }
            let mut last_polls = thread.join().unwrap();
            check(&shared, &mut last_polls);
            check(&shared, &mut last_polls);
            assert!(shared.1.is_owned_by_thread());
            assert!(*shared.0.lock());
        });
    }
}
