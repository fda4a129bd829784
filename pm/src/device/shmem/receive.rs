//! Receiving: the order in which the rings are polled.
//!
//! The ring of the last message is *hot* and is checked on every poll. After [`RECEIVE_QUANTUM`]
//! messages in a row the other rings come first. A poll that finds the hot ring empty checks
//! [`COLD_RINGS_PER_POLL`] of the other active rings in turn. For each ring it reads the slot of
//! the next message, and a local word that holds the slot's location. Eight such words share a
//! cache line.
//!
//! If one source floods, a message of another source waits for at most `RECEIVE_QUANTUM` messages
//! of each other source. If no source floods, a message is found within `active /
//! COLD_RINGS_PER_POLL` polls.

// UNSAFETY: points into the segment.
#![expect(unsafe_code)]

use super::send::{ShmemSender, Target};
use super::{ShmemEndpoint, message_ring};
use crate::device::ReceiveInterface;
use crate::error::{Error, PmResult};
use crate::ring::{Consumer, IN_SLOT, PeekResult, PollTarget, TakenMessage};
use crate::segment::layout::NodeRecord;
use crate::segment::{RingKind, Segment};
use crate::sync::{AtomicU64, Ordering, SingleWriterU64};
use std::ptr::NonNull;

/// The largest number of consecutive messages from one source.
pub(super) const RECEIVE_QUANTUM: u64 = 16;
/// The number of cold rings that a poll checks.
pub(super) const COLD_RINGS_PER_POLL: u64 = 4;

/// No source is hot yet.
const NO_SOURCE: u64 = u64::MAX;
/// Returned by `find` if a source has sent its first message.
const NEW_SOURCE: u32 = u32::MAX;
/// The held message is in its slot.
pub(crate) const HELD_IN_SLOT: u64 = u64::MAX;
/// The order index of a source that has not sent.
const NOT_ORDERED: u64 = u64::MAX;
/// Slots begin at cache lines.
const LINE: usize = crate::ring::CACHE_LINE;

/// The receiving side for one node. It holds everything that a message needs, so that a composite
/// can keep the address of the hot source.
#[repr(align(64))]
pub(crate) struct Source {
    consumer: Consumer,
    /// The number of messages that this source may still deliver before other sources are polled.
    left_of_turn: SingleWriterU64,
    /// This node's record, which counts received messages.
    self_record: NonNull<NodeRecord>,
    /// 1 + the node.
    node_plus_one: u32,
    /// The target for messages to that node.
    reverse_target: NonNull<Target>,
    /// Index of this source in `ShmemReceiver::activation_order`, or [`NOT_ORDERED`].
    order_index: SingleWriterU64,
}

impl Source {
    /// The next message of this source, if it is this source's turn. Needs no lock. Other: the
    /// caller has to call `ShmemEndpoint::find`.
    #[inline(always)]
    pub(crate) fn peek_inline(&self) -> PeekResult {
        if self.left_of_turn.get() == 0 { PeekResult::Other } else { self.consumer.peek() }
    }

    /// Like `peek_inline`, for a message of any length.
    #[inline(always)]
    pub(crate) fn peek_any(&self) -> Option<TakenMessage> {
        match self.peek_inline() {
            PeekResult::Inline(message) => Some(message.into_taken()),
            PeekResult::Other if self.left_of_turn.get() != 0 => self.consumer.peek_long(),
            PeekResult::Other | PeekResult::Empty => None,
        }
    }

    /// Whether `message` is still the next message, because no other thread has taken it. Called
    /// under the receive lock.
    #[inline(always)]
    pub(crate) fn is_next(&self, message: &TakenMessage) -> bool {
        self.left_of_turn.get() != 0 && self.consumer.is_next(message)
    }

    /// Takes over the credit that came with a message that is not in its slot. Called under the
    /// receive lock.
    #[inline(always)]
    pub(crate) fn grant_credit(&self, message: &TakenMessage) {
        if message.position != IN_SLOT {
            // SAFETY: a target of the endpoint that owns `self`.
            unsafe { self.reverse_target.as_ref() }.on_credit(message.piggybacked_credit);
        }
    }

    /// Takes the message that a peek has returned, which has this length. Called under the receive
    /// lock.
    #[inline(always)]
    pub(crate) fn take_next(&self, len: usize) {
        // `ShmemEndpoint::take` has recorded this source with the first message of its turn.
        self.self_record().receive.0.count_received_bytes(len);
        // SAFETY: a target of the endpoint that owns `self`.
        unsafe { self.reverse_target.as_ref() }.expect_line(len & (LINE - 1));
        self.left_of_turn.set(self.left_of_turn.get().wrapping_sub(1));
    }

