//! Who makes progress on a context whose messages cross a network: whoever polls, or else the
//! process's progress thread.
//!
//! - [`Served`]: one at a time serves. Who finds another at it goes on: the other sees what was
//!   left to do, because it looks once more after it has let go.
//! - [`Turn`]: each poll of the application advances a count. The thread looks at it by a slow
//!   timer; when it finds the same count twice the application computes, and the thread watches
//!   the wires. The next poll takes them back.
//! - [`Bell`]: a receiver that is about to sleep arms it, enters the lock, and then looks once
//!   more; whoever delivers looks at it under the lock. Either the receiver sees the message or it
//!   is woken.
//!
//! A fence costs several times what an atomic exchange does, and each poll would pay for it: so
//! all of this relies on exchanges and on the lock.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// What only one at a time may serve.
pub(crate) struct Served<T> {
    inside: Mutex<T>,
    /// 1: somebody found it locked, and left something to do.
    asked: AtomicU32,
}

impl<T> Served<T> {
    pub(crate) fn new(inside: T) -> Served<T> {
        Served { inside: Mutex::new(inside), asked: AtomicU32::new(0) }
    }

    /// Serves, and again as long as others ask for it meanwhile. Where somebody else is serving,
    /// asks for it if `left` says that there is something to do: who serves sees what was there
    /// before this call.
    #[inline(always)]
    pub(crate) fn serve(&self, mut serve: impl FnMut(&mut T), left: impl Fn() -> bool) {
        loop {
            let Some(mut inside) = self.try_enter().or_else(|| self.ask(&left)) else { return };
            serve(&mut inside);
            drop(inside);
            // SYNC: served
            if self.asked.swap(0, Ordering::AcqRel) == 0 {
                return;
            }
        }
    }

    /// Tries once more after asking: whoever holds the lock then looks at the question later than
    /// it was asked.
    #[cold]
    fn ask(&self, left: impl Fn() -> bool) -> Option<MutexGuard<'_, T>> {
        if !left() {
            return None;
        }
        // SYNC: served (what was left before is seen by who holds the lock, or by us)
        self.asked.swap(1, Ordering::AcqRel);
        self.try_enter()
    }

    fn try_enter(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(not(loom))]
        if let Err(std::sync::TryLockError::Poisoned(poisoned)) = self.inside.try_lock() {
            return Some(poisoned.into_inner());
        }
        self.inside.try_lock().ok()
    }

    /// Waits for whoever serves, who never takes long.
    pub(crate) fn enter(&self) -> MutexGuard<'_, T> {
        #[cfg(not(loom))]
        return self.inside.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        #[cfg(loom)]
        self.inside.lock().unwrap()
    }
}

/// Whose turn it is to watch the wires. Changed under the lock of what is served.
#[derive(Default)]
pub(crate) struct Turn {
    polls: AtomicU64,
    /// 1: the thread's.
    thread: AtomicU32,
}

impl Turn {
    /// By the application, under the lock: it has polled. True: the wires were the thread's and
    /// have to be taken back.
    #[inline(always)]
    pub(crate) fn polled(&self) -> bool {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.is_threads() && {
            self.thread.store(0, Ordering::Relaxed);
            true
        }
    }

    /// By the thread, without the lock: whether the application has not polled since `seen`,
    /// which is brought up to date.
    pub(crate) fn has_stalled(&self, seen: &mut u64) -> bool {
        let polls = self.polls.load(Ordering::Relaxed);
        std::mem::replace(seen, polls) == polls
    }

    /// Under the lock: gives the wires to the thread, if the application has not polled since
    /// `seen`. True: they were the application's and have to be watched.
    pub(crate) fn give(&self, seen: u64) -> bool {
        let stalled = self.polls.load(Ordering::Relaxed) == seen;
        stalled && self.thread.swap(1, Ordering::Relaxed) == 0
    }

    /// Under the lock, when the application goes to sleep: as `give`, at once.
    pub(crate) fn give_now(&self) -> bool {
        self.thread.swap(1, Ordering::Relaxed) == 0
    }

    /// Whether the thread watches the wires.
    #[inline(always)]
    pub(crate) fn is_threads(&self) -> bool {
        self.thread.load(Ordering::Relaxed) != 0
    }
}

/// Whether a receiver sleeps, or is about to.
#[derive(Default)]
pub(crate) struct Bell(AtomicU32);

impl Bell {
    /// By the receiver, before it enters the lock. Only what it looks at afterwards counts.
    pub(crate) fn arm(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// By the receiver, when it is awake.
    pub(crate) fn disarm(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// By who has delivered something, still under the lock: true for one who then rings.
    #[inline(always)]
    pub(crate) fn must_ring(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two leave work and try to serve: nothing is left when both have gone on.
    #[test]
    fn nothing_is_left_undone_when_somebody_else_was_serving() {
        loom::model(|| {
            let shared = Arc::new((Served::new(0u64), AtomicU64::new(0), AtomicU64::new(0)));
            let work = |shared: &(Served<u64>, AtomicU64, AtomicU64)| {
                let (served, asked, done) = shared;
                asked.fetch_add(1, Ordering::Relaxed);
                let serve = |_: &mut u64| {
                    done.store(asked.load(Ordering::Relaxed), Ordering::Relaxed);
                };
                let left = || done.load(Ordering::Relaxed) != asked.load(Ordering::Relaxed);
                served.serve(serve, left);
            };
            let other = shared.clone();
            let thread = thread::spawn(move || work(&other));
            work(&shared);
            thread.join().unwrap();
            assert_eq!(shared.2.load(Ordering::Relaxed), 2);
        });
    }

    /// The receiver arms and looks; the thread delivers and looks at the bell.
    #[test]
    fn a_sleeper_sees_the_message_or_is_woken() {
        loom::model(|| {
            let shared = Arc::new((Bell::default(), AtomicU64::new(0), Served::new(())));
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let _inside = other.2.enter();
                other.1.store(1, Ordering::Relaxed);
                other.0.must_ring()
            });
            shared.0.arm();
            drop(shared.2.enter());
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
            let shared = Arc::new((Served::new(false), Turn::default()));
            let look = |shared: &(Served<bool>, Turn), seen: &mut u64| {
                if shared.1.has_stalled(seen) {
                    let mut watched = shared.0.enter();
                    if shared.1.give(*seen) {
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
                let mut watched = shared.0.enter();
                if shared.1.polled() {
                    assert!(*watched);
                    *watched = false;
                }
                assert!(!*watched, "who polls has the wires");
            }
            let mut seen = thread.join().unwrap();
            look(&shared, &mut seen);
            look(&shared, &mut seen);
            assert!(shared.1.is_threads());
            assert!(*shared.0.enter());
        });
    }
}
