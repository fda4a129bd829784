//! Receiving: checks and delivers messages. RDMA writes report to senders how much was consumed, so
//! that every message that arrives finds a buffer.

// UNSAFETY: reads message headers where the adapter has written them.
#![expect(unsafe_code)]

use super::adapter::CompletionBatch;
use super::bindings::{WC_RECV, WorkCompletion};
use super::engine::VerbsEngine;
use super::outgoing_queue::{MessageClass, is_before};
use super::receive_buffers::HEADER_LEN;
use crate::config::CONTROL_MTU;
use crate::debug;
use crate::device::net_common::endpoint_queues::{ControlMessage, EndpointQueues, ReceivedMessage};
use crate::device::net_common::indices::EntryIndex;
use crate::sync::Ordering;

/// The largest number of batches per pass.
const MAX_BATCHES_PER_PASS: usize = 16;

#[derive(Clone, Copy, Debug)]
struct MessageHeader {
    sequence: u32,
    len: u32,
    kind: MessageClass,
}

impl MessageHeader {
    /// Parses and checks a header. None: no sender of this protocol writes such a header.
    #[inline(always)]
    fn parse(words: [u32; 4], received_len: u32, mtu: usize) -> Option<MessageHeader> {
        let [sequence, len, _, kind] = words.map(u32::from_le);
        let kind = match kind {
            0 => MessageClass::Data,
            1 if len as usize <= CONTROL_MTU => MessageClass::Control,
            _ => return None,
        };
        let fits = (1..=mtu).contains(&(len as usize)) && received_len == HEADER_LEN as u32 + len;
        fits.then_some(MessageHeader { sequence, len, kind })
    }
}

impl VerbsEngine {
    /// Delivers received messages.
    pub(super) fn receive(&mut self, queues: &EndpointQueues) {
        let mut batch = CompletionBatch::new();
        match self.adapter.poll_receives(&mut batch) {
            Some(completions) => self.deliver_completions(queues, completions),
            None => self.on_adapter_lost(),
        }
    }

    /// Delivers the messages of these completions, and further received messages.
    #[inline(always)]
    pub(super) fn deliver_completions(
        &mut self,
        queues: &EndpointQueues,
        completions: &[WorkCompletion],
    ) {
        let (mut batch, mut completions) = (CompletionBatch::new(), completions);
        for _ in 0..MAX_BATCHES_PER_PASS {
            for completion in completions {
                self.on_receive_completion(queues, completion);
            }
            if completions.len() < CompletionBatch::SIZE {
                return;
            }
            completions = match self.adapter.poll_receives(&mut batch) {
                Some(more) => more,
                None => return self.on_adapter_lost(),
            };
        }
    }

    #[inline(always)]
    fn on_receive_completion(&mut self, queues: &EndpointQueues, completion: &WorkCompletion) {
        let entry = EntryIndex(completion.wr_id as u32);
        let Some((buffer, _)) = self.receive_buffers.buffer_addr(entry) else { return };
        // SAFETY: a buffer that the adapter has filled and no other code uses.
        let words = unsafe { buffer.cast::<[u32; 4]>().read_unaligned() };
        let from = u32::from_le(words[2]);
        if completion.status != 0 || !self.is_current_qp(completion.qp_num, from) {
            // If the queue pair has failed or was replaced, the sender sends the message again.
            // Otherwise the sender field is forged.
            return self.receive_buffers.post_buffer(&self.adapter, entry);
        }
        let header = MessageHeader::parse(words, completion.byte_len, self.receive_buffers.mtu);
        let Some(header) = header.filter(|_| completion.opcode & WC_RECV != 0) else {
            debug::log(debug::WARNING, || format!("verbs: node {from} sent a malformed message"));
            return self.receive_buffers.post_buffer(&self.adapter, entry);
        };
        let kind = header.kind as usize;
        let expected = self.peers[from].expected[kind];
        if header.sequence != expected {
            self.receive_buffers.post_buffer(&self.adapter, entry);
            if !is_before(header.sequence, expected) {
                self.on_qp_failed(queues, from, "the peer has skipped a message");
            }
            return;
        }
        self.peers[from].expected[kind] = expected.wrapping_add(1);
        if header.kind == MessageClass::Control {
            // SAFETY: its length was checked; it follows the header.
            let payload =
                unsafe { std::slice::from_raw_parts(buffer.add(HEADER_LEN), header.len as usize) };
            let mut control_message =
                ControlMessage { from, bytes: [0; CONTROL_MTU], len: payload.len() };
            control_message.bytes[..payload.len()].copy_from_slice(payload);
            self.control_messages.add_received(control_message, ());
            return self.receive_buffers.post_buffer(&self.adapter, entry);
        }
        // SAFETY: inside the buffer.
        queues.set_message_ptr(entry, unsafe { buffer.add(HEADER_LEN) });
        // The queue has as many entries as there are buffers, so there is room.
        queues.delivered.push(ReceivedMessage { entry, from, len: header.len });
        self.has_delivered = true;
        self.slab.count_accepted();
        let accepted = self.slab.accepted_from(from);
        accepted.store(u64::from(expected.wrapping_add(1)), Ordering::Release);
    }

    #[inline]
    pub(super) fn repost_released(&mut self, queues: &EndpointQueues) {
        while let Some(ReceivedMessage { entry, from, .. }) = queues.released.pop() {
            self.receive_buffers.post_buffer(&self.adapter, entry);
            let peer = &mut self.peers[from];
            peer.consumed[0] = peer.consumed[0].wrapping_add(1);
            if self.credits.is_report_due(peer.consumed[0], peer.advertised) {
                self.send_credits(queues, from);
            }
        }
    }

    /// Reports to a peer how many of its messages were consumed. If the peer is not connected, the
    /// next hello reports the number. If the queue pair has no room, the report is sent when a work
    /// request has completed. The peer may wait for exactly this report.
    pub(super) fn send_credits(&mut self, queues: &EndpointQueues, to: u32) {
        let consumed = self.peers[to].consumed;
        let word = self.credits.store_consumed(to, consumed);
        let is_sent = self.write_word(queues, to, word);
        self.peers[to].has_unsent_report = !is_sent;
        if is_sent {
            self.peers[to].advertised = consumed[0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_does_not_fit_the_received_length_is_refused() {
        let words = |len: u32, kind: u32| [7, len, 3, kind].map(u32::to_le);
        assert!(MessageHeader::parse(words(100, 0), 116, 1024).is_some());
        assert!(MessageHeader::parse(words(48, 1), 64, 1024).is_some());
        for (len, kind, bytes) in [
            (0, 0, 16),
            (100, 0, 115),
            (1025, 0, 1041),
            (100, 2, 116),
            (49, 1, 65),
            (u32::MAX, 0, 15),
        ] {
            assert!(MessageHeader::parse(words(len, kind), bytes, 1024).is_none(), "{len} {kind}");
        }
    }
}
