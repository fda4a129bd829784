//! Control messages. The member that reaches the node sends them. The composite receives them from
//! any member.

#![forbid(unsafe_code)]

use super::Composite;
use crate::device::{ControlInterface, on};
use crate::error::{Error, PmResult};

impl Composite {
    pub(crate) fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        let (_, member, member_node) = self.routing.route(node)?;
        on!(member, e => e.control_send(member_node, message))
    }

    pub(crate) fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        for (member_index, member) in self.routing.members() {
            match on!(member, e => e.control_receive(buffer, len)) {
                Err(Error::NoBuffers) => {}
                Ok(source) => {
                    // The composite's number for node `source` of the member.
                    let mut routes = self.routing.routes_of(member_index);
                    let route = routes.find(|&(_, member_node)| member_node == source);
                    return route.map(|(node, _)| node).ok_or(Error::Io);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoBuffers)
    }
}
