//! Sending: a place in the ring, a release store, a look at the door.

// UNSAFETY: points into the segment, and copies a multicast's message.
#![expect(unsafe_code)]

use super::reach::Reach;
use super::{Endpoint, message_ring};
use crate::debug;
use crate::door::{ARMED, EXITED};
use crate::error::{Error, Result};
use crate::ring::{LINE, Producer, Reserved, Word};
use crate::segment::layout::{Node, SendCounters};
use crate::segment::{Kind, Segment};
use crate::sync::{AtomicU64, Local, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

/// The position of a message that goes nowhere: its receiver has exited.
const NOWHERE: u64 = u64::MAX - 1;
/// The pending node of a multicast.
const MANY: u64 = u64::MAX;

/// Messages in one direction after which as many slots are fetched at once.
const RUN: u64 = 16;

/// States of a target.
const NEW: u64 = 0;
const ACTIVE: u64 = 1;
const BROKEN: u64 = 2;
/// Remote operations are under way that messages must not overtake.
const WAITS: u64 = 3;

/// The way to one node. All that a message needs is here, so that a composite can keep the
/// address of it (see `direct`).
#[repr(align(64))]
pub(crate) struct Target {
    producer: Producer,
    /// What is released of the ring in the other direction.
    passed: NonNull<AtomicU64>,
    state: Local,
    /// What the own node had received when the last run ended.
    received: Local,
    record: NonNull<Node>,
    /// The own node's record: what is sent is counted there.
    own: NonNull<Node>,
    /// 1 + the node.
    pub(super) name: u32,
    /// The way to its memory.
    pub(super) reach: Reach,
}

impl Target {
    #[inline(always)]
    pub(super) fn record(&self) -> &Node {
        // SAFETY: points into the segment of the endpoint that owns `self`; only atomics.
        unsafe { self.record.as_ref() }
    }

    /// See `Producer::expect`.
    #[inline(always)]
    pub(super) fn expect(&self, after: usize) {
        self.producer.expect(after);
    }

    /// Send lock. Room for a short message. None: `Endpoint::reserve` makes room, or says why not.
    #[inline(always)]
    pub(crate) fn reserve_short(&self, len: usize) -> Option<*mut u8> {
        if self.state.get() != ACTIVE || len.wrapping_sub(1) >= self.producer.inline() {
            return None;
        }
        self.producer.reserve_short()
    }

    /// Send lock. The same for a longer one.
    #[inline(always)]
    pub(crate) fn reserve_long(&self, len: usize) -> Option<Reserved> {
        let [short, mtu] = [self.producer.inline(), self.producer.mtu()];
        if self.state.get() != ACTIVE || len <= short || len > mtu {
            return None;
        }
        self.producer.reserve_long(len)
    }

    /// Send lock, after `reserve_short`. True when `Endpoint::knock` has to follow.
    #[inline(always)]
    pub(crate) fn publish_short(&self, len: usize) -> bool {
        let counters = self.counters();
        counters.count();
        let at = self.producer.publish_short(len);
        if at % RUN == RUN - 1 {
            self.fetch_run(len);
        }
        counters.describe(self.name, len);
        self.record().door.0.is_shut()
    }

    /// Another run of messages has been sent. If nothing was received meanwhile, there may be many
    /// more: their slots are with the receiver, and who waited for one after the other would be
    /// slower than it. Where there are answers, the slots would only be taken away again.
    #[inline(never)]
    fn fetch_run(&self, len: usize) {
        let received = self.own().receive.0.received.load(Ordering::Relaxed);
        if received == self.received.get() {
            self.producer.fetch_slots(RUN, len);
        }
        self.received.set(received);
    }

    /// Send lock, after `reserve_long`. The same.
    #[inline(always)]
    pub(crate) fn publish_long(&self, position: u64, len: usize) -> bool {
        let counters = self.counters();
        counters.count();
        self.producer.publish(position, len, self.passed());
        counters.describe(self.name, len);
        self.record().door.0.is_shut()
    }

    #[inline(always)]
    fn passed(&self) -> u64 {
        // SAFETY: as `record`. SYNC: credit
        unsafe { self.passed.as_ref() }.load(Ordering::Acquire)
    }

    /// See `Producer::credit`.
    #[inline(always)]
    pub(super) fn credit(&self, passed: u64) {
        self.producer.credit(passed);
    }

    /// See `Producer::fetch_home`.
    pub(crate) fn fetch_home(&self, lines: Range<u64>) -> bool {
        self.producer.fetch_home(lines)
    }

    /// The own node's record.
    #[inline(always)]
    pub(super) fn own(&self) -> &Node {
        // SAFETY: as `record`.
        unsafe { self.own.as_ref() }
    }

    /// What the own node counts of what it sends.
    #[inline(always)]
    fn counters(&self) -> &SendCounters {
        &self.own().send.0
    }
}

/// What is reserved and not yet sent.
#[derive(Default)]
struct Pending {
    node: Local,
    len: Local,
    position: Local,
}

pub(super) struct Sender {
    targets: Box<[Target]>,
    pending: Pending,
    /// A multicast's message, or one that goes nowhere.
    staging: Staging,
    /// A multicast's nodes.
    many: Box<[Local]>,
    many_count: Local,
    /// The last multicast, and for each target the last that named it.
    stamp: Local,
    stamps: Box<[Local]>,
}

impl Sender {
    pub(super) fn new(segment: &Segment, own: usize) -> Sender {
        let nodes = 0..segment.geometry().nodes;
        let target = |to| Target {
            producer: Producer::new(message_ring(segment, own, to)),
            passed: message_ring(segment, to, own).passed(),
            state: Local::new(NEW),
            received: Local::default(),
            record: NonNull::from(segment.node(to)),
            own: NonNull::from(segment.node(own)),
            name: to as u32 + 1,
            reach: Reach::new(segment.regions(to)),
        };
        Sender {
            targets: nodes.clone().map(target).collect(),
            pending: Pending::default(),
            staging: Staging::new(segment.geometry().ring.mtu as usize),
            many: nodes.clone().map(|_| Local::default()).collect(),
            many_count: Local::default(),
            stamp: Local::default(),
            stamps: nodes.map(|_| Local::default()).collect(),
        }
    }
}

impl Sender {
    /// The way to `node`, which stays where it is when the sender is moved.
    pub(super) fn target(&self, node: usize) -> &Target {
        &self.targets[node]
    }
}

/// Memory of fixed size that is handed out.
struct Staging {
    start: NonNull<u8>,
    layout: Layout,
}

impl Staging {
    fn new(bytes: usize) -> Staging {
        let layout = Layout::from_size_align(bytes.max(LINE), LINE).unwrap_or(Layout::new::<u64>());
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

impl Endpoint {
    #[inline(always)]
    pub(crate) fn reserve(&self, node: u32, len: usize) -> Result<*mut u8> {
        let target = self.target(node, len)?;
        let (payload, position) = match target.producer.reserve(len) {
            Ok(reserved) => (reserved.payload, reserved.position),
            Err(error) => (self.refused(target, node, error)?, NOWHERE),
        };
        let pending = &self.send.pending;
        pending.node.set(u64::from(node));
        pending.len.set(len as u64);
        pending.position.set(position);
        Ok(payload)
    }

    /// Invalid: no such node, self, or a length that cannot be. Io: that link is broken.
    #[inline(always)]
    fn target(&self, node: u32, len: usize) -> Result<&Target> {
        let target = self.send.targets.get(node as usize).ok_or(Error::Invalid)?;
        if node == self.own || len.wrapping_sub(1) >= self.mtu {
            return Err(Error::Invalid);
        }
        if target.state.get() != ACTIVE {
            self.first(target, node)?;
        }
        Ok(target)
    }

    #[cold]
    fn first(&self, target: &Target, node: u32) -> Result<()> {
        if target.state.get() == BROKEN {
            return Err(Error::Io);
        }
        if target.state.get() == WAITS {
            self.relay_progress();
        }
        self.segment.activate(self.own as usize, node as usize, Kind::Message);
        target.state.set(ACTIVE);
        // After it was set: another thread may just have begun with one.
        if self.is_relaying_to(node) {
            target.state.set(WAITS);
            return Err(Error::NoBuffers);
        }
        Ok(())
    }

    /// The ring is full or corrupt. A node that has exited takes everything.
    #[cold]
    fn refused(&self, target: &Target, node: u32, error: Error) -> Result<*mut u8> {
        if error == Error::Io {
            self.break_link(node, "the ring towards it holds impossible indices");
            return Err(error);
        }
        if target.record().door.0.bits() & EXITED != 0 {
            return Ok(self.send.staging.start.as_ptr());
        }
        if self.relay_is_used() {
            self.relay_progress();
        }
        Err(error)
    }

    /// No message goes to `node` before the remote operations that are under way.
    pub(super) fn hold_messages(&self, node: u32) {
        let state = &self.send.targets[node as usize].state;
        if state.get() != BROKEN {
            state.set(WAITS);
        }
    }

    /// Rings if `node` sleeps.
    pub(super) fn wake_node(&self, node: usize) {
        let target = &self.send.targets[node];
        if target.record().door.0.knock(self.fences) & ARMED != 0 {
            self.wake(target);
        }
    }

    /// Nothing goes to or comes from `node` any more.
    #[cold]
    pub(crate) fn break_link(&self, node: u32, why: &str) {
        debug::say(debug::ERROR, || format!("shmem: link to node {node} is broken: {why}"));
        self.send.targets[node as usize].state.set(BROKEN);
    }

    pub(crate) fn is_broken(&self, node: usize) -> bool {
        self.send.targets[node].state.get() == BROKEN
    }

    pub(crate) fn is_send_done(&self) -> Result<()> {
        let broken = self.send.targets.iter().any(|target| target.state.get() == BROKEN);
        if broken { Err(Error::Io) } else { Ok(()) }
    }

    /// Whether `reserve` would succeed, and go on succeeding until something is sent. Invalid also
    /// where this stamp has been here: a node that is named twice.
    pub(crate) fn has_room(&self, node: u32, len: usize, stamp: u64) -> Result<()> {
        let target = self.target(node, len)?;
        let last = self.send.stamps.get(node as usize).ok_or(Error::Invalid)?;
        if last.get() == stamp {
            return Err(Error::Invalid);
        }
        last.set(stamp);
        match target.producer.reserve(len) {
            Ok(_) => Ok(()),
            Err(error) => self.refused(target, node, error).map(drop),
        }
    }

    /// Where a multicast's message is written, once for all.
    pub(crate) fn staging(&self) -> *mut u8 {
        self.send.staging.start.as_ptr()
    }

    /// Sends `len` bytes at `from` to a node that has room.
    pub(crate) fn send_copy(&self, node: u32, from: *const u8, len: usize) {
        // The room was found under the same lock; only a corrupted ring can refuse now.
        if let Ok(to) = self.reserve(node, len) {
            // SAFETY: `to` has room for `len` bytes, `from` has as many (staging of a context
            // with at least this MTU); both may be the same staging memory.
            unsafe { std::ptr::copy(from, to, len) };
            self.publish();
        }
    }

    pub(crate) fn reserve_many(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        let sender = &self.send;
        if nodes.is_empty() || nodes.len() > sender.many.len() {
            return Err(Error::Invalid);
        }
        let stamp = self.next_stamp();
        nodes.iter().try_for_each(|&node| self.has_room(node, len, stamp))?;
        for (slot, &node) in sender.many.iter().zip(nodes) {
            slot.set(u64::from(node));
        }
        sender.many_count.set(nodes.len() as u64);
        sender.pending.node.set(MANY);
        sender.pending.len.set(len as u64);
        Ok(self.staging())
    }

    /// A number that no multicast of this endpoint has had.
    pub(crate) fn next_stamp(&self) -> u64 {
        let stamp = self.send.stamp.get() + 1;
        self.send.stamp.set(stamp);
        stamp
    }

    /// No later stamp of this endpoint is as low as `stamp`.
    pub(crate) fn raise_stamp(&self, stamp: u64) {
        self.send.stamp.set(self.send.stamp.get().max(stamp));
    }

    pub(crate) fn truncate(&self, len: usize) -> Result<()> {
        let pending = &self.send.pending.len;
        if len == 0 || len as u64 > pending.get() {
            return Err(Error::Invalid);
        }
        pending.set(len as u64);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn publish(&self) {
        let pending = &self.send.pending;
        let Some(target) = self.send.targets.get(pending.node.get() as usize) else {
            return self.publish_many();
        };
        let len = pending.len.get() as usize;
        let counters = target.counters();
        counters.count();
        counters.describe(target.name, len);
        let position = pending.position.get();
        if position == NOWHERE {
            return self.drop_one();
        }
        let (index, word) = target.producer.publish(position, len, target.passed());
        self.look_at_door(target, index, word);
    }

    /// After `target` was given a message: looks at its door.
    #[cold]
    pub(crate) fn knock(&self, target: &Target, position: u64, len: usize) {
        let (index, word) = target.producer.last(position, len);
        self.look_at_door(target, index, word);
    }

    #[inline(always)]
    fn look_at_door(&self, target: &Target, index: u64, word: Word) {
        let bits = target.record().door.0.knock(self.fences);
        if bits != 0 {
            self.knocked(target, bits, index, word);
        }
    }

    /// The way to `node` for who keeps it as long as this endpoint lives. None: no such node, or a
    /// fence is needed after every message.
    pub(crate) fn direct(&self, node: u32) -> Option<&Target> {
        self.send.targets.get(node as usize).filter(|_| !self.fences)
    }

    /// Whether `target` is one of ours.
    pub(crate) fn owns(&self, target: &Target) -> bool {
        self.send.targets.as_ptr_range().contains(&std::ptr::from_ref(target))
    }

    #[cold]
    fn publish_many(&self) {
        let sender = &self.send;
        let len = (sender.pending.len.get() as usize).min(self.mtu);
        let count = (sender.many_count.get() as usize).min(sender.many.len());
        for node in &sender.many[..count] {
            self.send_copy(node.get() as u32, self.staging(), len);
        }
    }

    /// The receiver sleeps, or has gone.
    #[cold]
    fn knocked(&self, target: &Target, bits: u32, index: u64, word: Word) {
        if bits & EXITED != 0 {
            if target.producer.ring().claim(index, word) {
                self.drop_one();
            }
        } else if bits & ARMED != 0 {
            self.wake(target);
        }
    }

    #[cold]
    fn wake(&self, target: &Target) {
        let door = &target.record().door.0;
        if door.disarm() {
            let node = self.node_of(target);
            if !self.ringer.ring(self.segment.nonce(), node) {
                // No memory in the kernel: whoever sends next tries again.
                door.arm(|| {});
            }
        }
    }

    fn node_of(&self, target: &Target) -> usize {
        self.send.targets.iter().position(|t| std::ptr::eq(t, target)).unwrap_or(0)
    }

    /// A message to a node that has exited counts as received, by its sender.
    #[cold]
    fn drop_one(&self) {
        let dropped = &self.record().send.0.dropped;
        dropped.store(dropped.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        debug::say(debug::WARNING, || {
            "shmem: a message to a node that has exited is dropped".into()
        });
    }
}
