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
const HAZARD_SLOTS: usize = 8;

/// A process's line. Zero: nothing.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct CopyHazards([AtomicU64; HAZARD_SLOTS]);

/// A copy that is written down, until this is dropped.
pub(crate) struct CopyGuard<'a>(&'a AtomicU64);

/// A region of a node, in one word; `owner`: 1 + the node.
#[inline(always)]
fn hazard(owner: u32, region_bits: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(region_bits)
}

impl CopyHazards {
    /// Writes a copy down. `alone`: this process has one thread. None: too many copy. Only what is
    /// looked at after a fence counts.
    #[inline]
    pub(crate) fn begin(
        &self,
        owner: u32,
        region_bits: u32,
        single_threaded: bool,
    ) -> Option<CopyGuard<'_>> {
        let hazard_value = hazard(owner, region_bits);
        let claim = |slot: &&AtomicU64| {
            slot.compare_exchange(0, hazard_value, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let slot = if single_threaded { &self.0[0] } else { self.0.iter().find(claim)? };
        if single_threaded {
            slot.store(hazard_value, Ordering::Relaxed);
        }
        // The processor's order is the other side's affair, the compiler's is not.
        #[cfg(not(loom))]
        compiler_fence(Ordering::SeqCst);
        Some(CopyGuard(slot))
    }

    /// By the owner of the region, after it has withdrawn it and fenced: waits until it is written
    /// down no more, or `should_stop` says so.
    pub(crate) fn wait(&self, owner: u32, region_bits: u32, should_stop: impl Fn() -> bool) {
        let hazard_value = hazard(owner, region_bits);
        for slot in &self.0 {
            // SYNC: copied
            while slot.load(Ordering::Acquire) == hazard_value && !should_stop() {
                yield_now();
            }
        }
    }
}

impl Drop for CopyGuard<'_> {
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
    fn at_most_eight_threads_copy_at_a_time() {
        let hazards = CopyHazards::default();
        let mut copies: Vec<_> =
            (0..HAZARD_SLOTS).map(|_| hazards.begin(3, 5, false).unwrap()).collect();
        assert!(hazards.begin(3, 5, false).is_none());
        copies.pop();
        assert!(hazards.begin(4, 5, false).is_some());
    }

    #[test]
    fn another_region_is_not_waited_for_and_an_endless_copy_only_until_the_caller_stops() {
        let hazards = CopyHazards::default();
        let copy = hazards.begin(3, 5, true);
        hazards.wait(3, 6, || unreachable!());
        hazards.wait(4, 5, || unreachable!());
        let checks = std::cell::Cell::new(0);
        hazards.wait(3, 5, || checks.replace(checks.get() + 1) == 7);
        assert_eq!(checks.get(), 8);
        drop(copy);
        hazards.wait(3, 5, || unreachable!());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::fence;
    use loom::sync::Arc;
    use loom::thread;

    /// What the owner puts at the place of a region that it has unlocked stays as it is.
    fn nobody_copies_after_the_wait(alone: bool) {
        loom::model(move || {
            let shared = Arc::new((CopyHazards::default(), AtomicU64::new(1), AtomicU64::new(0)));
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
