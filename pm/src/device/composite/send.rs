//! Sending: by the member that reaches the node.
//!
//! A message towards a node that shmem reaches takes the direct way, past the member, while there
//! is room that is known: one look-up, one place in the ring. Everything else is the member's
//! affair.

// UNSAFETY: keeps the address of the pending message's target.
#![expect(unsafe_code)]

use super::open::Entry;
use super::{Composite, Member};
use crate::device::shmem::Target;
use crate::error::{Error, Result};
use crate::ring::{IN_SLOT, LINE, Reserved};
use crate::sync::{AtomicPtr, Local, Ordering};
use std::ptr::{self, null_mut};

/// The pending member of a multicast.
const MANY: u64 = u64::MAX;
/// Lines that an empty poll fetches: what comes meanwhile waits for no more than these. Half as
/// many make 8 KiB take 1.2 times as long, four times as many nothing faster (measured).
const AT_ONCE: u64 = 16;

pub(super) struct Sender {
    /// Where the reserved message goes directly, when it is a short one; else null.
    short: AtomicPtr<Target>,
    /// The same when it is a longer one; null also when a member holds the message.
    long: AtomicPtr<Target>,
    /// The length of either, and the longer one's position in the ring's data area.
    direct_len: Local,
    long_at: Local,
    /// Lines of the next longer message there that are still to be fetched.
    ahead: Local,
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
            short: AtomicPtr::new(null_mut()),
            long: AtomicPtr::new(null_mut()),
            direct_len: Local::default(),
            long_at: Local::default(),
            ahead: Local::default(),
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
        self.send.short.store(ptr::from_ref(target).cast_mut(), Ordering::Relaxed);
        self.send.direct_len.set(len as u64);
        Some(buffer)
    }

    /// Send lock. The same for a longer message.
    #[inline(always)]
    fn reserve_long(&self, node: u32, len: usize) -> Option<*mut u8> {
        let target = self.direct(node)?;
        let Reserved { payload, position } = target.reserve_long(len)?;
        self.send.short.store(null_mut(), Ordering::Relaxed);
        self.send.long.store(ptr::from_ref(target).cast_mut(), Ordering::Relaxed);
        self.send.direct_len.set(len as u64);
        self.send.long_at.set(position);
        Some(payload)
    }

    /// A member holds what is reserved.
    fn leave_to_member(&self) {
        self.send.short.store(null_mut(), Ordering::Relaxed);
        self.send.long.store(null_mut(), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn reserve_one(&self, node: u32, len: usize) -> Result<*mut u8> {
        if let Some(buffer) = self.reserve_long(node, len) {
            return Ok(buffer);
        }
        let (place, member, there) = self.route(node)?;
        let buffer = member.reserve(there, len)?;
        self.send.pending.set(place);
        self.leave_to_member();
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
        self.leave_to_member();
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
        if self.pending_short().or(self.pending_long()).is_some() {
            return shorten(&self.send.direct_len, len);
        }
        let pending = self.send.pending.get();
        if pending != MANY {
            return self.member(pending).ok_or(Error::Io)?.truncate(len);
        }
        shorten(&self.send.many_len, len)
    }

    /// Send lock. Where the short message goes that was reserved directly; None: there is none.
    #[inline(always)]
    pub(crate) fn pending_short(&self) -> Option<&Target> {
        // SAFETY: null, or what `direct` has answered, which lives as long as `self`.
        unsafe { self.send.short.load(Ordering::Relaxed).as_ref() }
    }

    /// Send lock, where no short message is pending. The same for a longer one.
    #[inline(always)]
    fn pending_long(&self) -> Option<&Target> {
        // SAFETY: as in `pending_short`.
        unsafe { self.send.long.load(Ordering::Relaxed).as_ref() }
    }

    /// Whether `fetch_ahead` has something to do.
    #[inline(always)]
    pub(crate) fn is_behind(&self) -> bool {
        self.send.ahead.get() != 0
    }

    /// A poll found nothing, nobody sends, and nothing is reserved. Fetches some lines of the place
    /// where the next longer message will lie, if it goes where the last one went. The receiver has
    /// them, and who writes there without would wait for one after the other.
    #[cold]
    pub(crate) fn fetch_ahead(&self) {
        let end = self.send.ahead.get();
        let start = end.saturating_sub(AT_ONCE);
        let fetched = self.pending_long().is_some_and(|target| target.fetch_home(start..end));
        self.send.ahead.set(if fetched { start } else { 0 });
    }

    /// Send lock. Sends what is pending; true: `knock` has to follow.
    #[inline(always)]
    pub(crate) fn publish_short(&self, target: &Target) -> bool {
        target.publish_short(self.send.direct_len.get() as usize)
    }

    /// After `publish_short`: the receiver sleeps, or has gone.
    #[cold]
    pub(crate) fn knock(&self, target: &Target) {
        self.knock_for(target, IN_SLOT);
    }

    #[cold]
    fn knock_for(&self, target: &Target, position: u64) {
        // No member goes while the send lock is held.
        if let Some((_, member)) = self.members().find(|(_, member)| member.owns(target)) {
            member.knock(target, position, self.send.direct_len.get() as usize);
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
        if let Some(target) = self.pending_long() {
            let position = self.send.long_at.get();
            let len = self.send.direct_len.get() as usize;
            if target.publish_long(position, len) {
                self.knock_for(target, position);
            }
            self.send.ahead.set(len.div_ceil(LINE) as u64);
            return;
        }
        match self.member(self.send.pending.get()) {
            Some(member) => {
                self.is_last_to(member);
                member.publish();
            }
            None => self.publish_all(),
        }
    }

    /// The last message goes by `member`: shmem's no longer says whose it was. So whoever samples
    /// takes shmem's word if there is one, and shmem pays nothing for it.
    fn is_last_to(&self, member: Member<'_>) {
        if !member.is_shmem() {
            self.members().for_each(|(_, other)| other.forget_last_to());
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
                self.is_last_to(member);
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
