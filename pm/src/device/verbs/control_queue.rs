//! Control messages in the engine. They use the same queue pairs as other messages.

#![forbid(unsafe_code)]

use super::engine::VerbsEngine;
use super::outgoing_queue::MessageClass;
use crate::config::CONTROL_MTU;
use crate::device::net_common::endpoint_queues::EndpointQueues;
use crate::device::net_common::layout::{CONTROL_QUEUE_LEN, SendSlotState};
use crate::device::net_common::slab::PublishedMessage;
use crate::error::{Error, PmResult};
use crate::sync::Ordering;
use score_pm_reliability::packet_header;

impl VerbsEngine {
    /// Sends the control messages that the owner has queued for this endpoint, while their
    /// receivers have room.
    #[cold]
    pub(super) fn send_queued_control(&mut self, queues: &EndpointQueues) {
        let slab = self.slab.clone();
        let outbox = &slab.record(self.local_index).control_queue;
        while let Some((to, bytes, len)) = outbox.peek() {
            match self.send_control_message(queues, to, &bytes[..len]) {
                Err(Error::NoBuffers) => return,
                // A message that cannot be sent is invalid.
                _ => outbox.pop(),
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
        if to as usize >= self.peers.len() || to == self.identity.self_node || !fits {
            return Err(Error::Invalid);
        }
        if self.slab.is_exited(to as usize) {
            return Ok(());
        }
        let sent = self.peers[to as usize].sent[1];
        let read_by_peer =
            (self.credits.memory.word(to as usize).load(Ordering::Acquire) >> 32) as u32;
        if sent.wrapping_sub(read_by_peer) >= CONTROL_QUEUE_LEN as u32 {
            return Err(Error::NoBuffers);
        }
        let slot = self.control_slots.pop().ok_or(Error::NoBuffers)?;
        self.slab.write(self.local_index, slot as usize, message);
        let published = SendSlotState::new(message.len(), packet_header::PacketKind::Control);
        let content = PublishedMessage { to, order: 0, sequence: Some(sent), published };
        self.slab.publish(self.local_index, slot as usize, content);
        self.submit(queues, to, slot, message.len() as u32, MessageClass::Control);
        Ok(())
    }
}
