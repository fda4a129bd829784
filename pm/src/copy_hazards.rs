//! Hazard slots, in which a process publishes the regions that it is copying into or out of. A
//! process that unlocks a region waits until all copies of it have ended. Therefore no copy touches
//! memory that later occupies the same addresses.
//!
//! A process that copies publishes the region in a hazard slot, then checks that the region is
//! locked. A process that unlocks withdraws the region, then checks the hazard slots of its peers.
//! At least one of the two processes has to read the word that the other has written. Therefore
//! both need a fence between their two steps. A copy of PM's own memory takes only a few
//! instructions and no fence. For such memory the process that unlocks issues a barrier for both
//! sides, like a receiver that goes to sleep (see `receiver_state.rs`).

#![forbid(unsafe_code)]

use crate::sync::{AtomicU64, Ordering, compiler_fence, yield_now};

/// The number of threads of a process that can copy at the same time.
const HAZARD_SLOTS: usize = 8;

/// The hazard slots of a process, in one cache line. Zero: no copy.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct CopyHazards([AtomicU64; HAZARD_SLOTS]);

/// Keeps a copy published until it is dropped.
pub(crate) struct CopyGuard<'a>(&'a AtomicU64);

/// A region of a node, in one word; `owner` is 1 + the node.
#[inline(always)]
fn hazard(owner: u32, region_bits: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(region_bits)
}

impl CopyHazards {
    /// Publishes a copy. `is_serialized`: no other thread of this process copies meanwhile. None:
    /// all slots are in use. The caller may rely only on values that it reads after a fence.
    #[inline]
    pub(crate) fn begin(
        &self,
        owner: u32,
        region_bits: u32,
        is_serialized: bool,
    ) -> Option<CopyGuard<'_>> {
        let hazard_value = hazard(owner, region_bits);
        let claim = |slot: &&AtomicU64| {
            slot.compare_exchange(0, hazard_value, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let slot = if is_serialized { &self.0[0] } else { self.0.iter().find(claim)? };
        if is_serialized {
            slot.store(hazard_value, Ordering::Relaxed);
        }
        // The caller or the other side issues the barrier; this only orders the compiler.
        compiler_fence(Ordering::SeqCst);
        Some(CopyGuard(slot))
    }

    /// Waits until the region is in no slot, or `should_stop` returns true. Called by the owner of
    /// the region after it has withdrawn it and fenced.
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
        // SYNC: copied (a process that sees the slot empty also sees the copied bytes)
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
    fn an_unlock_waits_only_for_copies_of_its_own_region_and_not_for_ever() {
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
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// Checks that no copy overwrites the bytes that the owner writes to a region after the unlock.
    fn check_no_copy_after_the_wait(is_serialized: bool) {
        loom::model(move || {
            let shared = Arc::new((CopyHazards::default(), AtomicU64::new(1), AtomicU64::new(0)));
            let other = shared.clone();
            let thread = thread::spawn(move || {
                let Some(_copy) = other.0.begin(3, 5, is_serialized) else { return };
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
    fn a_process_of_one_thread_makes_no_copy_after_the_wait() {
        check_no_copy_after_the_wait(true);
    }

    #[test]
    fn a_process_of_several_threads_makes_no_copy_after_the_wait() {
        check_no_copy_after_the_wait(false);
    }

    /// Two threads of a process use the same slot, one after the other.
    #[test]
    fn threads_that_serialize_their_copies_make_no_copy_after_the_wait() {
        loom::model(|| {
            let shared = Arc::new((CopyHazards::default(), AtomicU64::new(1), AtomicU64::new(0)));
            let turn = Arc::new(Mutex::new(()));
            let threads = [7, 8].map(|value| {
                let (other, turn) = (shared.clone(), turn.clone());
                thread::spawn(move || {
                    let _turn = turn.lock().unwrap();
                    let _copy = other.0.begin(3, 5, true).unwrap();
                    fence(Ordering::SeqCst);
                    if other.1.load(Ordering::Acquire) == 1 {
                        other.2.store(value, Ordering::Relaxed);
                    }
                })
            });
            shared.1.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            shared.0.wait(3, 5, || false);
            shared.2.store(9, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(shared.2.load(Ordering::Relaxed), 9);
        });
    }
}
