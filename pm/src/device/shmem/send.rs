//! Sending: reserves a slot in the ring, publishes it by a release store, and checks the receiver
//! state.

// UNSAFETY: points into the segment, and copies a multicast's message.
#![expect(unsafe_code)]

use super::peer_memory::PeerMemory;
use super::{ShmemEndpoint, message_ring};
use crate::debug;
use crate::device::{SendInterface, shorten};
use crate::error::{Error, PmResult};
use crate::receiver_state::{EXITED, SLEEPING};
use crate::ring::{CACHE_LINE, Producer, Reservation, SlotHeader};
use crate::segment::layout::{NodeRecord, SendCounters};
use crate::segment::{RingKind, Segment};
use crate::sync::{AtomicU64, Ordering, SingleWriterU64};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

/// The position of a message that is dropped because its receiver has exited.
const DISCARD: u64 = u64::MAX - 1;
/// The pending node of a multicast.
const PENDING_MULTICAST: u64 = u64::MAX;

/// The number of messages in one direction after which the same number of slots is prefetched at
/// once.
const PREFETCH_RUN: u64 = 16;

/// States of a target.
const NEW: u64 = 0;
const ACTIVE: u64 = 1;
const BROKEN: u64 = 2;

/// The sending side for one node. It holds everything that a message needs, so that a composite can
/// keep its address (see `direct_target`).
#[repr(align(64))]
pub(crate) struct Target {
    producer: Producer,
    /// The index up to which the ring in the other direction is released.
    consumer_index: NonNull<AtomicU64>,
    state: SingleWriterU64,
    /// The number of messages that this node had received when the last run ended.
    received_at_run_end: SingleWriterU64,
    record: NonNull<NodeRecord>,
    /// This node's record, which counts sent messages.
    self_record: NonNull<NodeRecord>,
    /// 1 + the node.
    pub(super) node_plus_one: u32,
    /// The fast path to the memory of the target's node.
    pub(super) rma_fast_path: PeerMemory,
}

impl Target {
    #[inline(always)]
    pub(super) fn record(&self) -> &NodeRecord {
        // SAFETY: points into the segment of the endpoint that owns `self`; the record has only
        // atomics.
        unsafe { self.record.as_ref() }
    }

    /// See `Producer::prefetch_slot`.
    #[inline(always)]
    pub(super) fn expect_line(&self, line_offset: usize) {
        self.producer.prefetch_slot(line_offset);
    }

    /// Reserves room for a short message. Called under the send lock. None: the caller has to call
    /// `ShmemEndpoint::reserve`, which makes room or returns the error.
    #[inline(always)]
    pub(crate) fn reserve_inline(&self, len: usize) -> Option<*mut u8> {
        if self.state.get() != ACTIVE || len.wrapping_sub(1) >= self.producer.max_inline_len() {
            return None;
        }
        self.producer.reserve_inline()
    }

    /// Like `reserve_inline`, for a longer message. Called under the send lock.
    #[inline(always)]
    pub(crate) fn reserve_out_of_line(&self, len: usize) -> Option<Reservation> {
        let [max_inline_len, mtu] = [self.producer.max_inline_len(), self.producer.mtu()];
        if self.state.get() != ACTIVE || len <= max_inline_len || len > mtu {
            return None;
        }
        self.producer.reserve_long(len)
    }

    /// Publishes the reserved short message. Called under the send lock, after `reserve_inline`.
    /// True: the caller has to call `ShmemEndpoint::check_receiver`.
    #[inline(always)]
    pub(crate) fn publish_inline(&self, len: usize) -> bool {
        let counters = self.counters();
        counters.count_sent();
        let message_index = self.producer.publish_inline(len);
        if message_index % PREFETCH_RUN == PREFETCH_RUN - 1 {
            self.prefetch_run(len);
        }
        counters.record_sent(self.node_plus_one, len);
        self.record().receiver_state.0.needs_attention()
    }

