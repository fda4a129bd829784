//! A process's door: whether it sleeps and wants to be woken, and whether it has gone.
//!
//! A fence on every send would cost more than the send. So the two who seldom come, a receiver
//! that is about to sleep and a process that exits, pay for both sides: they write the door,
//! issue a barrier that reaches every running sender (`membarrier`), and only then look at the
//! rings. A sender publishes and then loads the door: either it sees the door, or they see the
//! message. Where `membarrier` is refused to the owner of a door, the door says so and senders
//! fence; where it is refused to a sender, that sender fences always.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU32, Ordering, fence};

/// The owner sleeps or is about to: ring.
pub(crate) const SLEEPING: u32 = 1;
/// The owner has gone: what is sent to it is dropped.
pub(crate) const EXITED: u32 = 2;
/// The owner cannot issue the barrier: fence before you trust this word.
pub(crate) const NEEDS_FENCE: u32 = 4;

/// The shared word.
#[repr(transparent)]
pub(crate) struct ReceiverState(pub(crate) AtomicU32);

impl ReceiverState {
    /// By a sender, after it has published: what it has to do (`SLEEPING`, `EXITED`).
    #[inline(always)]
    pub(crate) fn load_after_publish(&self, sender_always_fences: bool) -> u32 {
        // SYNC: door
        if sender_always_fences || cfg!(loom) {
            fence(Ordering::SeqCst);
        } else {
            #[cfg(not(loom))]
            crate::sync::compiler_fence(Ordering::SeqCst);
        }
        let bits = self.0.load(Ordering::Relaxed);
        if bits & NEEDS_FENCE == 0 || sender_always_fences {
            return bits & (SLEEPING | EXITED);
        }
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) & (SLEEPING | EXITED)
    }

    /// By a sender that never fences, after it has published: whether it has to `load_after_publish`.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) fn needs_attention(&self) -> bool {
        // SYNC: door
        crate::sync::compiler_fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }

    /// By a sender that saw `SLEEPING`: true for exactly one, who then rings the bell.
    pub(crate) fn clear_sleeping(&self) -> bool {
        self.0.fetch_and(!SLEEPING, Ordering::AcqRel) & SLEEPING != 0
    }

    /// By the owner before it sleeps. Only what it looks at afterwards counts.
    pub(crate) fn set_sleeping(&self, barrier: impl Fn()) {
        self.set(SLEEPING, barrier);
    }

    /// By the owner when it goes, or by who saw it dead.
    pub(crate) fn set_exited(&self, barrier: impl Fn()) {
        self.set(EXITED, barrier);
    }

    fn set(&self, bit: u32, barrier: impl Fn()) {
        self.0.fetch_or(bit, Ordering::SeqCst);
        // SYNC: door
        fence(Ordering::SeqCst);
        barrier();
    }

    /// The word itself.
    #[inline(always)]
    pub(crate) fn bits(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
