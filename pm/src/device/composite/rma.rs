//! Remote memory access, by the member that reaches the node. The composite offers it if all
//! members do (manual 3.6.1).

#![forbid(unsafe_code)]

use super::Composite;
use crate::device::{RmaInterface, on};
use crate::error::{Error, PmResult};
use crate::rma::{AddrHandle, Arena, Direction, RemoteStatus, RmaOperation};
use std::sync::Arc;

impl Composite {
    /// Like `start_rma` for one word, directly in the peer's memory. The caller's calls are
    /// serialized. False: nothing has happened, and the caller has to call `start_rma`.
    #[inline(always)]
    pub(crate) fn copy_one_word(
        &self,
        direction: Direction,
        node: u32,
        handles: [AddrHandle; 2],
    ) -> bool {
        self.routing.options() & direction.option() != 0
            && self
                .routing
                .direct_target(node)
                .is_some_and(|target| target.copy_one_word(direction, handles))
    }

    #[inline]
    pub(crate) fn options(&self) -> u64 {
        self.routing.options()
    }

    #[inline]
    pub(crate) fn start_rma(&self, node: u32, operation: &RmaOperation) -> PmResult<()> {
        let (_, member, member_node) = self.routing.route(node)?;
        on!(member, e => e.start_rma(member_node, operation))
    }

    /// The member numbers the operations on its node.
    pub(crate) fn remote_status(&self, node: u32) -> PmResult<RemoteStatus> {
        let (_, member, member_node) = self.routing.route(node)?;
        on!(member, e => e.remote_status(member_node))
    }

    pub(crate) fn arena(&self) -> Option<&Arc<Arena>> {
        self.routing.members().find_map(|(_, member)| on!(member, e => e.arena()))
    }

    /// The members, or the member that reaches `node`. Invalid: no such node, or this node itself.
    pub(crate) fn paths(&self, node: Option<u32>) -> PmResult<u32> {
        self.routing.paths(node)
    }

    /// If a member has failed, returns its error, even if other members are busy.
    pub(crate) fn is_remote_done(&self, direction: Direction) -> PmResult<()> {
        let mut result = Ok(());
        for (_, member) in self.routing.members() {
            match on!(member, e => e.is_remote_done(direction)) {
                Ok(()) => {}
                Err(Error::Busy) => result = result.and(Err(Error::Busy)),
                Err(error) => result = Err(error),
            }
        }
        result
    }
}
