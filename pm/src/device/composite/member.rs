//! A member of a composite, of whichever device. Dispatch is by enum, in registers: a member is
//! looked up as one tagged pointer.

// UNSAFETY: keeps and follows tagged pointers to endpoints.
#![expect(unsafe_code)]

use crate::config::QueueStatus;
use crate::device::network::Network;
use crate::device::shmem::{Source, Target};
use crate::device::{ethernet, shmem, verbs};
use crate::error::Result;
use crate::remote::{Arena, Direction, Number, Operation, Region};
use crate::sync::{AtomicPtr, Ordering};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::ptr::{self, null_mut};
use std::sync::Arc;

/// What a member context offers its composite.
#[derive(Clone, Copy)]
pub(crate) enum Member<'a> {
    Shmem(&'a shmem::Endpoint),
    Ethernet(&'a ethernet::Endpoint),
    Verbs(&'a verbs::Endpoint),
}

/// Set in pointers to endpoints that are not shmem's; all kinds are aligned to more than this.
const ETHERNET: usize = 1;
const VERBS: usize = 2;
const KIND: usize = ETHERNET | VERBS;

const _: () = assert!(align_of::<shmem::Endpoint>() > KIND);
const _: () = assert!(align_of::<ethernet::Endpoint>() > KIND);
const _: () = assert!(align_of::<verbs::Endpoint>() > KIND);

/// The place of a member, possibly empty.
pub(super) struct Place(AtomicPtr<u8>);

impl Place {
    pub(super) fn empty() -> Place {
        Place(AtomicPtr::new(null_mut()))
    }

    /// Who sets a member keeps its endpoint as long as the place may be looked at.
    pub(super) fn set(&self, member: Option<Member<'_>>) {
        let pointer = match member {
            None => null_mut(),
            Some(Member::Shmem(endpoint)) => ptr::from_ref(endpoint).cast_mut().cast::<u8>(),
            Some(Member::Ethernet(endpoint)) => {
                ptr::from_ref(endpoint).cast_mut().cast::<u8>().map_addr(|at| at | ETHERNET)
            }
            Some(Member::Verbs(endpoint)) => {
                ptr::from_ref(endpoint).cast_mut().cast::<u8>().map_addr(|at| at | VERBS)
            }
        };
        // SYNC: member
        self.0.store(pointer, Ordering::Release);
    }

    /// # Safety
    /// What was set is still kept.
    #[inline(always)]
    pub(super) unsafe fn get(&self) -> Option<Member<'_>> {
        // SYNC: member
        let pointer = self.0.load(Ordering::Acquire);
        if pointer.is_null() {
            return None;
        }
        let kind = pointer.addr() & KIND;
        if kind == 0 {
            // SAFETY: set from a shmem endpoint, which the caller says is kept.
            return Some(Member::Shmem(unsafe { &*pointer.cast() }));
        }
        let pointer = pointer.map_addr(|at| at & !KIND);
        if kind == ETHERNET {
            // SAFETY: set from an ethernet endpoint, as above.
            return Some(Member::Ethernet(unsafe { &*pointer.cast() }));
        }
        // SAFETY: set from a verbs endpoint, as above.
        Some(Member::Verbs(unsafe { &*pointer.cast() }))
    }
}

/// The same call on whichever device it is.
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
    pub(crate) fn own(self) -> u32 {
        on!(self, e => e.own())
    }
    /// Nodes that it reaches, itself included.
    pub(super) fn nodes(self) -> usize {
        on!(self, e => e.nodes())
    }
    /// Bytes of memory that it maps.
    pub(super) fn size(self) -> usize {
        on!(self, e => e.size())
    }
    /// The longest message to any node.
    pub(super) fn largest(self) -> usize {
        on!(self, e => e.largest())
    }
    pub(super) fn mtu(self, node: u32) -> Result<usize> {
        match self {
            Member::Shmem(endpoint) => Ok(endpoint.largest()),
            Member::Ethernet(endpoint) => endpoint.mtu(node),
            Member::Verbs(endpoint) => endpoint.mtu(node),
        }
    }
    #[inline(always)]
    pub(super) fn reserve(self, node: u32, len: usize) -> Result<*mut u8> {
        on!(self, e => e.reserve(node, len))
    }
    pub(super) fn has_room(self, node: u32, len: usize, stamp: u64) -> Result<()> {
        on!(self, e => e.has_room(node, len, stamp))
    }
    pub(super) fn next_stamp(self) -> u64 {
        on!(self, e => e.next_stamp())
    }
    pub(super) fn raise_stamp(self, stamp: u64) {
        on!(self, e => e.raise_stamp(stamp));
    }
    pub(super) fn staging(self) -> *mut u8 {
        on!(self, e => e.staging())
    }
    pub(super) fn send_copy(self, node: u32, from: *const u8, len: usize) {
        on!(self, e => e.send_copy(node, from, len));
    }
    pub(super) fn truncate(self, len: usize) -> Result<()> {
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
    /// As `find`, but without a system call.
    #[inline(always)]
    pub(super) fn peek(self) -> Option<u32> {
        match self {
            Member::Shmem(endpoint) => endpoint.find(),
            Member::Ethernet(endpoint) => endpoint.peek(),
            // Completions lie in memory.
            Member::Verbs(endpoint) => endpoint.find(),
        }
    }
    #[inline(always)]
    pub(super) fn take(self, source: u32) -> Result<(*mut u8, usize)> {
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
    pub(super) fn oversubscribed(self) -> bool {
        on!(self, e => e.oversubscribed())
    }
    pub(super) fn has_moved(self) -> bool {
        match self {
            Member::Shmem(_) => false,
            Member::Ethernet(endpoint) => endpoint.lanes.has_moved(),
            Member::Verbs(endpoint) => endpoint.lanes.has_moved(),
        }
    }
    pub(super) fn control_send(self, node: u32, message: &[u8]) -> Result<()> {
        on!(self, e => e.control_send(node, message))
    }
    pub(super) fn control_receive(self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        on!(self, e => e.control_receive(buffer, len))
    }
    pub(super) fn with_bell<T>(self, f: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        on!(self, e => e.with_bell(f))
    }
    pub(super) fn before_select(self) -> Result<()> {
        on!(self, e => e.before_select())
    }
    pub(super) fn after_select(self) {
        on!(self, e => e.after_select());
    }
    pub(super) fn look_again(self) -> Option<u32> {
        on!(self, e => e.look_again())
    }
    pub(super) fn is_send_done(self) -> Result<()> {
        on!(self, e => e.is_send_done())
    }
    pub(super) fn queue_status(self, held: bool) -> QueueStatus {
        on!(self, e => e.queue_status(held))
    }
    pub(super) fn reset(self) {
        on!(self, e => e.reset());
    }
    pub(super) fn save(self, out: &mut Vec<u8>) {
        on!(self, e => e.save(out));
    }
    pub(super) fn check_saved(self, saved: &[u8]) -> Result<()> {
        on!(self, e => e.check_saved(saved))
    }
    pub(super) fn restore(self, saved: &[u8]) -> Result<()> {
        on!(self, e => e.restore(saved))
    }
    pub(super) fn dump(self, out: &mut dyn Write) -> std::io::Result<()> {
        on!(self, e => e.dump(out))
    }

    // Remote memory.

    pub(super) fn options(self) -> u64 {
        match self {
            Member::Shmem(_) => shmem::OPTIONS,
            Member::Ethernet(_) => ethernet::Ethernet::OPTIONS,
            Member::Verbs(_) => verbs::Verbs::OPTIONS,
        }
    }
    pub(super) fn publish_region(self, region: &Region) -> Result<()> {
        on!(self, e => e.publish_region(region))
    }
    pub(crate) fn withdraw_region(self, number: Number) {
        on!(self, e => e.withdraw_region(number));
    }
    #[inline]
    pub(super) fn remote(self, node: u32, operation: &Operation) -> Result<()> {
        on!(self, e => e.remote(node, operation))
    }
    pub(super) fn is_remote_done(self, direction: Direction) -> Result<()> {
        on!(self, e => e.is_remote_done(direction))
    }
    pub(super) fn arena(self) -> Option<Arc<Arena>> {
        self.shmem()?.arena().cloned()
    }

    // What only shmem has: the direct way of messages.

    fn shmem(self) -> Option<&'a shmem::Endpoint> {
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
    pub(super) fn forget_last_to(self) {
        if let Some(endpoint) = self.shmem() {
            endpoint.forget_last_to();
        }
    }
    /// Receive lock.
    pub(super) fn forget_last_from(self) {
        if let Some(endpoint) = self.shmem() {
            endpoint.forget_last_from();
        }
    }
    /// The way to `node`, past the member.
    pub(super) fn direct(self, node: u32) -> Option<&'a Target> {
        self.shmem()?.direct(node)
    }
    pub(super) fn owns(self, target: &Target) -> bool {
        self.shmem().is_some_and(|endpoint| endpoint.owns(target))
    }
    pub(super) fn knock(self, target: &Target, position: u64, len: usize) {
        if let Some(endpoint) = self.shmem() {
            endpoint.knock(target, position, len);
        }
    }
    /// The source of the message that was taken.
    #[inline(always)]
    pub(super) fn held(self) -> Option<&'a Source> {
        self.shmem()?.held()
    }
    /// Whether `source` is one of its own.
    pub(super) fn feeds(self, source: &Source) -> bool {
        self.shmem().is_some_and(|endpoint| endpoint.feeds(source))
    }
    /// Whether there is no source but the hot one.
    #[inline(always)]
    pub(super) fn is_alone(self) -> bool {
        self.shmem().is_some_and(shmem::Endpoint::is_alone)
    }
    /// Whether neither a new source nor the next few in turn have anything.
    #[inline(always)]
    pub(super) fn is_silent_aside(self) -> bool {
        self.shmem().is_some_and(shmem::Endpoint::is_silent_aside)
    }
}
