//! The state with which this node accesses the memory of a peer.

// UNSAFETY: points to tables in the segment and in the endpoint.
#![expect(unsafe_code)]

use crate::rma::{AddrHandle, Arena, Table};
use crate::segment::layout::RegionTable;
use crate::sync::{AtomicU64, Ordering, SingleWriterU64, prefetch_write};
use memmap2::MmapRaw;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// The access to the memory of one peer.
pub(super) struct PeerMemory {
    /// The regions that the node has locked.
    remote_regions: NonNull<RegionTable>,
    /// The node's part of the arena, if it was mapped. None inside: it cannot be mapped.
    pub(super) peer_arena: OnceLock<Option<PeerArena>>,
    /// The number of the last operation that was started. All operations up to this number have
    /// ended.
    started_count: AtomicU64,
    /// The difference between the address of a word and the bits of its handle, for the region that
    /// was written last.
    handle_to_addr: SingleWriterU64,
}

impl PeerMemory {
    pub(super) fn new(regions: &RegionTable) -> PeerMemory {
        PeerMemory {
            remote_regions: NonNull::from(regions),
            peer_arena: OnceLock::new(),
            started_count: AtomicU64::new(0),
            handle_to_addr: SingleWriterU64::default(),
        }
    }

    #[inline(always)]
    pub(super) fn regions(&self) -> &RegionTable {
        // SAFETY: points into the segment of the endpoint that owns `self`; only atomics.
        unsafe { self.remote_regions.as_ref() }
    }

    /// Counts an operation that has ended. `is_serialized`: no other thread counts at the same
    /// time.
    #[inline(always)]
    pub(super) fn count_started(&self, is_serialized: bool) {
        if is_serialized {
            let count = self.started_count.load(Ordering::Relaxed);
            self.started_count.store(count.wrapping_add(1), Ordering::Release);
        } else {
            self.started_count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The number of the operation that starts next, if no other thread starts one meanwhile.
    pub(super) fn next_number(&self) -> u64 {
        self.started_count.load(Ordering::Relaxed).wrapping_add(1)
    }

    /// The number of the operation that was started last.
    pub(super) fn started_count(&self) -> u64 {
        self.started_count.load(Ordering::Acquire)
    }

    /// Prefetches the line of a word while its handle is checked. If the word is not in the region
    /// that was written last, this fetches an unrelated line or none, which does no harm.
    #[inline(always)]
    pub(super) fn prefetch_word(&self, word: AddrHandle) {
        let addr = word.bits().wrapping_add(self.handle_to_addr.get());
        prefetch_write(std::ptr::without_provenance::<u8>(addr as usize));
    }

    /// Records the address of a word, for [`PeerMemory::prefetch_word`].
    #[inline(always)]
    pub(super) fn remember_addr(&self, word: AddrHandle, addr: *const u8) {
        self.handle_to_addr.set((addr.addr() as u64).wrapping_sub(word.bits()));
    }
}

/// The mapped part of the arena of a peer, and this node's own part.
pub(super) struct PeerArena {
    mapping: MmapRaw,
    pub(super) local_start: *mut u8,
    /// The regions of this process.
    local_regions: NonNull<Table>,
}

impl PeerArena {
    /// `arena` and `local_regions` belong to the endpoint that keeps this.
    pub(super) fn new(mapping: MmapRaw, arena: &Arena, local_regions: &Table) -> PeerArena {
        PeerArena {
            mapping,
            local_start: arena.first(),
            local_regions: NonNull::from(local_regions),
        }
    }

    #[inline(always)]
    pub(super) fn local_regions(&self) -> &Table {
        // SAFETY: the endpoint that keeps `self` never drops its table before `self`.
        unsafe { self.local_regions.as_ref() }
    }

    /// The local address of an offset in the peer's part.
    #[inline(always)]
    pub(super) fn remote_ptr(&self, offset: usize) -> *mut u8 {
        self.mapping.as_mut_ptr().wrapping_add(offset)
    }
}

// SAFETY: the endpoint keeps what the pointers point to, and all access is atomic.
unsafe impl Send for PeerArena {}
// SAFETY: as above.
unsafe impl Sync for PeerArena {}