    /// Prefetches the slots of the next run, if no message was received during the last run. Many
    /// more messages may then follow. Their slots are in the receiver's cache, and a sender that
    /// fetched them one by one would be slower than the receiver. If the receiver replies,
    /// prefetching is useless, because its writes take the slots away again.
    #[inline(never)]
    fn prefetch_run(&self, len: usize) {
        let received = self.self_record().receive.0.received.load(Ordering::Relaxed);
        if received == self.received_at_run_end.get() {
            self.producer.prefetch_slots(PREFETCH_RUN, len);
        }
        self.received_at_run_end.set(received);
    }

    /// Like `publish_inline`, for a longer message. Called under the send lock, after
    /// `reserve_out_of_line`.
    #[inline(always)]
    pub(crate) fn publish_out_of_line(&self, position: u64, len: usize) -> bool {
        let counters = self.counters();
        counters.count_sent();
        self.producer.publish(position, len, self.consumer_index());
        counters.record_sent(self.node_plus_one, len);
        self.record().receiver_state.0.needs_attention()
    }

    #[inline(always)]
    fn consumer_index(&self) -> u64 {
        // SAFETY: as `record`. SYNC: credit
        unsafe { self.consumer_index.as_ref() }.load(Ordering::Acquire)
    }

    /// See `Producer::on_credit`.
    #[inline(always)]
    pub(super) fn on_credit(&self, consumer_index: u64) {
        self.producer.on_credit(consumer_index);
    }

    /// See `Producer::prefetch_fixed_buffer`.
    pub(crate) fn prefetch_fixed_buffer(&self, lines: Range<u64>) -> bool {
        self.producer.prefetch_fixed_buffer(lines)
    }

    #[inline(always)]
    pub(super) fn self_record(&self) -> &NodeRecord {
        // SAFETY: as `record`.
        unsafe { self.self_record.as_ref() }
    }

    /// Counters of the messages that this node sends.
    #[inline(always)]
    fn counters(&self) -> &SendCounters {
        &self.self_record().send.0
    }
}

/// The reserved message that is not yet sent.
#[derive(Default)]
struct Pending {
    node: SingleWriterU64,
    len: SingleWriterU64,
    position: SingleWriterU64,
}

pub(super) struct ShmemSender {
    targets: Box<[Target]>,
    pending: Pending,
    /// Holds the message of a multicast, or a message that is dropped.
    staging: Staging,
    /// A multicast's nodes.
    multicast_nodes: Box<[SingleWriterU64]>,
    multicast_count: SingleWriterU64,
    /// The identifier of the last multicast. `last_multicast_ids` has, for each target, the last
    /// multicast that named it.
    multicast_id: SingleWriterU64,
    last_multicast_ids: Box<[SingleWriterU64]>,
}

impl ShmemSender {
    pub(super) fn new(segment: &Segment, self_node: usize) -> ShmemSender {
        let nodes = 0..segment.geometry().nodes;
        let make_target = |to| Target {
            producer: Producer::new(message_ring(segment, self_node, to)),
            consumer_index: message_ring(segment, to, self_node).consumer_index_ptr(),
            state: SingleWriterU64::new(NEW),
            received_at_run_end: SingleWriterU64::default(),
            record: NonNull::from(segment.node(to)),
            self_record: NonNull::from(segment.node(self_node)),
            node_plus_one: to as u32 + 1,
            rma_fast_path: PeerMemory::new(segment.regions(to)),
        };
        ShmemSender {
            targets: nodes.clone().map(make_target).collect(),
            pending: Pending::default(),
            staging: Staging::new(segment.geometry().ring.mtu as usize),
            multicast_nodes: nodes.clone().map(|_| SingleWriterU64::default()).collect(),
            multicast_count: SingleWriterU64::default(),
            multicast_id: SingleWriterU64::default(),
            last_multicast_ids: nodes.map(|_| SingleWriterU64::default()).collect(),
        }
    }
}

impl ShmemSender {
    /// The target for `node`, which keeps its address when the sender is moved.
    pub(super) fn target(&self, node: usize) -> &Target {
        &self.targets[node]
    }
}

/// Staging memory of fixed size.
struct Staging {
    start: NonNull<u8>,
    layout: Layout,
}

