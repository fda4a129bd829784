//! The receiving end of a ring.

use super::{CACHE_LINE, FIXED_BUFFER_POSITION, IN_SLOT, Ring, SlotHeader, fixed_buffer_of};
use crate::error::{Error, PmResult};
use crate::sync::{AtomicU64, Ordering, prefetch_read};

/// A message that was taken and not yet released.
#[derive(Clone, Copy)]
pub(crate) struct TakenMessage {
    /// The address of the payload.
    pub(crate) payload: *mut u8,
    pub(crate) len: usize,
    /// The receiver's index after the message.
    pub(crate) next_index: u64,
    /// The position of the payload: in the data area, of a fixed buffer, or [`IN_SLOT`].
    pub(crate) position: u64,
    /// For a message that is not in its slot: the consumer index of the ring in the other direction
    /// when the message was sent. It spares the receiver a read of that ring.
    pub(crate) piggybacked_credit: u64,
}

impl TakenMessage {
    /// The end of the message, if it is in the data area.
    #[inline(always)]
    pub(crate) fn data_end(&self) -> Option<u64> {
        let end = self.position.wrapping_add(self.len.next_multiple_of(CACHE_LINE) as u64);
        (self.position < FIXED_BUFFER_POSITION).then_some(end)
    }
}

/// A message whose payload is in its slot, which is the most frequent kind.
#[derive(Clone, Copy)]
pub(crate) struct InlineMessage {
    /// The address of the payload.
    pub(crate) payload: *mut u8,
    pub(crate) len: usize,
    index: u64,
}

impl InlineMessage {
    #[inline(always)]
    pub(crate) fn into_taken(self) -> TakenMessage {
        let InlineMessage { payload, len, index } = self;
        TakenMessage {
            payload,
            len,
            next_index: index.wrapping_add(1),
            position: IN_SLOT,
            piggybacked_credit: 0,
        }
    }
}

/// See [`Consumer::poll_target`].
pub(crate) struct PollTarget {
    pub(crate) slot: *const AtomicU64,
    pub(crate) empty_header: SlotHeader,
}

/// The result of [`Consumer::peek`].
pub(crate) enum PeekResult {
    Empty,
    Inline(InlineMessage),
    /// A long message, a claimed one, or garbage: `take` distinguishes them.
    Other,
}

/// The end of a ring that its only receiver uses. `take` and `release` must not run at the same
/// time, which the context's receive lock ensures. `is_waiting` may run at any time.
pub(crate) struct Consumer {
    ring: Ring,
}

impl Consumer {
    pub(crate) fn new(ring: Ring) -> Consumer {
        Consumer { ring }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Whether `take` would find a message or a corrupt ring.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        let index = self.index();
        let header = SlotHeader(self.ring.slot(index).header.load(Ordering::Relaxed));
        self.ring.is_published(index, header) != Ok(false)
    }

    #[inline(always)]
    fn index(&self) -> u64 {
        self.ring.cursors().consumer.index.load(Ordering::Relaxed)
    }

    /// The next message, without taking it.
    #[inline(always)]
    pub(crate) fn peek(&self) -> PeekResult {
        let index = self.index();
        let (slot, payload) = self.ring.slot_and_payload(index);
        // SYNC: slot
        let header = SlotHeader(slot.header.load(Ordering::Acquire));
        let len = header.inline_len(self.ring.mark(index));
        if len.wrapping_sub(1) < self.ring.max_inline_len() {
            return PeekResult::Inline(InlineMessage { payload, len, index });
        }
        if self.ring.is_published(index, header) == Ok(false) {
            PeekResult::Empty
        } else {
            PeekResult::Other
        }
    }

    /// Whether `message` is still the next one. It stays so while the receive lock is held.
    #[inline(always)]
    pub(crate) fn is_next(&self, message: &TakenMessage) -> bool {
        self.index().wrapping_add(1) == message.next_index
    }

    /// Like `release`, for a message that was the next one when it was taken.
    #[inline(always)]
    pub(crate) fn release_next(&self, data_end: Option<u64>) {
        self.release(self.index().wrapping_add(1), data_end);
    }

    /// Takes the next message. Io: the ring is corrupt.
    #[inline(always)]
    pub(crate) fn take(&self) -> PmResult<Option<TakenMessage>> {
        if let PeekResult::Inline(message) = self.peek() {
            return Ok(Some(message.into_taken()));
        }
        self.message_at(self.index())
    }

