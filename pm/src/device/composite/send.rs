//! Sending: by the member that reaches the node.
//!
//! A short message towards a node that shmem reaches takes the direct way, past the member: one
//! look-up, one place in the ring. Everything else is the member's affair.

// UNSAFETY: keeps the address of the pending message's target.
#![expect(unsafe_code)]

use super::open::Entry;
use super::{Composite, Member};
use crate::device::shmem::Target;
use crate::error::{Error, Result};
use crate::sync::{AtomicPtr, Local, Ordering};
use std::ptr::{self, null_mut};

/// The pending member of a multicast.
const MANY: u64 = u64::MAX;

pub(super) struct Sender {
    /// Where the reserved message goes directly, and its length; null when a member holds it.
    direct: AtomicPtr<Target>,
    direct_len: Local,
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
            direct: AtomicPtr::new(null_mut()),
            direct_len: Local::default(),
            pending: Local::default(),
            many: (0..nodes).map(|_| Local::default()).collect(),
            many_count: Local::default(),
            many_len: Local::default(),
        }
    }
}

impl Composite {
    /// Send lock. As `reserve`, by the direct way; None: that knows.
    #[inline(always)]
    pub(crate) fn reserve_short(&self, node: u32, len: usize) -> Option<*mut u8> {
        let target = self.direct(node)?;
        let buffer = target.reserve_short(len)?;
        self.send.direct.store(ptr::from_ref(target).cast_mut(), Ordering::Relaxed);
        self.send.direct_len.set(len as u64);
        Some(buffer)
    }

    #[inline(always)]
    pub(super) fn reserve_one(&self, node: u32, len: usize) -> Result<*mut u8> {
        let (place, member, there) = self.route(node)?;
        let buffer = member.reserve(there, len)?;
        self.send.pending.set(place);
        self.send.direct.store(null_mut(), Ordering::Relaxed);
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
        sender.direct.store(null_mut(), Ordering::Relaxed);
        self.first().map(Member::staging).ok_or(Error::Invalid)
    }

    fn entry(&self, node: u32) -> u64 {
        self.table[node as usize].load(crate::sync::Ordering::Relaxed)
    }

    /// The member that holds a multicast's message.
    fn first(&self) -> Option<Member<'_>> {
        self.member(Entry::from_bits(self.send.many.first()?.get())?.member())
    }

    pub(super) fn truncate_pending(&self, len: usize) -> Result<()> {
        if self.pending_short().is_some() {
            return shorten(&self.send.direct_len, len);
        }
        let pending = self.send.pending.get();
        if pending != MANY {
            return self.member(pending).ok_or(Error::Io)?.truncate(len);
        }
        shorten(&self.send.many_len, len)
    }

    /// Send lock. Where the message goes that `reserve_short` reserved; None: a member holds it.
    #[inline(always)]
    pub(crate) fn pending_short(&self) -> Option<&Target> {
        // SAFETY: null, or what `direct` has answered, which lives as long as `self`.
        unsafe { self.send.direct.load(Ordering::Relaxed).as_ref() }
    }

    /// Send lock. Sends what is pending; true: `knock` has to follow.
    #[inline(always)]
    pub(crate) fn publish_short(&self, target: &Target) -> bool {
        target.publish_short(self.send.direct_len.get() as usize)
    }

    /// After `publish_short`: the receiver sleeps, or has gone.
    #[cold]
    pub(crate) fn knock(&self, target: &Target) {
        // No member goes while the send lock is held.
        if let Some((_, member)) = self.members().find(|(_, member)| member.owns(target)) {
            member.knock(target, self.send.direct_len.get() as usize);
        }
    }

    #[inline(always)]
    pub(super) fn publish_pending(&self) {
        if let Some(target) = self.pending_short() {
            if self.publish_short(target) {
                self.knock(target);
            }
            return;
        }
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

/// Shortens a reserved message. Invalid: to 0, or longer.
fn shorten(pending: &Local, len: usize) -> Result<()> {
    if len == 0 || len as u64 > pending.get() {
        return Err(Error::Invalid);
    }
    pending.set(len as u64);
    Ok(())
}