impl Staging {
    fn new(len: usize) -> Staging {
        let layout = Layout::from_size_align(len.max(CACHE_LINE), CACHE_LINE)
            .unwrap_or(Layout::new::<u64>());
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        Staging { start: start.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: from alloc_zeroed with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

impl SendInterface for ShmemEndpoint {
    #[inline(always)]
    fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        let target = self.target(node, len)?;
        let (payload, position) = match target.producer.reserve(len) {
            Ok(reserved) => (reserved.payload, reserved.position),
            Err(error) => (self.on_ring_refused(target, node, error)?, DISCARD),
        };
        let pending = &self.send.pending;
        pending.node.set(u64::from(node));
        pending.len.set(len as u64);
        pending.position.set(position);
        Ok(payload)
    }

    fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        let sender = &self.send;
        if nodes.is_empty() || nodes.len() > sender.multicast_nodes.len() {
            return Err(Error::Invalid);
        }
        let multicast_id = self.next_multicast_id();
        nodes.iter().try_for_each(|&node| self.can_reserve(node, len, multicast_id))?;
        for (entry, &node) in sender.multicast_nodes.iter().zip(nodes) {
            entry.set(u64::from(node));
        }
        sender.multicast_count.set(nodes.len() as u64);
        sender.pending.node.set(PENDING_MULTICAST);
        sender.pending.len.set(len as u64);
        Ok(self.staging())
    }

    fn truncate(&self, len: usize) -> PmResult<()> {
        shorten(&self.send.pending.len, len)
    }

    #[inline(always)]
    fn publish(&self) {
        let pending = &self.send.pending;
        let Some(target) = self.send.targets.get(pending.node.get() as usize) else {
            return self.publish_multicast();
        };
        let len = pending.len.get() as usize;
        let counters = target.counters();
        counters.count_sent();
        counters.record_sent(target.node_plus_one, len);
        let position = pending.position.get();
        if position == DISCARD {
            return self.count_dropped();
        }
        let (index, header) = target.producer.publish(position, len, target.consumer_index());
        self.check_receiver_state(target, index, header);
    }

    fn next_multicast_id(&self) -> u64 {
        let multicast_id = self.send.multicast_id.get() + 1;
        self.send.multicast_id.set(multicast_id);
        multicast_id
    }

    fn raise_multicast_id(&self, multicast_id: u64) {
        self.send.multicast_id.set(self.send.multicast_id.get().max(multicast_id));
    }

    fn can_reserve(&self, node: u32, len: usize, multicast_id: u64) -> PmResult<()> {
        let target = self.target(node, len)?;
        let last_id = self.send.last_multicast_ids.get(node as usize).ok_or(Error::Invalid)?;
        if last_id.get() == multicast_id {
            return Err(Error::Invalid);
        }
        last_id.set(multicast_id);
        match target.producer.reserve(len) {
            Ok(_) => Ok(()),
            Err(error) => self.on_ring_refused(target, node, error).map(drop),
        }
    }

    fn staging(&self) -> *mut u8 {
        self.send.staging.start.as_ptr()
    }

    fn send_copy(&self, node: u32, from: *const u8, len: usize) {
        // Room was checked under the same lock; only a corrupt ring can refuse now.
        if let Ok(destination) = self.reserve(node, len) {
            // SAFETY: `destination` has room for `len` bytes, and `from` has as many (staging
            // memory of a context with at least this MTU). Both may be the same staging memory.
            unsafe { std::ptr::copy(from, destination, len) };
            self.publish();
        }
    }
}

impl ShmemEndpoint {
    /// The target of a message of `len` bytes to `node`. Invalid: no such node, this node itself,
    /// or an impossible length. Io: the link is broken.
    #[inline(always)]
    fn target(&self, node: u32, len: usize) -> PmResult<&Target> {
        let target = self.send.targets.get(node as usize).ok_or(Error::Invalid)?;
        if node == self.self_node || len.wrapping_sub(1) >= self.mtu {
            return Err(Error::Invalid);
        }
        if target.state.get() != ACTIVE {
            self.prepare_target(target, node)?;
        }
        Ok(target)
    }

