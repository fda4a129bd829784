//! The receiving end of a ring.

use super::{INLINE, LINE, Ring, Word};
use crate::error::{Error, Result};
use crate::sync::Ordering;

/// A message that was taken and not yet released.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    /// Where the payload lies.
    pub(crate) payload: *mut u8,
    pub(crate) len: usize,
    /// The receiver's index after the message.
    pub(crate) next: u64,
    /// Where a long message lies in the data area, and where it ends.
    pub(crate) data: Option<(u64, u64)>,
}

/// Made for a ring by its only receiver. `take` and `release` must not run at the same time (the
/// context's receive lock); `is_waiting` may.
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

    /// Whether `take` would find something: a message, or that the ring is corrupt.
    #[inline(always)]
    pub(crate) fn is_waiting(&self) -> bool {
        let index = self.ring.ends().consumer.index.load(Ordering::Relaxed);
        Word(self.ring.slot(index).word.load(Ordering::Relaxed)).step(self.ring.lap(index)) != 0
    }

    /// Takes the next message. Io: the ring holds what no sender of ours writes.
    #[inline(always)]
    pub(crate) fn take(&self) -> Result<Option<Received>> {
        let index = self.ring.ends().consumer.index.load(Ordering::Relaxed);
        let slot = self.ring.slot(index);
        // SYNC: slot
        let word = Word(slot.word.load(Ordering::Acquire));
        if word.step(self.ring.lap(index)) == 1 && word.short() < INLINE {
            let payload = slot.payload.get().cast::<u8>();
            let next = index.wrapping_add(1);
            return Ok(Some(Received { payload, len: word.short() + 1, next, data: None }));
        }
        self.at(index)
    }

    /// The message at `index`, unless it was claimed; then the one after.
    #[inline(never)]
    pub(crate) fn at(&self, mut index: u64) -> Result<Option<Received>> {
        for _ in 0..=self.ring.shape.slots {
            let slot = self.ring.slot(index);
            // SYNC: slot
            let word = Word(slot.word.load(Ordering::Acquire));
            match word.step(self.ring.lap(index)) {
                0 => return Ok(None),
                1 => {}
                _ => return Err(Error::Io),
            }
            let next = index.wrapping_add(1);
            if word.is_claimed() {
                index = next;
                continue;
            }
            let len = word.len();
            if !word.is_long() {
                if len == 0 || len > INLINE {
                    return Err(Error::Io);
                }
                let payload = slot.payload.get().cast::<u8>();
                return Ok(Some(Received { payload, len, next, data: None }));
            }
            return self.long(slot.position.load(Ordering::Relaxed), len, next).map(Some);
        }
        Ok(None)
    }

    fn long(&self, position: u64, len: usize, next: u64) -> Result<Received> {
        let area = u64::from(self.ring.shape.data);
        if len == 0 || len > self.ring.shape.mtu as usize || area == 0 {
            return Err(Error::Io);
        }
        let need = len.next_multiple_of(LINE) as u64;
        let offset = position & (area - 1);
        if !position.is_multiple_of(LINE as u64) || need > area - offset {
            return Err(Error::Io);
        }
        let payload = self.ring.data_at(position);
        Ok(Received { payload, len, next, data: Some((position, position.wrapping_add(need))) })
    }

    /// Gives the message's room back to the sender.
    #[inline(always)]
    pub(crate) fn release(&self, next: u64, data_end: Option<u64>) {
        let end = &self.ring.ends().consumer;
        if let Some(data) = data_end {
            // SYNC: credit
            end.data.store(data, Ordering::Release);
        }
        // SYNC: credit
        end.index.store(next, Ordering::Release);
    }
}
