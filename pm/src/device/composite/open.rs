//! The routing table: which member reaches which node. It is changed under both locks of the
//! composite. It is read under either lock, or without a lock by any thread at any time. Therefore
//! all entries are atomic and never move, and a removed member is kept until the composite is
//! dropped.

#![forbid(unsafe_code)]

use super::{Composite, NO_NODE};
use crate::context::ContextRef;
use crate::device::{Endpoint, EndpointRef, on};
use crate::error::{Error, PmResult};
use crate::sync::Ordering;
use std::ptr::{self, null_mut};
use std::sync::{MutexGuard, PoisonError};

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
pub(crate) struct MemberList {
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

impl Composite {
    fn lock_member_list(&self) -> MutexGuard<'_, MemberList> {
        self.member_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member that reaches `node`, and the node's number there.
    #[inline(always)]
    pub(super) fn route(&self, node: u32) -> PmResult<(u64, EndpointRef<'_>, u32)> {
        let bits = self.routes.get(node as usize).ok_or(Error::Invalid)?;
        let entry = Route::from_bits(bits.load(Ordering::Relaxed)).ok_or(Error::Invalid)?;
        let endpoint = self.member(entry.member()).ok_or(Error::Invalid)?;
        Ok((entry.member(), endpoint, entry.node()))
    }

    /// Sets this context's own node. Called under both locks.
    pub(crate) fn bind(&self, self_node: u32) -> PmResult<()> {
        if self_node as usize >= self.routes.len() {
            return Err(Error::Invalid);
        }
        if self.self_node.get() != NO_NODE {
            return Err(Error::Busy);
        }
        self.self_node.set(u64::from(self_node));
        Ok(())
    }

    /// Unsets this context's own node. Called under both locks. Invalid: the number is not set.
    pub(crate) fn unbind(&self) -> PmResult<()> {
        if self.self_node.get() == NO_NODE {
            return Err(Error::Invalid);
        }
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
                && !matches!(self.self_node.get(), NO_NODE)
                && self.self_node.get() != u64::from(node);
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
    /// `check_pairs`. NoSpace: too many members.
    pub(crate) fn add(
        &self,
        context: &ContextRef,
        endpoint: EndpointRef<'_>,
        pairs: &[(u32, u32)],
    ) -> PmResult<()> {
        let mut member_list = self.lock_member_list();
        let existing = member_list.members.iter().position(|m| m.context.is_same(context));
        let existing = match existing {
            Some(entry_index) => entry_index,
            None => {
                let member_index = (0..self.members.len())
                    .find(|&index| member_list.members.iter().all(|m| m.member_index != index))
                    .ok_or(Error::NoSpace)?;
                self.select.on_member_added(endpoint)?;
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
    /// locks. Invalid: no such route.
    pub(crate) fn remove(&self, node: u32) -> PmResult<Option<ContextRef>> {
        let (member_index, endpoint, member_node) = self.route(node)?;
        let mut member_list = self.lock_member_list();
        let entry_index =
            member_list.members.iter().position(|m| m.member_index as u64 == member_index);
        let entry_index = entry_index.ok_or(Error::Io)?;
        self.direct_targets[node as usize].store(null_mut(), Ordering::Release);
        self.routes[node as usize].store(0, Ordering::Release);
        let own_node = on!(endpoint, e => e.self_node());
        if member_node == own_node && self.self_node.get() == u64::from(node) {
            self.self_node.set(NO_NODE);
        }
        member_list.members[entry_index].route_count -= 1;
        if member_list.members[entry_index].route_count > 0 {
            return Ok(None);
        }
        Ok(Some(self.drop_member(&mut member_list, entry_index)))
    }

    fn drop_member(&self, member_list: &mut MemberList, entry_index: usize) -> ContextRef {
        let member = member_list.members.swap_remove(entry_index);
        if let Some(endpoint) = self.member(member.member_index as u64) {
            self.select.on_member_removed(endpoint);
        }
        self.members[member.member_index].set(None);
        self.update_options();
        self.receive.forget_hot();
        member_list.removed.push(member.context.clone());
        member.context
    }

    /// Releases all members. Called under both locks, when the composite is closed.
    pub(crate) fn remove_all(&self) -> Vec<ContextRef> {
        let mut member_list = self.lock_member_list();
        self.direct_targets.iter().for_each(|target| target.store(null_mut(), Ordering::Release));
        self.routes.iter().for_each(|bits| bits.store(0, Ordering::Release));
        let mut removed = Vec::new();
        while !member_list.members.is_empty() {
            removed.push(self.drop_member(&mut member_list, 0));
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
