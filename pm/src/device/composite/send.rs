//! Sending, by the member that reaches the node.
//!
//! A message to a node that shmem reaches is written directly to the ring, without a call of the
//! member, if the ring is known to have room. This costs one lookup of the node and one slot of the
//! ring. The member handles everything else.

// UNSAFETY: keeps the address of the pending message's target.
#![expect(unsafe_code)]

use super::Composite;
use super::routing_table::Route;
use crate::device::shmem::Target;
use crate::device::{Endpoint, EndpointRef, SendInterface, on, shorten};
use crate::error::{Error, PmResult};
use crate::ring::{CACHE_LINE, IN_SLOT, Reservation};
use crate::sync::{AtomicPtr, Ordering, SingleWriterU64};
use std::ptr::{self, null_mut};

/// The pending member of a multicast.
const PENDING_MULTICAST: u64 = u64::MAX;
/// The number of lines that an empty poll prefetches. A message that arrives meanwhile waits at
/// most for these lines. Measured: with half as many, a message of 8 KiB takes 1.2 times as long;
/// four times as many are no faster.
const PREFETCH_LINES: u64 = 16;

pub(super) struct CompositeSender {
    /// The ring of the reserved short message, if the message is written directly; otherwise null.
    pending_inline: AtomicPtr<Target>,
    /// Like `pending_inline`, for a longer message. Null also if a member holds the message.
    pending_out_of_line: AtomicPtr<Target>,
    /// The length of either message, and the position of the longer one in the ring's data area.
    direct_len: SingleWriterU64,
    direct_position: SingleWriterU64,
    /// The number of lines still to prefetch for the next message to `pending_out_of_line`.
    lines_to_prefetch: SingleWriterU64,
    /// The member that holds the reserved message.
    pending_member: SingleWriterU64,
    /// A multicast's destinations, as [`Route`] bits. The first destination's member holds the
    /// staging memory.
    multicast_routes: Box<[SingleWriterU64]>,
    multicast_count: SingleWriterU64,
    multicast_len: SingleWriterU64,
}

impl CompositeSender {
    pub(super) fn new(nodes: usize) -> CompositeSender {
        CompositeSender {
            pending_inline: AtomicPtr::new(null_mut()),
            pending_out_of_line: AtomicPtr::new(null_mut()),
            direct_len: SingleWriterU64::default(),
            direct_position: SingleWriterU64::default(),
            lines_to_prefetch: SingleWriterU64::default(),
            pending_member: SingleWriterU64::default(),
            multicast_routes: (0..nodes).map(|_| SingleWriterU64::default()).collect(),
            multicast_count: SingleWriterU64::default(),
            multicast_len: SingleWriterU64::default(),
        }
    }
}

/// Each [`Target`] is from the routing table of the composite.
impl CompositeSender {
    #[inline(always)]
    fn set_pending_inline(&self, target: &Target, len: usize) {
        self.pending_inline.store(ptr::from_ref(target).cast_mut(), Ordering::Relaxed);
        self.direct_len.set(len as u64);
    }

    #[inline(always)]
    fn set_pending_out_of_line(&self, target: &Target, position: u64, len: usize) {
        self.pending_inline.store(null_mut(), Ordering::Relaxed);
        self.pending_out_of_line.store(ptr::from_ref(target).cast_mut(), Ordering::Relaxed);
        self.direct_len.set(len as u64);
        self.direct_position.set(position);
    }

    /// Records that a member holds the reserved message.
    fn set_pending_member(&self, member_index: u64) {
        self.pending_member.set(member_index);
        self.pending_inline.store(null_mut(), Ordering::Relaxed);
        self.pending_out_of_line.store(null_mut(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn pending_inline(&self) -> Option<&Target> {
        // SAFETY: null, or in an endpoint of a present or former member, which lives as long as the
        // composite that `self` belongs to.
        unsafe { self.pending_inline.load(Ordering::Relaxed).as_ref() }
    }

    /// Like `pending_inline`, for a longer message. Called under the send lock, if no short message
    /// is pending.
    #[inline(always)]
    fn pending_out_of_line(&self) -> Option<&Target> {
        // SAFETY: as in `pending_inline`.
        unsafe { self.pending_out_of_line.load(Ordering::Relaxed).as_ref() }
    }

    /// See [`Composite::prefetch_lines`].
    fn prefetch_lines(&self) {
        let end = self.lines_to_prefetch.get();
        let start = end.saturating_sub(PREFETCH_LINES);
        let has_prefetched = self
            .pending_out_of_line()
            .is_some_and(|target| target.prefetch_fixed_buffer(start..end));
        self.lines_to_prefetch.set(if has_prefetched { start } else { 0 });
    }
}

impl Composite {
    /// Like `reserve`, for a short message directly in the ring. Called under the send lock. None:
    /// the caller has to call `reserve`.
    #[inline(always)]
    pub(crate) fn reserve_inline(&self, node: u32, len: usize) -> Option<*mut u8> {
        let target = self.routing.direct_target(node)?;
        let buffer = target.reserve_inline(len)?;
        self.send.set_pending_inline(target, len);
        Some(buffer)
    }

    /// Like `reserve_inline`, for a longer message. Called under the send lock.
    #[inline(always)]
    fn reserve_out_of_line(&self, node: u32, len: usize) -> Option<*mut u8> {
        let target = self.routing.direct_target(node)?;
        let Reservation { payload, position } = target.reserve_out_of_line(len)?;
        self.send.set_pending_out_of_line(target, position, len);
        Some(payload)
    }

    #[inline(always)]
    pub(crate) fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        if let Some(buffer) = self.reserve_out_of_line(node, len) {
            return Ok(buffer);
        }
        let (member_index, member, member_node) = self.routing.route(node)?;
        let buffer = on!(member, e => e.reserve(member_node, len))?;
        self.send.set_pending_member(member_index);
        Ok(buffer)
    }

    pub(crate) fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        let sender = &self.send;
        if nodes.is_empty() || nodes.len() > sender.multicast_routes.len() {
            return Err(Error::Invalid);
        }
        let routes = || nodes.iter().map(|&node| self.routing.route(node));
        // One identifier for all members, higher than any identifier of a member. It reveals a node
        // that is in the list twice, even if the node has two numbers in this composite.
        let mut multicast_id = 0;
        for route in routes() {
            let (_, member, _) = route?;
            multicast_id = multicast_id.max(on!(member, e => e.next_multicast_id()));
        }
        for route in routes() {
            let (_, member, member_node) = route?;
            on!(member, e => {
                e.raise_multicast_id(multicast_id);
                e.can_reserve(member_node, len, multicast_id)
            })?;
        }
        for (entry, &node) in sender.multicast_routes.iter().zip(nodes) {
            entry.set(self.routing.entry(node).map_or(0, Route::bits));
        }
        sender.multicast_count.set(nodes.len() as u64);
        sender.multicast_len.set(len as u64);
        sender.set_pending_member(PENDING_MULTICAST);
        let staging_member = self.staging_member().ok_or(Error::Invalid)?;
        Ok(on!(staging_member, e => e.staging()))
    }

    /// The member that holds a multicast's message.
    fn staging_member(&self) -> Option<EndpointRef<'_>> {
        self.routing.member(Route::from_bits(self.send.multicast_routes.first()?.get())?.member())
    }

