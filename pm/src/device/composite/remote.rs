//! Remote memory: by the member that reaches the node. It is there when all members have it
//! (manual 3.6.1).

#![forbid(unsafe_code)]

use super::{Composite, UNSET};
use crate::error::{Error, Result};
use crate::remote::{AddrHandle, Direction};

impl Composite {
    /// In a process of one thread. As `remote` for a word, by the direct way; false: that knows.
    #[inline(always)]
    pub(crate) fn move_word(
        &self,
        direction: Direction,
        node: u32,
        handles: [AddrHandle; 2],
    ) -> bool {
        self.options.get() & direction.option() != 0
            && self.direct(node).is_some_and(|to| to.move_word(direction, handles))
    }

    /// Both locks: members have come or gone.
    pub(super) fn set_options(&self) {
        let all = self.members().map(|(_, member)| member.options()).reduce(|all, one| all & one);
        self.options.set(all.unwrap_or(0));
    }

    pub(super) fn ways_to(&self, node: Option<u32>) -> Result<u32> {
        let Some(node) = node else {
            return Ok(self.members().fold(0, |ways, (place, _)| ways | 1 << place));
        };
        let own = self.own.get();
        if own != UNSET && own == u64::from(node) {
            return Err(Error::Invalid);
        }
        Ok(1 << self.route(node)?.0)
    }

    /// What has failed on any member counts, and is told before what is under way.
    pub(super) fn is_done_on_members(&self, direction: Direction) -> Result<()> {
        let mut sum = Ok(());
        for (_, member) in self.members() {
            match member.is_remote_done(direction) {
                Ok(()) => {}
                Err(Error::Busy) => sum = sum.and(Err(Error::Busy)),
                Err(error) => sum = Err(error),
            }
        }
        sum
    }
}
