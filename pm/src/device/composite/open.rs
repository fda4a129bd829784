//! Which node is reached by which member. Changed under both locks of the composite; read under
//! either, or by glances that anybody may cast at any time: so everything is in place and atomic,
//! and a member that was removed is kept until the composite goes.

#![forbid(unsafe_code)]

use super::{Composite, Member, UNSET};
use crate::context::ContextRef;
use crate::error::{Error, Result};
use crate::sync::Ordering;
use std::ptr::{self, null_mut};
use std::sync::{MutexGuard, PoisonError};

/// A line of the table in one word, so that a glance never sees half of it.
#[derive(Clone, Copy)]
pub(super) struct Entry(u64);

const USED: u64 = 1 << 63;

impl Entry {
    fn new(member: usize, node: u32) -> Entry {
        Entry(USED | (member as u64) << 32 | u64::from(node))
    }
    pub(super) fn from_bits(bits: u64) -> Option<Entry> {
        (bits & USED != 0).then_some(Entry(bits))
    }
    pub(super) fn bits(self) -> u64 {
        self.0
    }
    #[inline(always)]
    pub(super) fn member(self) -> u64 {
        (self.0 & !USED) >> 32
    }
    #[inline(always)]
    pub(super) fn node(self) -> u32 {
        self.0 as u32
    }
}

/// The members by name.
#[derive(Default)]
pub(crate) struct Roll {
    present: Vec<Line>,
    /// Removed members: somebody may still look at their endpoints.
    removed: Vec<ContextRef>,
}

struct Line {
    context: ContextRef,
    place: usize,
    /// Table lines that name it.
    uses: usize,
}

impl Composite {
    fn roll(&self) -> MutexGuard<'_, Roll> {
        self.roll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member that reaches `node`, and the node's number there.
    #[inline(always)]
    pub(super) fn route(&self, node: u32) -> Result<(u64, Member<'_>, u32)> {
        let line = self.table.get(node as usize).ok_or(Error::Invalid)?;
        let entry = Entry::from_bits(line.load(Ordering::Relaxed)).ok_or(Error::Invalid)?;
        let endpoint = self.member(entry.member()).ok_or(Error::Invalid)?;
        Ok((entry.member(), endpoint, entry.node()))
    }

    /// Both locks. Sets the own node.
    pub(crate) fn bind(&self, own: u32) -> Result<()> {
        if own as usize >= self.table.len() {
            return Err(Error::Invalid);
        }
        if self.own.get() != UNSET {
            return Err(Error::Busy);
        }
        self.own.set(u64::from(own));
        Ok(())
    }

    /// Both locks. Invalid: not set.
    pub(crate) fn unbind(&self) -> Result<()> {
        if self.own.get() == UNSET {
            return Err(Error::Invalid);
        }
        self.own.set(UNSET);
        Ok(())
    }

    /// Both locks. Whether `pairs` can be added: Invalid node numbers, Busy ones.
    pub(crate) fn check_pairs(&self, member: Member<'_>, pairs: &[(u32, u32)]) -> Result<()> {
        if pairs.is_empty() {
            return Err(Error::Invalid);
        }
        let nodes = member.nodes();
        for (i, &(node, there)) in pairs.iter().enumerate() {
            let line = self.table.get(node as usize).ok_or(Error::Invalid)?;
            let own = there == member.own()
                && !matches!(self.own.get(), UNSET)
                && self.own.get() != u64::from(node);
            if there as usize >= nodes || own || pairs[..i].iter().any(|&(n, _)| n == node) {
                return Err(Error::Invalid);
            }
            if line.load(Ordering::Relaxed) != 0 {
                return Err(Error::Busy);
            }
        }
        Ok(())
    }

    /// Both locks, after `check_pairs`. NoSpace: too many members.
    pub(crate) fn add(
        &self,
        context: &ContextRef,
        endpoint: Member<'_>,
        pairs: &[(u32, u32)],
    ) -> Result<()> {
        let mut roll = self.roll();
        let known = roll.present.iter().position(|m| m.context.is_same(context));
        let known = match known {
            Some(known) => known,
            None => {
                let place = (0..self.members.len())
                    .find(|&p| roll.present.iter().all(|m| m.place != p))
                    .ok_or(Error::NoSpace)?;
                self.select.member_comes(endpoint)?;
                self.members[place].set(Some(endpoint));
                self.count.set(self.count.get().max(place as u64 + 1));
                self.set_options();
                roll.present.push(Line { context: context.clone(), place, uses: 0 });
                roll.present.len() - 1
            }
        };
        let member = &mut roll.present[known];
        member.uses += pairs.len();
        for &(node, there) in pairs {
            if there == endpoint.own() {
                self.own.set(u64::from(node));
            }
            let direct =
                endpoint.direct(there).map_or(null_mut(), |to| ptr::from_ref(to).cast_mut());
            self.direct[node as usize].store(direct, Ordering::Release);
            let entry = Entry::new(member.place, there);
            self.table[node as usize].store(entry.bits(), Ordering::Release);
        }
        Ok(())
    }

    /// Both locks. The member that reaches `node` and no other.
    pub(crate) fn only_way(&self, node: u32) -> Option<u64> {
        let (place, ..) = self.route(node).ok()?;
        let roll = self.roll();
        roll.present.iter().find(|m| m.place as u64 == place && m.uses == 1).map(|_| place)
    }

    /// Both locks. Answers the member when this was its last node. Invalid: no such line.
    pub(crate) fn remove(&self, node: u32) -> Result<Option<ContextRef>> {
        let (place, endpoint, there) = self.route(node)?;
        let mut roll = self.roll();
        let found = roll.present.iter().position(|m| m.place as u64 == place);
        let found = found.ok_or(Error::Io)?;
        self.direct[node as usize].store(null_mut(), Ordering::Release);
        self.table[node as usize].store(0, Ordering::Release);
        if there == endpoint.own() && self.own.get() == u64::from(node) {
            self.own.set(UNSET);
        }
        roll.present[found].uses -= 1;
        if roll.present[found].uses > 0 {
            return Ok(None);
        }
        Ok(Some(self.drop_member(&mut roll, found)))
    }

    fn drop_member(&self, roll: &mut Roll, found: usize) -> ContextRef {
        let member = roll.present.swap_remove(found);
        if let Some(endpoint) = self.member(member.place as u64) {
            self.select.member_goes(endpoint);
        }
        self.members[member.place].set(None);
        self.set_options();
        self.receive.forget_hot();
        roll.removed.push(member.context.clone());
        member.context
    }

    /// Both locks, when the composite goes: lets all members go.
    pub(crate) fn remove_all(&self) -> Vec<ContextRef> {
        let mut roll = self.roll();
        self.direct.iter().for_each(|line| line.store(null_mut(), Ordering::Release));
        self.table.iter().for_each(|line| line.store(0, Ordering::Release));
        let mut gone = Vec::new();
        while !roll.present.is_empty() {
            gone.push(self.drop_member(&mut roll, 0));
        }
        gone
    }

    /// The member context of `node`, and the node's number there.
    pub(crate) fn extract(&self, node: u32) -> Result<(ContextRef, u32)> {
        let roll = self.roll();
        let (place, _, there) = self.route(node)?;
        let member = roll.present.iter().find(|m| m.place as u64 == place).ok_or(Error::Io)?;
        Ok((member.context.clone(), there))
    }
}
