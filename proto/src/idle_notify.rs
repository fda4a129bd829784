//! Notification of idle changes through a word in a process's area
//! ([`crate::carea::area::IDLE_NOTIFY`]). The shepherd arms the word with the change that it waits
//! for. A process that has made this change disarms the word and notifies the shepherd once. While
//! the word is not armed, a change costs one additional load.
//!
//! The shepherd samples again after it has armed the word. Either the process reads the armed word,
//! or this sample finds the change: each side stores its own word before it loads the other's
//! (SYNC: idle-notify).

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// The value of a word that is not armed.
pub const NONE: u32 = 0;
/// Change: a thread becomes busy, or a new thread registers as busy.
pub const ON_BUSY: u32 = u32::MAX;

/// Change: the thread of this slot becomes idle, or ends.
pub fn idle(slot: usize) -> u32 {
    u32::try_from(slot).map_or(NONE, |slot| slot.wrapping_add(1))
}

/// Called by the shepherd: arms the word. Only samples after this call are valid.
pub fn arm(word: &AtomicU32, change: u32) {
    word.store(change, Ordering::SeqCst);
    // SYNC: idle-notify
    fence(Ordering::SeqCst);
}

/// Called by a process after a change, which it has stored with sequential consistency. Returns
/// whether the process has to notify the shepherd: true once for each `arm`.
pub fn take_if_armed(word: &AtomicU32, change: u32) -> bool {
    if cfg!(loom) {
        // Loom models sequentially consistent loads and stores as weaker ones.
        fence(Ordering::SeqCst);
    }
    // SYNC: idle-notify
    word.load(Ordering::SeqCst) == change && disarm(word, change)
}

#[cold]
fn disarm(word: &AtomicU32, change: u32) -> bool {
    word.compare_exchange(change, NONE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Called by a process that could not send the notification: arms the word again, unless the
/// shepherd has armed it with another change in the meantime.
pub fn rearm(word: &AtomicU32, change: u32) {
    let _ = word.compare_exchange(NONE, change, Ordering::SeqCst, Ordering::Relaxed);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    const IS_IDLE: u32 = 1;

    #[derive(Default)]
    struct Process {
        notify: AtomicU32,
        state: AtomicU32,
        busy_transitions: AtomicU64,
        notified: AtomicU32,
    }

    impl Process {
        fn notify_if_armed(&self, change: u32) {
            if take_if_armed(&self.notify, change) {
                self.notified.fetch_add(1, Ordering::SeqCst);
            }
        }

        fn become_idle(&self) {
            self.state.store(IS_IDLE, Ordering::SeqCst);
            self.notify_if_armed(idle(0));
        }

        fn become_busy(&self) {
            self.state.store(0, Ordering::Release);
            self.busy_transitions.fetch_add(1, Ordering::SeqCst);
            self.notify_if_armed(ON_BUSY);
        }
    }

    // Promise of `an_element_with_a_busy_thread_is_polled_at_the_maximum_interval`.
    #[test]
    fn a_thread_that_becomes_idle_is_seen_or_notifies() {
        loom::model(|| {
            let process = Arc::new(Process::default());
            let shared = Arc::clone(&process);
            let thread = thread::spawn(move || shared.become_idle());
            arm(&process.notify, idle(0));
            let seen = process.state.load(Ordering::Acquire) == IS_IDLE;
            thread.join().unwrap();
            assert!(seen || process.notified.load(Ordering::SeqCst) == 1);
        });
    }

    #[test]
    fn a_thread_that_becomes_busy_is_seen_or_notifies_even_if_idle_again() {
        loom::model(|| {
            let process = Arc::new(Process::default());
            process.state.store(IS_IDLE, Ordering::SeqCst);
            let shared = Arc::clone(&process);
            let thread = thread::spawn(move || {
                shared.become_busy();
                shared.become_idle();
            });
            arm(&process.notify, ON_BUSY);
            let busy_transitions = process.busy_transitions.load(Ordering::SeqCst);
            let is_idle = process.state.load(Ordering::Acquire) == IS_IDLE;
            thread.join().unwrap();
            let notified = process.notified.load(Ordering::SeqCst) == 1;
            assert!(busy_transitions > 0 || !is_idle || notified);
        });
    }

    #[test]
    fn an_armed_change_notifies_once() {
        loom::model(|| {
            let process = Arc::new(Process::default());
            arm(&process.notify, ON_BUSY);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&process);
                    thread::spawn(move || shared.notify_if_armed(ON_BUSY))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(process.notified.load(Ordering::SeqCst), 1);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_idle_word_notifies_only_if_it_is_armed() {
        let word = AtomicU32::new(NONE);
        assert!(!take_if_armed(&word, ON_BUSY) && !take_if_armed(&word, idle(0)));
        arm(&word, idle(3));
        assert!(!take_if_armed(&word, ON_BUSY) && !take_if_armed(&word, idle(2)));
        assert!(take_if_armed(&word, idle(3)) && !take_if_armed(&word, idle(3)));
        rearm(&word, idle(3));
        assert!(take_if_armed(&word, idle(3)));
        arm(&word, ON_BUSY);
        rearm(&word, idle(3));
        assert!(take_if_armed(&word, ON_BUSY), "a newer change stays armed");
    }
}
