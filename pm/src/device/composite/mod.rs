//! The composite device: it has no network of its own, but a routing table that maps each node to a
//! member context (manual 1.2.5). Each message costs one indexed lookup.

// UNSAFETY: keeps pointers to its members' endpoints next to the references that keep these alive.
#![expect(unsafe_code)]

pub(crate) mod config;
mod control;
mod member;
pub(crate) mod open;
mod receive;
mod rma;
mod select;
mod send;
mod state;

use super::shmem::Target;
use super::{Capabilities, ReadySource, Transport};
use crate::config::{ContextConfig, QueueStatus};
use crate::error::{Error, PmResult};
use crate::rma::{Arena, Direction, Region, RegionId, RmaOperation};
use crate::sync::{AtomicPtr, AtomicU64, Ordering, SingleWriterU64};
use config::MAX_MEMBERS;
pub(crate) use member::Member;
pub(crate) use receive::HotPoll;
use std::io::Write;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// This context's own node is not set.
const NO_NODE: u64 = u64::MAX;

/// The composite part of a context.
pub(crate) struct Composite {
    number: usize,
    self_node: SingleWriterU64,
    /// For each node 0 or an [`open::Route`].
    routes: Box<[AtomicU64]>,
    /// For each node that shmem reaches, its ring: short messages need nothing more.
    direct_targets: Box<[AtomicPtr<Target>]>,
    /// The members' endpoints.
    members: [member::MemberSlot; MAX_MEMBERS],
    /// One more than the highest index of a member.
    member_limit: SingleWriterU64,
    /// Option bits that all members have.
    options: SingleWriterU64,
    member_list: Mutex<open::MemberList>,
    send: send::CompositeSender,
    receive: receive::CompositeReceiver,
    select: select::CompositeSelectState,
}

impl Composite {
    pub(crate) fn new(number: usize, nodes: usize) -> PmResult<Composite> {
        Ok(Composite {
            number,
            self_node: SingleWriterU64::new(NO_NODE),
            routes: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            direct_targets: (0..nodes).map(|_| AtomicPtr::new(null_mut())).collect(),
            members: std::array::from_fn(|_| member::MemberSlot::empty()),
            member_limit: SingleWriterU64::default(),
            options: SingleWriterU64::default(),
            member_list: Mutex::default(),
            send: send::CompositeSender::new(nodes),
            receive: receive::CompositeReceiver::default(),
            select: select::CompositeSelectState::new()?,
        })
    }

    #[inline(always)]
    fn member(&self, index: u64) -> Option<Member<'_>> {
        // SAFETY: an endpoint of a context whose reference is in the member list. The list drops no
        // reference before `self` is dropped.
        unsafe { self.members.get(index as usize)?.get() }
    }

    /// The ring to `node`, if shmem reaches it.
    #[inline(always)]
    fn direct_target(&self, node: u32) -> Option<&Target> {
        // SYNC: member
        let target = self.direct_targets.get(node as usize)?.load(Ordering::Acquire);
        // SAFETY: null, or in an endpoint that `member` could return.
        unsafe { target.as_ref() }
    }

    fn members(&self) -> impl Iterator<Item = (u64, Member<'_>)> {
        (0..self.member_limit.get()).filter_map(|index| Some((index, self.member(index)?)))
    }

    fn smallest_mtu(&self) -> Option<usize> {
        self.members().map(|(_, member)| member.max_message_len()).min()
    }

    pub(crate) fn config(&self) -> ContextConfig {
        ContextConfig {
            kind: Self::KIND,
            number: self.number,
            nodes: self.routes.len(),
            mtu: self.smallest_mtu().unwrap_or(0),
            size: self.members().map(|(_, member)| member.size()).sum(),
            option: self.options.get(),
        }
    }
}

impl Transport for Composite {
    const KIND: &'static str = "composite";
    const CAPABILITIES: Capabilities = Capabilities { has_routes: true, can_be_member: false };

    fn self_node(&self) -> PmResult<u32> {
        let self_node = self.self_node.get();
        if self_node == NO_NODE { Err(Error::Invalid) } else { Ok(self_node as u32) }
    }
    fn mtu(&self, node: u32) -> PmResult<usize> {
        if u64::from(node) == self.self_node.get() {
            return self.smallest_mtu().ok_or(Error::Invalid);
        }
        let (_, member, member_node) = self.route(node)?;
        member.mtu(member_node)
    }
    #[inline(always)]
    fn reserve(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        self.reserve_one(node, len)
    }
    fn reserve_multicast(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        self.reserve_all(nodes, len)
    }
    fn truncate(&self, len: usize) -> PmResult<()> {
        self.truncate_pending(len)
    }
    #[inline(always)]
    fn publish(&self) {
        self.publish_pending();
    }
    #[inline(always)]
    fn find(&self) -> Option<ReadySource> {
        self.find_in_members()
    }
    #[inline(always)]
    fn take(&self, found: ReadySource) -> PmResult<(*mut u8, usize)> {
        self.take_from_member(found)
    }
    #[inline(always)]
    fn release(&self) {
        self.release_held();
    }
    #[inline(always)]
    fn count_empty_poll(&self) {
        self.members().for_each(|(_, member)| member.count_empty_poll());
    }
    fn is_oversubscribed(&self) -> bool {
        self.members().any(|(_, member)| member.is_oversubscribed())
    }
    fn take_rma_activity(&self) -> bool {
        self.members().any(|(_, member)| member.take_rma_activity())
    }
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let (_, member, member_node) = self.route(node)?;
        member.control_send(member_node, message)
    }
    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        self.control_from_members(buffer, len)
    }
    fn fd(&self) -> PmResult<RawFd> {
        self.epoll_fd()
    }
    fn before_select(&self) -> PmResult<()> {
        self.arm()
    }
    fn after_select(&self) {
        self.disarm();
    }
    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.select.is_selecting()
    }
    fn rearm_and_rescan(&self) -> Option<ReadySource> {
        self.rearm_and_rescan_members()
    }
    fn is_send_done(&self) -> PmResult<()> {
        self.members().try_for_each(|(_, member)| member.is_send_done())
    }
    fn queue_status(&self, has_held_message: bool) -> QueueStatus {
        self.sum_of_queues(has_held_message)
    }
    fn reset(&self) {
        self.members().for_each(|(_, member)| member.reset());
    }
    fn save(&self, out: &mut Vec<u8>) -> PmResult<()> {
        self.save_members(out);
        Ok(())
    }
    fn restore(&self, saved: &[u8]) -> PmResult<()> {
        self.restore_members(saved)
    }
    fn dump(&self, out: &mut dyn Write) -> std::io::Result<()> {
        self.dump_members(out)
    }
    #[inline]
    fn options(&self) -> u64 {
        self.options.get()
    }
    fn paths(&self, node: Option<u32>) -> PmResult<u32> {
        self.paths_to(node)
    }
    fn publish_region(&self, path: usize, region: &Region) -> PmResult<()> {
        self.member(path as u64).ok_or(Error::Invalid)?.publish_region(region)
    }
    fn withdraw_region(&self, path: usize, number: RegionId) {
        if let Some(member) = self.member(path as u64) {
            member.withdraw_region(number);
        }
    }
    #[inline]
    fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        let (_, member, member_node) = self.route(node)?;
        member.start_rma(member_node, operation)
    }
    fn is_remote_done(&self, direction: Direction) -> PmResult<()> {
        self.is_rma_done_on_members(direction)
    }
    fn arena(&self) -> Option<Arc<Arena>> {
        self.members().find_map(|(_, member)| member.arena())
    }
}
