//! Control messages: beside the others, over the same queue pairs.

#![forbid(unsafe_code)]

use super::Endpoint;
use super::engine::Pass;
use crate::config::CONTROL_MTU;
use crate::error::{Error, Result};

impl Endpoint {
    /// By the process itself.
    pub(crate) fn control_send(&self, node: u32, message: &[u8]) -> Result<()> {
        if node == self.own || message.len() > CONTROL_MTU {
            return Err(Error::Invalid);
        }
        self.served.enter().send_letter(&self.lanes, node, message)?;
        self.serve(Pass::Send);
        Ok(())
    }

    pub(crate) fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> Result<u32> {
        self.serve_surely();
        self.served.enter().read_letter(&self.lanes, |letter| {
            *len = letter.len;
            let to = buffer.get_mut(..letter.len).ok_or(Error::NoSpace)?;
            to.copy_from_slice(&letter.bytes[..letter.len]);
            Ok(letter.from)
        })
    }
}
