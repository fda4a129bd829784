//! One ring: messages from one process to one other, in order, through memory they share.
//!
//! Both ends count slots with 64-bit indices that only grow; `index & (slots - 1)` says which slot,
//! and the rest of it the lap. Slots that follow one another do not lie side by side (see
//! [`ORDER`]). The sender publishes a message with one release store of
//! its slot's header [`Word`]; the receiver gives credit back with one release store of its
//! index. A message of up to [`INLINE`] bytes lies in its slot, so that an 8-byte message moves
//! one cache line; a longer one lies in the data area, at a position that grows likewise, and
//! never wraps inside a message. All zero is an empty ring.
//!
//! All state of a ring is in the ring: ends may be made, dropped and made again. Whatever is
//! read from it is loaded once and checked; every address is masked or bounded by the private
//! [`Shape`], so that a ring full of garbage costs its own messages and nothing else.

// UNSAFETY: works on raw memory that another process writes at the same time.
#![allow(unsafe_code)]

mod consumer;
#[cfg(all(test, loom))]
mod interleavings;
mod producer;
#[cfg(not(loom))]
mod refill;
#[cfg(all(test, not(loom)))]
mod tests;
mod word;

pub(crate) use consumer::{Consumer, Next, Received, Short, Watch};
pub(crate) use producer::{IN_SLOT, Producer, Reserved};
#[cfg(not(loom))]
pub(crate) use refill::Saved;
pub(crate) use word::Word;

use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Bytes of payload that lie in the slot itself.
pub(crate) const INLINE: usize = 48;
/// Unit of the data area: no two messages share a cache line.
pub(crate) const LINE: usize = 64;

/// The indices that one end of a ring writes.
#[repr(C, align(128))]
pub(crate) struct End {
    /// Messages passed so far.
    pub(crate) index: AtomicU64,
    /// Position in the data area passed so far.
    pub(crate) data: AtomicU64,
}

/// The head of a ring: 128 bytes for each end, because processors fetch lines in pairs.
#[repr(C)]
pub(crate) struct Ends {
    pub(crate) producer: End,
    pub(crate) consumer: End,
}

/// One message's cache line.
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) word: AtomicU64,
    /// Where a long message lies; written before the word.
    pub(crate) position: AtomicU64,
    pub(crate) payload: UnsafeCell<[u8; INLINE]>,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Slot>() == LINE);
    assert!(size_of::<Ends>() == 256);
    assert!(std::mem::offset_of!(Slot, payload) == 16);
};

/// The order in which slots are used: their numbers with the bits reversed. A processor that sees
/// lines used at equal distances fetches those to come, as it fetches the other one of a pair, and
/// takes them from the sender that is about to write them or from the receiver that waits for them:
/// 8 bytes one way take 55 ns in slots that are used as they lie, 45 in this order, and 34 where
/// each has a pair of lines for itself as well, over a floor of 36.
static ORDER: [u8; MAX_SLOTS] = {
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

/// The sizes of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of slots, a power of two up to [`MAX_SLOTS`].
    pub(crate) slots: u32,
    /// Lines that a slot has to itself: 1, or a pair.
    pub(crate) lines: u32,
    /// Bytes of the data area, a power of two, or 0 where messages are never long.
    pub(crate) data: u32,
    /// The longest message.
    pub(crate) mtu: u32,
}

impl Shape {
    /// Bytes from the head to the end of the data area.
    pub(crate) const fn bytes(self) -> usize {
        size_of::<Ends>() + self.slot_bytes() + self.data as usize
    }

    const fn slot_bytes(self) -> usize {
        self.slots as usize * self.lines as usize * LINE
    }
}

/// The place of a ring in memory.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    ends: NonNull<Ends>,
    slots: NonNull<Slot>,
    data: NonNull<u8>,
    /// Slots minus 1.
    mask: u64,
    /// From twice an entry of [`ORDER`] to the place of a slot, in lines.
    shift: u32,
    shape: Shape,
}

impl Ring {
    /// The ring whose head is at `base`, followed by its slots and its data area.
    ///
    /// # Safety
    /// `base` points to `shape.bytes()` bytes, aligned to 128, that stay mapped as long as the
    /// ring or an end of it is used, and that nobody uses otherwise than by these types.
    #[cfg(not(loom))]
    pub(crate) unsafe fn new(base: NonNull<u8>, shape: Shape) -> Ring {
        // SAFETY: inside the memory that the caller vouches for.
        unsafe {
            let slots = base.add(size_of::<Ends>());
            let data = slots.add(shape.slot_bytes());
            Ring::from_parts(base.cast(), slots.cast(), data, shape)
        }
    }

