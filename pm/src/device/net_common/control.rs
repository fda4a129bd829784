//! Control messages, which the owner of a context and the process that uses it exchange with other
//! nodes. The process sends all of them, because it numbers the packets. Control messages are not
//! counted, and do not wake a receiver.

#![forbid(unsafe_code)]

use super::{Engine, NetworkDevice, NetworkEndpoint, ProgressMode};
use crate::config::CONTROL_MTU;
use crate::device::ControlInterface;
use crate::error::{Error, PmResult};

impl<N: NetworkDevice> ControlInterface for NetworkEndpoint<N> {
    /// Sends a control message of the process, and not of the owner.
    fn control_send(&self, node: u32, message: &[u8]) -> PmResult<()> {
        if node == self.self_node || message.len() > CONTROL_MTU {
            return Err(Error::Invalid);
        }
        self.progress_lock.lock().send_control(&self.queues, node, message)?;
        self.serve(ProgressMode::Send);
        Ok(())
    }

    fn control_receive(&self, buffer: &mut [u8], len: &mut usize) -> PmResult<u32> {
        if self.progress_lock.lock().control_message_count() == 0 {
            N::poll_blocking(self);
        }
        self.progress_lock.lock().receive_control(&self.queues, |message| {
            *len = message.len;
            let to = buffer.get_mut(..message.len).ok_or(Error::NoSpace)?;
            to.copy_from_slice(&message.bytes[..message.len]);
            Ok(message.from)
        })
    }
}
