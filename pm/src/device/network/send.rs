//! Sending: a slot of the slab, a store that publishes it, and word to whoever makes progress.

// UNSAFETY: copies a multicast's message.
#![expect(unsafe_code)]

use super::lanes::{Peer, Submitted};
use super::layout::{Geometry, OUTBOX};
use super::pool::Line;
use super::slots::Slots;
use super::{Endpoint, Network, Pass};
use crate::debug;
use crate::error::{Error, Result};
use crate::sync::{Local, Ordering};

/// The pending slot of a message that goes nowhere: its receiver has gone.
const NOWHERE: u64 = u64::MAX - 1;
/// The pending slot of a multicast.
const MANY: u64 = u64::MAX;

/// Nodes of one multicast: each needs a slot.
const MULTICAST: usize = 1024;

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
}

impl Sender {
    pub(super) fn new(geometry: &Geometry) -> Sender {
        // A multicast names each node once; most jobs send to few at a time.
        let many = geometry.nodes.min(MULTICAST);
        Sender {
            slots: Slots::new(geometry.slots - OUTBOX, geometry.mtu),
            slot: Local::new(NOWHERE),
            node: Local::default(),
            len: Local::default(),
            staging: vec![Line::default(); geometry.mtu.div_ceil(size_of::<Line>())].into(),
            many: (0..many).map(|_| Local::default()).collect(),
            many_count: Local::default(),
            stamp: Local::default(),
            promised: Local::default(),
            promised_to: Local::default(),
        }
    }

    #[inline(always)]
    fn set_pending(&self, slot: u64, node: u32, len: usize) {
        self.slot.set(slot);
        self.node.set(u64::from(node));
        self.len.set(len as u64);
    }
}

impl<N: Network> Endpoint<N> {
    #[inline(always)]
    pub(crate) fn reserve(&self, node: u32, len: usize) -> Result<*mut u8> {
        let peer = self.target(node, len)?;
        let sender = &self.send;
        if self.is_gone(node) {
            sender.set_pending(NOWHERE, node, len);
            return Ok(self.staging());
        }
        self.make_room(node, peer, 0)?;
        let slot = sender.slots.take().ok_or(Error::NoBuffers)?;
        sender.set_pending(slot, node, len);
        Ok(self.slab.payload(self.place, slot as usize))
    }

    /// The peer, if a message of that length may go there. Io: none goes anywhere.
    #[inline(always)]
    fn target(&self, node: u32, len: usize) -> Result<&Peer> {
        let peer = self.peer(node)?;
        if (len as u64).wrapping_sub(1) >= peer.mtu.get() {
            return Err(Error::Invalid);
        }
        N::check(self)?;
        Ok(peer)
    }

    /// Another node, of which is known how long its messages may be.
    #[inline(always)]
    pub(crate) fn peer(&self, node: u32) -> Result<&Peer> {
        self.check_peer(node)?;
        let peer = self.lanes.peers.get(node).ok_or(Error::Invalid)?;
        if peer.mtu.get() == 0 {
            self.meet(node, peer)?;
        }
        Ok(peer)
    }

    /// Looks up how a peer is reached. Io: its address is none.
    #[cold]
    fn meet(&self, node: u32, peer: &Peer) -> Result<()> {
        peer.mtu.set(N::longest(self, node)?.min(self.mtu) as u64);
        Ok(())
    }

    pub(crate) fn mtu(&self, node: u32) -> Result<usize> {
        if node == self.own {
            return Ok(self.mtu);
        }
        Ok(self.peer(node)?.mtu.get() as usize)
    }

    #[inline(always)]
    pub(crate) fn is_gone(&self, node: u32) -> bool {
        self.slab.gone_count().load(Ordering::Relaxed) != 0 && self.slab.is_gone(node as usize)
    }

    /// NoBuffers: no room for one more message to this peer, after `promised` others.
    #[inline(always)]
    fn make_room(&self, node: u32, peer: &Peer, promised: u64) -> Result<()> {
        if self.has_slot(node, peer, promised) {
            return Ok(());
        }
        self.find_room(node, peer, promised)
    }

    /// What is acknowledged meanwhile makes room.
    #[cold]
    fn find_room(&self, node: u32, peer: &Peer, promised: u64) -> Result<()> {
        N::poll(self, Pass::All);
        if self.has_slot(node, peer, promised) {
            return Ok(());
        }
        Err(N::check(self).err().unwrap_or(Error::NoBuffers))
    }

    /// Whether this peer may have a slot: no peer has more than are left, so that those who do not
    /// read stop nobody else.
    #[inline(always)]
    fn has_slot(&self, node: u32, peer: &Peer, promised: u64) -> bool {
        self.collect();
        let left = self.send.slots.len().saturating_sub(promised);
        peer.outstanding() < left && N::may_send(self, node, peer)
    }

    /// Takes back what is acknowledged.
    #[inline(always)]
    pub(in crate::device) fn collect(&self) {
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
        self.make_room(node, peer, sender.promised.get())?;
        sender.promised.set(sender.promised.get() + 1);
        Ok(())
    }

    /// Where a multicast's message is written, once for all.
    pub(crate) fn staging(&self) -> *mut u8 {
        self.send.staging.as_ptr().cast_mut().cast()
    }

    /// Sends `len` bytes at `from` to a node that has room.
    pub(crate) fn send_copy(&self, node: u32, from: *const u8, len: usize) {
        let slot = if self.is_gone(node) { None } else { self.send.slots.take() };
        self.send.set_pending(slot.unwrap_or(NOWHERE), node, len);
        if let Some(slot) = slot {
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
        let counters = &self.record().node.send.0;
        counters.count();
        counters.describe(node.wrapping_add(1), len as usize);
        let Some(peer) = self.lanes.peers.get(node).filter(|_| slot != NOWHERE) else {
            return self.drop_one();
        };
        sender.slot.set(NOWHERE);
        N::send(self, peer, Submitted { slot: slot as u32, to: node, len: len as u32 });
    }

    /// Publishes a message, for whoever makes progress to send.
    #[inline(always)]
    pub(in crate::device) fn hand_over(&self, peer: &Peer, message: Submitted) {
        self.publish_slot(peer, message);
        // As many words as slots: there is room.
        self.lanes.submitted.push(message.word());
    }

    /// Publishes a message, and no more.
    #[inline(always)]
    pub(in crate::device) fn publish_slot(&self, peer: &Peer, message: Submitted) {
        let Submitted { slot, to, len } = message;
        let content = N::content(self, to, peer, len as usize);
        self.slab.publish(self.place, slot as usize, content);
        peer.count_sent();
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
        self.send.slot.set(NOWHERE);
        self.record().node.send.0.dropped.fetch_add(1, Ordering::Release);
        debug::say(debug::WARNING, || {
            format!("{}: a message to a node that has exited is dropped", N::KIND)
        });
    }

    /// Send lock: what was reserved is not sent.
    pub(super) fn give_up_reserved(&self) {
        let slot = self.send.slot.get();
        self.send.slot.set(NOWHERE);
        if slot != NOWHERE && slot != MANY {
            self.send.slots.give(slot);
        }
    }
}