    /// The message at `index`, or the first after it that is not claimed.
    #[inline(never)]
    pub(crate) fn message_at(&self, mut index: u64) -> PmResult<Option<TakenMessage>> {
        for _ in 0..=self.ring.geometry.slot_count {
            let slot = self.ring.slot(index);
            // SYNC: slot
            let header = SlotHeader(slot.header.load(Ordering::Acquire));
            if !self.ring.is_published(index, header)? {
                return Ok(None);
            }
            let next_index = index.wrapping_add(1);
            if header.is_claimed() {
                index = next_index;
                continue;
            }
            let len = header.len();
            if !header.is_out_of_line() {
                if len == 0 || len > self.ring.max_inline_len() {
                    return Err(Error::Io);
                }
                let payload = self.ring.slot_and_payload(index).1;
                return Ok(Some(TakenMessage {
                    payload,
                    len,
                    next_index,
                    position: IN_SLOT,
                    piggybacked_credit: 0,
                }));
            }
            return self.out_of_line_message(index, len).map(Some);
        }
        Ok(None)
    }

    /// The next message, if it is not in its slot. None: it is in its slot, or the caller has to
    /// call `take`.
    #[inline(always)]
    pub(crate) fn peek_long(&self) -> Option<TakenMessage> {
        let index = self.index();
        let slot = self.ring.slot(index);
        // SYNC: slot
        let header = SlotHeader(slot.header.load(Ordering::Acquire));
        let len = header.out_of_line_len(self.ring.mark(index));
        if len > self.ring.geometry.mtu as usize {
            return None;
        }
        self.out_of_line_message(index, len).ok()
    }

    /// Prefetches the `count` slots after the next `count`, if messages wait in all of them and the
    /// next one is inline.
    #[inline(never)]
    pub(crate) fn prefetch_slots(&self, count: u64) {
        let PeekResult::Inline(InlineMessage { len, index, .. }) = self.peek() else { return };
        let first = index.wrapping_add(count);
        let last = first.wrapping_add(count);
        let header = SlotHeader(self.ring.slot(last).header.load(Ordering::Relaxed));
        if self.ring.is_published(last, header) == Ok(true) {
            for i in 0..count {
                self.ring.slot_lines(first.wrapping_add(i), len).for_each(prefetch_read);
            }
        }
    }

    /// The header of the next message's slot, and its value as long as there is no message.
    pub(crate) fn poll_target(&self) -> PollTarget {
        let index = self.index();
        let lap = self.ring.mask.wrapping_add(1) << 32;
        let empty_header = SlotHeader(self.ring.mark(index).wrapping_sub(lap));
        PollTarget { slot: std::ptr::from_ref(&self.ring.slot(index).header), empty_header }
    }

    #[inline(always)]
    fn out_of_line_message(&self, index: u64, len: usize) -> PmResult<TakenMessage> {
        let position = self.ring.slot(index).position.load(Ordering::Relaxed);
        let piggybacked_credit = self.ring.credit_word(index).load(Ordering::Relaxed);
        let next_index = index.wrapping_add(1);
        let data_len = u64::from(self.ring.geometry.data_len);
        if len == 0 || len > self.ring.geometry.mtu as usize || data_len == 0 {
            return Err(Error::Io);
        }
        if position >= FIXED_BUFFER_POSITION {
            let buffer = fixed_buffer_of(position)
                .filter(|_| self.ring.geometry.fixed_buffer_stride != 0)
                .ok_or(Error::Io)?;
            let payload = self.ring.fixed_buffer_at(buffer);
            return Ok(TakenMessage { payload, len, next_index, position, piggybacked_credit });
        }
        let padded_len = len.next_multiple_of(CACHE_LINE) as u64;
        let offset = position & (data_len - 1);
        if !position.is_multiple_of(CACHE_LINE as u64) || padded_len > data_len - offset {
            return Err(Error::Io);
        }
        Ok(TakenMessage {
            payload: self.ring.data_at(position),
            len,
            next_index,
            position,
            piggybacked_credit,
        })
    }

    /// Returns the message's room to the sender.
    #[inline(always)]
    pub(crate) fn release(&self, next_index: u64, data_end: Option<u64>) {
        let cursors = &self.ring.cursors().consumer;
        if let Some(data_position) = data_end {
            // SYNC: credit
            cursors.data_position.store(data_position, Ordering::Release);
        }
        // SYNC: credit
        cursors.index.store(next_index, Ordering::Release);
    }
}
