//! The bell of a process ([`crate::carea::area::BELL`]). The shepherd writes there which change it
//! wants to hear of. A process that has made this change takes the wish back and rings, once; as
//! long as nothing is wished for, a change costs it one load more.
//!
//! Either the process sees the wish, or the shepherd, who looks once more after it has wished, sees
//! the change: each stores its own word before it loads the other's (SYNC: bell).

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Nothing is wished for.
pub const NOTHING: u32 = 0;
/// The change: a thread becomes busy, or one that is new says so.
pub const BUSY: u32 = u32::MAX;

/// The change: the thread of this slot becomes idle, or ends.
pub fn idle(slot: usize) -> u32 {
    u32::try_from(slot).map_or(NOTHING, |slot| slot.wrapping_add(1))
}

/// By the shepherd. Only what it looks at afterwards counts.
pub fn wish(word: &AtomicU32, change: u32) {
    word.store(change, Ordering::SeqCst);
    // SYNC: bell
    fence(Ordering::SeqCst);
}

/// By the process, after a change that it has stored sequentially consistent: whether it has to
/// ring, which is true once for each wish.
pub fn is_wished(word: &AtomicU32, change: u32) -> bool {
    if cfg!(loom) {
        // Loom takes sequentially consistent loads and stores for weaker ones.
        fence(Ordering::SeqCst);
    }
    // SYNC: bell
    word.load(Ordering::SeqCst) == change && take_back(word, change)
}

#[cold]
fn take_back(word: &AtomicU32, change: u32) -> bool {
    word.compare_exchange(change, NOTHING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// By a process that could not ring: the next change may be rung for, unless something else is
/// wished for by then.
pub fn renew(word: &AtomicU32, change: u32) {
    let _ = word.compare_exchange(NOTHING, change, Ordering::SeqCst, Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    const IS_IDLE: u32 = 1;

    #[derive(Default)]
    struct Process {
        bell: AtomicU32,
        state: AtomicU32,
        turns: AtomicU64,
        rung: AtomicU32,
    }

    impl Process {
        fn tell(&self, change: u32) {
            if is_wished(&self.bell, change) {
                self.rung.fetch_add(1, Ordering::SeqCst);
            }
        }

        fn become_idle(&self) {
            self.state.store(IS_IDLE, Ordering::SeqCst);
            self.tell(idle(0));
        }

        fn become_busy(&self) {
            self.state.store(0, Ordering::Release);
            self.turns.fetch_add(1, Ordering::SeqCst);
            self.tell(BUSY);
        }
    }

    #[test]
    fn who_becomes_idle_is_seen_so_or_rings() {
        loom::model(|| {
            let process = Arc::new(Process::default());
            let theirs = Arc::clone(&process);
            let thread = thread::spawn(move || theirs.become_idle());
            wish(&process.bell, idle(0));
            let seen = process.state.load(Ordering::Acquire) == IS_IDLE;
            thread.join().unwrap();
            assert!(seen || process.rung.load(Ordering::SeqCst) == 1);
        });
    }

    #[test]
    fn who_becomes_busy_is_seen_so_or_rings_also_when_it_is_idle_again() {
        loom::model(|| {
            let process = Arc::new(Process::default());
            process.state.store(IS_IDLE, Ordering::SeqCst);
            let theirs = Arc::clone(&process);
            let thread = thread::spawn(move || {
                theirs.become_busy();
                theirs.become_idle();
            });
            wish(&process.bell, BUSY);
            let turns = process.turns.load(Ordering::SeqCst);
            let is_idle = process.state.load(Ordering::Acquire) == IS_IDLE;
            thread.join().unwrap();
            let rung = process.rung.load(Ordering::SeqCst) == 1;
            assert!(turns > 0 || !is_idle || rung);
        });
    }

    #[test]
    fn a_wish_is_rung_for_once() {
        loom::model(|| {
            let process = Arc::new(Process::default());
            wish(&process.bell, BUSY);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let theirs = Arc::clone(&process);
                    thread::spawn(move || theirs.tell(BUSY))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(process.rung.load(Ordering::SeqCst), 1);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_change_that_is_wished_for_is_rung_for() {
        let word = AtomicU32::new(NOTHING);
        assert!(!is_wished(&word, BUSY) && !is_wished(&word, idle(0)));
        wish(&word, idle(3));
        assert!(!is_wished(&word, BUSY) && !is_wished(&word, idle(2)));
        assert!(is_wished(&word, idle(3)) && !is_wished(&word, idle(3)));
        renew(&word, idle(3));
        assert!(is_wished(&word, idle(3)));
        wish(&word, BUSY);
        renew(&word, idle(3));
        assert!(is_wished(&word, BUSY), "a newer wish stands");
    }
}
