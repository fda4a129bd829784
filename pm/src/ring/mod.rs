//! One ring: messages from one process to one other, in order, through memory they share.
//!
//! Both ends count slots with 64-bit indices that only grow; `index & (slots - 1)` says which slot,
//! and the rest of it the lap. Slots that follow one another do not lie side by side (see
//! [`SLOT_ORDER`]). The sender publishes a message with one release store of
//! its slot's header [`SlotHeader`]; the receiver gives credit back with one release store of its
//! index. A message of up to [`INLINE_LEN`] bytes lies in its slot, so that an 8-byte message moves
//! one cache line; in a slot of two lines there is room for 112. A longer one lies in one of two
//! homes, where both ends have its lines still, if one of them is known to be free; else in the
//! data area, at a position that grows as indices do, and never wraps inside a message. All zero is
//! an empty ring.
//!
//! All state of a ring is in the ring: ends may be made, dropped and made again. Whatever is
//! read from it is loaded once and checked; every address is masked or bounded by the private
//! [`RingGeometry`], so that a ring full of garbage costs its own messages and nothing else.

// UNSAFETY: works on raw memory that another process writes at the same time.
#![allow(unsafe_code)]

mod consumer;
#[cfg(all(test, loom))]
mod loom_tests;
mod producer;
#[cfg(not(loom))]
mod restore;
mod slot_header;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use consumer::{Consumer, InlineMessage, PeekResult, PollTarget, TakenMessage};
pub(crate) use producer::{Producer, Reservation};
#[cfg(not(loom))]
pub(crate) use restore::Saved;
pub(crate) use slot_header::SlotHeader;

use crate::error::{Error, PmResult};
use crate::sync::{AtomicU64, Ordering};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Bytes of payload in the first line of a slot.
pub(crate) const INLINE_LEN: usize = 48;
/// Where that begins.
const SLOT_HEADER_LEN: usize = 16;
/// Unit of the data area: no two messages share a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Position of a message in its slot.
pub(crate) const IN_SLOT: u64 = u64::MAX;
/// Position of a message in the first home; in the second, one more. Those in the data area are
/// below it.
const FIXED_BUFFER_POSITION: u64 = 1 << 63;
/// Homes of a ring.
const FIXED_BUFFER_COUNT: usize = 2;

/// Which home that is.
#[inline(always)]
fn fixed_buffer_of(position: u64) -> Option<usize> {
    let buffer = (position ^ FIXED_BUFFER_POSITION) as usize;
    (buffer < FIXED_BUFFER_COUNT).then_some(buffer)
}

/// The indices that one end of a ring writes.
#[repr(C, align(128))]
pub(crate) struct RingCursors {
    /// Messages passed so far.
    pub(crate) index: AtomicU64,
    /// Position in the data area passed so far.
    pub(crate) data_position: AtomicU64,
    /// The sender's: the index after the last message in each home. That is free once the receiver
    /// has passed it.
    pub(crate) fixed_buffer_indices: [AtomicU64; FIXED_BUFFER_COUNT],
}

/// The head of a ring: 128 bytes for each end, because processors fetch lines in pairs.
#[repr(C)]
pub(crate) struct RingHeader {
    pub(crate) producer: RingCursors,
    pub(crate) consumer: RingCursors,
}

/// One message's cache line.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) header: AtomicU64,
    /// Where a long message lies; written before the word.
    pub(crate) position: AtomicU64,
    /// Of a message that lies elsewhere, the first word: see `Received::passed`.
    pub(crate) payload: UnsafeCell<[u8; INLINE_LEN]>,
    #[cfg(loom)]
    pub(crate) passed: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == CACHE_LINE);
    assert!(size_of::<RingHeader>() == 256);
    assert!(std::mem::offset_of!(Slot, payload) == SLOT_HEADER_LEN);
};

/// The order in which slots are used: their numbers with the bits reversed. A processor that sees
/// lines used at equal distances fetches those to come, as it fetches the other one of a pair, and
/// takes them from the sender that is about to write them or from the receiver that waits for them:
/// 8 bytes one way take 55 ns in slots that are used as they lie, 45 in this order, and 34 where
/// each has a pair of lines for itself as well, over a floor of 36.
static SLOT_ORDER: [u8; MAX_SLOTS] = {
    let mut order = [0; MAX_SLOTS];
    let mut number = 0;
    while number < MAX_SLOTS {
        order[number] = (number as u8).reverse_bits();
        number += 1;
    }
    order
};

/// The most slots of a ring.
pub(crate) const MAX_SLOTS: usize = 256;

