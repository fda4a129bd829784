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
const ASKED: u32 = 2;

/// Who waits for the lock offers the processor so often before it sleeps.
const PATIENCE: u32 = 100;
const NAP: Duration = Duration::from_micros(50);

/// What only one at a time may serve. One word says who is at it and whether more is asked for, so
/// that a turn costs two exchanges.
pub(crate) struct Served<T> {
    state: AtomicU32,
    inside: UnsafeCell<T>,
}

// SAFETY: the inside is reached through the lock alone, by one thread at a time.
unsafe impl<T: Send> Sync for Served<T> {}

/// The lock, held.
pub(crate) struct Inside<'a, T>(&'a Served<T>);

impl<T> Served<T> {
    pub(crate) fn new(inside: T) -> Served<T> {
        Served { state: AtomicU32::new(FREE), inside: UnsafeCell::new(inside) }
    }

    /// Serves, and again as long as others ask for it meanwhile. Where somebody else is serving,
    /// asks for it if `left` says that there is something to do: who serves sees what was there
    /// before this call.
    #[inline(always)]
    pub(crate) fn serve(&self, mut serve: impl FnMut(&mut T), left: impl Fn() -> bool) {
        if !self.try_serve(&mut serve)
            && let Some(inside) = self.ask(&left)
        {
            inside.serve(serve);
        }
    }

    /// The same, but where somebody else is serving, asks for nothing: false.
    #[inline(always)]
    pub(crate) fn try_serve(&self, serve: impl FnMut(&mut T)) -> bool {
        let inside = self.try_enter();
        inside.map(|inside| inside.serve(serve)).is_some()
    }

    /// Asks whoever serves to do it once more. Where nobody does any more, enters: then with one
    /// turn too many.
    #[cold]
    pub(crate) fn ask(&self, left: impl Fn() -> bool) -> Option<Inside<'_, T>> {
        if !left() {
            return None;
        }
        // SYNC: served (what was left before is seen by who serves, or by us)
        let before = self.state.swap(ASKED, Ordering::AcqRel);
        (before == FREE).then(|| Inside(self))
    }

    /// None: somebody else is serving.
    #[inline(always)]
    pub(crate) fn try_enter(&self) -> Option<Inside<'_, T>> {
        // SYNC: served
        let entered = self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        entered.is_ok().then(|| Inside(self))
    }

    /// False: it stays held, because somebody has asked for more.
    #[inline(always)]
    fn try_leave(&self) -> bool {
        // SYNC: served
        let left = self.state.compare_exchange(HELD, FREE, Ordering::AcqRel, Ordering::Relaxed);
        left.is_ok() || {
            self.state.swap(HELD, Ordering::AcqRel);
            false
        }
    }

    /// Waits for whoever serves, who never takes long.
    pub(crate) fn enter(&self) -> Inside<'_, T> {
        let mut tries = 0;
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            tries += 1;
            wait(tries);
        }
    }
}

fn wait(tries: u32) {
    if tries < PATIENCE {
        yield_now();
    } else {
        std::thread::sleep(NAP);
    }
}

impl<T> Inside<'_, T> {
    /// Serves, and again as long as others ask for it meanwhile.
    #[inline(always)]
    fn serve(mut self, mut serve: impl FnMut(&mut T)) {
        serve(&mut self);
        self.leave(serve);
    }

    /// Serves no more, unless others have asked for it meanwhile.
    #[inline(always)]
    pub(crate) fn leave(self, mut serve: impl FnMut(&mut T)) {
        if self.0.try_leave() {
            return std::mem::forget(self);
        }
        self.serve_on(&mut serve);
    }

    #[cold]
    fn serve_on(mut self, serve: &mut dyn FnMut(&mut T)) {
        loop {
            serve(&mut self);
            if self.0.try_leave() {
                return std::mem::forget(self);
            }
        }
    }
}

impl<T> Deref for Inside<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held as long as this lives.
        unsafe { &*self.0.inside.get() }
    }
}

impl<T> DerefMut for Inside<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and this is borrowed alone.
        unsafe { &mut *self.0.inside.get() }
    }
}

impl<T> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        // What was asked for meanwhile is found by the next pass.
        // SYNC: served
        self.0.state.store(FREE, Ordering::Release);
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

    /// Who waits for the lock, who tries and who asks are never inside together, and each sees what
    /// the one before has written.
    #[test]
    fn one_at_a_time_is_inside() {
        loom::model(|| {
            let shared = Arc::new((Served::new(()), AtomicU64::new(0), AtomicU64::new(0)));
            let step = |shared: &(Served<()>, AtomicU64, AtomicU64)| {
                let inside = shared.1.load(Ordering::Relaxed);
                shared.1.store(inside + 1, Ordering::Relaxed);
                shared.2.fetch_add(1, Ordering::Relaxed);
            };
            let other = shared.clone();
            let thread = thread::spawn(move || other.0.serve(|()| step(&other), || true));
            let inside = shared.0.enter();
            step(&shared);
            drop(inside);
            shared.0.serve(|()| step(&shared), || true);
            thread.join().unwrap();
            assert_eq!(shared.1.load(Ordering::Relaxed), shared.2.load(Ordering::Relaxed));
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
