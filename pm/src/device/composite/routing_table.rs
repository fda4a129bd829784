//! The routing table: which member reaches which node. It is changed under both locks of the
//! composite. It is read under either lock, or without a lock by any thread at any time. Therefore
//! all entries are atomic and never move, and a removed member is kept until the composite is
//! dropped.

// UNSAFETY: keeps pointers to its members' endpoints next to the references that keep these alive.
#![expect(unsafe_code)]

use super::config::MAX_MEMBERS;
use super::member_slot::MemberSlot;
use crate::context::ContextRef;
use crate::device::shmem::{ShmemEndpoint, Target};
use crate::device::{Endpoint, EndpointRef, RmaInterface, on};
use crate::error::{Error, PmResult};
use crate::sync::{AtomicPtr, AtomicU64, Ordering, SingleWriterU64};
use std::ptr::{self, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value of `self_node` while the composite's own node is not set.
const NO_NODE: u64 = u64::MAX;

/// An entry of the routing table. It is one word, so that a reader without a lock always reads a
/// whole entry.
#[derive(Clone, Copy)]
pub(super) struct Route(u64);

const ENTRY_VALID: u64 = 1 << 63;

impl Route {
    fn new(member: usize, node: u32) -> Route {
        Route(ENTRY_VALID | (member as u64) << 32 | u64::from(node))
    }
    pub(super) fn from_bits(bits: u64) -> Option<Route> {
        (bits & ENTRY_VALID != 0).then_some(Route(bits))
    }
    pub(super) fn bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    pub(super) fn member(self) -> u64 {
        (self.0 & !ENTRY_VALID) >> 32
    }
    #[inline(always)]
    pub(super) fn node(self) -> u32 {
        self.0 as u32
    }
}

/// The member contexts.
#[derive(Default)]
struct MemberList {
    members: Vec<MemberEntry>,
    /// Removed members: other threads may still read their endpoints.
    removed: Vec<ContextRef>,
}

struct MemberEntry {
    context: ContextRef,
    member_index: usize,
    /// The number of routes to this member.
    route_count: usize,
}

/// See the module.
pub(crate) struct RoutingTable {
    self_node: SingleWriterU64,
    /// For each node, 0 or a [`Route`].
    routes: Box<[AtomicU64]>,
    /// The ring of each node that shmem reaches. A short message needs no other lookup.
    direct_targets: Box<[AtomicPtr<Target>]>,
    /// The members' endpoints.
    members: [MemberSlot; MAX_MEMBERS],
    /// One more than the highest index of a member.
    member_limit: SingleWriterU64,
    /// Option bits that all members have.
    options: SingleWriterU64,
    member_list: Mutex<MemberList>,
}

impl RoutingTable {
    pub(super) fn new(nodes: usize) -> RoutingTable {
        RoutingTable {
            self_node: SingleWriterU64::new(NO_NODE),
            routes: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            direct_targets: (0..nodes).map(|_| AtomicPtr::new(null_mut())).collect(),
            members: std::array::from_fn(|_| MemberSlot::empty()),
            member_limit: SingleWriterU64::default(),
            options: SingleWriterU64::default(),
            member_list: Mutex::default(),
        }
    }

    /// The number of nodes, with or without a route.
    pub(super) fn nodes(&self) -> usize {
        self.routes.len()
    }

    /// The composite's own node. Invalid: the number is not set.
    pub(super) fn self_node(&self) -> PmResult<u32> {
        let self_node = self.self_node.get();
        if self_node == NO_NODE { Err(Error::Invalid) } else { Ok(self_node as u32) }
    }

    #[inline(always)]
    pub(super) fn options(&self) -> u64 {
        self.options.get()
    }

    #[inline(always)]
    pub(super) fn member_limit(&self) -> u64 {
        self.member_limit.get()
    }

    #[inline(always)]
    pub(super) fn member(&self, index: u64) -> Option<EndpointRef<'_>> {
        // SAFETY: an endpoint of a context whose reference is in the member list. The list drops no
        // reference before `self` is dropped.
        unsafe { self.members.get(index as usize)?.get() }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (u64, EndpointRef<'_>)> {
        (0..self.member_limit.get()).filter_map(|index| Some((index, self.member(index)?)))
    }

    /// The members that send and receive without calls of their endpoints.
    pub(super) fn shmem_members(&self) -> impl Iterator<Item = &ShmemEndpoint> {
        self.members().filter_map(|(_, member)| member.shmem())
    }

    /// Clears shmem's record of the last destination if `member`, which carries the last message,
    /// is not a shmem endpoint. A sampler uses shmem's record if there is one. In this way messages
    /// through shmem have no additional cost.
    pub(super) fn clear_last_destinations(&self, member: EndpointRef<'_>) {
        if member.shmem().is_none() {
            self.shmem_members().for_each(ShmemEndpoint::clear_last_destination);
        }
    }

    /// Like `clear_last_destinations`, for the last source.
    #[inline(always)]
    pub(super) fn clear_last_sources(&self, member: EndpointRef<'_>) {
        if member.shmem().is_none() {
            self.shmem_members().for_each(ShmemEndpoint::clear_last_source);
        }
    }

    /// The first member, if it is a shmem endpoint.
    #[inline(always)]
    pub(super) fn first_shmem_member(&self) -> Option<&ShmemEndpoint> {
        self.member(0).and_then(EndpointRef::shmem)
    }

    /// The ring to `node`, if shmem reaches it.
    #[inline(always)]
    pub(super) fn direct_target(&self, node: u32) -> Option<&Target> {
        // SYNC: member
        let target = self.direct_targets.get(node as usize)?.load(Ordering::Acquire);
        // SAFETY: null, or in an endpoint that `member` could return.
        unsafe { target.as_ref() }
    }

    /// The member that reaches `node`, and the node's number there.
    #[inline(always)]
    pub(super) fn route(&self, node: u32) -> PmResult<(u64, EndpointRef<'_>, u32)> {
        let entry = self.entry(node).ok_or(Error::Invalid)?;
        let endpoint = self.member(entry.member()).ok_or(Error::Invalid)?;
        Ok((entry.member(), endpoint, entry.node()))
    }

    #[inline(always)]
    pub(super) fn entry(&self, node: u32) -> Option<Route> {
        Route::from_bits(self.routes.get(node as usize)?.load(Ordering::Relaxed))
    }

    /// The routes to a member: the number of the node here, and in the member.
    pub(super) fn routes_of(&self, member_index: u64) -> impl Iterator<Item = (u32, u32)> {
        (0..self.routes.len() as u32).filter_map(move |node| {
            let entry = self.entry(node).filter(|entry| entry.member() == member_index)?;
            Some((node, entry.node()))
        })
    }

    /// The smallest of the members' MTUs. None: there is no member.
    pub(super) fn smallest_mtu(&self) -> Option<usize> {
        self.members().map(|(_, member)| on!(member, e => e.max_message_len())).min()
    }

    /// The longest message to `node`.
    pub(super) fn mtu(&self, node: u32) -> PmResult<usize> {
        if u64::from(node) == self.self_node.get() {
            return self.smallest_mtu().ok_or(Error::Invalid);
        }
        let (_, member, member_node) = self.route(node)?;
        on!(member, e => e.mtu(member_node))
    }

    /// The members, or the member that reaches `node`, one bit for each. Invalid: no such node, or
    /// this node itself.
    pub(super) fn paths(&self, node: Option<u32>) -> PmResult<u32> {
        let Some(node) = node else {
            return Ok(self
                .members()
                .fold(0, |paths, (member_index, _)| paths | 1 << member_index));
        };
        if self.self_node() == Ok(node) {
            return Err(Error::Invalid);
        }
        Ok(1 << self.route(node)?.0)
    }

    fn lock_member_list(&self) -> MutexGuard<'_, MemberList> {
        self.member_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the composite's own node. Called under both locks.
    pub(crate) fn bind(&self, self_node: u32) -> PmResult<()> {
        if self_node as usize >= self.routes.len() {
            return Err(Error::Invalid);
        }
        if self.self_node().is_ok() {
            return Err(Error::Busy);
        }
        self.self_node.set(u64::from(self_node));
        Ok(())
    }

    /// Unsets the composite's own node. Called under both locks. Invalid: the number is not set.
    pub(crate) fn unbind(&self) -> PmResult<()> {
        self.self_node()?;
        self.self_node.set(NO_NODE);
        Ok(())
    }

    /// Whether `pairs` can be added. Called under both locks. Invalid: bad node numbers. Busy: a
    /// node already has a route.
    pub(crate) fn check_pairs(
        &self,
        member: EndpointRef<'_>,
        pairs: &[(u32, u32)],
    ) -> PmResult<()> {
        if pairs.is_empty() {
            return Err(Error::Invalid);
        }
        let (nodes, own_node) = on!(member, e => (e.nodes(), e.self_node()));
        for (i, &(node, member_node)) in pairs.iter().enumerate() {
            let bits = self.routes.get(node as usize).ok_or(Error::Invalid)?;
            let is_second_self_node = member_node == own_node
                && self.self_node().is_ok_and(|self_node| self_node != node);
            if member_node as usize >= nodes
                || is_second_self_node
                || pairs[..i].iter().any(|&(other, _)| other == node)
            {
                return Err(Error::Invalid);
            }
            if bits.load(Ordering::Relaxed) != 0 {
                return Err(Error::Busy);
            }
        }
        Ok(())
    }

    /// Adds routes to a member, and the member if it is new. Called under both locks, after
    /// `check_pairs`. Calls `prepare` before it adds a new member, and adds nothing after an error
    /// of `prepare`. NoSpace: too many members.
    pub(super) fn add(
        &self,
        context: &ContextRef,
        endpoint: EndpointRef<'_>,
        pairs: &[(u32, u32)],
        prepare: impl FnOnce() -> PmResult<()>,
    ) -> PmResult<()> {
        let mut member_list = self.lock_member_list();
        let existing = member_list.members.iter().position(|m| m.context.is_same(context));
        let existing = match existing {
            Some(entry_index) => entry_index,
            None => {
                let member_index = (0..self.members.len())
                    .find(|&index| member_list.members.iter().all(|m| m.member_index != index))
                    .ok_or(Error::NoSpace)?;
                prepare()?;
                self.members[member_index].set(Some(endpoint));
                self.member_limit.set(self.member_limit.get().max(member_index as u64 + 1));
                self.update_options();
                member_list.members.push(MemberEntry {
                    context: context.clone(),
                    member_index,
                    route_count: 0,
                });
                member_list.members.len() - 1
            }
        };
        let own_node = on!(endpoint, e => e.self_node());
        let member = &mut member_list.members[existing];
        member.route_count += pairs.len();
        for &(node, member_node) in pairs {
            if member_node == own_node {
                self.self_node.set(u64::from(node));
            }
            let direct = endpoint
                .shmem()
                .and_then(|endpoint| endpoint.direct_target(member_node))
                .map_or(null_mut(), |to| ptr::from_ref(to).cast_mut());
            self.direct_targets[node as usize].store(direct, Ordering::Release);
            let entry = Route::new(member.member_index, member_node);
            self.routes[node as usize].store(entry.bits(), Ordering::Release);
        }
        Ok(())
    }

    /// Computes the option bits again after members were added or removed.
    fn update_options(&self) {
        let options = self
            .members()
            .map(|(_, member)| on!(member, e => e.options()))
            .reduce(|options, member_options| options & member_options);
        self.options.set(options.unwrap_or(0));
    }

    /// The member that reaches `node` and no other node. Called under both locks.
    pub(crate) fn only_member_to(&self, node: u32) -> Option<u64> {
        let (member_index, ..) = self.route(node).ok()?;
        let member_list = self.lock_member_list();
        member_list
            .members
            .iter()
            .find(|m| m.member_index as u64 == member_index && m.route_count == 1)
            .map(|_| member_index)
    }

    /// Removes `node`, and returns its member if this was the member's last node. Called under both
    /// locks. Calls `on_removed` before it removes a member. Invalid: no such route.
    pub(super) fn remove(
        &self,
        node: u32,
        on_removed: impl Fn(EndpointRef<'_>),
    ) -> PmResult<Option<ContextRef>> {
        let (member_index, endpoint, member_node) = self.route(node)?;
        let mut member_list = self.lock_member_list();
        let entry_index =
            member_list.members.iter().position(|m| m.member_index as u64 == member_index);
        let entry_index = entry_index.ok_or(Error::Io)?;
        self.direct_targets[node as usize].store(null_mut(), Ordering::Release);
        self.routes[node as usize].store(0, Ordering::Release);
        let own_node = on!(endpoint, e => e.self_node());
        if member_node == own_node && self.self_node() == Ok(node) {
            self.self_node.set(NO_NODE);
        }
        member_list.members[entry_index].route_count -= 1;
        if member_list.members[entry_index].route_count > 0 {
            return Ok(None);
        }
        Ok(Some(self.remove_member(&mut member_list, entry_index, &on_removed)))
    }

    fn remove_member(
        &self,
        member_list: &mut MemberList,
        entry_index: usize,
        on_removed: &impl Fn(EndpointRef<'_>),
    ) -> ContextRef {
        let member = member_list.members.swap_remove(entry_index);
        if let Some(endpoint) = self.member(member.member_index as u64) {
            on_removed(endpoint);
        }
        self.members[member.member_index].set(None);
        self.update_options();
        member_list.removed.push(member.context.clone());
        member.context
    }

    /// Removes all members, as `remove` does. Called under both locks, when the composite is
    /// closed.
    pub(super) fn remove_all(&self, on_removed: impl Fn(EndpointRef<'_>)) -> Vec<ContextRef> {
        let mut member_list = self.lock_member_list();
        self.direct_targets.iter().for_each(|target| target.store(null_mut(), Ordering::Release));
        self.routes.iter().for_each(|bits| bits.store(0, Ordering::Release));
        let mut removed = Vec::new();
        while !member_list.members.is_empty() {
            removed.push(self.remove_member(&mut member_list, 0, &on_removed));
        }
        removed
    }

    /// The member context of `node`, and the node's number there.
    pub(crate) fn member_of(&self, node: u32) -> PmResult<(ContextRef, u32)> {
        let member_list = self.lock_member_list();
        let (member_index, _, member_node) = self.route(node)?;
        let member = member_list
            .members
            .iter()
            .find(|m| m.member_index as u64 == member_index)
            .ok_or(Error::Io)?;
        Ok((member.context.clone(), member_node))
    }
}
