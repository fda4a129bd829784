//! Control messages: from the owner of the contexts, by way of the process that a context belongs
//! to, which numbers its packets. They are not counted and wake nobody.

#![forbid(unsafe_code)]

use super::{Endpoint, Engine, Network, Pass};
use crate::config::CONTROL_MTU;
use crate::error::{Error, Result};

impl<N: Network> Endpoint<N> {
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
        if self.served.enter().letters() == 0 {
            N::poll_surely(self);
        }
        self.served.enter().read_letter(&self.lanes, |letter| {
            *len = letter.len;
            let to = buffer.get_mut(..letter.len).ok_or(Error::NoSpace)?;
            to.copy_from_slice(&letter.bytes[..letter.len]);
            Ok(letter.from)
        })
    }
}
