//! The short way to a peer's memory: a word between regions of PM's own allocator, in a process of
//! one thread. One look at everything that could be different, then the copy itself, by one store.
//! Whatever is different is left to `remote.rs`, untouched, so that this calls no other function.

// UNSAFETY: copies between places in mappings.
#![expect(unsafe_code)]

use super::send::Target;
use crate::door::{EXITED, FENCED};
use crate::remote::{AddrHandle, Arena, Direction, Table, WORD, find_word};
use crate::segment::layout::Regions;
use crate::sync::{AtomicU32, AtomicU64, Local, Ordering, prefetch_write};
use memmap2::MmapRaw;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// What a target knows of its node's memory.
pub(super) struct Reach {
    /// What the node has locked.
    regions: NonNull<Regions>,
    /// None inside: its part of the arena cannot be mapped.
    pub(super) part: OnceLock<Option<Part>>,
    /// Operations by relay that are under way.
    pub(super) relayed: AtomicU32,
    /// What leads from the bits of a handle to its word, in the region that was written last.
    slide: Local,
}

impl Reach {
    pub(super) fn new(regions: &Regions) -> Reach {
        Reach {
            regions: NonNull::from(regions),
            part: OnceLock::new(),
            relayed: AtomicU32::new(0),
            slide: Local::default(),
        }
    }

    #[inline(always)]
    fn regions(&self) -> &Regions {
        // SAFETY: points into the segment of the endpoint that owns `self`; only atomics.
        unsafe { self.regions.as_ref() }
    }

    /// Has the line of a word come here while its handle is checked. Of another region than the
    /// last it is any line or none, which does no harm.
    #[inline(always)]
    fn fetch(&self, word: AddrHandle) {
        let at = word.bits().wrapping_add(self.slide.get());
        prefetch_write(std::ptr::without_provenance::<u8>(at as usize));
    }

    /// Where that word lay.
    #[inline(always)]
    fn learn(&self, word: AddrHandle, at: *const u8) {
        self.slide.set((at.addr() as u64).wrapping_sub(word.bits()));
    }
}

/// A peer's part of the arena, mapped, and the own one.
pub(super) struct Part {
    map: MmapRaw,
    here: *mut u8,
    /// The own table of regions.
    own: NonNull<Table>,
}

impl Part {
    /// `arena` and `own` are those of the endpoint that keeps this.
    pub(super) fn new(map: MmapRaw, arena: &Arena, own: &Table) -> Part {
        Part { map, here: arena.first(), own: NonNull::from(own) }
    }

    #[inline(always)]
    fn own(&self) -> &Table {
        // SAFETY: the endpoint that keeps `self` never drops its table before it.
        unsafe { self.own.as_ref() }
    }

    /// Where something in the peer's part is mapped here.
    #[inline(always)]
    pub(super) fn at(&self, place: usize) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(place)
    }
}

// SAFETY: what is pointed to is kept by the endpoint, and used by atomics.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Target {
    /// In a process of one thread that need not fence. As `Endpoint::remote`, for a word; false,
    /// and nothing has happened: that knows.
    #[inline(always)]
    pub(crate) fn move_word(&self, direction: Direction, [remote, local]: [AddrHandle; 2]) -> bool {
        let writes = direction == Direction::Write;
        if writes {
            self.reach.fetch(remote);
        }
        let Some(Some(part)) = self.reach.part.get() else { return false };
        let Some(here) = find_word(part.own(), local) else { return false };
        let own = self.own();
        let Some(copy) = own.copying.begin(self.name, remote.number(), true) else { return false };
        let Some(there) = find_word(&self.reach.regions().entries, remote) else { return false };
        if self.record().door.0.bits() & (EXITED | FENCED) != 0
            || self.reach.relayed.load(Ordering::Acquire) != 0
        {
            return false;
        }
        let (here, there) = (part.here.wrapping_add(here), part.at(there));
        let (from, to) = if writes { (here, there) } else { (there, here) };
        // SAFETY: both lie in mappings of parts of the arena, which stay, at places that were
        // checked against their parts.
        if !unsafe { copy_word(from, to) } {
            return false;
        }
        drop(copy);
        if writes {
            self.reach.learn(remote, to);
        }
        own.send.0.count_moved(direction, WORD);
        true
    }
}

/// Copies a word in one piece, for who waits for it. False: it is not aligned at both places.
///
/// # Safety
/// It is mapped at both.
#[inline(always)]
pub(super) unsafe fn copy_word(from: *const u8, to: *mut u8) -> bool {
    if !(from.addr() | to.addr()).is_multiple_of(WORD) {
        return false;
    }
    // SAFETY: aligned, and as the caller says; shared memory is used by atomics.
    let (from, to) = unsafe { (&*from.cast::<AtomicU64>(), &*to.cast::<AtomicU64>()) };
    // Who sees it sees what was written before it.
    to.store(from.load(Ordering::Acquire), Ordering::Release);
    true
}
