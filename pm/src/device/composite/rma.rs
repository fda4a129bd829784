//! Remote memory access: by the member that reaches the node. The composite offers it if all
//! members do (manual 3.6.1).

#![forbid(unsafe_code)]

use super::{Composite, NO_NODE};
use crate::error::{Error, PmResult};
use crate::rma::{AddrHandle, Direction};

impl Composite {
    /// In a process of one thread. Like `start_rma` for one word, directly in the peer's memory.
    /// False: nothing has happened, call `start_rma`.
    #[inline(always)]
    pub(crate) fn copy_one_word(
        &self,
        direction: Direction,
        node: u32,
        handles: [AddrHandle; 2],
    ) -> bool {
        self.options.get() & direction.option() != 0
            && self
                .direct_target(node)
                .is_some_and(|target| target.copy_one_word(direction, handles))
    }

    /// Both locks: members were added or removed.
    pub(super) fn update_options(&self) {
        let options = self
            .members()
            .map(|(_, member)| member.options())
            .reduce(|options, member_options| options & member_options);
        self.options.set(options.unwrap_or(0));
    }

    pub(super) fn paths_to(&self, node: Option<u32>) -> PmResult<u32> {
        let Some(node) = node else {
            return Ok(self
                .members()
                .fold(0, |paths, (member_index, _)| paths | 1 << member_index));
        };
        let self_node = self.self_node.get();
        if self_node != NO_NODE && self_node == u64::from(node) {
            return Err(Error::Invalid);
        }
        Ok(1 << self.route(node)?.0)
    }

    /// A failure on any member counts, and is reported before operations in flight.
    pub(super) fn is_rma_done_on_members(&self, direction: Direction) -> PmResult<()> {
        let mut result = Ok(());
        for (_, member) in self.members() {
            match member.is_remote_done(direction) {
                Ok(()) => {}
                Err(Error::Busy) => result = result.and(Err(Error::Busy)),
                Err(error) => result = Err(error),
            }
        }
        result
    }
}
