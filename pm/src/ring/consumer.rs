//! The receiving end of a ring.

use super::{HOME, IN_SLOT, LINE, Ring, Word, home_of};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Ordering, prefetch_read};

/// A message that was taken and not yet released.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    /// Where the payload lies.
    pub(crate) payload: *mut u8,
    pub(crate) len: usize,
    /// The receiver's index after the message.
    pub(crate) next: u64,
    /// Its position: in the data area, in a home, or [`IN_SLOT`].
    pub(crate) position: u64,
    /// Of a message that does not lie in its slot: how many of those in the other direction its
    /// sender had released, so that nobody has to look there.
    pub(crate) passed: u64,
}

impl Received {
    /// Where it ends, if it lies in the data area.
    #[inline(always)]
    pub(crate) fn data_end(&self) -> Option<u64> {
        let end = self.position.wrapping_add(self.len.next_multiple_of(LINE) as u64);
        (self.position < HOME).then_some(end)
    }
}

/// The most frequent kind of message: it lies in its slot.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    /// Where the payload lies.
    pub(crate) payload: *mut u8,
    pub(crate) len: usize,
    index: u64,
}

impl Short {
    #[inline(always)]
    pub(crate) fn received(self) -> Received {
        let Short { payload, len, index } = self;
        Received { payload, len, next: index.wrapping_add(1), position: IN_SLOT, passed: 0 }
    }
}

/// See [`Consumer::watch`].
pub(crate) struct Watch {
    pub(crate) slot: *const AtomicU64,
    pub(crate) before: Word,
}

/// What [`Consumer::peek`] saw.
pub(crate) enum Next {
    Nothing,
    Short(Short),
    /// A long message, a claimed one, or garbage: `take` tells which.
    Other,
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
        let index = self.index();
        let word = Word(self.ring.slot(index).word.load(Ordering::Relaxed));
        self.ring.has_come(index, word) != Ok(false)
    }

    #[inline(always)]
    fn index(&self) -> u64 {
        self.ring.ends().consumer.index.load(Ordering::Relaxed)
    }

    /// What is next, without taking it.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Next {
        let index = self.index();
        let (slot, payload) = self.ring.slot_and_payload(index);
        // SYNC: slot
        let word = Word(slot.word.load(Ordering::Acquire));
        let len = word.short(self.ring.mark(index));
        if len.wrapping_sub(1) < self.ring.inline() {
            return Next::Short(Short { payload, len, index });
        }
        if self.ring.has_come(index, word) == Ok(false) { Next::Nothing } else { Next::Other }
    }

    /// Whether nobody has taken what was seen. Nobody does while the lock is held.
    #[inline(always)]
    pub(crate) fn is_next(&self, message: &Received) -> bool {
        self.index().wrapping_add(1) == message.next
    }

    /// As `release` of the message that was next when it was taken.
    #[inline(always)]
    pub(crate) fn release_next(&self, data_end: Option<u64>) {
        self.release(self.index().wrapping_add(1), data_end);
    }

    /// Takes the next message. Io: the ring holds what no sender of ours writes.
    #[inline(always)]
    pub(crate) fn take(&self) -> Result<Option<Received>> {
        if let Next::Short(short) = self.peek() {
            return Ok(Some(short.received()));
        }
        self.at(self.index())
    }

    /// The message at `index`, unless it was claimed; then the one after.
    #[inline(never)]
    pub(crate) fn at(&self, mut index: u64) -> Result<Option<Received>> {
        for _ in 0..=self.ring.shape.slots {
            let slot = self.ring.slot(index);
            // SYNC: slot
            let word = Word(slot.word.load(Ordering::Acquire));
            if !self.ring.has_come(index, word)? {
                return Ok(None);
            }
            let next = index.wrapping_add(1);
            if word.is_claimed() {
                index = next;
                continue;
            }
            let len = word.len();
            if !word.is_long() {
                if len == 0 || len > self.ring.inline() {
                    return Err(Error::Io);
                }
                let payload = self.ring.slot_and_payload(index).1;
                return Ok(Some(Received { payload, len, next, position: IN_SLOT, passed: 0 }));
            }
            return self.long(index, len).map(Some);
        }
        Ok(None)
    }

    /// The message that is next if it lies in the data area. None: it does not, or `take` tells.
    #[inline(always)]
    pub(crate) fn peek_long(&self) -> Option<Received> {
        let index = self.index();
        let slot = self.ring.slot(index);
        // SYNC: slot
        let word = Word(slot.word.load(Ordering::Acquire));
        let len = word.long(self.ring.mark(index));
        if len > self.ring.shape.mtu as usize {
            return None;
        }
        self.long(index, len).ok()
    }

    /// Fetches the `count` slots after the next `count`, if messages wait in all of them and the
    /// next one is short.
    #[inline(never)]
    pub(crate) fn fetch_slots(&self, count: u64) {
        let Next::Short(Short { len, index, .. }) = self.peek() else { return };
        let first = index.wrapping_add(count);
        let last = first.wrapping_add(count);
        let word = Word(self.ring.slot(last).word.load(Ordering::Relaxed));
        if self.ring.has_come(last, word) == Ok(true) {
            for i in 0..count {
                self.ring.lines_at(first.wrapping_add(i), len).for_each(prefetch_read);
            }
        }
    }

    /// Where the next message will come, and what marks that it has not.
    pub(crate) fn watch(&self) -> Watch {
        let index = self.index();
        let lap = self.ring.mask.wrapping_add(1) << 32;
        let before = Word(self.ring.mark(index).wrapping_sub(lap));
        Watch { slot: std::ptr::from_ref(&self.ring.slot(index).word), before }
    }

    #[inline(always)]
    fn long(&self, index: u64, len: usize) -> Result<Received> {
        let position = self.ring.slot(index).position.load(Ordering::Relaxed);
        let passed = self.ring.passed_at(index).load(Ordering::Relaxed);
        let next = index.wrapping_add(1);
        let area = u64::from(self.ring.shape.data);
        if len == 0 || len > self.ring.shape.mtu as usize || area == 0 {
            return Err(Error::Io);
        }
        if position >= HOME {
            let home = home_of(position).filter(|_| self.ring.shape.home != 0).ok_or(Error::Io)?;
            let payload = self.ring.home_at(home);
            return Ok(Received { payload, len, next, position, passed });
        }
        let need = len.next_multiple_of(LINE) as u64;
        let offset = position & (area - 1);
        if !position.is_multiple_of(LINE as u64) || need > area - offset {
            return Err(Error::Io);
        }
        Ok(Received { payload: self.ring.data_at(position), len, next, position, passed })
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
