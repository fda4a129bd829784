//! The sending end of a ring.

use super::{CACHE_LINE, FIXED_BUFFER_POSITION, IN_SLOT, Ring, Slot, SlotHeader, fixed_buffer_of};
use crate::error::{Error, PmResult};
use crate::sync::{AtomicPtr, AtomicU64, Ordering, SingleWriterU64, prefetch_write};
use std::ops::Range;

/// Pause instructions between two checks of a full ring (about 100 ns). The number grows up to
/// fourfold while the ring stays full.
const SPIN_PAUSES: u64 = 4;

/// Messages have gaps between them in a data area of at least this length.
const LARGE_DATA_AREA: u64 = 64 << 10;

/// A value that is not the index of any message.
const NO_INDEX: u64 = u64::MAX;

/// Room for one message, until it is published.
#[derive(Clone, Copy)]
pub(crate) struct Reservation {
    /// The address for the payload.
    pub(crate) payload: *mut u8,
    /// The position: in the data area, of a fixed buffer, or [`IN_SLOT`].
    pub(crate) position: u64,
}

/// The end of a ring that its only sender uses. Its methods must not run at the same time, which
/// the context's send lock ensures. If they do, messages may be damaged, but no other memory.
pub(crate) struct Producer {
    ring: Ring,
    /// The receiver's index and data position at the last check.
    cached_consumer_index: SingleWriterU64,
    cached_consumer_data: SingleWriterU64,
    /// The slot of the next message, which is looked up as soon as the last one was sent.
    /// `next_index` is its index. If `next_index` differs from the ring's index, there may be no
    /// room, or the ring was restored.
    next_slot: AtomicPtr<Slot>,
    next_index: SingleWriterU64,
    /// Pause instructions before the next check of the receiver's index.
    backoff_pauses: SingleWriterU64,
}

impl Producer {
    pub(crate) fn new(ring: Ring) -> Producer {
        let cursors = ring.cursors();
        let index = cursors.producer.index.load(Ordering::Relaxed);
        let producer = Producer {
            ring,
            cached_consumer_index: SingleWriterU64::new(
                cursors.consumer.index.load(Ordering::Acquire),
            ),
            cached_consumer_data: SingleWriterU64::new(
                cursors.consumer.data_position.load(Ordering::Acquire),
            ),
            next_slot: AtomicPtr::new(ring.slot_ptr(index).as_ptr()),
            next_index: SingleWriterU64::new(NO_INDEX),
            backoff_pauses: SingleWriterU64::default(),
        };
        producer.cache_next_slot(index);
        producer
    }

    /// Sets `next_slot` to the slot of `index`.
    #[inline(always)]
    fn cache_next_slot(&self, index: u64) {
        self.next_slot.store(self.ring.slot_ptr(index).as_ptr(), Ordering::Relaxed);
        let is_free = index.wrapping_sub(self.cached_consumer_index.get()) <= self.ring.mask;
        self.next_index.set(if is_free { index } else { NO_INDEX });
    }