/// The sizes of a ring; small, because every end keeps them beside what each message needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingGeometry {
    /// Number of slots, a power of two up to [`MAX_SLOTS`].
    pub(crate) slot_count: u16,
    /// Lines that a slot has to itself: 1, or a pair.
    pub(crate) lines_per_slot: u8,
    /// Bytes of the data area, a power of two, or 0 where messages are never long.
    pub(crate) data_len: u32,
    /// Bytes from one home to the next, or 0 where there are none.
    pub(crate) fixed_buffer_stride: u16,
    /// The longest message.
    pub(crate) mtu: u16,
}

impl RingGeometry {
    /// Bytes from the head to the end of the homes, which follow the data area.
    pub(crate) const fn bytes(self) -> usize {
        size_of::<RingHeader>()
            + self.slot_bytes()
            + self.data_len as usize
            + FIXED_BUFFER_COUNT * self.fixed_buffer_stride as usize
    }

    /// The longest message that lies in its slot.
    pub(crate) const fn max_inline_len(self) -> usize {
        self.lines_per_slot as usize * CACHE_LINE - SLOT_HEADER_LEN
    }

    const fn slot_bytes(self) -> usize {
        self.slot_count as usize * self.lines_per_slot as usize * CACHE_LINE
    }
}

/// The place of a ring in memory.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    cursors: NonNull<RingHeader>,
    slots: NonNull<Slot>,
    data_area: NonNull<u8>,
    /// Slots minus 1.
    mask: u64,
    /// From twice an entry of [`SLOT_ORDER`] to the place of a slot, in lines.
    shift: u32,
    /// As `RingGeometry::inline`.
    max_inline_len: usize,
    geometry: RingGeometry,
}

impl Ring {
    /// The ring whose head is at `base`, followed by its slots and its data area.
    ///
    /// # Safety
    /// `base` points to `geometry.bytes()` bytes, aligned to 128, that stay mapped as long as the
    /// ring or an end of it is used, and that nobody uses otherwise than by these types.
    #[cfg(not(loom))]
    pub(crate) unsafe fn new(base: NonNull<u8>, geometry: RingGeometry) -> Ring {
        // SAFETY: inside the memory that the caller vouches for.
        unsafe {
            let slots = base.add(size_of::<RingHeader>());
            let data_area = slots.add(geometry.slot_bytes());
            Ring::from_parts(base.cast(), slots.cast(), data_area, geometry)
        }
    }

    /// The same from three separate parts, which loom needs.
    ///
    /// # Safety
    /// As `new`, for each part.
    pub(crate) unsafe fn from_parts(
        cursors: NonNull<RingHeader>,
        slots: NonNull<Slot>,
        data_area: NonNull<u8>,
        geometry: RingGeometry,
    ) -> Ring {
        assert!(geometry.slot_count.is_power_of_two() && geometry.slot_count as usize <= MAX_SLOTS);
        assert!(matches!(geometry.lines_per_slot, 1 | 2));
        debug_assert!(geometry.data_len == 0 || geometry.data_len.is_power_of_two());
        debug_assert!(
            geometry.fixed_buffer_stride == 0 || geometry.fixed_buffer_stride >= geometry.mtu
        );
        let max_inline_len = geometry.max_inline_len();
        let shift = MAX_SLOTS.ilog2() - geometry.slot_count.ilog2() + 2
            - u32::from(geometry.lines_per_slot);
        Ring {
            cursors,
            slots,
            data_area,
            mask: u64::from(geometry.slot_count) - 1,
            shift,
            max_inline_len,
            geometry,
        }
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.cursors.cast()
    }

    #[inline(always)]
    fn cursors(&self) -> &RingHeader {
        // SAFETY: valid by `new`; only atomics inside.
        unsafe { self.cursors.as_ref() }
    }

    /// The slot that `index` falls on; always inside the ring.
    #[inline(always)]
    fn slot(&self, index: u64) -> &Slot {
        // SAFETY: a slot; only atomics and a cell inside.
        unsafe { self.slot_ptr(index).as_ref() }
    }

    #[inline(always)]
    fn slot_ptr(&self, index: u64) -> NonNull<Slot> {
        let number = (index & self.mask) as u8;
        let line_offset = (usize::from(SLOT_ORDER[usize::from(number)]) * 2) >> self.shift;
        // SAFETY: a number below that of the slots has zeros below the bits that are shifted out
        // and so is one again, times `lines`.
        unsafe { self.slots.add(line_offset) }
    }

