//! The sending end of a ring.

use super::{HOME, IN_SLOT, LINE, Ring, Slot, Word, home_of};
use crate::error::{Error, Result};
use crate::sync::{AtomicPtr, AtomicU64, Local, Ordering, prefetch_write};
use std::ops::Range;

/// Pauses of the processor between two looks at a full ring: some 100 ns, and four times as many
/// while it stays full.
const PAUSES: u64 = 4;

/// Bytes of a data area from which on there is room for gaps between messages.
const ROOMY: u64 = 64 << 10;

/// The index of no message.
const NEVER: u64 = u64::MAX;

/// Room for one message, until it is published.
#[derive(Clone, Copy)]
pub(crate) struct Reserved {
    /// Where the payload goes.
    pub(crate) payload: *mut u8,
    /// Position in the data area, or of a home, or [`IN_SLOT`].
    pub(crate) position: u64,
}

/// Made for a ring by its only sender. Its methods must not run at the same time (the context's
/// send lock); if they do, messages may be damaged, memory may not.
pub(crate) struct Producer {
    ring: Ring,
    /// What the receiver had passed when we last looked.
    seen: Local,
    seen_data: Local,
    /// The slot of the next message, looked up as soon as the last one is on its way, and the index
    /// that it is for. Another index than the ring's: there may be no room, or the ring was filled
    /// by somebody else.
    next: AtomicPtr<Slot>,
    next_index: Local,
    /// Pauses before the next look at how far the receiver has come.
    patience: Local,
}

impl Producer {
    pub(crate) fn new(ring: Ring) -> Producer {
        let ends = ring.ends();
        let index = ends.producer.index.load(Ordering::Relaxed);
        let producer = Producer {
            ring,
            seen: Local::new(ends.consumer.index.load(Ordering::Acquire)),
            seen_data: Local::new(ends.consumer.data.load(Ordering::Acquire)),
            next: AtomicPtr::new(ring.slot_at(index).as_ptr()),
            next_index: Local::new(NEVER),
            patience: Local::default(),
        };
        producer.look_up(index);
        producer
    }

    /// Sets `next` to the slot of `index`.
    #[inline(always)]
    fn look_up(&self, index: u64) {
        self.next.store(self.ring.slot_at(index).as_ptr(), Ordering::Relaxed);
        let known = index.wrapping_sub(self.seen.get()) <= self.ring.mask;
        self.next_index.set(if known { index } else { NEVER });
    }