    /// The same from three separate parts, which loom needs.
    ///
    /// # Safety
    /// As `new`, for each part.
    pub(crate) unsafe fn from_parts(
        ends: NonNull<Ends>,
        slots: NonNull<Slot>,
        data: NonNull<u8>,
        shape: Shape,
    ) -> Ring {
        assert!(shape.slots.is_power_of_two() && shape.slots as usize <= MAX_SLOTS);
        assert!(matches!(shape.lines, 1 | 2));
        debug_assert!(shape.data == 0 || shape.data.is_power_of_two());
        let shift = MAX_SLOTS.ilog2() - shape.slots.ilog2() + 2 - shape.lines;
        Ring { ends, slots, data, mask: u64::from(shape.slots) - 1, shift, shape }
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.ends.cast()
    }

    #[inline(always)]
    fn ends(&self) -> &Ends {
        // SAFETY: valid by `new`; only atomics inside.
        unsafe { self.ends.as_ref() }
    }

    /// The slot that `index` falls on; always inside the ring.
    #[inline(always)]
    fn slot(&self, index: u64) -> &Slot {
        let number = (index & self.mask) as u8;
        let at = (usize::from(ORDER[usize::from(number)]) * 2) >> self.shift;
        // SAFETY: a number below that of the slots has zeros below the bits that are shifted out
        // and so is one again, times `lines`; only atomics and a cell inside.
        unsafe { self.slots.add(at).as_ref() }
    }

    /// What marks a message of the lap of `index`, in the upper half of its word: the index that
    /// the next lap begins with. A lap's mark is that of the lap before and the number of slots.
    #[inline(always)]
    fn mark(&self, index: u64) -> u64 {
        (index | self.mask).wrapping_add(1) << 32
    }

    /// Whether `word` is the message of `index`. Io: no sender of ours has written it.
    #[inline(always)]
    fn has_come(&self, index: u64, word: Word) -> Result<bool> {
        let behind = self.mark(index).wrapping_sub(word.mark()) >> 32;
        match behind {
            0 => Ok(true),
            _ if behind == self.mask + 1 => Ok(false),
            _ => Err(Error::Io),
        }
    }

    /// The address of `position` in the data area; always inside it.
    #[inline(always)]
    fn data_at(&self, position: u64) -> *mut u8 {
        debug_assert!(self.shape.data != 0);
        let at = (position & u64::from(self.shape.data - 1)) as usize;
        // SAFETY: masked to the area that `new` vouches for.
        unsafe { self.data.add(at).as_ptr() }
    }

    /// Messages sent and not yet released, as the indices say; never more than there are slots.
    pub(crate) fn queued(&self) -> u64 {
        let ends = self.ends();
        let consumed = ends.consumer.index.load(Ordering::Acquire);
        let produced = ends.producer.index.load(Ordering::Acquire);
        produced.wrapping_sub(consumed).min(u64::from(self.shape.slots))
    }

    /// The receiver's index.
    pub(crate) fn consumed(&self) -> u64 {
        self.ends().consumer.index.load(Ordering::Acquire)
    }

    /// Counts as received, in the place of a receiver that has exited, every message that is
    /// queued and that nobody else has counted so. Answers how many.
    pub(crate) fn claim_all(&self) -> u64 {
        let first = self.ends().consumer.index.load(Ordering::Relaxed);
        let mut claimed = 0;
        for index in (0..u64::from(self.shape.slots)).map(|i| first.wrapping_add(i)) {
            // SYNC: slot
            let word = Word(self.slot(index).word.load(Ordering::Acquire));
            if self.has_come(index, word) != Ok(true) {
                break;
            }
            claimed += u64::from(self.claim(index, word));
        }
        claimed
    }

    /// Claims one message: true for exactly one of all who try.
    pub(crate) fn claim(&self, index: u64, word: Word) -> bool {
        !word.is_claimed()
            && self
                .slot(index)
                .word
                .compare_exchange(word.0, word.claimed().0, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
}