    /// Counts a poll that found no message. Needs no lock.
    #[inline(always)]
    pub(crate) fn count_empty_poll(&self) {
        let epoch = &self.self_record().poll_epoch.0;
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Releases a message that was in its slot. Called under the receive lock, after `take_next`.
    #[inline(always)]
    pub(crate) fn release_inline(&self) {
        self.release_out_of_line(HELD_IN_SLOT);
    }

    /// Like `release_inline`, for a message that ends at `data_end` in the data area.
    /// [`HELD_IN_SLOT`]: it is in its slot.
    #[inline(always)]
    pub(crate) fn release_out_of_line(&self, data_end: u64) {
        self.self_record().receive.0.count_released();
        self.consumer.release_next((data_end != HELD_IN_SLOT).then_some(data_end));
    }

    #[inline(always)]
    fn self_record(&self) -> &NodeRecord {
        // SAFETY: points into the segment of the endpoint that owns `self`; the record has only
        // atomics.
        unsafe { self.self_record.as_ref() }
    }

    /// The number of messages that this source may still deliver before other sources are polled.
    pub(crate) fn left_of_turn(&self) -> u64 {
        self.left_of_turn.get()
    }
}

/// The message that was taken and not yet released.
#[derive(Default)]
struct HeldMessage {
    source: SingleWriterU64,
    next: SingleWriterU64,
    data_end: SingleWriterU64,
}

pub(super) struct ShmemReceiver {
    sources: Box<[Source]>,
    /// The first `active_count` entries are the active sources, in the order of their first
    /// message. The entry of a corrupt source is [`NO_SOURCE`].
    activation_order: Box<[SingleWriterU64]>,
    /// For each entry of `activation_order`, the slot of the source's next message. The lower half
    /// is the slot's distance in lines from `first_ring`. The upper half is the upper half that the
    /// slot's word has until the message arrives. A slot's word changes before its message can be
    /// taken. If an entry is out of date (the hot source, or after a reset), its slot seems to have
    /// a message, and `begin_turn_if_waiting` corrects the entry.
    poll_targets: Box<[SingleWriterU64]>,
    /// The ring from node 0.
    first_ring: NonNull<u8>,
    active_count: SingleWriterU64,
    seen_generation: SingleWriterU64,
    hot: SingleWriterU64,
    /// Index in `activation_order` of the source that the next poll checks first.
    cold_cursor: SingleWriterU64,
    /// The poll epoch when the hot source last began a turn directly after its previous turn.
    epoch_at_turn_start: SingleWriterU64,
    held_message: HeldMessage,
}

impl ShmemReceiver {
    pub(super) fn new(segment: &Segment, self_node: usize, sender: &ShmemSender) -> ShmemReceiver {
        let nodes = 0..segment.geometry().nodes;
        let make_source = |from| Source {
            consumer: Consumer::new(message_ring(segment, from, self_node)),
            left_of_turn: SingleWriterU64::default(),
            self_record: NonNull::from(segment.node(self_node)),
            node_plus_one: from as u32 + 1,
            reverse_target: NonNull::from(sender.target(from)),
            order_index: SingleWriterU64::new(NOT_ORDERED),
        };
        let new_locals = || nodes.clone().map(|_| SingleWriterU64::default()).collect();
        ShmemReceiver {
            activation_order: new_locals(),
            poll_targets: new_locals(),
            first_ring: segment.ring(0, self_node, RingKind::Message).start(),
            sources: nodes.clone().map(make_source).collect(),
            active_count: SingleWriterU64::default(),
            seen_generation: SingleWriterU64::default(),
            hot: SingleWriterU64::new(NO_SOURCE),
            cold_cursor: SingleWriterU64::default(),
            epoch_at_turn_start: SingleWriterU64::default(),
            held_message: HeldMessage::default(),
        }
    }

    /// Makes this source hot: polls check it first from now on.
    fn begin_turn(&self, source: u64) {
        let previous = self.hot.get();
        self.hot.set(source);
        if let Some(previous) = self.sources.get(previous as usize) {
            self.update_poll_target(previous);
        }
        if let Some(source) = self.sources.get(source as usize) {
            source.left_of_turn.set(RECEIVE_QUANTUM);
        }
    }

