//! Adding and removing members.

#![forbid(unsafe_code)]

use super::Composite;
use crate::context::ContextRef;
use crate::device::EndpointRef;
use crate::error::PmResult;

impl Composite {
    /// Adds routes to a member, and the member if it is new. Called under both locks, after
    /// `check_pairs`. NoSpace: too many members.
    pub(crate) fn add(
        &self,
        context: &ContextRef,
        endpoint: EndpointRef<'_>,
        pairs: &[(u32, u32)],
    ) -> PmResult<()> {
        let prepare = || self.select.on_member_added(endpoint);
        self.routing.add(context, endpoint, pairs, prepare)
    }

    /// Removes `node`, and returns its member if this was the member's last node. Called under both
    /// locks. Invalid: no such route.
    pub(crate) fn remove(&self, node: u32) -> PmResult<Option<ContextRef>> {
        self.routing.remove(node, |member| self.on_member_removed(member))
    }

    /// Releases all members. Called under both locks, when the composite is closed.
    pub(crate) fn remove_all(&self) -> Vec<ContextRef> {
        self.routing.remove_all(|member| self.on_member_removed(member))
    }

    fn on_member_removed(&self, member: EndpointRef<'_>) {
        self.select.on_member_removed(member);
        self.receive.forget_hot();
    }
}
