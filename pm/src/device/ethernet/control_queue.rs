//! Control messages in the engine. The engine sends the messages of the owner and of the process,
//! and keeps received messages until they are read.

#![forbid(unsafe_code)]

use super::engine::EthernetEngine;
use super::receive_store::copy_payload;
use crate::config::CONTROL_MTU;
use crate::device::net_common::endpoint_queues::{ControlMessage, EndpointQueues, ReceivedMessage};
use crate::device::net_common::layout::SendSlotState;
use crate::error::{Error, PmResult};
use score_pm_reliability::PacketKind;

impl EthernetEngine {
    #[cold]
    pub(super) fn on_control_message(
        &mut self,
        queues: &EndpointQueues,
        ReceivedMessage { entry, from, len }: ReceivedMessage,
    ) {
        let mut message = ControlMessage { from, bytes: [0; CONTROL_MTU], len: len as usize };
        match message.bytes.get_mut(..len as usize) {
            Some(to) => {
                copy_payload(queues.message_ptr(entry), to);
                self.control_messages.add_received(message, entry);
            }
            None => self.release(entry, from),
        }
    }

    /// Sends the control messages that the owner has queued for this process.
    #[cold]
    pub(super) fn send_queued_control(&mut self) {
        while self.control_messages.has_free_slot()
            && let Some((to, bytes, len)) = self.slab.control_queue().peek()
        {
            self.slab.control_queue().pop();
            // The owner checks its messages, so another process has written a message that cannot
            // be sent.
            let _ = self.send_control(to, &bytes[..len]);
        }
    }

    /// Sends a control message. Returns `Invalid` for a bad node or an empty message, and
    /// `NoBuffers` if the maximum number is in flight.
    pub(super) fn send_control(&mut self, to: u32, message: &[u8]) -> PmResult<()> {
        if to >= self.slab.geometry().nodes || message.is_empty() {
            return Err(Error::Invalid);
        }
        if self.exited_nodes.contains(to) {
            return Ok(());
        }
        let slot = self.control_messages.take_slot()?;
        self.slab.write(slot, message);
        self.copy_back_for(to);
        let len = message.len();
        let published = SendSlotState::new(len, PacketKind::Control);
        self.submit_internal(to, slot, published, (len, PacketKind::Control)).inspect_err(|_| {
            self.control_messages.free_slot(slot);
        })
    }

    /// Passes the next control message to `read`. If `read` succeeds, removes the message. Returns
    /// `NoBuffers` if there is no message.
    pub(super) fn receive_control<T>(
        &mut self,
        read: impl FnOnce(&ControlMessage) -> PmResult<T>,
    ) -> PmResult<T> {
        let (result, from, entry) = self.control_messages.read_next(read)?;
        self.release(entry, from);
        Ok(result)
    }
}