    /// The slot that was looked up last.
    #[inline(always)]
    fn next_slot(&self) -> &Slot {
        // SAFETY: a slot of the ring, for any index.
        unsafe { &*self.next_slot.load(Ordering::Relaxed) }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Finds room for `len` bytes (1 to the ring's MTU; checked by the caller). NoBuffers: there is
    /// no room now. Io: the indices are corrupt.
    #[inline(always)]
    pub(crate) fn reserve(&self, len: usize) -> PmResult<Reservation> {
        let index = self.ring.cursors().producer.index.load(Ordering::Relaxed);
        if index.wrapping_sub(self.cached_consumer_index.get()) > self.ring.mask {
            self.refresh_credit(index)?;
        }
        if len <= self.ring.max_inline_len() {
            let payload = self.ring.slot_and_payload(index).1;
            return Ok(Reservation { payload, position: IN_SLOT });
        }
        if let Some(buffer) = self.free_fixed_buffer() {
            return Ok(self.reserve_fixed_buffer(buffer));
        }
        self.reserve_data(index, len)
    }

    /// The longest message for `reserve_inline`.
    #[inline(always)]
    pub(crate) fn max_inline_len(&self) -> usize {
        self.ring.max_inline_len()
    }

    /// Like `reserve`, for a message that fits into a slot. None: no slot is known to be free.
    #[inline(always)]
    pub(crate) fn reserve_inline(&self) -> Option<*mut u8> {
        let index = self.ring.cursors().producer.index.load(Ordering::Relaxed);
        let payload = self
            .next_slot
            .load(Ordering::Relaxed)
            .cast::<u8>()
            .wrapping_add(super::SLOT_HEADER_LEN);
        (index == self.next_index.get()).then_some(payload)
    }

    /// Takes over the consumer index that the receiver has sent with a message. Ignores impossible
    /// indices, and indices below the cached one.
    #[inline(always)]
    pub(crate) fn on_credit(&self, consumer_index: u64) {
        let index = self.ring.cursors().producer.index.load(Ordering::Relaxed);
        if index.wrapping_sub(consumer_index) < index.wrapping_sub(self.cached_consumer_index.get())
        {
            // SYNC: credit
            self.cached_consumer_index.set_release(consumer_index);
        }
    }

    /// The fixed buffer that was not used last, if it is known to be free.
    #[inline(always)]
    pub(super) fn free_fixed_buffer(&self) -> Option<usize> {
        if self.ring.geometry.fixed_buffer_stride == 0 {
            return None;
        }
        let [first, second] = &self.ring.cursors().producer.fixed_buffer_indices;
        let last_used = [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)];
        let buffer = usize::from(last_used[0].wrapping_sub(last_used[1]).cast_signed() > 0);
        // SYNC: credit
        (self.cached_consumer_index.get_acquire().wrapping_sub(last_used[buffer]).cast_signed()
            >= 0)
            .then_some(buffer)
    }

    #[inline(always)]
    fn reserve_fixed_buffer(&self, buffer: usize) -> Reservation {
        Reservation {
            payload: self.ring.fixed_buffer_at(buffer),
            position: FIXED_BUFFER_POSITION | buffer as u64,
        }
    }

    /// Fetches `lines` of the fixed buffer of the next long message, while no message is reserved.
    /// It writes to them, because a prefetch for writing leaves most lines in the receiver's cache
    /// (measured). False: there is no fixed buffer, or it is not free.
    pub(crate) fn prefetch_fixed_buffer(&self, lines: Range<u64>) -> bool {
        let index = self.ring.cursors().producer.index.load(Ordering::Relaxed);
        let reload = || self.reload_credit(index).ok().and_then(|_| self.free_fixed_buffer());
        let Some(buffer) = self.free_fixed_buffer().or_else(reload) else { return false };
        for line in
            lines.take_while(|line| line * (CACHE_LINE as u64) < self.ring.geometry.mtu.into())
        {
            let line_ptr =
                self.ring.fixed_buffer_at(buffer).wrapping_add(line as usize * CACHE_LINE);
            // SAFETY: inside a fixed buffer, which is at least as long as the longest message; its
            // lines are aligned.
            unsafe { &*line_ptr.cast::<AtomicU64>() }.store(0, Ordering::Relaxed);
        }
        true
    }

    /// Like `publish`, after `reserve_inline`. Returns the message's index.
    #[inline(always)]
    pub(crate) fn publish_inline(&self, len: usize) -> u64 {
        let index = &self.ring.cursors().producer.index;
        let message_index = index.load(Ordering::Relaxed);
        // Stored before the header, so that a process that finds the message also finds it in
        // `queued`.
        index.store(message_index.wrapping_add(1), Ordering::Relaxed);
        let header = self.ring.mark(message_index) | len as u64;
        // SYNC: slot
        self.next_slot().header.store(header, Ordering::Release);
        self.cache_next_slot(message_index.wrapping_add(1));
        message_index
    }

    /// Prefetches the `count` slots after the next `count`, if they are known to be free, for
    /// messages of `len` bytes.
    #[inline(never)]
    pub(crate) fn prefetch_slots(&self, count: u64, len: usize) {
        let index = self.ring.cursors().producer.index.load(Ordering::Relaxed).wrapping_add(count);
        if index.wrapping_add(count).wrapping_sub(self.cached_consumer_index.get())
            <= self.ring.mask
        {
            for i in 0..count {
                self.ring.slot_lines(index.wrapping_add(i), len).for_each(prefetch_write);
            }
        }
    }

    /// Like `reserve`, for a longer message (up to the MTU). None: no room is known to be free.
    #[inline(always)]
    pub(crate) fn reserve_long(&self, len: usize) -> Option<Reservation> {
        let cursors = &self.ring.cursors().producer;
        let index = cursors.index.load(Ordering::Relaxed);
        if index.wrapping_sub(self.cached_consumer_index.get()) > self.ring.mask {
            return None;
        }
        if let Some(buffer) = self.free_fixed_buffer() {
            return Some(self.reserve_fixed_buffer(buffer));
        }
        let (start, data_end) =
            self.place_in_data(line_start(cursors.data_position.load(Ordering::Relaxed)), len);
        let fits = data_end.wrapping_sub(self.cached_consumer_data.get())
            <= u64::from(self.ring.geometry.data_len);
        fits.then(|| Reservation { payload: self.ring.data_at(start), position: start })
    }

    /// The longest message.
    #[inline(always)]
    pub(crate) fn mtu(&self) -> usize {
        self.ring.geometry.mtu as usize
    }

    /// Prefetches the slot of the next message, which is likely to be sent soon. For a short
    /// message this has to happen just before the send, because the receiver that polls the slot
    /// takes the line back. `line_offset` is below [`CACHE_LINE`]. It depends on a received
    /// message, so that a processor that speculates on the arrival of that message does not take
    /// the slot too early.
    #[inline(always)]
    pub(crate) fn prefetch_slot(&self, line_offset: usize) {
        prefetch_write(std::ptr::from_ref(self.next_slot()).cast::<u8>().wrapping_add(line_offset));
    }

    /// The result of `publish` for the last message.
    pub(crate) fn last_published(&self, position: u64, len: usize) -> (u64, SlotHeader) {
        let index = self.ring.cursors().producer.index.load(Ordering::Relaxed).wrapping_sub(1);
        (index, SlotHeader::new(self.ring.mark(index), len, position != IN_SLOT))
    }

    /// Reads the receiver's index. If the ring is still full, reads it once more after a pause.
    /// NoBuffers: the ring is still full. Io: the index is corrupt.
    ///
    /// Each read takes the line away from the receiver, and the receiver is the bottleneck while
    /// many messages are sent. As long as the ring stays more than half full, this function pauses
    /// between reads. Each read then finds room for many messages.
    #[cold]
    fn refresh_credit(&self, index: u64) -> PmResult<()> {
        let pauses = self.backoff_pauses.get();
        pause(pauses);
        if !self.reload_credit(index)? {
            pause(SPIN_PAUSES);
            if !self.reload_credit(index)? {
                self.backoff_pauses.set(0);
                return Err(Error::NoBuffers);
            }
        }
        let is_full = index.wrapping_sub(self.cached_consumer_index.get()) > self.ring.mask / 2;
        self.backoff_pauses.set(if is_full {
            (pauses * 2).clamp(SPIN_PAUSES, 4 * SPIN_PAUSES)
        } else {
            0
        });
        Ok(())
    }

    pub(super) fn reload_credit(&self, index: u64) -> PmResult<bool> {
        // SYNC: credit
        let consumer_index = self.ring.cursors().consumer.index.load(Ordering::Acquire);
        let queued = index.wrapping_sub(consumer_index);
        if queued > u64::from(self.ring.geometry.slot_count) {
            return Err(Error::Io);
        }
        self.cached_consumer_index.set(consumer_index);
        Ok(queued < u64::from(self.ring.geometry.slot_count))
    }

    #[inline(never)]
    fn reserve_data(&self, index: u64, len: usize) -> PmResult<Reservation> {
        let data_len = u64::from(self.ring.geometry.data_len);
        let data_position =
            line_start(self.ring.cursors().producer.data_position.load(Ordering::Relaxed));
        let (start, end) = self.place_in_data(data_position, len);
        if end.wrapping_sub(self.cached_consumer_data.get()) > data_len {
            self.reload_credit(index)?;
            if let Some(buffer) = self.free_fixed_buffer() {
                return Ok(self.reserve_fixed_buffer(buffer));
            }
            // SYNC: credit
            let consumer_data = self.ring.cursors().consumer.data_position.load(Ordering::Acquire);
            if data_position.wrapping_sub(consumer_data) > data_len {
                return Err(Error::Io);
            }
            self.cached_consumer_data.set(consumer_data);
            if end.wrapping_sub(consumer_data) > data_len {
                return Err(Error::NoBuffers);
            }
        }
        Ok(Reservation { payload: self.ring.data_at(start), position: start })
    }

    /// Start and end of a message if the data area is used up to `data_position`. A message never
    /// wraps: if it does not fit at the end of the area, it starts at the beginning. A gap after
    /// the previous message keeps a processor that prefetches beyond the end of that message from
    /// fetching lines of this message.
    #[inline(always)]
    fn place_in_data(&self, data_position: u64, len: usize) -> (u64, u64) {
        let data_len = u64::from(self.ring.geometry.data_len);
        let padded_len = len.next_multiple_of(CACHE_LINE) as u64;
        let gap = match padded_len {
            _ if data_len < LARGE_DATA_AREA => 0,
            0..1024 => 3 * CACHE_LINE as u64,
            _ => 4096,
        };
        debug_assert!(padded_len * 2 + gap <= data_len);
        let data_position = data_position.wrapping_add(gap);
        let left = data_len - (data_position & (data_len - 1));
        let start =
            if left >= padded_len { data_position } else { data_position.wrapping_add(left) };
        (start, start.wrapping_add(padded_len))
    }

    /// Makes the message visible. Returns the arguments for [`Ring::claim`], by which the sender
    /// can claim it. `piggybacked_credit` is the consumer index of the ring in the other direction.
    #[inline(always)]
    pub(crate) fn publish(
        &self,
        position: u64,
        len: usize,
        piggybacked_credit: u64,
    ) -> (u64, SlotHeader) {
        let cursors = self.ring.cursors();
        let index = cursors.producer.index.load(Ordering::Relaxed);
        let slot = self.ring.slot(index);
        let out_of_line = position != IN_SLOT;
        if out_of_line {
            slot.position.store(position, Ordering::Relaxed);
            self.ring.credit_word(index).store(piggybacked_credit, Ordering::Relaxed);
            if let Some(buffer) = fixed_buffer_of(position) {
                cursors.producer.fixed_buffer_indices[buffer]
                    .store(index.wrapping_add(1), Ordering::Relaxed);
            } else {
                let end = position.wrapping_add(len.next_multiple_of(CACHE_LINE) as u64);
                cursors.producer.data_position.store(end, Ordering::Relaxed);
            }
        }
        // Stored before the header, so that a process that finds the message also finds it in
        // `queued`.
        cursors.producer.index.store(index.wrapping_add(1), Ordering::Relaxed);
        let header = SlotHeader::new(self.ring.mark(index), len, out_of_line);
        // SYNC: slot
        slot.header.store(header.0, Ordering::Release);
        self.cache_next_slot(index.wrapping_add(1));
        if out_of_line {
            self.prefetch_slot(0);
        }
        (index, header)
    }
}

fn pause(times: u64) {
    (0..times).for_each(|_| std::hint::spin_loop());
}

/// The start of the cache line of `position`. Only a corrupt position is not the start of a line.
#[inline(always)]
fn line_start(position: u64) -> u64 {
    position & !(CACHE_LINE as u64 - 1)
}
