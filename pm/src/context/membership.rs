//! Composites and their members (manual 1.2.5). A member uses the composite's locks, so that a
//! message costs one lock whichever member carries it.

#![forbid(unsafe_code)]

use super::{Context, ContextRef, LiveContext};
use crate::device::composite::Composite;
use crate::error::{Error, PmResult};
use crate::sync::Ordering;

impl LiveContext {
    /// Ends the membership of `members`. The caller holds both locks of `self`.
    pub(super) fn release_members(&self, members: Vec<ContextRef>) {
        for member in members {
            if let Ok(member) = member.live() {
                member.use_locks(&member.self_locks);
                // SYNC: composite
                member.composite.store(0, Ordering::Release);
            }
        }
    }

    /// Adds `(node, member node)` pairs that `member` will reach. The caller holds both locks of
    /// `self`.
    fn add_member(
        &self,
        composite: &Composite,
        context: &ContextRef,
        member: &LiveContext,
        pairs: &[(u32, u32)],
    ) -> PmResult<()> {
        let endpoint = member.device_context.endpoint().map_err(|_| Error::Invalid)?;
        composite.routing().check_pairs(endpoint, pairs)?;
        // SYNC: composite
        match member.composite.compare_exchange(0, self.id, Ordering::AcqRel, Ordering::Acquire) {
            Err(id) if id == self.id => return composite.add(context, endpoint, pairs),
            Err(_) => return Err(Error::Busy),
            Ok(_) => {}
        }
        let added = member.lock_both().and_then(|old_locks| {
            composite
                .add(context, endpoint, pairs)
                .inspect(|()| member.use_locks(&self.self_locks))
                .map(|()| old_locks)
                .inspect_err(|_| old_locks.release_both())
        });
        match added {
            Ok(old_locks) => {
                old_locks.release_both();
                Ok(())
            }
            Err(error) => {
                member.composite.store(0, Ordering::Release);
                Err(error)
            }
        }
    }
}

impl Context {
    /// Associates `node` of this composite with `member_node` of `member`. If `member_node` is the
    /// member's own node, `node` becomes the composite's own node.
    ///
    /// # Errors
    /// Invalid: bad node, or a context that cannot be a member. Busy: `node` is already associated,
    /// `member` belongs to another composite, or a lock is held.
    pub fn add_node(&self, node: u32, member: &Context, member_node: u32) -> PmResult<()> {
        self.associate_nodes(member, &[(node, member_node)])
    }

    /// Associates all `(node, member node)` pairs, or none.
    ///
    /// # Errors
    /// Those of `add_node`.
    pub fn associate_nodes(&self, member: &Context, pairs: &[(u32, u32)]) -> PmResult<()> {
        let inner = self.live()?;
        let composite = inner.device_context.composite().ok_or(Error::NoSys)?;
        let context = member.reference()?;
        let locks = inner.lock_both()?;
        let added = inner.add_member(composite, &context, member.live()?, pairs);
        locks.release_both();
        added
    }

    /// Removes `node` from this composite.
    ///
    /// # Errors
    /// Invalid: there is no such node, or no member is associated with it. Busy: a buffer is held.
    pub fn remove_node(&self, node: u32) -> PmResult<()> {
        let inner = self.live()?;
        let composite = inner.device_context.composite().ok_or(Error::NoSys)?;
        let locks = inner.lock_both()?;
        if let Some(member_index) = composite.routing().only_member_to(node) {
            inner.unlock_all_regions(1 << member_index);
        }
        let removed = composite.remove(node);
        if let Ok(Some(member)) = &removed {
            inner.release_members(vec![member.clone()]);
        }
        locks.release_both();
        removed.map(drop)
    }

    /// The member that reaches `node`, and the node's number in that member.
    ///
    /// # Errors
    /// Invalid: there is no such node, or no member is associated with it.
    pub fn extract_node(&self, node: u32) -> PmResult<(ContextRef, u32)> {
        let inner = self.live()?;
        let composite = inner.device_context.composite().ok_or(Error::NoSys)?;
        composite.routing().member_of(node)
    }
}
