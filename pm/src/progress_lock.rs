//! Who makes progress on a context whose messages cross a network: whoever polls, or else the
//! process's progress thread.
//!
//! - [`ProgressLock`]: one at a time serves. Who finds another at it goes on: the other sees what was
//!   left to do, because it looks once more after it has let go.
//! - [`PollOwner`]: each poll of the application advances a count. The thread looks at it by a slow
//!   timer; when it finds the same count twice the application computes, and the thread watches
//!   the wires. The next poll takes them back.
//! - [`WakeupFlag`]: a receiver that is about to sleep arms it, enters the lock, and then looks once
//!   more; whoever delivers looks at it under the lock. Either the receiver sees the message or it
//!   is woken.
//!
//! A fence costs several times what an atomic exchange does, and each poll would pay for it: so
//! all of this relies on exchanges and on the lock.

// UNSAFETY: a lock of its own around what is served.
#![expect(unsafe_code)]

use crate::sync::{AtomicU32, AtomicU64, Ordering, yield_now};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// Nobody serves.
const FREE: u32 = 0;
/// Somebody does.
const HELD: u32 = 1;
/// And somebody else has found it so, and left something to do.
const RERUN_REQUESTED: u32 = 2;

/// Who waits for the lock offers the processor so often before it sleeps.
const MAX_YIELDS: u32 = 100;
const LOCK_RETRY_INTERVAL: Duration = Duration::from_micros(50);

/// What only one at a time may serve. One word says who is at it and whether more is asked for, so
/// that a turn costs two exchanges.
pub(crate) struct ProgressLock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the inside is reached through the lock alone, by one thread at a time.
unsafe impl<T: Send> Sync for ProgressLock<T> {}

/// The lock, held.
pub(crate) struct ProgressGuard<'a, T>(&'a ProgressLock<T>);

impl<T> ProgressLock<T> {
    pub(crate) fn new(value: T) -> ProgressLock<T> {
        ProgressLock { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Serves, and again as long as others ask for it meanwhile. Where somebody else is serving,
    /// asks for it if `left` says that there is something to do: who serves sees what was there
    /// before this call.
    #[inline(always)]
    pub(crate) fn run_exclusive(&self, mut serve: impl FnMut(&mut T), has_work: impl Fn() -> bool) {
        if !self.try_run_exclusive(&mut serve)
            && let Some(guard) = self.request_rerun(&has_work)
        {
            guard.run_exclusive(serve);
        }
    }

    /// The same, but where somebody else is serving, asks for nothing: false.
    #[inline(always)]
    pub(crate) fn try_run_exclusive(&self, serve: impl FnMut(&mut T)) -> bool {
        let guard = self.try_lock();
        guard.map(|guard| guard.run_exclusive(serve)).is_some()
    }

    /// Asks whoever serves to do it once more. Where nobody does any more, enters: then with one
    /// turn too many.
    #[cold]
    pub(crate) fn request_rerun(
        &self,
        has_work: impl Fn() -> bool,
    ) -> Option<ProgressGuard<'_, T>> {
        if !has_work() {
            return None;
        }
        // SYNC: served (what was left before is seen by who serves, or by us)
        let previous = self.state.swap(RERUN_REQUESTED, Ordering::AcqRel);
        (previous == FREE).then(|| ProgressGuard(self))
    }

    /// None: somebody else is serving.
    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<ProgressGuard<'_, T>> {
        // SYNC: served
        let acquired =
            self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        acquired.is_ok().then(|| ProgressGuard(self))
    }

    /// False: it stays held, because somebody has asked for more.
    #[inline(always)]
    fn try_unlock(&self) -> bool {
        // SYNC: served
        let released = self.state.compare_exchange(HELD, FREE, Ordering::AcqRel, Ordering::Relaxed);
        released.is_ok() || {
            self.state.swap(HELD, Ordering::AcqRel);
            false
        }
    }

    /// Waits for whoever serves, who never takes long.
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
    /// Serves, and again as long as others ask for it meanwhile.
    #[inline(always)]
    fn run_exclusive(mut self, mut serve: impl FnMut(&mut T)) {
        serve(&mut self);
        self.unlock_or_rerun(serve);
    }

    /// Serves no more, unless others have asked for it meanwhile.
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
        // SAFETY: as above, and this is borrowed alone.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ProgressGuard<'_, T> {
    fn drop(&mut self) {
        // What was asked for meanwhile is found by the next pass.
        // SYNC: served
        self.0.state.store(FREE, Ordering::Release);
    }
}

/// Whose turn it is to watch the wires. Changed under the lock of what is served.
#[derive(Default)]
pub(crate) struct PollOwner {
    polls: AtomicU64,
    /// 1: the thread's.
    owned_by_thread: AtomicU32,
}

impl PollOwner {
    /// By the application, under the lock: it has polled. True: the wires were the thread's and
    /// have to be taken back.
    #[inline(always)]
    pub(crate) fn on_app_poll(&self) -> bool {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.is_owned_by_thread() && {
            self.owned_by_thread.store(0, Ordering::Relaxed);
            true
        }
    }

