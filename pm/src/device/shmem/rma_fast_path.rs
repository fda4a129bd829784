//! The fast path to a peer's memory: copies one word between regions of PM's own allocator, in
//! serialized calls. It checks all preconditions once, then copies by one store. If a precondition
//! fails, it changes nothing and leaves the operation to `rma.rs`.

// UNSAFETY: copies between addresses in mappings.
#![expect(unsafe_code)]

use super::send::Target;
use crate::receiver_state::{EXITED, NEEDS_FENCE};
use crate::rma::{AddrHandle, Direction, WORD, find_word};
use crate::sync::{AtomicU64, Ordering};

impl Target {
    /// Like `ShmemEndpoint::start_rma`, for one word. The calls are serialized, and the process
    /// need not fence. False: nothing has happened, and the caller has to call `start_rma`.
    #[inline(always)]
    pub(crate) fn copy_one_word(
        &self,
        direction: Direction,
        [remote, local]: [AddrHandle; 2],
    ) -> bool {
        let is_write = direction == Direction::Write;
        if is_write {
            self.rma_fast_path.prefetch_word(remote);
        }
        let Some(Some(peer_arena)) = self.rma_fast_path.peer_arena.get() else { return false };
        let Some(local_offset) = find_word(peer_arena.local_regions(), local) else { return false };
        let self_record = self.self_record();
        let Some(copy) =
            self_record.copy_hazards.begin(self.node_plus_one, remote.region_bits(), true)
        else {
            return false;
        };
        let Some(remote_offset) = find_word(&self.rma_fast_path.regions().entries, remote) else {
            return false;
        };
        if self.record().receiver_state.0.bits() & (EXITED | NEEDS_FENCE) != 0 {
            return false;
        }
        let (local_ptr, remote_ptr) = (
            peer_arena.local_start.wrapping_add(local_offset),
            peer_arena.remote_ptr(remote_offset),
        );
        let (from, to) = if is_write { (local_ptr, remote_ptr) } else { (remote_ptr, local_ptr) };
        // SAFETY: both are inside mappings of parts of the arena, which are never unmapped, at
        // offsets that were checked against their parts.
        if !unsafe { copy_word(from, to) } {
            return false;
        }
        drop(copy);
        self.rma_fast_path.count_started(true);
        if is_write {
            self.rma_fast_path.remember_addr(remote, to);
        }
        self_record.send.0.count_rma_bytes(direction, WORD);
        true
    }
}

/// Copies a word as one unit that other processes may wait for. False: an address is not aligned.
///
/// # Safety
/// The word is mapped at both addresses.
#[inline(always)]
pub(super) unsafe fn copy_word(from: *const u8, to: *mut u8) -> bool {
    if !(from.addr() | to.addr()).is_multiple_of(WORD) {
        return false;
    }
    // SAFETY: aligned, and mapped by the caller's promise; shared memory is accessed by atomics.
    let (from, to) = unsafe { (&*from.cast::<AtomicU64>(), &*to.cast::<AtomicU64>()) };
    // A process that reads the new word also reads the results of all earlier writes.
    to.store(from.load(Ordering::Acquire), Ordering::Release);
    true
}
