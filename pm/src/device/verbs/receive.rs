//! Receiving. All peers share the receive buffers; the buffers for a peer are posted when it is
//! first connected. RDMA writes report to senders how much was consumed, so that every message that
//! arrives finds a buffer.

// UNSAFETY: reads message headers where the adapter has written them.
#![expect(unsafe_code)]

use super::adapter::{AccessRights, Adapter, CompletionBatch, DmaBuffer, MemoryRegion};
use super::bindings::{Sge, WC_RECV, WorkCompletion};
use super::engine::VerbsEngine;
use super::outgoing_queue::{MessageClass, is_before};
use crate::config::CONTROL_MTU;
use crate::debug;
use crate::device::net_common::endpoint_queues::{ControlMessage, EndpointQueues, ReceivedMessage};
use crate::device::net_common::layout::CONTROL_QUEUE_LEN;
use crate::sync::Ordering;
use std::sync::Arc;

/// Bytes of the header before each payload: number, length, sender and kind, each of four bytes.
pub(super) const HEADER_LEN: usize = 16;
/// Additional buffers of a peer, for control messages and for messages that are sent again after a
/// failure.
const EXTRA_BUFFERS: usize = 2 * CONTROL_QUEUE_LEN;
/// The limits of the window (see `window`), which is larger if there are few peers.
const MAX_WINDOW: usize = 64;
const MIN_WINDOW: usize = 16;
/// The sum of the windows of all peers, unless each would get less than `MIN_WINDOW`.
const TOTAL_WINDOW: usize = 256;
/// The largest number of batches per pass.
const MAX_BATCHES_PER_PASS: usize = 16;

/// The window: the number of messages to one of `nodes` nodes that may be in flight or unread.
pub(super) fn window(nodes: usize) -> usize {
    (TOTAL_WINDOW / nodes.saturating_sub(1).max(1)).clamp(MIN_WINDOW, MAX_WINDOW)
}

/// The receive buffers.
pub(super) struct SharedReceiveBuffers {
    peer_regions: Box<[Option<MemoryRegion<Arc<DmaBuffer>>>]>,
    /// The number of buffers of a peer. The index among them takes `index_bits` bits of a buffer's
    /// number.
    buffers_per_peer: usize,
    index_bits: u32,
    /// Bytes from one buffer to the next.
    buffer_stride: usize,
    mtu: usize,
}

/// A message's header.
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

impl SharedReceiveBuffers {
    pub(super) fn new(nodes: usize, mtu: usize) -> SharedReceiveBuffers {
        SharedReceiveBuffers {
            peer_regions: (0..nodes).map(|_| None).collect(),
            buffers_per_peer: buffers_per_peer(nodes),
            index_bits: index_bits(nodes),
            buffer_stride: (HEADER_LEN + mtu).next_multiple_of(64),
            mtu,
        }
    }

    /// The number of buffers of all peers.
    pub(super) fn buffer_count(&self) -> usize {
        self.buffers_per_peer * self.peer_regions.len()
    }

    /// Posts the buffers of a peer.
    pub(super) fn post_buffers(
        &mut self,
        adapter: &Arc<Adapter>,
        node: u32,
    ) -> std::result::Result<(), String> {
        if self.peer_regions[node as usize].is_some() {
            return Ok(());
        }
        let region = MemoryRegion::allocate(
            adapter,
            self.buffers_per_peer * self.buffer_stride,
            AccessRights::Local,
        )?;
        self.peer_regions[node as usize] = Some(region);
        for index in 0..self.buffers_per_peer {
            self.post_buffer(adapter, (node as usize) << self.index_bits | index);
        }
        Ok(())
    }

    /// The address of a buffer, and its key.
    #[inline(always)]
    fn buffer_addr(&self, entry: usize) -> Option<(*mut u8, u32)> {
        let region = self.peer_regions.get(entry >> self.index_bits)?.as_ref()?;
        let index = entry & ((1 << self.index_bits) - 1);
        let addr = region.memory.addr(index * self.buffer_stride, self.buffer_stride);
        Some((addr, region.lkey))
    }

    #[inline(always)]
    fn post_buffer(&self, adapter: &Adapter, entry: usize) {
        let Some((buffer, lkey)) = self.buffer_addr(entry) else { return };
        let length = (HEADER_LEN + self.mtu) as u32;
        let sge = Sge { addr: buffer.addr() as u64, length, lkey };
        if !adapter.post_receive(entry as u64, sge) {
            debug::log(debug::ERROR, || "verbs: the adapter refuses a receive buffer".into());
        }
    }
}

