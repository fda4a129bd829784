//! What a process copies into or out of others' memory at the moment, where they can see it: who
//! unlocks a region waits until nobody copies there any more, so that what is at its place
//! afterwards is not touched.
//!
//! Who copies writes the region down, then looks whether it is locked; who unlocks withdraws it,
//! then looks who has written it down. Each has to see what the other wrote, or be seen, so either
//! side needs a fence between its two steps. Copies of PM's own memory are a few instructions: who
//! unlocks that pays for both sides, as sleepers do (see `door.rs`).

#![forbid(unsafe_code)]

#[cfg(not(loom))]
use crate::sync::compiler_fence;
use crate::sync::{AtomicU64, Ordering, yield_now};

/// Threads of a process that copy at a time; more find no room.
const THREADS: usize = 8;

/// A process's line. Zero: nothing.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Copying([AtomicU64; THREADS]);

/// A copy that is written down, until this is dropped.
pub(crate) struct Copy<'a>(&'a AtomicU64);

/// A region of a node, in one word; `name`: 1 + the node.
#[inline(always)]
fn word(name: u32, number: u32) -> u64 {
    u64::from(name) << 32 | u64::from(number)
}

impl Copying {
    /// Writes a copy down. `alone`: this process has one thread. None: too many copy. Only what is
    /// looked at after a fence counts.
    #[inline]
    pub(crate) fn begin(&self, name: u32, number: u32, alone: bool) -> Option<Copy<'_>> {
        let word = word(name, number);
        let free = |at: &&AtomicU64| {
            at.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let at = if alone { &self.0[0] } else { self.0.iter().find(free)? };
        if alone {
            at.store(word, Ordering::Relaxed);
        }
        // The processor's order is the other side's affair, the compiler's is not.
        #[cfg(not(loom))]
        compiler_fence(Ordering::SeqCst);
        Some(Copy(at))
    }

    /// By the owner of the region, after it has withdrawn it and fenced: waits until it is written
    /// down no more, or `is_enough` says so.
    pub(crate) fn wait(&self, name: u32, number: u32, is_enough: impl Fn() -> bool) {
        let word = word(name, number);
        for at in &self.0 {
            // SYNC: copied
            while at.load(Ordering::Acquire) == word && !is_enough() {
                yield_now();
            }
        }
    }
}

impl Drop for Copy<'_> {
    #[inline]
    fn drop(&mut self) {
        // SYNC: copied (what was copied is there when this is seen)
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn so_many_threads_copy_at_a_time_and_no_more() {
        let line = Copying::default();
        let mut copies: Vec<_> = (0..THREADS).map(|_| line.begin(3, 5, false).unwrap()).collect();
        assert!(line.begin(3, 5, false).is_none());
        copies.pop();
        assert!(line.begin(4, 5, false).is_some());
    }

    #[test]
    fn another_region_is_not_waited_for_and_who_copies_for_ever_not_longer_than_enough() {
        let line = Copying::default();
        let copy = line.begin(3, 5, true);
        line.wait(3, 6, || unreachable!());
        line.wait(4, 5, || unreachable!());
        let looks = std::cell::Cell::new(0);
        line.wait(3, 5, || looks.replace(looks.get() + 1) == 7);
        assert_eq!(looks.get(), 8);
        drop(copy);
        line.wait(3, 5, || unreachable!());
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use crate::sync::fence;
    use loom::sync::Arc;
    use loom::thread;

    /// What the owner puts at the place of a region that it has unlocked stays as it is.
    fn nobody_copies_after_the_wait(alone: bool) {
        loom::model(move || {
            let shared = Arc::new((Copying::default(), AtomicU64::new(1), AtomicU64::new(0)));
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let Some(_copy) = other.0.begin(3, 5, alone) else { return };
                fence(Ordering::SeqCst);
                if other.1.load(Ordering::Acquire) == 1 {
                    other.2.store(7, Ordering::Relaxed);
                }
            });
            shared.1.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            shared.0.wait(3, 5, || false);
            shared.2.store(9, Ordering::Relaxed);
            thread.join().unwrap();
            assert_eq!(shared.2.load(Ordering::Relaxed), 9);
        });
    }

    #[test]
    fn a_process_of_one_thread_copies_nothing_after_the_wait() {
        nobody_copies_after_the_wait(true);
    }

    #[test]
    fn a_process_of_several_threads_copies_nothing_after_the_wait() {
        nobody_copies_after_the_wait(false);
    }
}