    /// The slot that was looked up last.
    #[inline(always)]
    fn next(&self) -> &Slot {
        // SAFETY: a slot of the ring, whatever index it is for.
        unsafe { &*self.next.load(Ordering::Relaxed) }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Finds room for `len` bytes (1 to the shape's MTU; checked by the caller). NoBuffers: none
    /// now. Io: the indices are impossible.
    #[inline(always)]
    pub(crate) fn reserve(&self, len: usize) -> Result<Reserved> {
        let index = self.ring.ends().producer.index.load(Ordering::Relaxed);
        if index.wrapping_sub(self.seen.get()) > self.ring.mask {
            self.look(index)?;
        }
        if len <= self.ring.inline() {
            let payload = self.ring.slot_and_payload(index).1;
            return Ok(Reserved { payload, position: IN_SLOT });
        }
        if let Some(home) = self.free_home() {
            return Ok(self.reserve_home(home));
        }
        self.reserve_data(index, len)
    }

    /// The longest message for `reserve_short`.
    #[inline(always)]
    pub(crate) fn inline(&self) -> usize {
        self.ring.inline()
    }

    /// As `reserve` for a message that lies in its slot, from the room that is known.
    #[inline(always)]
    pub(crate) fn reserve_short(&self) -> Option<*mut u8> {
        let index = self.ring.ends().producer.index.load(Ordering::Relaxed);
        let payload = self.next.load(Ordering::Relaxed).cast::<u8>().wrapping_add(super::HEAD);
        (index == self.next_index.get()).then_some(payload)
    }

    /// By whoever receives: the receiver says that it has passed so many. What it says later is not
    /// below; what it cannot have passed is not believed.
    #[inline(always)]
    pub(crate) fn credit(&self, passed: u64) {
        let index = self.ring.ends().producer.index.load(Ordering::Relaxed);
        if index.wrapping_sub(passed) < index.wrapping_sub(self.seen.get()) {
            // SYNC: credit
            self.seen.set_release(passed);
        }
    }

    /// The home that was not used last, if it is known to be free.
    #[inline(always)]
    pub(super) fn free_home(&self) -> Option<usize> {
        if self.ring.shape.home == 0 {
            return None;
        }
        let [first, second] = &self.ring.ends().producer.homes;
        let used = [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)];
        let home = usize::from(used[0].wrapping_sub(used[1]).cast_signed() > 0);
        // SYNC: credit
        (self.seen.get_acquire().wrapping_sub(used[home]).cast_signed() >= 0).then_some(home)
    }

    #[inline(always)]
    fn reserve_home(&self, home: usize) -> Reserved {
        Reserved { payload: self.ring.home_at(home), position: HOME | home as u64 }
    }

    /// Nothing is reserved. Fetches these lines of the home that the next long message will lie in,
    /// by writing to them: a prefetch for writing leaves most of them with the receiver (measured).
    /// False: there is none, or it is not free.
    pub(crate) fn fetch_home(&self, lines: Range<u64>) -> bool {
        let index = self.ring.ends().producer.index.load(Ordering::Relaxed);
        let look = || self.sees_room(index).ok().and_then(|_| self.free_home());
        let Some(home) = self.free_home().or_else(look) else { return false };
        for line in lines.take_while(|line| line * (LINE as u64) < self.ring.shape.mtu.into()) {
            let at = self.ring.home_at(home).wrapping_add(line as usize * LINE);
            // SAFETY: inside a home, which is at least as long as the longest message; its lines
            // are aligned.
            unsafe { &*at.cast::<AtomicU64>() }.store(0, Ordering::Relaxed);
        }
        true
    }

    /// As `publish`, after `reserve_short`. Answers the message's index.
    #[inline(always)]
    pub(crate) fn publish_short(&self, len: usize) -> u64 {
        let index = &self.ring.ends().producer.index;
        let at = index.load(Ordering::Relaxed);
        // Before the word, so that who sees a message also finds it counted in `queued`.
        index.store(at.wrapping_add(1), Ordering::Relaxed);
        let word = self.ring.mark(at) | len as u64;
        // SYNC: slot
        self.next().word.store(word, Ordering::Release);
        self.look_up(at.wrapping_add(1));
        at
    }

    /// Fetches the `count` slots after the next `count`, if they are known to be free, for messages
    /// of `len` bytes.
    #[inline(never)]
    pub(crate) fn fetch_slots(&self, count: u64, len: usize) {
        let index = self.ring.ends().producer.index.load(Ordering::Relaxed).wrapping_add(count);
        if index.wrapping_add(count).wrapping_sub(self.seen.get()) <= self.ring.mask {
            for i in 0..count {
                self.ring.lines_at(index.wrapping_add(i), len).for_each(prefetch_write);
            }
        }
    }

    /// As `reserve` for a longer message (up to the MTU), from the room that is known.
    #[inline(always)]
    pub(crate) fn reserve_long(&self, len: usize) -> Option<Reserved> {
        let end = &self.ring.ends().producer;
        let index = end.index.load(Ordering::Relaxed);
        if index.wrapping_sub(self.seen.get()) > self.ring.mask {
            return None;
        }
        if let Some(home) = self.free_home() {
            return Some(self.reserve_home(home));
        }
        let (start, after) = self.place(line(end.data.load(Ordering::Relaxed)), len);
        let known = after.wrapping_sub(self.seen_data.get()) <= u64::from(self.ring.shape.data);
        known.then(|| Reserved { payload: self.ring.data_at(start), position: start })
    }

    /// The longest message.
    #[inline(always)]
    pub(crate) fn mtu(&self) -> usize {
        self.ring.shape.mtu as usize
    }

    /// A message is likely to be sent soon: brings its slot here. Short ones just before, because
    /// the receiver that polls the slot takes it back. `after` is a number below [`LINE`] that is
    /// known only when that has come which the message answers: a processor that goes ahead on the
    /// guess that something has come then does not take the slot too early.
    #[inline(always)]
    pub(crate) fn expect(&self, after: usize) {
        prefetch_write(std::ptr::from_ref(self.next()).cast::<u8>().wrapping_add(after));
    }

    /// What `publish` has answered for the last message.
    pub(crate) fn last(&self, position: u64, len: usize) -> (u64, Word) {
        let index = self.ring.ends().producer.index.load(Ordering::Relaxed).wrapping_sub(1);
        (index, Word::new(self.ring.mark(index), len, position != IN_SLOT))
    }

    /// Looks how far the receiver has come; when it has not moved, once more after a pause.
    ///
    /// Each look takes the receiver's line away from it, and while a flood is on it is the receiver
    /// that all wait for. So as long as the ring stays more than half full looks are far enough
    /// apart that each finds room for many. What is answered is true now.
    #[cold]
    fn look(&self, index: u64) -> Result<()> {
        let pauses = self.patience.get();
        pause(pauses);
        if !self.sees_room(index)? {
            pause(PAUSES);
            if !self.sees_room(index)? {
                self.patience.set(0);
                return Err(Error::NoBuffers);
            }
        }
        let is_full = index.wrapping_sub(self.seen.get()) > self.ring.mask / 2;
        self.patience.set(if is_full { (pauses * 2).clamp(PAUSES, 4 * PAUSES) } else { 0 });
        Ok(())
    }

    pub(super) fn sees_room(&self, index: u64) -> Result<bool> {
        // SYNC: credit
        let seen = self.ring.ends().consumer.index.load(Ordering::Acquire);
        let queued = index.wrapping_sub(seen);
        if queued > u64::from(self.ring.shape.slots) {
            return Err(Error::Io);
        }
        self.seen.set(seen);
        Ok(queued < u64::from(self.ring.shape.slots))
    }

    #[inline(never)]
    fn reserve_data(&self, index: u64, len: usize) -> Result<Reserved> {
        let area = u64::from(self.ring.shape.data);
        let head = line(self.ring.ends().producer.data.load(Ordering::Relaxed));
        let (start, end) = self.place(head, len);
        if end.wrapping_sub(self.seen_data.get()) > area {
            self.sees_room(index)?;
            if let Some(home) = self.free_home() {
                return Ok(self.reserve_home(home));
            }
            // SYNC: credit
            let seen = self.ring.ends().consumer.data.load(Ordering::Acquire);
            if head.wrapping_sub(seen) > area {
                return Err(Error::Io);
            }
            self.seen_data.set(seen);
            if end.wrapping_sub(seen) > area {
                return Err(Error::NoBuffers);
            }
        }
        Ok(Reserved { payload: self.ring.data_at(start), position: start })
    }

    /// Where a message goes when the data area is used up to `head`. A message never wraps: what is
    /// left at the end is skipped. Behind the one before a gap is left, so that a processor that
    /// reads or writes on beyond its end does not fetch the lines of this one.
    #[inline(always)]
    fn place(&self, head: u64, len: usize) -> (u64, u64) {
        let area = u64::from(self.ring.shape.data);
        let need = len.next_multiple_of(LINE) as u64;
        let gap = match need {
            _ if area < ROOMY => 0,
            0..1024 => 3 * LINE as u64,
            _ => 4096,
        };
        debug_assert!(need * 2 + gap <= area);
        let head = head.wrapping_add(gap);
        let left = area - (head & (area - 1));
        let start = if left >= need { head } else { head.wrapping_add(left) };
        (start, start.wrapping_add(need))
    }

    /// Makes the message visible. Answers what [`Ring::claim`] needs to take it back. `passed` is
    /// what its sender has released of the ring in the other direction.
    #[inline(always)]
    pub(crate) fn publish(&self, position: u64, len: usize, passed: u64) -> (u64, Word) {
        let ends = self.ring.ends();
        let index = ends.producer.index.load(Ordering::Relaxed);
        let slot = self.ring.slot(index);
        let long = position != IN_SLOT;
        if long {
            slot.position.store(position, Ordering::Relaxed);
            self.ring.passed_at(index).store(passed, Ordering::Relaxed);
            if let Some(home) = home_of(position) {
                ends.producer.homes[home].store(index.wrapping_add(1), Ordering::Relaxed);
            } else {
                let end = position.wrapping_add(len.next_multiple_of(LINE) as u64);
                ends.producer.data.store(end, Ordering::Relaxed);
            }
        }
        // Before the word, so that who sees a message also finds it counted in `queued`.
        ends.producer.index.store(index.wrapping_add(1), Ordering::Relaxed);
        let word = Word::new(self.ring.mark(index), len, long);
        // SYNC: slot
        slot.word.store(word.0, Ordering::Release);
        self.look_up(index.wrapping_add(1));
        if long {
            self.expect(0);
        }
        (index, word)
    }
}

fn pause(times: u64) {
    (0..times).for_each(|_| std::hint::spin_loop());
}

/// The line that `position` is in. The sender only ever leaves whole ones.
#[inline(always)]
fn line(position: u64) -> u64 {
    position & !(LINE as u64 - 1)
}
