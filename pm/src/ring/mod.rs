//! A ring: it carries messages from one process to one other process, in order, through shared
//! memory.
//!
//! Both ends count messages with 64-bit indices that only grow. `index & (slots - 1)` is the number
//! of the slot, and the upper bits of the index are the number of the lap. Consecutive slots are
//! not adjacent in memory (see [`SLOT_ORDER`]). The sender publishes a message with one release
//! store of the slot's header, a [`SlotHeader`]. The receiver returns credit with one release store
//! of its index.
//!
//! A message of up to [`INLINE_LEN`] bytes is stored in the first line of its slot, so that an
//! 8-byte message moves one cache line. A slot of two lines has room for 112 bytes. A longer
//! message is stored in one of two fixed buffers, if one is known to be free. The lines of these
//! buffers are still in the caches of both ends. Otherwise the message is stored in the data area,
//! at a position that grows like the indices. No message wraps around the end of the area. A ring
//! of zeroes is empty.
//!
//! All state of a ring is in the ring, so that its ends can be created, dropped and created again.
//! Each value is loaded from the ring once and checked. Every address is masked or bounded by the
//! private [`RingGeometry`], so that garbage in a ring damages only the messages of this ring.

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
/// Bytes of a slot before the payload.
const SLOT_HEADER_LEN: usize = 16;
/// The unit of the data area: no two messages share a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// The position of a message that is stored in its slot.
pub(crate) const IN_SLOT: u64 = u64::MAX;
/// The position of a message in the first fixed buffer. The position for the second is one more.
/// Positions in the data area are below.
const FIXED_BUFFER_POSITION: u64 = 1 << 63;
/// The number of fixed buffers of a ring.
const FIXED_BUFFER_COUNT: usize = 2;

/// The fixed buffer of `position`. None: it is another kind of position.
#[inline(always)]
fn fixed_buffer_of(position: u64) -> Option<usize> {
    let buffer = (position ^ FIXED_BUFFER_POSITION) as usize;
    (buffer < FIXED_BUFFER_COUNT).then_some(buffer)
}

/// The indices that one end of a ring writes.
#[repr(C, align(128))]
pub(crate) struct RingCursors {
    /// Messages sent or released so far.
    pub(crate) index: AtomicU64,
    /// The end of the last message in the data area that was sent or released.
    pub(crate) data_position: AtomicU64,
    /// Used by the sender only: the index after the last message in each fixed buffer. The buffer
    /// is free once the receiver's index has reached it.
    pub(crate) fixed_buffer_indices: [AtomicU64; FIXED_BUFFER_COUNT],
}

/// The header of a ring: 128 bytes for each end, because processors fetch lines in pairs.
#[repr(C)]
pub(crate) struct RingHeader {
    pub(crate) producer: RingCursors,
    pub(crate) consumer: RingCursors,
}

/// The first cache line of a slot.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) header: AtomicU64,
    /// The position of a long message; written before the header.
    pub(crate) position: AtomicU64,
    /// For a long message, the first word is [`TakenMessage::piggybacked_credit`].
    pub(crate) payload: UnsafeCell<[u8; INLINE_LEN]>,
    #[cfg(loom)]
    pub(crate) piggybacked_credit: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == CACHE_LINE);
    assert!(size_of::<RingHeader>() == 256);
    assert!(std::mem::offset_of!(Slot, payload) == SLOT_HEADER_LEN);
};

/// The order in which slots are used: their numbers with the bits reversed. A processor that
/// detects accesses at equal distances prefetches the next lines. It also fetches the other line of
/// a pair. It thereby takes lines from the sender that is about to write them, or from the receiver
/// that polls them. Therefore a slot also has a pair of lines, if there is enough memory.
static SLOT_ORDER: [u8; MAX_SLOTS] = {
    let mut order = [0; MAX_SLOTS];
    let mut number = 0;
    while number < MAX_SLOTS {
        order[number] = (number as u8).reverse_bits();
        number += 1;
    }
    order
};

/// The largest number of slots of a ring.
pub(crate) const MAX_SLOTS: usize = 256;

/// The sizes of a ring. The types are small, because each end keeps them next to the fields that
/// every message needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingGeometry {
    /// The number of slots, a power of two up to [`MAX_SLOTS`].
    pub(crate) slot_count: u16,
    /// Cache lines of a slot: 1 or 2.
    pub(crate) lines_per_slot: u8,
    /// Bytes of the data area: a power of two, or 0 if all messages fit into slots.
    pub(crate) data_len: u32,
    /// Bytes from one fixed buffer to the next, or 0 if there are none.
    pub(crate) fixed_buffer_stride: u16,
    /// The longest message.
    pub(crate) mtu: u16,
}

impl RingGeometry {
    /// Bytes from the header to the end of the fixed buffers, which follow the data area.
    pub(crate) const fn bytes(self) -> usize {
        size_of::<RingHeader>()
            + self.slot_bytes()
            + self.data_len as usize
            + FIXED_BUFFER_COUNT * self.fixed_buffer_stride as usize
    }

    /// The longest message that fits into a slot.
    pub(crate) const fn max_inline_len(self) -> usize {
        self.lines_per_slot as usize * CACHE_LINE - SLOT_HEADER_LEN
    }

    const fn slot_bytes(self) -> usize {
        self.slot_count as usize * self.lines_per_slot as usize * CACHE_LINE
    }
}

