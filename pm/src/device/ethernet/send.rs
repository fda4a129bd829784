//! Sending: a slot of the slab, a store that publishes it, a pass over the wires.

// UNSAFETY: copies a multicast's message.
#![expect(unsafe_code)]

use super::Endpoint;
use super::clock;
use super::engine::Pass;
use super::lanes::{Peer, Submitted};
use super::layout::{Geometry, OUTBOX, Published};
use super::pool::Line;
use super::reliability::Kind;
use super::slab::Content;
use super::slots::Slots;
use crate::debug;
use crate::error::{Error, Result};
use crate::sync::{Local, Ordering};

/// The pending slot of a message that goes nowhere: its receiver has gone.
const NOWHERE: u64 = u64::MAX - 1;
/// The pending slot of a multicast.
const MANY: u64 = u64::MAX;

/// Messages in a row, with no poll and no pause between, that go out each at once. Who sends more
/// is streaming: then packets go out in runs.
const AT_ONCE: u64 = 4;
/// What makes a pause, in nanoseconds.
const PAUSE: u64 = 10_000;
/// As many messages on the way are a stream as well, and then a pause is longer: polls that make
/// room for more come in between.
pub(super) const STREAM: u64 = 32;
const LONG_PAUSE: u64 = 2_000_000;
/// The longest run.
const RUN: usize = 32;

pub(super) struct Sender {
    slots: Slots,
    slot: Local,
    node: Local,
    len: Local,
    /// A multicast's message, or one that goes nowhere.
    staging: Box<[Line]>,
    many: Box<[Local]>,
    many_count: Local,
    stamp: Local,
    /// Slots that a multicast has been promised, and under which stamp.
    promised: Local,
    promised_to: Local,
    /// When a message in a row was sent last.
    last: Local,
    /// The slot that was given back unsent by a reset.
    unused: Local,
}

/// No slot.
const NONE: u64 = u64::MAX;

impl Sender {
    pub(super) fn new(geometry: &Geometry) -> Sender {
        // A multicast names each node once; most jobs send to few at a time.
        let many = geometry.nodes.min(MULTICAST);
        Sender {
            slots: Slots::new(geometry.slots - OUTBOX, geometry.mtu),
            slot: Local::default(),
            node: Local::default(),
            len: Local::default(),
            staging: vec![Line::default(); geometry.mtu.div_ceil(size_of::<Line>())].into(),
            many: (0..many).map(|_| Local::default()).collect(),
            many_count: Local::default(),
            stamp: Local::default(),
            promised: Local::default(),
            promised_to: Local::default(),
            last: Local::default(),
            unused: Local::new(NONE),
        }
    }
}

/// Nodes of one multicast: each needs a slot.
const MULTICAST: usize = 1024;

impl Endpoint {
    #[inline(always)]
    pub(crate) fn reserve(&self, node: u32, len: usize) -> Result<*mut u8> {
        let peer = self.target(node, len)?;
        let sender = &self.send;
        if self.is_gone(node) {
            sender.slot.set(NOWHERE);
            sender.node.set(u64::from(node));
            sender.len.set(len as u64);
            return Ok(self.staging());
        }
        let slot = match self.slot_for(peer) {
            Some(slot) => slot,
            None => {
                // What is acknowledged meanwhile makes room.
                self.poll(Pass::All);
                self.slot_for(peer).ok_or(Error::NoBuffers)?
            }
        };
        sender.slot.set(slot);
        sender.node.set(u64::from(node));
        sender.len.set(len as u64);
        Ok(self.slab.payload(self.place, slot as usize))
    }

    /// The peer, if a message of that length may go there.
    #[inline(always)]
    fn target(&self, node: u32, len: usize) -> Result<&Peer> {
        if node as usize >= self.nodes() || node == self.own {
            return Err(Error::Invalid);
        }
        let peer = self.lanes.peers.get(node).ok_or(Error::Invalid)?;
        let mut mtu = peer.mtu.get();
        if mtu == 0 {
            mtu = self.meet(node, peer)? as u64;
        }
        if (len as u64).wrapping_sub(1) >= mtu {
            return Err(Error::Invalid);
        }
        Ok(peer)
    }

    /// Looks up how a peer is reached. Io: its address is none.
    #[cold]
    pub(super) fn meet(&self, node: u32, peer: &Peer) -> Result<usize> {
        let mtu = self.served.enter().links.mtu(node).map_err(|_| Error::Io)?.min(self.mtu);
        peer.mtu.set(mtu as u64);
        Ok(mtu)
    }

    pub(crate) fn mtu(&self, node: u32) -> Result<usize> {
        if node == self.own {
            return Ok(self.mtu);
        }
        self.target(node, 1)?;
        Ok(self.lanes.peers.get(node).ok_or(Error::Invalid)?.mtu.get() as usize)
    }

    #[inline(always)]
    pub(super) fn is_gone(&self, node: u32) -> bool {
        self.slab.gone_count().load(Ordering::Relaxed) != 0 && self.slab.is_gone(node as usize)
    }

    /// A free slot, if this peer may have one more: no peer has more than are left, so that
    /// those who do not read stop nobody else.
    #[inline(always)]
    fn slot_for(&self, peer: &Peer) -> Option<u64> {
        self.collect();
        let free = self.send.slots.len() + u64::from(self.send.unused.get() != NONE);
        if peer.outstanding() >= free { None } else { self.any_slot() }
    }

    #[inline(always)]
    fn any_slot(&self) -> Option<u64> {
        let unused = self.send.unused.get();
        if unused != NONE {
            self.send.unused.set(NONE);
            return Some(unused);
        }
        self.send.slots.take()
    }

