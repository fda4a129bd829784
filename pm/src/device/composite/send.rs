//! Sending: by the member that reaches the node.

#![forbid(unsafe_code)]

use super::open::Entry;
use super::{Composite, Endpoint};
use crate::error::{Error, Result};
use crate::sync::Local;

/// The pending member of a multicast.
const MANY: u64 = u64::MAX;

pub(super) struct Sender {
    /// The member that holds what is reserved.
    pending: Local,
    /// A multicast's destinations, as [`Entry`] bits; the first one's member holds its staging.
    many: Box<[Local]>,
    many_count: Local,
    many_len: Local,
}

impl Sender {
    pub(super) fn new(nodes: usize) -> Sender {
        Sender {
            pending: Local::default(),
            many: (0..nodes).map(|_| Local::default()).collect(),
            many_count: Local::default(),
            many_len: Local::default(),
        }
    }
}

impl Composite {
    #[inline(always)]
    pub(super) fn reserve_one(&self, node: u32, len: usize) -> Result<*mut u8> {
        let (place, member, there) = self.route(node)?;
        let buffer = member.reserve(there, len)?;
        self.send.pending.set(place);
        Ok(buffer)
    }

    pub(super) fn reserve_all(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        let sender = &self.send;
        if nodes.is_empty() || nodes.len() > sender.many.len() {
            return Err(Error::Invalid);
        }
        let routes = || nodes.iter().map(|&node| self.route(node));
        // One stamp for all members, newer than any of theirs: a node named twice is found even
        // if it has two names here.
        let mut stamp = 0;
        for route in routes() {
            stamp = stamp.max(route?.1.next_stamp());
        }
        for route in routes() {
            let (_, member, there) = route?;
            member.raise_stamp(stamp);
            member.has_room(there, len, stamp)?;
        }
        for (slot, &node) in sender.many.iter().zip(nodes) {
            slot.set(self.entry(node));
        }
        sender.many_count.set(nodes.len() as u64);
        sender.many_len.set(len as u64);
        sender.pending.set(MANY);
        self.first().map(Endpoint::staging).ok_or(Error::Invalid)
    }

    fn entry(&self, node: u32) -> u64 {
        self.table[node as usize].load(crate::sync::Ordering::Relaxed)
    }

    /// The member that holds a multicast's message.
    fn first(&self) -> Option<&Endpoint> {
        self.member(Entry::from_bits(self.send.many.first()?.get())?.member())
    }

    pub(super) fn truncate_pending(&self, len: usize) -> Result<()> {
        let pending = self.send.pending.get();
        if pending != MANY {
            return self.member(pending).ok_or(Error::Io)?.truncate(len);
        }
        if len == 0 || len as u64 > self.send.many_len.get() {
            return Err(Error::Invalid);
        }
        self.send.many_len.set(len as u64);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn publish_pending(&self) {
        match self.member(self.send.pending.get()) {
            Some(member) => member.publish(),
            None => self.publish_all(),
        }
    }

    #[cold]
    fn publish_all(&self) {
        let sender = &self.send;
        let Some(first) = self.first() else { return };
        let len = (sender.many_len.get() as usize).min(first.largest());
        let count = (sender.many_count.get() as usize).min(sender.many.len());
        for slot in &sender.many[..count] {
            let Some(entry) = Entry::from_bits(slot.get()) else { continue };
            if let Some(member) = self.member(entry.member()) {
                member.send_copy(entry.node(), first.staging(), len);
            }
        }
    }
}