    /// Records the slot of the next message of `source`.
    fn update_poll_target(&self, source: &Source) {
        if let Some(poll_target) = self.poll_targets.get(source.order_index.get() as usize) {
            let PollTarget { slot, empty_header } = source.consumer.poll_target();
            let line = (slot.addr() - self.first_ring.addr().get()) / LINE;
            poll_target.set(empty_header.mark() | line as u64);
        }
    }

    /// Checks the next `ring_count` cold rings and returns the index of the first that has or may
    /// have a message. The next call begins there.
    #[inline(always)]
    fn poll_cold_rings(&self, ring_count: u64) -> Option<u64> {
        let poll_targets = &self.poll_targets[..];
        let count = self.active_count.get().min(poll_targets.len() as u64);
        let mut index = self.cold_cursor.get();
        for _ in 0..ring_count.min(count) {
            if index >= count {
                index = 0;
            }
            let poll_target = poll_targets[index as usize].get();
            let line = poll_target as u32 as usize;
            // SAFETY: `update_poll_target` has stored a slot of a ring in the segment. Or the
            // offset is 0, and this is the head of a ring in the segment: an atomic word in any
            // case.
            let header = unsafe { self.first_ring.add(line * LINE).cast::<AtomicU64>().as_ref() };
            if (header.load(Ordering::Relaxed) ^ poll_target) >> 32 != 0 {
                self.cold_cursor.set(index);
                return Some(index);
            }
            index += 1;
        }
        self.cold_cursor.set(index);
        None
    }

    /// The source at this index of `activation_order`.
    #[inline(always)]
    fn active_source(&self, index: u64) -> Option<(u32, &Source)> {
        if index >= self.active_count.get() {
            return None;
        }
        let source = self.activation_order.get(index as usize)?.get();
        Some((source as u32, self.sources.get(source as usize)?))
    }
}

impl ReceiveInterface for ShmemEndpoint {
    #[inline(always)]
    fn find(&self) -> Option<u32> {
        let receiver = &self.receive;
        let hot = receiver.hot.get();
        let source = receiver.sources.get(hot as usize);
        if let Some(source) = source.filter(|source| source.left_of_turn.get() != 0)
            && source.consumer.is_waiting()
        {
            return Some(hot as u32);
        }
        if !self.has_no_new_source() {
            return Some(NEW_SOURCE);
        }
        let found = if receiver.active_count.get() > 1 {
            self.poll_cold_sources(COLD_RINGS_PER_POLL)
        } else {
            None
        };
        if found.is_some() {
            return found;
        }
        // The hot source's turn was over, but no other source has a message.
        let source = source.filter(|source| source.left_of_turn.get() == 0)?;
        self.start_hot_turn(source).then_some(hot as u32)
    }

    /// A poll of shmem makes no system call.
    #[inline(always)]
    fn peek(&self) -> Option<u32> {
        self.find()
    }

    #[inline(always)]
    fn take(&self, source: u32) -> PmResult<(*mut u8, usize)> {
        let receiver = &self.receive;
        let Some(source_state) = receiver.sources.get(source as usize) else {
            return self.add_new_sources();
        };
        match source_state.consumer.take() {
            Ok(Some(message)) => {
                source_state
                    .self_record()
                    .receive
                    .0
                    .record_received(source_state.node_plus_one, message.len);
                source_state.grant_credit(&message);
                source_state.left_of_turn.set(source_state.left_of_turn.get().saturating_sub(1));
                receiver.held_message.source.set(u64::from(source));
                receiver.held_message.next.set(message.next_index);
                receiver.held_message.data_end.set(message.data_end().unwrap_or(HELD_IN_SLOT));
                Ok((message.payload, message.len))
            }
            Ok(None) => Err(Error::NoBuffers),
            Err(error) => {
                self.drop_corrupt_source(source);
                Err(error)
            }
        }
    }

    #[inline(always)]
    fn release(&self) {
        let receiver = &self.receive;
        let held_message = &receiver.held_message;
        let Some(source) = receiver.sources.get(held_message.source.get() as usize) else { return };
        source.self_record().receive.0.count_released();
        let data_end = held_message.data_end.get();
        source
            .consumer
            .release(held_message.next.get(), (data_end != HELD_IN_SLOT).then_some(data_end));
    }