    /// Takes back what is acknowledged.
    #[inline(always)]
    fn collect(&self) {
        while let Some(slot) = self.lanes.freed.pop() {
            self.send.slots.give(slot);
        }
    }

    /// Whether `send_copy` will find room as long as nothing else is sent. Invalid also where
    /// this stamp has been here: a node that is named twice.
    pub(crate) fn has_room(&self, node: u32, len: usize, stamp: u64) -> Result<()> {
        let peer = self.target(node, len)?;
        if peer.stamp.get() == stamp {
            return Err(Error::Invalid);
        }
        peer.stamp.set(stamp);
        if self.is_gone(node) {
            return Ok(());
        }
        let sender = &self.send;
        if sender.promised_to.get() != stamp {
            sender.promised_to.set(stamp);
            sender.promised.set(0);
        }
        let room = || {
            self.collect();
            let left = sender.slots.len().saturating_sub(sender.promised.get());
            peer.outstanding() < left
        };
        if !room() {
            self.poll(Pass::All);
            if !room() {
                return Err(Error::NoBuffers);
            }
        }
        sender.promised.set(sender.promised.get() + 1);
        Ok(())
    }

    /// Where a multicast's message is written, once for all.
    pub(crate) fn staging(&self) -> *mut u8 {
        self.send.staging.as_ptr().cast_mut().cast()
    }

    /// Sends `len` bytes at `from` to a node that has room.
    pub(crate) fn send_copy(&self, node: u32, from: *const u8, len: usize) {
        let sender = &self.send;
        let slot = if self.is_gone(node) { NOWHERE } else { self.any_slot().unwrap_or(NOWHERE) };
        sender.slot.set(slot);
        sender.node.set(u64::from(node));
        sender.len.set(len as u64);
        if slot != NOWHERE {
            let to = self.slab.payload(self.place, slot as usize);
            // SAFETY: the slot has room for the longest message, `from` has as many bytes
            // (staging of a context with at least this MTU).
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }
        self.publish();
    }

    pub(crate) fn reserve_many(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        let sender = &self.send;
        if nodes.is_empty() || nodes.len() > self.nodes() {
            return Err(Error::Invalid);
        }
        if nodes.len() > sender.many.len() {
            return Err(Error::NoBuffers);
        }
        let stamp = self.next_stamp();
        nodes.iter().try_for_each(|&node| self.has_room(node, len, stamp))?;
        for (slot, &node) in sender.many.iter().zip(nodes) {
            slot.set(u64::from(node));
        }
        sender.many_count.set(nodes.len() as u64);
        sender.slot.set(MANY);
        sender.len.set(len as u64);
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
        let pending = &self.send.len;
        if len == 0 || len as u64 > pending.get() {
            return Err(Error::Invalid);
        }
        pending.set(len as u64);
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn publish(&self) {
        let sender = &self.send;
        let (slot, node) = (sender.slot.get(), sender.node.get() as u32);
        if slot == MANY {
            return self.publish_many();
        }
        let len = sender.len.get();
        // Before the message becomes visible.
        self.record().node.send.0.count(node.wrapping_add(1), len as usize);
        let Some(peer) = self.lanes.peers.get(node).filter(|_| slot != NOWHERE) else {
            return self.drop_one();
        };
        let behind = peer.operations.load(Ordering::Acquire) != 0;
        let published = Published { len: len as usize, kind: Kind::Data, behind };
        let order = peer.sent.get() as u32;
        let content = Content { to: node, order, sequence: None, published };
        self.slab.publish(self.place, slot as usize, content);
        peer.sent.set(peer.sent.get().wrapping_add(1));
        // As many words as slots: there is room.
        self.lanes
            .submitted
            .push(Submitted { slot: slot as u32, to: node, len: len as u32 }.word());
        sender.slot.set(NOWHERE);
        if !self.is_streaming() || self.lanes.submitted.len() >= RUN {
            self.serve(Pass::Send);
            if self.lanes.burst.get() >= AT_ONCE {
                // The time that this took is no pause of the application's.
                self.send.last.set(clock::read());
            }
        }
    }

    /// Whether more is likely to be sent at once. What a stream leaves behind goes out with the
    /// next poll of the application, or of the thread.
    #[inline(always)]
    fn is_streaming(&self) -> bool {
        let burst = self.lanes.burst.get() + 1;
        self.lanes.burst.set(burst);
        if burst < AT_ONCE {
            return false;
        }
        let now = clock::read();
        let before = self.send.last.get();
        self.send.last.set(now);
        let many = self.lanes.outstanding.load(Ordering::Relaxed) >= STREAM;
        let pause = if many { LONG_PAUSE } else { PAUSE };
        if burst > AT_ONCE && now.wrapping_sub(before) > pause {
            self.lanes.burst.set(1);
            return false;
        }
        burst > AT_ONCE
    }

    #[cold]
    fn publish_many(&self) {
        let sender = &self.send;
        let len = (sender.len.get() as usize).min(self.mtu);
        let count = (sender.many_count.get() as usize).min(sender.many.len());
        for node in &sender.many[..count] {
            self.send_copy(node.get() as u32, self.staging(), len);
        }
    }

    /// A message to a node that has gone counts as received, by its sender.
    #[cold]
    fn drop_one(&self) {
        self.record().node.send.0.dropped.fetch_add(1, Ordering::Release);
        debug::say(debug::WARNING, || {
            "ethernet: a message to a node that has exited is dropped".into()
        });
    }

    /// Send lock: what was reserved is not sent.
    pub(super) fn give_up_reserved(&self) {
        let slot = self.send.slot.get();
        self.send.slot.set(NOWHERE);
        if slot != NOWHERE && slot != MANY && self.slab.content(self.place, slot as usize).is_none()
        {
            self.send.unused.set(slot);
        }
    }
}
