//! The receiver state of a process: whether it sleeps and must be woken, and whether it has exited.
//!
//! A fence on every send would cost more than the send. Therefore a receiver that is about to
//! sleep, or a process that exits, fences for both sides. It writes the state, issues a barrier
//! that reaches every running sender (`membarrier`), and only then checks the rings. A sender
//! publishes a message and then loads the state. Either the sender reads the new state, or the
//! receiver finds the message. If the kernel refuses `membarrier` to the owner of a state, the
//! state has the bit `NEEDS_FENCE`, and senders fence. If the kernel refuses it to a sender, that
//! sender always fences.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU32, Ordering, fence};

/// The owner sleeps or is about to: ring its doorbell.
pub(crate) const SLEEPING: u32 = 1;
/// The owner has exited: messages to it are dropped.
pub(crate) const EXITED: u32 = 2;
/// The owner cannot issue the barrier: senders have to fence before they trust this word.
pub(crate) const NEEDS_FENCE: u32 = 4;

/// The shared word.
#[repr(transparent)]
pub(crate) struct ReceiverState(pub(crate) AtomicU32);

impl ReceiverState {
    /// Called by a sender after it has published a message. Returns the bits that the sender has to
    /// handle (`SLEEPING`, `EXITED`).
    #[inline(always)]
    pub(crate) fn load_after_publish(&self, sender_always_fences: bool) -> u32 {
        // SYNC: receiver-state
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

    /// Called by a sender that never fences, after it has published a message. True: the sender has
    /// to call `load_after_publish`.
    #[inline(always)]
    #[cfg(not(loom))]
    pub(crate) fn needs_attention(&self) -> bool {
        // SYNC: receiver-state
        crate::sync::compiler_fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Called by a sender that has read `SLEEPING`. True for exactly one sender, which then rings
    /// the doorbell.
    pub(crate) fn clear_sleeping(&self) -> bool {
        self.0.fetch_and(!SLEEPING, Ordering::AcqRel) & SLEEPING != 0
    }

    /// Called by the owner before it sleeps. The owner may rely only on values that it reads
    /// afterwards.
    pub(crate) fn set_sleeping(&self, barrier: impl Fn()) {
        self.set(SLEEPING, barrier);
    }

    /// Called by the owner when it exits, or by a process that has detected its exit.
    pub(crate) fn set_exited(&self, barrier: impl Fn()) {
        self.set(EXITED, barrier);
    }

    fn set(&self, bit: u32, barrier: impl Fn()) {
        self.0.fetch_or(bit, Ordering::SeqCst);
        // SYNC: receiver-state
        fence(Ordering::SeqCst);
        barrier();
    }

    /// All bits.
    #[inline(always)]
    pub(crate) fn bits(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
