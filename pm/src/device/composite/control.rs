//! Control messages. The member that reaches the node sends them; they are received from any
//! member.

#![forbid(unsafe_code)]

use super::Composite;
use super::open::Route;
use crate::device::{ControlInterface, on};
use crate::error::{Error, PmResult};
use crate::sync::Ordering;

impl Composite {
    pub(crate) fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let (_, member, member_node) = self.route(node)?;
        on!(member, e => e.control_send(member_node, message))
    }

    pub(crate) fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        for (member_index, member) in self.members() {
            match on!(member, e => e.control_receive(buffer, len)) {
                Err(Error::NoBuffers) => {}
                Ok(source) => return self.node_of(member_index, source).ok_or(Error::Io),
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoBuffers)
    }

    /// The composite's node number for node `source` of the member.
    fn node_of(&self, member_index: u64, source: u32) -> Option<u32> {
        let named = self.routes.iter().position(|bits| {
            Route::from_bits(bits.load(Ordering::Relaxed))
                .is_some_and(|entry| entry.member() == member_index && entry.node() == source)
        });
        named.map(|node| node as u32)
    }
}