/// The addresses and sizes of a ring.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    cursors: NonNull<RingHeader>,
    slots: NonNull<Slot>,
    data_area: NonNull<u8>,
    /// The number of slots minus 1.
    mask: u64,
    /// The right shift that turns twice an entry of [`SLOT_ORDER`] into the offset of a slot, in
    /// lines.
    shift: u32,
    /// A copy of `RingGeometry::max_inline_len`.
    max_inline_len: usize,
    geometry: RingGeometry,
}

impl Ring {
    /// The ring whose header is at `base`, followed by its slots and its data area.
    ///
    /// # Safety
    /// `base` points to `geometry.bytes()` bytes, aligned to 128, that stay mapped as long as the
    /// ring or an end of it is used, and that are accessed through these types only.
    #[cfg(not(loom))]
    pub(crate) unsafe fn new(base: NonNull<u8>, geometry: RingGeometry) -> Ring {
        // SAFETY: inside the memory that the caller has guaranteed.
        unsafe {
            let slots = base.add(size_of::<RingHeader>());
            let data_area = slots.add(geometry.slot_bytes());
            Ring::from_parts(base.cast(), slots.cast(), data_area, geometry)
        }
    }

    /// Like `new`, from three separate parts, which loom needs.
    ///
    /// # Safety
    /// Those of `new`, for each part.
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

    /// The address of the header.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.cursors.cast()
    }

    #[inline(always)]
    fn cursors(&self) -> &RingHeader {
        // SAFETY: valid by `new`; only atomics inside.
        unsafe { self.cursors.as_ref() }
    }

    /// The slot of `index`; always inside the ring.
    #[inline(always)]
    fn slot(&self, index: u64) -> &Slot {
        // SAFETY: a slot; only atomics and a cell inside.
        unsafe { self.slot_ptr(index).as_ref() }
    }

    #[inline(always)]
    fn slot_ptr(&self, index: u64) -> NonNull<Slot> {
        let number = (index & self.mask) as u8;
        let line_offset = (usize::from(SLOT_ORDER[usize::from(number)]) * 2) >> self.shift;
        // SAFETY: the shift turns the reversed bits of a slot number into another slot number,
        // times `lines_per_slot`, because the bits that are shifted out are zero.
        unsafe { self.slots.add(line_offset) }
    }

    /// The lines of the slot of `index` that a message of `len` bytes uses.
    #[inline(always)]
    fn slot_lines(&self, index: u64, len: usize) -> impl Iterator<Item = *const Slot> {
        let slot = self.slot_ptr(index).as_ptr().cast_const();
        let lines = if len > INLINE_LEN { usize::from(self.geometry.lines_per_slot) } else { 1 };
        (0..lines).map(move |line| slot.wrapping_add(line))
    }

    /// The slot of `index`, and the address of an inline payload, which may use all its lines.
    #[inline(always)]
    fn slot_and_payload(&self, index: u64) -> (&Slot, *mut u8) {
        let slot = self.slot_ptr(index);
        // SAFETY: as in `slot`; the payload is inside it.
        unsafe { (slot.as_ref(), slot.cast::<u8>().add(SLOT_HEADER_LEN).as_ptr()) }
    }

    /// The word of a long message that is at the address of an inline payload.
    #[inline(always)]
    fn credit_word(&self, index: u64) -> &AtomicU64 {
        #[cfg(loom)]
        return &self.slot(index).piggybacked_credit;
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

    /// The mark of the messages in the lap of `index`, in the upper half of their headers: the
    /// first index of the next lap. A lap's mark is that of the previous lap plus the number of
    /// slots.
    #[inline(always)]
    fn mark(&self, index: u64) -> u64 {
        (index | self.mask).wrapping_add(1) << 32
    }

    /// Whether `header` belongs to the message of `index`. Io: the header is corrupt.
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
        // SAFETY: masked to the area that the caller of `new` has guaranteed.
        unsafe { self.data_area.add(offset).as_ptr() }
    }

    /// The address of a fixed buffer, if the ring has any.
    #[inline(always)]
    fn fixed_buffer_at(&self, buffer: usize) -> *mut u8 {
        debug_assert!(buffer < FIXED_BUFFER_COUNT && self.geometry.fixed_buffer_stride != 0);
        let offset = self.geometry.data_len as usize
            + (buffer % FIXED_BUFFER_COUNT) * self.geometry.fixed_buffer_stride as usize;
        // SAFETY: after the data area, in the memory that the caller of `new` has guaranteed.
        unsafe { self.data_area.add(offset).as_ptr() }
    }

    /// The number of messages sent and not yet released, computed from the indices; at most the
    /// number of slots.
    pub(crate) fn queued(&self) -> u64 {
        let cursors = self.cursors();
        let consumed = cursors.consumer.index.load(Ordering::Acquire);
        let produced = cursors.producer.index.load(Ordering::Acquire);
        produced.wrapping_sub(consumed).min(u64::from(self.geometry.slot_count))
    }

    /// The address of the receiver's index.
    pub(crate) fn consumer_index_ptr(&self) -> NonNull<AtomicU64> {
        NonNull::from(&self.cursors().consumer.index)
    }

    /// The receiver's index.
    pub(crate) fn consumer_index(&self) -> u64 {
        self.cursors().consumer.index.load(Ordering::Acquire)
    }

    /// Claims all queued messages on behalf of a receiver that has exited. Returns the number of
    /// messages that were not yet claimed. The caller counts them as received.
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

    /// Claims one message. Returns true to exactly one of all callers.
    pub(crate) fn claim(&self, index: u64, header: SlotHeader) -> bool {
        !header.is_claimed()
            && self
                .slot(index)
                .header
                .compare_exchange(header.0, header.claimed().0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}
