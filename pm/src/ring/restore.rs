//! Fills an empty ring with saved messages.

// UNSAFETY: copies into the ring.
#![allow(unsafe_code)]

use super::{
    CACHE_LINE, FIXED_BUFFER_COUNT, FIXED_BUFFER_POSITION, IN_SLOT, Ring, SlotHeader,
    fixed_buffer_of,
};
use crate::error::{Error, PmResult};
use crate::sync::Ordering;

/// A saved message.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub(crate) payload: &'a [u8],
    /// The position of the payload, as in `TakenMessage::position`.
    pub(crate) position: u64,
}

impl Saved<'_> {
    /// The position in the data area, if the message was stored there.
    fn in_data(&self) -> Option<u64> {
        (self.position < FIXED_BUFFER_POSITION).then_some(self.position)
    }
}

impl Ring {
    /// Whether `restore` will succeed. Messages get the same relative positions as in the ring from
    /// which they were saved, so they fit.
    pub(crate) fn can_restore(&self, messages: &[Saved<'_>]) -> bool {
        let data_len = u64::from(self.geometry.data_len);
        let first = messages.iter().find_map(Saved::in_data).unwrap_or(0);
        let mut end = first;
        let mut free_buffers = [self.geometry.fixed_buffer_stride != 0; FIXED_BUFFER_COUNT];
        messages.len() <= self.geometry.slot_count as usize
            && messages.iter().all(|message| {
                let len = message.payload.len();
                if message.position == IN_SLOT {
                    return len > 0 && len <= self.max_inline_len();
                }
                let fits = len > 0 && len <= self.geometry.mtu as usize;
                if let Some(buffer) = fixed_buffer_of(message.position) {
                    return fits && std::mem::take(&mut free_buffers[buffer]);
                }
                let padded_len = len.next_multiple_of(CACHE_LINE) as u64;
                let position = message.position;
                let in_area = position.is_multiple_of(CACHE_LINE as u64)
                    && position >= end
                    && position.saturating_sub(first).saturating_add(padded_len) <= data_len
                    && (position & data_len.saturating_sub(1)) + padded_len <= data_len;
                end = position.saturating_add(padded_len);
                in_area && fits
            })
    }

    /// Puts `messages` into this empty ring. Neither end may be in use meanwhile. Invalid:
    /// `can_restore` returns false; the ring is unchanged.
    pub(crate) fn restore(&self, messages: &[Saved<'_>]) -> PmResult<()> {
        if !self.can_restore(messages) {
            return Err(Error::Invalid);
        }
        let cursors = self.cursors();
        let mut index = cursors.consumer.index.load(Ordering::Relaxed);
        let first = messages.iter().find_map(Saved::in_data);
        if let Some(first) = first {
            self.advance_data(first);
        }
        let base = cursors.consumer.data_position.load(Ordering::Relaxed);
        for message in messages {
            let slot = self.slot(index);
            let len = message.payload.len();
            let (target, position) = if message.position == IN_SLOT {
                (self.slot_and_payload(index).1, None)
            } else if let Some(buffer) = fixed_buffer_of(message.position) {
                cursors.producer.fixed_buffer_indices[buffer]
                    .store(index.wrapping_add(1), Ordering::Relaxed);
                (self.fixed_buffer_at(buffer), Some(message.position))
            } else {
                let position = base.wrapping_add(message.position - first.unwrap_or(0));
                let end = position.wrapping_add(len.next_multiple_of(CACHE_LINE) as u64);
                cursors.producer.data_position.store(end, Ordering::Relaxed);
                (self.data_at(position), Some(position))
            };
            if let Some(position) = position {
                slot.position.store(position, Ordering::Relaxed);
                self.credit_word(index).store(0, Ordering::Relaxed);
            }
            // SAFETY: `can_restore` has checked that the payload fits.
            unsafe { std::ptr::copy_nonoverlapping(message.payload.as_ptr(), target, len) };
            let header = SlotHeader::new(self.mark(index), len, position.is_some());
            slot.header.store(header.0, Ordering::Release);
            index = index.wrapping_add(1);
        }
        cursors.producer.index.store(index, Ordering::Release);
        Ok(())
    }

    /// Advances the positions of the empty data area to the next position that has the offset of
    /// `first`.
    fn advance_data(&self, first: u64) {
        let cursors = self.cursors();
        let data_len = u64::from(self.geometry.data_len);
        let current = cursors.producer.data_position.load(Ordering::Relaxed);
        let step = first.wrapping_sub(current) & (data_len - 1);
        let next = current.wrapping_add(step);
        cursors.producer.data_position.store(next, Ordering::Relaxed);
        cursors.consumer.data_position.store(next, Ordering::Relaxed);
    }
}
