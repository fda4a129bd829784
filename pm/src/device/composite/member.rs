//! A member of a composite, on any device. Dispatch is by enum, in registers: a lookup returns the
//! member as one tagged pointer.

// UNSAFETY: keeps and follows tagged pointers to endpoints.
#![expect(unsafe_code)]

use crate::config::QueueStatus;
use crate::device::net_common::NetworkDevice;
use crate::device::shmem::{Source, Target};
use crate::device::{ethernet, shmem, verbs};
use crate::error::PmResult;
use crate::rma::{Arena, Direction, Region, RegionId, RmaOperation};
use crate::sync::{AtomicPtr, Ordering};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::ptr::{self, null_mut};
use std::sync::Arc;

/// The endpoint that a member context provides to its composite.
#[derive(Clone, Copy)]
pub(crate) enum Member<'a> {
    Shmem(&'a shmem::ShmemEndpoint),
    Ethernet(&'a ethernet::EthernetEndpoint),
    Verbs(&'a verbs::VerbsEndpoint),
}

/// Tags in pointers to endpoints of other devices than shmem. All endpoints have a larger alignment
/// than the tags.
const TAG_ETHERNET: usize = 1;
const TAG_VERBS: usize = 2;
const TAG_MASK: usize = TAG_ETHERNET | TAG_VERBS;

const _: () = assert!(align_of::<shmem::ShmemEndpoint>() > TAG_MASK);
const _: () = assert!(align_of::<ethernet::EthernetEndpoint>() > TAG_MASK);
const _: () = assert!(align_of::<verbs::VerbsEndpoint>() > TAG_MASK);

/// A slot for a member, possibly empty.
pub(super) struct MemberSlot(AtomicPtr<u8>);

impl MemberSlot {
    pub(super) fn empty() -> MemberSlot {
        MemberSlot(AtomicPtr::new(null_mut()))
    }

    /// The caller keeps the member's endpoint as long as the slot may be read.
    pub(super) fn set(&self, member: Option<Member<'_>>) {
        let pointer = match member {
            None => null_mut(),
            Some(Member::Shmem(endpoint)) => ptr::from_ref(endpoint).cast_mut().cast::<u8>(),
            Some(Member::Ethernet(endpoint)) => {
                ptr::from_ref(endpoint).cast_mut().cast::<u8>().map_addr(|addr| addr | TAG_ETHERNET)
            }
            Some(Member::Verbs(endpoint)) => {
                ptr::from_ref(endpoint).cast_mut().cast::<u8>().map_addr(|addr| addr | TAG_VERBS)
            }
        };
        // SYNC: member
        self.0.store(pointer, Ordering::Release);
    }

    /// # Safety
    /// The endpoint that was set still exists.
    #[inline(always)]
    pub(super) unsafe fn get(&self) -> Option<Member<'_>> {
        // SYNC: member
        let pointer = self.0.load(Ordering::Acquire);
        if pointer.is_null() {
            return None;
        }
        let tag = pointer.addr() & TAG_MASK;
        if tag == 0 {
            // SAFETY: set from a shmem endpoint, which still exists by the caller's promise.
            return Some(Member::Shmem(unsafe { &*pointer.cast() }));
        }
        let pointer = pointer.map_addr(|addr| addr & !TAG_MASK);
        if tag == TAG_ETHERNET {
            // SAFETY: set from an ethernet endpoint, as above.
            return Some(Member::Ethernet(unsafe { &*pointer.cast() }));
        }
        // SAFETY: set from a verbs endpoint, as above.
        Some(Member::Verbs(unsafe { &*pointer.cast() }))
    }
}

/// The same call on any device.
macro_rules! on {
    ($member:expr, $endpoint:ident => $call:expr) => {
        match $member {
            Member::Shmem($endpoint) => $call,
            Member::Ethernet($endpoint) => $call,
            Member::Verbs($endpoint) => $call,
        }
    };
}

impl<'a> Member<'a> {
    pub(crate) fn self_node(self) -> u32 {
        on!(self, e => e.self_node())
    }
    /// Nodes that the member reaches, including its own.
    pub(super) fn nodes(self) -> usize {
        on!(self, e => e.nodes())
    }
    /// Bytes of memory that the member maps.
    pub(super) fn size(self) -> usize {
        on!(self, e => e.size())
    }
    /// The longest message to any node.
    pub(super) fn max_message_len(self) -> usize {
        on!(self, e => e.max_message_len())
    }
    pub(super) fn mtu(self, node: u32) -> PmResult<usize> {
        match self {
            Member::Shmem(endpoint) => Ok(endpoint.max_message_len()),
            Member::Ethernet(endpoint) => endpoint.mtu(node),
            Member::Verbs(endpoint) => endpoint.mtu(node),
        }
    }
    #[inline(always)]
    pub(super) fn reserve(self, node: u32, len: usize) -> PmResult<*mut u8> {
        on!(self, e => e.reserve(node, len))
    }
    pub(super) fn can_reserve(self, node: u32, len: usize, multicast_id: u64) -> PmResult<()> {
        on!(self, e => e.can_reserve(node, len, multicast_id))
    }
    pub(super) fn next_multicast_id(self) -> u64 {
        on!(self, e => e.next_multicast_id())
    }
    pub(super) fn raise_multicast_id(self, multicast_id: u64) {
        on!(self, e => e.raise_multicast_id(multicast_id));
    }
    pub(super) fn staging(self) -> *mut u8 {
        on!(self, e => e.staging())
    }
    pub(super) fn send_copy(self, node: u32, from: *const u8, len: usize) {
        on!(self, e => e.send_copy(node, from, len));
    }
    pub(super) fn truncate(self, len: usize) -> PmResult<()> {
        on!(self, e => e.truncate(len))
    }
    #[inline(always)]
    pub(super) fn publish(self) {
        on!(self, e => e.publish());
    }
    #[inline(always)]
    pub(super) fn find(self) -> Option<u32> {
        on!(self, e => e.find())
    }
    /// Like `find`, but without a system call.
    #[inline(always)]
    pub(super) fn peek(self) -> Option<u32> {
        match self {
            Member::Shmem(endpoint) => endpoint.find(),
            Member::Ethernet(endpoint) => endpoint.peek(),
            // Completions are in memory.
            Member::Verbs(endpoint) => endpoint.find(),
        }
    }
    #[inline(always)]
    pub(super) fn take(self, source: u32) -> PmResult<(*mut u8, usize)> {
        match self {
            Member::Shmem(endpoint) => endpoint.take(source),
            Member::Ethernet(endpoint) => endpoint.take(),
            Member::Verbs(endpoint) => endpoint.take(),
        }
    }
    #[inline(always)]
    pub(super) fn release(self) {
        on!(self, e => e.release());
    }
    #[inline(always)]
    pub(super) fn count_empty_poll(self) {
        on!(self, e => e.count_empty_poll());
    }
    pub(super) fn is_oversubscribed(self) -> bool {
        on!(self, e => e.is_oversubscribed())
    }
    pub(super) fn take_rma_activity(self) -> bool {
        match self {
            Member::Shmem(_) => false,
            Member::Ethernet(endpoint) => endpoint.queues.take_rma_received(),
            Member::Verbs(endpoint) => endpoint.queues.take_rma_received(),
        }
    }
    pub(super) fn control_send(self, node: u32, message: &[u8]) -> PmResult<()> {
        on!(self, e => e.control_send(node, message))
    }
    pub(super) fn control_receive(self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        on!(self, e => e.control_receive(buffer, len))
    }
    pub(super) fn with_doorbell_fd<T>(
        self,
        action: impl FnOnce(BorrowedFd<'_>) -> PmResult<T>,
    ) -> PmResult<T> {
        on!(self, e => e.with_doorbell_fd(action))
    }
    pub(super) fn before_select(self) -> PmResult<()> {
        on!(self, e => e.before_select())
    }
    pub(super) fn after_select(self) {
        on!(self, e => e.after_select());
    }
    pub(super) fn rearm_and_rescan(self) -> Option<u32> {
        on!(self, e => e.rearm_and_rescan())
    }
    pub(super) fn is_send_done(self) -> PmResult<()> {
        on!(self, e => e.is_send_done())
    }
    pub(super) fn queue_status(self, has_held_message: bool) -> QueueStatus {
        on!(self, e => e.queue_status(has_held_message))
    }
    pub(super) fn reset(self) {
        on!(self, e => e.reset());
    }
    pub(super) fn save(self, out: &mut Vec<u8>) {
        on!(self, e => e.save(out));
    }
    pub(super) fn check_saved(self, saved: &[u8]) -> PmResult<()> {
        on!(self, e => e.check_saved(saved))
    }
    pub(super) fn restore(self, saved: &[u8]) -> PmResult<()> {
        on!(self, e => e.restore(saved))
    }
    pub(super) fn dump(self, out: &mut dyn Write) -> std::io::Result<()> {
        on!(self, e => e.dump(out))
    }

    // Remote memory access.

    pub(super) fn options(self) -> u64 {
        match self {
            Member::Shmem(_) => shmem::OPTIONS,
            Member::Ethernet(_) => ethernet::Ethernet::OPTIONS,
            Member::Verbs(_) => verbs::Verbs::OPTIONS,
        }
    }
    pub(super) fn publish_region(self, region: &Region) -> PmResult<()> {
        on!(self, e => e.publish_region(region))
    }
    pub(crate) fn withdraw_region(self, number: RegionId) {
        on!(self, e => e.withdraw_region(number));
    }
    #[inline]
    pub(super) fn start_rma(self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        on!(self, e => e.start_rma(node, operation))
    }
    pub(super) fn is_remote_done(self, direction: Direction) -> PmResult<()> {
        on!(self, e => e.is_remote_done(direction))
    }
    pub(super) fn arena(self) -> Option<Arc<Arena>> {
        self.shmem()?.arena().cloned()
    }

    // Only shmem has these: messages to and from a ring without a call of the member.

    fn shmem(self) -> Option<&'a shmem::ShmemEndpoint> {
        match self {
            Member::Shmem(endpoint) => Some(endpoint),
            Member::Ethernet(_) | Member::Verbs(_) => None,
        }
    }
    #[inline(always)]
    pub(super) fn is_shmem(self) -> bool {
        matches!(self, Member::Shmem(_))
    }
    /// Send lock.
    pub(super) fn clear_last_destination(self) {
        if let Some(endpoint) = self.shmem() {
            endpoint.clear_last_destination();
        }
    }
    /// Receive lock.
    pub(super) fn clear_last_source(self) {
        if let Some(endpoint) = self.shmem() {
            endpoint.clear_last_source();
        }
    }
    /// The ring to `node`, for use without the member.
    pub(super) fn direct_target(self, node: u32) -> Option<&'a Target> {
        self.shmem()?.direct_target(node)
    }
    pub(super) fn owns_target(self, target: &Target) -> bool {
        self.shmem().is_some_and(|endpoint| endpoint.owns_target(target))
    }
    pub(super) fn check_receiver(self, target: &Target, position: u64, len: usize) {
        if let Some(endpoint) = self.shmem() {
            endpoint.check_receiver(target, position, len);
        }
    }
    /// The source of the held message.
    #[inline(always)]
    pub(super) fn held_source(self) -> Option<&'a Source> {
        self.shmem()?.held_source()
    }
    /// Whether `source` belongs to this member.
    pub(super) fn owns_source(self, source: &Source) -> bool {
        self.shmem().is_some_and(|endpoint| endpoint.owns_source(source))
    }
    /// Whether the hot source is the only source.
    #[inline(always)]
    pub(super) fn has_single_source(self) -> bool {
        self.shmem().is_some_and(shmem::ShmemEndpoint::has_single_source)
    }
    /// Whether neither a new source nor the next few cold rings have a message.
    #[inline(always)]
    pub(super) fn are_others_silent(self) -> bool {
        self.shmem().is_some_and(shmem::ShmemEndpoint::are_others_silent)
    }
}
