//! Control messages in the engine. They use the same queue pairs as other messages.

#![forbid(unsafe_code)]

use super::engine::VerbsEngine;
use super::outgoing_queue::MessageClass;
use crate::config::CONTROL_MTU;
use crate::device::net_common::endpoint_queues::{EndpointQueues, SendRequest};
use crate::device::net_common::layout::{CONTROL_QUEUE_LEN, SendSlotState};
use crate::device::net_common::slab::{PublishedMessage, SequenceNumber};
use crate::error::{Error, PmResult};
use score_pm_reliability::packet_header;

impl VerbsEngine {
    /// Sends the control messages that the owner has queued for this endpoint, while their
    /// receivers have room.
    #[cold]
    pub(super) fn send_queued_control(&mut self, queues: &EndpointQueues) {
        while let Some((to, bytes, len)) = self.slab.control_queue().peek() {
            match self.send_control_message(queues, to, &bytes[..len]) {
                Err(Error::NoBuffers) => return,
                // The message was sent, or is invalid and can never be sent.
                _ => self.slab.control_queue().pop(),
            }
        }
    }

    /// Sends a control message. NoBuffers: [`CONTROL_QUEUE_LEN`] messages to that peer are in
    /// flight or unread, or no slot is free.
    pub(super) fn send_control_message(
        &mut self,
        queues: &EndpointQueues,
        to: u32,
        message: &[u8],
    ) -> PmResult<()> {
        let fits = (1..=CONTROL_MTU).contains(&message.len());
        if to >= self.slab.geometry().nodes || to == self.self_node || !fits {
            return Err(Error::Invalid);
        }
        if self.slab.is_exited(to) {
            return Ok(());
        }
        let sent = self.peers[to].sent[1];
        let read_by_peer = self.credits.control_consumed_by(to);
        if sent.wrapping_sub(read_by_peer) >= CONTROL_QUEUE_LEN as u32 {
            return Err(Error::NoBuffers);
        }
        let slot = self.control_messages.take_slot()?;
        self.slab.write(slot, message);
        let published = SendSlotState::new(message.len(), packet_header::PacketKind::Control);
        let sequence = Some(SequenceNumber(sent));
        let content = PublishedMessage { to, order: 0, sequence, published };
        self.slab.publish(slot, content);
        let request = SendRequest { slot, to, len: message.len() as u32 };
        self.submit(queues, request, MessageClass::Control);
        Ok(())
    }
}