    /// The lines of that slot that a message of `len` bytes lies in.
    #[inline(always)]
    fn slot_lines(&self, index: u64, len: usize) -> impl Iterator<Item = *const Slot> {
        let slot = self.slot_ptr(index).as_ptr().cast_const();
        let lines = if len > INLINE_LEN { usize::from(self.geometry.lines_per_slot) } else { 1 };
        (0..lines).map(move |line| slot.wrapping_add(line))
    }

    /// The same with the place of a payload there, in all lines that the slot has.
    #[inline(always)]
    fn slot_and_payload(&self, index: u64) -> (&Slot, *mut u8) {
        let slot = self.slot_ptr(index);
        // SAFETY: as in `slot`, and inside it.
        unsafe { (slot.as_ref(), slot.cast::<u8>().add(SLOT_HEADER_LEN).as_ptr()) }
    }

    /// The word that a long message has there instead.
    #[inline(always)]
    fn credit_word(&self, index: u64) -> &AtomicU64 {
        #[cfg(loom)]
        return &self.slot(index).passed;
        #[cfg(not(loom))]
        // SAFETY: inside the slot, and aligned; only atomics and a cell.
        unsafe {
            &*self.slot_and_payload(index).1.cast()
        }
    }

    #[inline(always)]
    fn max_inline_len(&self) -> usize {
        self.max_inline_len
    }

    /// What marks a message of the lap of `index`, in the upper half of its word: the index that
    /// the next lap begins with. A lap's mark is that of the lap before and the number of slots.
    #[inline(always)]
    fn mark(&self, index: u64) -> u64 {
        (index | self.mask).wrapping_add(1) << 32
    }

    /// Whether `word` is the message of `index`. Io: no sender of ours has written it.
    #[inline(always)]
    fn is_published(&self, index: u64, header: SlotHeader) -> PmResult<bool> {
        let distance = self.mark(index).wrapping_sub(header.mark()) >> 32;
        match distance {
            0 => Ok(true),
            _ if distance == self.mask + 1 => Ok(false),
            _ => Err(Error::Io),
        }
    }

    /// The address of `position` in the data area; always inside it.
    #[inline(always)]
    fn data_at(&self, position: u64) -> *mut u8 {
        debug_assert!(self.geometry.data_len != 0);
        let offset = (position & u64::from(self.geometry.data_len - 1)) as usize;
        // SAFETY: masked to the area that `new` vouches for.
        unsafe { self.data_area.add(offset).as_ptr() }
    }

    /// The address of a home, where there are homes.
    #[inline(always)]
    fn fixed_buffer_at(&self, buffer: usize) -> *mut u8 {
        debug_assert!(buffer < FIXED_BUFFER_COUNT && self.geometry.fixed_buffer_stride != 0);
        let offset = self.geometry.data_len as usize
            + (buffer % FIXED_BUFFER_COUNT) * self.geometry.fixed_buffer_stride as usize;
        // SAFETY: behind the data area, in what `new` vouches for.
        unsafe { self.data_area.add(offset).as_ptr() }
    }

    /// Messages sent and not yet released, as the indices say; never more than there are slots.
    pub(crate) fn queued(&self) -> u64 {
        let cursors = self.cursors();
        let consumed = cursors.consumer.index.load(Ordering::Acquire);
        let produced = cursors.producer.index.load(Ordering::Acquire);
        produced.wrapping_sub(consumed).min(u64::from(self.geometry.slot_count))
    }

    /// Where that lies.
    pub(crate) fn consumer_index_ptr(&self) -> NonNull<AtomicU64> {
        NonNull::from(&self.cursors().consumer.index)
    }

    /// The receiver's index.
    pub(crate) fn consumer_index(&self) -> u64 {
        self.cursors().consumer.index.load(Ordering::Acquire)
    }

    /// Counts as received, in the place of a receiver that has exited, every message that is
    /// queued and that nobody else has counted so. Answers how many.
    pub(crate) fn claim_all(&self) -> u64 {
        let first = self.cursors().consumer.index.load(Ordering::Relaxed);
        let mut claimed = 0;
        for index in (0..u64::from(self.geometry.slot_count)).map(|i| first.wrapping_add(i)) {
            // SYNC: slot
            let header = SlotHeader(self.slot(index).header.load(Ordering::Acquire));
            if self.is_published(index, header) != Ok(true) {
                break;
            }
            claimed += u64::from(self.claim(index, header));
        }
        claimed
    }

    /// Claims one message: true for exactly one of all who try.
    pub(crate) fn claim(&self, index: u64, header: SlotHeader) -> bool {
        !header.is_claimed()
            && self
                .slot(index)
                .header
                .compare_exchange(header.0, header.claimed().0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}
