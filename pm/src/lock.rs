//! The two locks of a context (manual 2.3.1). A thread tries them and never waits.

#![forbid(unsafe_code)]

use crate::error::{Error, PmResult};
use crate::sync::{AtomicU32, Ordering, compiler_fence};

/// The lock is not held.
const FREE: u32 = 0;
/// The lock is held because the context was handed over to another process.
pub(crate) const HANDED_OVER: u32 = u32::MAX;

/// One lock word, on its own pair of cache lines. It contains the id of the context that has taken
/// the lock. A composite and its members share one lock, but a buffer must be released on the
/// context from which it was taken.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Lock {
    owner: AtomicU32,
    /// 1: the program has promised that no two threads try the lock at the same time. It is in the
    /// cache line of `owner`, which a thread loads anyway.
    serialized: AtomicU32,
}

impl Lock {
    /// Takes the lock by a load and a store. No other thread may call at the same time, and the
    /// calls of all threads must be ordered (happens-before).
    #[inline(always)]
    pub(crate) fn try_acquire_serialized(&self, owner: u32) -> PmResult<()> {
        if !self.is_free() {
            return Err(Error::Busy);
        }
        self.owner.store(owner, Ordering::Relaxed);
        compiler_fence(Ordering::Acquire);
        Ok(())
    }

    /// Takes the lock by an atomic read-modify-write. A message needs no other such operation on
    /// this side.
    #[inline(always)]
    pub(crate) fn try_acquire(&self, owner: u32) -> PmResult<()> {
        // SYNC: lock
        match self.owner.compare_exchange(FREE, owner, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Busy),
        }
    }

    /// Whether the program has promised that its calls are serialized. The call that makes the
    /// promise is also serialized, so this load needs no ordering.
    #[inline(always)]
    pub(crate) fn is_serialized(&self) -> bool {
        self.serialized.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    pub(crate) fn is_held_by(&self, owner: u32) -> bool {
        self.owner.load(Ordering::Relaxed) == owner
    }

    #[inline(always)]
    pub(crate) fn is_free(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == FREE
    }

    #[inline(always)]
    pub(crate) fn release(&self) {
        // SYNC: lock
        self.owner.store(FREE, Ordering::Release);
    }
}

/// The locks of a context. A send excludes other sends only, a receive other receives only.
#[derive(Default)]
pub(crate) struct Locks {
    pub(crate) send: Lock,
    pub(crate) receive: Lock,
}

impl Locks {
    /// Records or withdraws the program's promise that its calls are serialized.
    pub(crate) fn set_serialized(&self, is_promised: bool) {
        for lock in [&self.send, &self.receive] {
            lock.serialized.store(is_promised.into(), Ordering::Relaxed);
        }
    }

    pub(crate) fn try_acquire_both(&self, owner: u32) -> PmResult<()> {
        self.send.try_acquire(owner)?;
        self.receive.try_acquire(owner).inspect_err(|_| self.send.release())
    }

    pub(crate) fn release_both(&self) {
        self.receive.release();
        self.send.release();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU64;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// A lock of a context, the value that it guards, and the program's own lock around its calls.
    struct Shared {
        turn: Mutex<()>,
        lock: Lock,
        guarded: AtomicU64,
        holders: AtomicU64,
    }

    impl Shared {
        fn new() -> Arc<Shared> {
            let (lock, guarded, holders) = Default::default();
            Arc::new(Shared { turn: Mutex::new(()), lock, guarded, holders })
        }

        /// Adds 1 to the guarded value. Loom lets a thread read an old value if the memory model
        /// allows it.
        fn add_one(&self) {
            self.guarded.store(self.guarded.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }

        /// A call that takes the lock, changes the guarded value, and releases the lock.
        fn call(&self, acquire: impl Fn(&Lock) -> PmResult<()>) -> PmResult<()> {
            acquire(&self.lock)?;
            assert_eq!(self.holders.fetch_add(1, Ordering::Relaxed), 0, "both hold the lock");
            self.add_one();
            self.holders.fetch_sub(1, Ordering::Relaxed);
            self.lock.release();
            Ok(())
        }
    }

    fn check_calls_in_turn(calls: [fn(&Lock) -> PmResult<()>; 2]) {
        loom::model(move || {
            let shared = Shared::new();
            let threads = calls.map(|call| {
                let shared = shared.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let _turn = shared.turn.lock().unwrap();
                        assert_eq!(shared.call(call), Ok(()));
                    }
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(shared.guarded.load(Ordering::Relaxed), 4);
        });
    }

    // Promise of `threads_that_take_turns_lose_no_message_on_any_device`.
    #[test]
    fn calls_that_the_program_serializes_need_no_read_modify_write() {
        check_calls_in_turn([|lock| lock.try_acquire_serialized(1); 2]);
    }

    /// A composite has made the promise, and its member, which uses the same lock, has not.
    #[test]
    fn serialized_and_other_calls_can_alternate_on_one_lock() {
        check_calls_in_turn([|lock| lock.try_acquire_serialized(1), |lock| lock.try_acquire(2)]);
    }

    /// One thread gets a buffer and another one sends it. A call in between is refused.
    #[test]
    fn a_lock_that_is_held_over_calls_of_several_threads_stays_held() {
        loom::model(|| {
            let shared = Shared::new();
            assert_eq!(shared.lock.try_acquire_serialized(1), Ok(()));
            shared.add_one();
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let _turn = other.turn.lock().unwrap();
                if other.lock.is_held_by(1) {
                    other.add_one();
                    other.lock.release();
                }
            });
            let turn = shared.turn.lock().unwrap();
            let is_released = shared.guarded.load(Ordering::Relaxed) == 2;
            assert_eq!(shared.lock.try_acquire_serialized(1).is_ok(), is_released);
            if is_released {
                shared.lock.release();
            }
            drop(turn);
            thread.join().unwrap();
            assert!(shared.lock.is_free());
        });
    }

    /// The promise is necessary: without it the model finds two holders.
    #[test]
    #[should_panic(expected = "both hold the lock")]
    fn without_the_promise_two_threads_hold_the_lock_at_once() {
        loom::model(|| {
            let shared = Shared::new();
            let other = shared.clone();
            let call = |shared: &Shared| {
                let _ = shared.call(|lock| lock.try_acquire_serialized(1));
            };
            let thread = thread::spawn(move || call(&other));
            call(&shared);
            thread.join().unwrap();
        });
    }
}
