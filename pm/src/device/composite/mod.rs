//! The composite device. It has no network of its own; its routing table maps each node to a member
//! context (manual 1.2.5). Each message costs one indexed lookup.

// UNSAFETY: keeps pointers to its members' endpoints next to the references that keep these alive.
#![expect(unsafe_code)]

pub(crate) mod config;
mod control;
mod member_slot;
pub(crate) mod open;
mod receive;
mod rma;
mod select;
mod send;
mod state;

use super::shmem::{ShmemEndpoint, Target};
use super::{Endpoint, EndpointRef, on};
use crate::config::ContextConfig;
use crate::error::{Error, PmResult};
use crate::sync::{AtomicPtr, AtomicU64, Ordering, SingleWriterU64};
use config::MAX_MEMBERS;
pub(crate) use receive::HotPoll;
use std::ptr::null_mut;
use std::sync::Mutex;

/// The value of `self_node` while the composite's own node is not set.
const NO_NODE: u64 = u64::MAX;

/// The composite part of a context.
pub(crate) struct Composite {
    number: usize,
    self_node: SingleWriterU64,
    /// For each node, 0 or an [`open::Route`].
    routes: Box<[AtomicU64]>,
    /// The ring of each node that shmem reaches. A short message needs no other lookup.
    direct_targets: Box<[AtomicPtr<Target>]>,
    /// The members' endpoints.
    members: [member_slot::MemberSlot; MAX_MEMBERS],
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
            members: std::array::from_fn(|_| member_slot::MemberSlot::empty()),
            member_limit: SingleWriterU64::default(),
            options: SingleWriterU64::default(),
            member_list: Mutex::default(),
            send: send::CompositeSender::new(nodes),
            receive: receive::CompositeReceiver::default(),
            select: select::CompositeSelectState::new()?,
        })
    }

    #[inline(always)]
    pub(crate) fn member(&self, index: u64) -> Option<EndpointRef<'_>> {
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

    fn members(&self) -> impl Iterator<Item = (u64, EndpointRef<'_>)> {
        (0..self.member_limit.get()).filter_map(|index| Some((index, self.member(index)?)))
    }

    /// The members that send and receive without calls of their endpoints.
    fn shmem_members(&self) -> impl Iterator<Item = &ShmemEndpoint> {
        self.members().filter_map(|(_, member)| member.shmem())
    }

    fn smallest_mtu(&self) -> Option<usize> {
        self.members().map(|(_, member)| on!(member, e => e.max_message_len())).min()
    }

    pub(crate) fn config(&self) -> ContextConfig {
        ContextConfig {
            kind: "composite",
            number: self.number,
            nodes: self.routes.len(),
            mtu: self.smallest_mtu().unwrap_or(0),
            size: self.members().map(|(_, member)| on!(member, e => e.size())).sum(),
            option: self.options.get(),
        }
    }

    /// This context's own node. Invalid: the number is not set.
    pub(crate) fn self_node(&self) -> PmResult<u32> {
        let self_node = self.self_node.get();
        if self_node == NO_NODE { Err(Error::Invalid) } else { Ok(self_node as u32) }
    }

    pub(crate) fn mtu(&self, node: u32) -> PmResult<usize> {
        if u64::from(node) == self.self_node.get() {
            return self.smallest_mtu().ok_or(Error::Invalid);
        }
        let (_, member, member_node) = self.route(node)?;
        on!(member, e => e.mtu(member_node))
    }
}