    pub(crate) fn truncate(&self, len: usize) -> PmResult<()> {
        if self.send.pending_inline().or(self.send.pending_out_of_line()).is_some() {
            return shorten(&self.send.direct_len, len);
        }
        let pending_member = self.send.pending_member.get();
        if pending_member != PENDING_MULTICAST {
            let member = self.member(pending_member).ok_or(Error::Io)?;
            return on!(member, e => e.truncate(len));
        }
        shorten(&self.send.multicast_len, len)
    }

    /// The target of the short message that was reserved directly. Called under the send lock.
    /// None: no such message.
    #[inline(always)]
    pub(crate) fn pending_inline(&self) -> Option<&Target> {
        self.send.pending_inline()
    }

    /// Whether `prefetch_lines` has work to do.
    #[inline(always)]
    pub(crate) fn can_prefetch(&self) -> bool {
        self.send.lines_to_prefetch.get() != 0
    }

    /// Prefetches lines of the fixed buffer for the next longer message to the target of the last
    /// longer message. These lines are in the receiver's cache. Without prefetching, a sender would
    /// wait for them one after the other. Called after a poll that found no message, while no
    /// thread sends and no message is reserved.
    #[cold]
    pub(crate) fn prefetch_lines(&self) {
        self.send.prefetch_lines();
    }

    /// Publishes the pending message. Called under the send lock. True: the caller has to call
    /// `check_receiver`.
    #[inline(always)]
    pub(crate) fn publish_inline(&self, target: &Target) -> bool {
        target.publish_inline(self.send.direct_len.get() as usize)
    }

    /// Handles a receiver that sleeps or has exited. Called after `publish_inline` has returned
    /// true.
    #[cold]
    pub(crate) fn check_receiver(&self, target: &Target) {
        self.check_receiver_of(target, IN_SLOT);
    }

    #[cold]
    fn check_receiver_of(&self, target: &Target, position: u64) {
        // No member is removed while the send lock is held.
        if let Some(member) = self.routing.shmem_members().find(|member| member.owns_target(target))
        {
            member.check_receiver(target, position, self.send.direct_len.get() as usize);
        }
    }

    #[inline(always)]
    pub(crate) fn publish(&self) {
        if let Some(target) = self.pending_inline() {
            if self.publish_inline(target) {
                self.check_receiver(target);
            }
            return;
        }
        if let Some(target) = self.send.pending_out_of_line() {
            let position = self.send.direct_position.get();
            let len = self.send.direct_len.get() as usize;
            if target.publish_out_of_line(position, len) {
                self.check_receiver_of(target, position);
            }
            self.send.lines_to_prefetch.set(len.div_ceil(CACHE_LINE) as u64);
            return;
        }
        match self.member(self.send.pending_member.get()) {
            Some(member) => {
                self.routing.clear_last_destinations(member);
                on!(member, e => e.publish());
            }
            None => self.publish_multicast(),
        }
    }

    #[cold]
    fn publish_multicast(&self) {
        let sender = &self.send;
        let Some(staging_member) = self.staging_member() else { return };
        let (staging, mtu) = on!(staging_member, e => (e.staging(), e.max_message_len()));
        let len = (sender.multicast_len.get() as usize).min(mtu);
        let count = (sender.multicast_count.get() as usize).min(sender.multicast_routes.len());
        for bits in &sender.multicast_routes[..count] {
            let Some(route) = Route::from_bits(bits.get()) else { continue };
            if let Some(member) = self.member(route.member()) {
                self.routing.clear_last_destinations(member);
                on!(member, e => e.send_copy(route.node(), staging, len));
            }
        }
    }
}