    /// By the thread, without the lock: whether the application has not polled since `seen`,
    /// which is brought up to date.
    pub(crate) fn has_stalled(&self, last_polls: &mut u64) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        std::mem::replace(last_polls, polls) == polls
    }

    /// Under the lock: gives the wires to the thread, if the application has not polled since
    /// `seen`. True: they were the application's and have to be watched.
    pub(crate) fn hand_to_thread_if_stalled(&self, last_polls: u64) -> bool {
        let stalled = self.polls.load(Ordering::Relaxed) == last_polls;
        stalled && self.owned_by_thread.swap(1, Ordering::Relaxed) == 0
    }

    /// Under the lock, when the application goes to sleep: as `hand_to_thread_if_stalled`, at once.
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
    /// By the receiver, before it enters the lock. Only what it looks at afterwards counts.
    pub(crate) fn set_sleeping(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// By the receiver, when it is awake.
    pub(crate) fn clear_sleeping(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// By who has delivered something, still under the lock: true for one who then rings.
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

    /// Two leave work and try to serve: nothing is left when both have gone on.
    #[test]
    fn no_work_is_left_undone_when_another_thread_was_serving() {
        loom::model(|| {
            let shared = Arc::new((ProgressLock::new(0u64), AtomicU64::new(0), AtomicU64::new(0)));
            let work = |shared: &(ProgressLock<u64>, AtomicU64, AtomicU64)| {
                let (served, asked, done) = shared;
                asked.fetch_add(1, Ordering::Relaxed);
                let serve = |_: &mut u64| {
                    done.store(asked.load(Ordering::Relaxed), Ordering::Relaxed);
                };
                let left = || done.load(Ordering::Relaxed) != asked.load(Ordering::Relaxed);
                served.run_exclusive(serve, left);
            };
            let other = shared.clone();
            let thread = thread::spawn(move || work(&other));
            work(&shared);
            thread.join().unwrap();
            assert_eq!(shared.2.load(Ordering::Relaxed), 2);
        });
    }

    /// Who waits for the lock, who tries and who asks are never inside together, and each sees what
    /// the one before has written.
    #[test]
    fn one_thread_at_a_time_holds_the_lock() {
        loom::model(|| {
            let shared = Arc::new((ProgressLock::new(()), AtomicU64::new(0), AtomicU64::new(0)));
            let step = |shared: &(ProgressLock<()>, AtomicU64, AtomicU64)| {
                let inside = shared.1.load(Ordering::Relaxed);
                shared.1.store(inside + 1, Ordering::Relaxed);
                shared.2.fetch_add(1, Ordering::Relaxed);
            };
            let other = shared.clone();
            let thread = thread::spawn(move || other.0.run_exclusive(|()| step(&other), || true));
            let inside = shared.0.lock();
            step(&shared);
            drop(inside);
            shared.0.run_exclusive(|()| step(&shared), || true);
            thread.join().unwrap();
            assert_eq!(shared.1.load(Ordering::Relaxed), shared.2.load(Ordering::Relaxed));
        });
    }

    /// The receiver arms and looks; the thread delivers and looks at the bell.
    #[test]
    fn a_sleeper_sees_the_message_or_is_woken() {
        loom::model(|| {
            let shared =
                Arc::new((WakeupFlag::default(), AtomicU64::new(0), ProgressLock::new(())));
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let _inside = other.2.lock();
                other.1.store(1, Ordering::Relaxed);
                other.0.take_wakeup()
            });
            shared.0.set_sleeping();
            drop(shared.2.lock());
            let seen = shared.1.load(Ordering::Relaxed) == 1;
            let rung = thread.join().unwrap();
            assert!(seen || rung);
        });
    }

    /// What is watched is what the turn says, whoever comes first; and after the last poll the
    /// thread gets the wires by its next two looks.
    #[test]
    fn the_wires_are_the_threads_after_the_last_poll_and_only_then() {
        loom::model(|| {
            // Inside the lock: whether the wires are watched by the thread.
            let shared = Arc::new((ProgressLock::new(false), PollOwner::default()));
            let look = |shared: &(ProgressLock<bool>, PollOwner), seen: &mut u64| {
                if shared.1.has_stalled(seen) {
                    let mut watched = shared.0.lock();
                    if shared.1.hand_to_thread_if_idle(*seen) {
                        assert!(!*watched);
                        *watched = true;
                    }
                }
            };
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let mut seen = 0;
                look(&other, &mut seen);
                seen
            });
            for _ in 0..2 {
                let mut watched = shared.0.lock();
                if shared.1.reclaim_for_app() {
                    assert!(*watched);
                    *watched = false;
                }
                assert!(!*watched, "who polls has the wires");
            }
            let mut seen = thread.join().unwrap();
            look(&shared, &mut seen);
            look(&shared, &mut seen);
            assert!(shared.1.is_owned_by_thread());
            assert!(*shared.0.lock());
        });
    }
}