    #[inline(always)]
    fn count_empty_poll(&self) {
        let epoch = &self.record().poll_epoch.0;
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

impl ShmemEndpoint {
    /// Starts another turn of the hot source and returns whether it has a message. If no poll was
    /// empty since the last turn, the source floods. Its slots are then prefetched one turn ahead.
    #[inline(never)]
    fn start_hot_turn(&self, hot: &Source) -> bool {
        hot.left_of_turn.set(RECEIVE_QUANTUM);
        let epoch = self.record().poll_epoch.0.load(Ordering::Relaxed);
        if epoch == self.receive.epoch_at_turn_start.get() {
            hot.consumer.prefetch_slots(RECEIVE_QUANTUM);
        }
        self.receive.epoch_at_turn_start.set(epoch);
        hot.consumer.is_waiting()
    }

    /// Whether the hot source is the only source. Needs no lock.
    #[inline(always)]
    pub(crate) fn has_single_source(&self) -> bool {
        self.receive.active_count.get() <= 1 && self.has_no_new_source()
    }

    /// Whether neither a new source nor the next few cold rings have a message. Needs no lock.
    #[inline(always)]
    pub(crate) fn are_others_silent(&self) -> bool {
        self.has_no_new_source() && self.receive.poll_cold_rings(COLD_RINGS_PER_POLL).is_none()
    }

    #[inline(always)]
    fn has_no_new_source(&self) -> bool {
        self.generation().load(Ordering::Relaxed) == self.receive.seen_generation.get()
    }

    /// Checks the next `ring_count` rings, except the ring of the hot source.
    #[inline(never)]
    fn poll_cold_sources(&self, ring_count: u64) -> Option<u32> {
        for _ in 0..ring_count {
            let index = self.receive.poll_cold_rings(ring_count)?;
            self.receive.cold_cursor.set(index + 1);
            if let Some(source) = self.begin_turn_if_waiting(index) {
                return Some(source);
            }
        }
        None
    }

    /// Checks whether the source at `index` has a message. If it has one, its turn begins.
    fn begin_turn_if_waiting(&self, index: u64) -> Option<u32> {
        let receiver = &self.receive;
        let (source, source_state) = receiver.active_source(index)?;
        if u64::from(source) != receiver.hot.get() && source_state.consumer.is_waiting() {
            receiver.begin_turn(u64::from(source));
            return Some(source);
        }
        receiver.update_poll_target(source_state);
        None
    }

    /// Checks every ring.
    pub(super) fn find_in_all_rings(&self) -> Option<u32> {
        let active_count = self.receive.active_count.get();
        self.find().or_else(|| self.poll_cold_sources(active_count)).or_else(|| self.find())
    }

    /// Adds the sources that have sent for the first time, and takes a message.
    #[cold]
    fn add_new_sources(&self) -> PmResult<(*mut u8, usize)> {
        let receiver = &self.receive;
        let self_node = self.self_node as usize;
        // SYNC: activation
        let generation = self.generation().load(Ordering::Acquire);
        for source in self.segment.active_sources(self_node, RingKind::Message) {
            let new = &receiver.sources[source];
            if new.order_index.get() == NOT_ORDERED && source != self_node {
                let count = receiver.active_count.get();
                new.order_index.set(count);
                receiver.update_poll_target(new);
                receiver.activation_order[count as usize].set(source as u64);
                receiver.active_count.set(count + 1);
                receiver.begin_turn(source as u64);
            }
        }
        receiver.seen_generation.set(generation);
        match self.find() {
            Some(NEW_SOURCE) | None => Err(Error::NoBuffers),
            Some(source) => self.take(source),
        }
    }

    /// Removes a source whose ring is corrupt. The error is reported once, and the ring is never
    /// read again.
    #[cold]
    fn drop_corrupt_source(&self, source: u32) {
        self.break_link(source, "its ring is corrupt");
        let receiver = &self.receive;
        receiver.hot.set(NO_SOURCE);
        receiver.sources[source as usize].left_of_turn.set(0);
        // The entry keeps its index, because another thread may be reading it.
        let order_index = receiver.sources[source as usize].order_index.get();
        if let Some(order_entry) = receiver.activation_order.get(order_index as usize) {
            order_entry.set(NO_SOURCE);
        }
    }

    /// Whether `source` belongs to this endpoint.
    pub(crate) fn owns_source(&self, source: &Source) -> bool {
        self.receive.sources.as_ptr_range().contains(&std::ptr::from_ref(source))
    }

    /// The source whose message is held.
    #[inline(always)]
    pub(crate) fn held_source(&self) -> Option<&Source> {
        self.receive.sources.get(self.receive.held_message.source.get() as usize)
    }

    /// The active sources with their consumers.
    pub(crate) fn known_sources(&self) -> impl Iterator<Item = (usize, &Consumer)> {
        (0..self.receive.active_count.get())
            .filter_map(|index| self.receive.active_source(index))
            .map(|(source, source_state)| (source as usize, &source_state.consumer))
    }
}