    #[cold]
    fn prepare_target(&self, target: &Target, node: u32) -> PmResult<()> {
        if target.state.get() == BROKEN {
            return Err(Error::Io);
        }
        self.segment.activate(self.self_node as usize, node as usize, RingKind::Message);
        target.state.set(ACTIVE);
        Ok(())
    }

    /// Handles a ring that is full or corrupt. Messages to a node that has exited are accepted.
    #[cold]
    fn on_ring_refused(&self, target: &Target, node: u32, error: Error) -> PmResult<*mut u8> {
        if error == Error::Io {
            self.break_link(node, "the ring to it has impossible indices");
            return Err(error);
        }
        if target.record().receiver_state.0.bits() & EXITED != 0 {
            return Ok(self.send.staging.start.as_ptr());
        }
        Err(error)
    }

    /// Ends all traffic to and from `node`.
    #[cold]
    pub(crate) fn break_link(&self, node: u32, why: &str) {
        debug::log(debug::ERROR, || format!("shmem: link to node {node} is broken: {why}"));
        self.send.targets[node as usize].state.set(BROKEN);
    }

    pub(crate) fn is_broken(&self, node: usize) -> bool {
        self.send.targets[node].state.get() == BROKEN
    }

    /// Checks the receiver state of `target`. Called after a message was published.
    #[cold]
    pub(crate) fn check_receiver(&self, target: &Target, position: u64, len: usize) {
        let (index, header) = target.producer.last_published(position, len);
        self.check_receiver_state(target, index, header);
    }

    #[inline(always)]
    fn check_receiver_state(&self, target: &Target, index: u64, header: SlotHeader) {
        let receiver_bits = target.record().receiver_state.0.load_after_publish(self.must_fence);
        if receiver_bits != 0 {
            self.handle_receiver_state(target, receiver_bits, index, header);
        }
    }

    /// The target for `node`, for callers that keep it as long as this endpoint lives. None: no
    /// such node, or a fence is needed after every message.
    pub(crate) fn direct_target(&self, node: u32) -> Option<&Target> {
        self.send.targets.get(node as usize).filter(|_| !self.must_fence)
    }

    /// Whether `target` belongs to this endpoint.
    pub(crate) fn owns_target(&self, target: &Target) -> bool {
        self.send.targets.as_ptr_range().contains(&std::ptr::from_ref(target))
    }

    #[cold]
    fn publish_multicast(&self) {
        let sender = &self.send;
        let len = (sender.pending.len.get() as usize).min(self.mtu);
        let count = (sender.multicast_count.get() as usize).min(sender.multicast_nodes.len());
        for entry in &sender.multicast_nodes[..count] {
            self.send_copy(entry.get() as u32, self.staging(), len);
        }
    }

    /// Handles a receiver that sleeps or has exited.
    #[cold]
    fn handle_receiver_state(
        &self,
        target: &Target,
        receiver_bits: u32,
        index: u64,
        header: SlotHeader,
    ) {
        if receiver_bits & EXITED != 0 {
            if target.producer.ring().claim(index, header) {
                self.count_dropped();
            }
        } else if receiver_bits & SLEEPING != 0 {
            self.wake_receiver(target);
        }
    }

    #[cold]
    fn wake_receiver(&self, target: &Target) {
        let receiver_state = &target.record().receiver_state.0;
        if receiver_state.clear_sleeping() {
            let node = self.node_of(target);
            if !self.doorbell.ring(self.segment.nonce(), node) {
                // The kernel has no memory, so the next sender tries again.
                receiver_state.set_sleeping(|| {});
            }
        }
    }

    fn node_of(&self, target: &Target) -> usize {
        self.send.targets.iter().position(|t| std::ptr::eq(t, target)).unwrap_or(0)
    }

    /// Counts a message to an exited node as received. The sender does this, because the receiver
    /// cannot.
    #[cold]
    fn count_dropped(&self) {
        let dropped_counter = &self.record().send.0.dropped;
        dropped_counter
            .store(dropped_counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        debug::log(debug::WARNING, || {
            "shmem: a message to a node that has exited is dropped".into()
        });
    }
}
