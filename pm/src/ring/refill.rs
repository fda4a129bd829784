//! Filling an empty ring with messages that were saved from one.

// UNSAFETY: copies into the ring.
#![allow(unsafe_code)]

use super::{HOME, HOMES, IN_SLOT, LINE, Ring, Word, home_of};
use crate::error::{Error, Result};
use crate::sync::Ordering;

/// A message as it was saved.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub(crate) payload: &'a [u8],
    /// As `Received::position`.
    pub(crate) position: u64,
}

impl Saved<'_> {
    /// Where it lay in the data area, if it did.
    fn in_data(&self) -> Option<u64> {
        (self.position < HOME).then_some(self.position)
    }
}

impl Ring {
    /// Whether `refill` will do. Messages lie as they lay before, so they fit if they did then.
    pub(crate) fn can_refill(&self, messages: &[Saved<'_>]) -> bool {
        let area = u64::from(self.shape.data);
        let first = messages.iter().find_map(Saved::in_data).unwrap_or(0);
        let mut end = first;
        let mut homes = [self.shape.home != 0; HOMES];
        messages.len() <= self.shape.slots as usize
            && messages.iter().all(|message| {
                let len = message.payload.len();
                if message.position == IN_SLOT {
                    return len > 0 && len <= self.inline();
                }
                let fits = len > 0 && len <= self.shape.mtu as usize;
                if let Some(home) = home_of(message.position) {
                    return fits && std::mem::take(&mut homes[home]);
                }
                let need = len.next_multiple_of(LINE) as u64;
                let position = message.position;
                let inside = position.is_multiple_of(LINE as u64)
                    && position >= end
                    && position.saturating_sub(first).saturating_add(need) <= area
                    && (position & area.saturating_sub(1)) + need <= area;
                end = position.saturating_add(need);
                inside && fits
            })
    }

    /// Puts `messages` into this empty ring. Both ends must be quiet. Invalid: see `can_refill`;
    /// nothing has happened then.
    pub(crate) fn refill(&self, messages: &[Saved<'_>]) -> Result<()> {
        if !self.can_refill(messages) {
            return Err(Error::Invalid);
        }
        let ends = self.ends();
        let mut index = ends.consumer.index.load(Ordering::Relaxed);
        let first = messages.iter().find_map(Saved::in_data);
        if let Some(first) = first {
            self.move_data(first);
        }
        let base = ends.consumer.data.load(Ordering::Relaxed);
        for message in messages {
            let slot = self.slot(index);
            let len = message.payload.len();
            let (to, position) = if message.position == IN_SLOT {
                (self.slot_and_payload(index).1, None)
            } else if let Some(home) = home_of(message.position) {
                ends.producer.homes[home].store(index.wrapping_add(1), Ordering::Relaxed);
                (self.home_at(home), Some(message.position))
            } else {
                let position = base.wrapping_add(message.position - first.unwrap_or(0));
                let end = position.wrapping_add(len.next_multiple_of(LINE) as u64);
                ends.producer.data.store(end, Ordering::Relaxed);
                (self.data_at(position), Some(position))
            };
            if let Some(position) = position {
                slot.position.store(position, Ordering::Relaxed);
                self.passed_at(index).store(0, Ordering::Relaxed);
            }
            // SAFETY: `can_refill` has checked that the payload fits there.
            unsafe { std::ptr::copy_nonoverlapping(message.payload.as_ptr(), to, len) };
            let word = Word::new(self.mark(index), len, position.is_some());
            slot.word.store(word.0, Ordering::Release);
            index = index.wrapping_add(1);
        }
        ends.producer.index.store(index, Ordering::Release);
        Ok(())
    }

    /// Moves the empty data area's positions on, to the next that lies like `first`.
    fn move_data(&self, first: u64) {
        let ends = self.ends();
        let area = u64::from(self.shape.data);
        let now = ends.producer.data.load(Ordering::Relaxed);
        let step = first.wrapping_sub(now) & (area - 1);
        let next = now.wrapping_add(step);
        ends.producer.data.store(next, Ordering::Relaxed);
        ends.consumer.data.store(next, Ordering::Relaxed);
    }
}