/// The number of buffers of one peer, if there are `nodes` nodes.
fn buffers_per_peer(nodes: usize) -> usize {
    window(nodes) + EXTRA_BUFFERS
}

/// The number of bits that number the buffers of one peer.
fn index_bits(nodes: usize) -> u32 {
    buffers_per_peer(nodes).next_power_of_two().ilog2()
}

/// The range of buffer numbers: a power of two.
pub(super) fn entry_count(nodes: usize) -> usize {
    (nodes << index_bits(nodes)).next_power_of_two()
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
        let entry = completion.wr_id as usize;
        let Some((buffer, _)) = self.receive_buffers.buffer_addr(entry) else { return };
        // SAFETY: a buffer that the adapter has filled and no other code uses.
        let words = unsafe { buffer.cast::<[u32; 4]>().read_unaligned() };
        let from = u32::from_le(words[2]);
        if completion.status != 0 || !self.is_current_qp(completion.qp_num, from) {
            // The message is from a queue pair that was replaced, and its sender sends it again. Or
            // the sender field is forged.
            return self.receive_buffers.post_buffer(&self.adapter, entry);
        }
        let header = MessageHeader::parse(words, completion.byte_len, self.receive_buffers.mtu);
        let Some(header) = header.filter(|_| completion.opcode & WC_RECV != 0) else {
            debug::log(debug::WARNING, || format!("verbs: node {from} sent a malformed message"));
            return self.receive_buffers.post_buffer(&self.adapter, entry);
        };
        let kind = header.kind as usize;
        let expected = self.peers[from as usize].expected[kind];
        if header.sequence != expected {
            self.receive_buffers.post_buffer(&self.adapter, entry);
            if !is_before(header.sequence, expected) {
                self.on_qp_failed(queues, from, "the peer has skipped a message");
            }
            return;
        }
        self.peers[from as usize].expected[kind] = expected.wrapping_add(1);
        if header.kind == MessageClass::Control {
            // SAFETY: its length was checked; it follows the header.
            let payload =
                unsafe { std::slice::from_raw_parts(buffer.add(HEADER_LEN), header.len as usize) };
            let mut control_message =
                ControlMessage { from, bytes: [0; CONTROL_MTU], len: payload.len() };
            control_message.bytes[..payload.len()].copy_from_slice(payload);
            self.control_messages.push_back(control_message);
            return self.receive_buffers.post_buffer(&self.adapter, entry);
        }
        // SAFETY: inside the buffer.
        queues.set_message_ptr(entry as u32, unsafe { buffer.add(HEADER_LEN) });
        // The queue has as many entries as there are buffers, so there is room.
        queues
            .delivered
            .push(ReceivedMessage { entry: entry as u32, from, len: header.len }.word());
        self.has_delivered = true;
        let received_count = &self.slab.record(self.local_index).accepted_count.0;
        received_count
            .store(received_count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.slab
            .accepted(self.local_index, from as usize)
            .store(u64::from(expected.wrapping_add(1)), Ordering::Release);
    }

    #[inline]
    pub(super) fn repost_released(&mut self, queues: &EndpointQueues) {
        while let Some(word) = queues.released.pop() {
            let ReceivedMessage { entry, from, .. } = ReceivedMessage::from_word(word);
            self.receive_buffers.post_buffer(&self.adapter, entry as usize);
            let peer = &mut self.peers[from as usize];
            peer.consumed[0] = peer.consumed[0].wrapping_add(1);
            if peer.consumed[0].wrapping_sub(peer.advertised) >= self.window / 2 {
                self.send_credits(queues, from);
            }
        }
    }

    /// Reports to a peer how many of its messages were consumed. If that is not possible now, the
    /// next hello reports it.
    pub(super) fn send_credits(&mut self, queues: &EndpointQueues, to: u32) {
        let word_index = self.peers.len() + to as usize;
        let peer = &mut self.peers[to as usize];
        let both_counts = u64::from(peer.consumed[1]) << 32 | u64::from(peer.consumed[0]);
        self.credits.memory.word(word_index).store(both_counts, Ordering::Release);
        let consumed = peer.consumed[0];
        if self.write_word(queues, to, word_index, 8) {
            self.peers[to as usize].advertised = consumed;
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

    #[test]
    fn a_receiver_has_buffers_for_all_that_its_peers_may_send() {
        for nodes in [1, 2, 5, 17, 300, 4096] {
            assert!((MIN_WINDOW..=MAX_WINDOW).contains(&window(nodes)), "{nodes}");
            assert!(entry_count(nodes) >= nodes * (window(nodes) + CONTROL_QUEUE_LEN));
        }
    }
}
