//! Sending. Messages and operations are posted in order, if the peer is connected and the queue
//! pair has room.

// UNSAFETY: writes headers in front of payloads in the slab, and sends them from the slab.
#![expect(unsafe_code)]

use super::bindings::Sge;
use super::connection::ConnectionEvent;
use super::engine::VerbsEngine;
use super::outgoing_queue::{MessageClass, QueueItem, QueuedMessage};
use super::queue_pair::{Opcode, WorkRequest};
use super::receive_buffers::HEADER_LEN;
use crate::device::net_common::endpoint_queues::{EndpointQueues, SendRequest};
use crate::sync::Ordering;

impl VerbsEngine {
    pub(super) fn send_submitted(&mut self, queues: &EndpointQueues) {
        let count = queues.submitted.len() as u64;
        // The messages are counted before they leave the queue. A thread that reads the queue and
        // the count therefore finds them in one of the two.
        queues.outstanding.store(self.outstanding + count, Ordering::Release);
        for _ in 0..count {
            let Some(word) = queues.submitted.pop() else { break };
            let SendRequest { slot, to, len } = SendRequest::from_word(word);
            self.submit(queues, to, slot, len, MessageClass::Data);
        }
    }

    /// Sends a message that was published and is in no queue.
    #[inline(always)]
    pub(super) fn send_now(&mut self, queues: &EndpointQueues, message: SendRequest) {
        if !queues.submitted.is_empty() {
            self.send_submitted(queues);
        }
        queues.outstanding.store(self.outstanding + 1, Ordering::Release);
        let SendRequest { slot, to, len } = message;
        self.submit(queues, to, slot, len, MessageClass::Data);
    }

    #[inline(always)]
    pub(super) fn submit(
        &mut self,
        queues: &EndpointQueues,
        to: u32,
        slot: u32,
        len: u32,
        kind: MessageClass,
    ) {
        let peer = &mut self.peers[to as usize];
        let sequence = peer.sent[kind as usize];
        peer.sent[kind as usize] = sequence.wrapping_add(1);
        if peer.send_queue.rdma_count() > 0 {
            // An owner that adopts the slots does not complete remote memory operations. A message
            // after an unfinished operation must not arrive without that operation.
            self.slab.free(self.local_index, slot as usize);
        }
        let message = QueuedMessage { slot, len, kind, sequence };
        let can_send_now =
            peer.connection.is_ready() && peer.send_queue.can_send_now(self.max_in_flight);
        if can_send_now && self.slab.exited_count().load(Ordering::Relaxed) == self.exited_seen {
            return self.send_unqueued(queues, to, message);
        }
        self.enqueue(to, message);
        if self.slab.is_exited(to as usize) {
            return self.drop_queued(queues, to);
        }
        self.transmit(queues, to);
    }

    /// Sends a message that no item precedes. Its queue entry is written while it is in flight.
    #[inline(always)]
    fn send_unqueued(&mut self, queues: &EndpointQueues, to: u32, message: QueuedMessage) {
        let frame = self.write_header(message);
        let posted = self.post_frame(to, frame, message.len);
        self.outstanding += 1;
        self.queue(to, QueueItem::Message(message));
        self.on_posted(queues, to, posted);
    }

    /// Appends a message to the queue of that peer.
    pub(super) fn enqueue(&mut self, to: u32, message: QueuedMessage) {
        self.write_header(message);
        self.outstanding += 1;
        self.queue(to, QueueItem::Message(message));
    }

    /// Writes the header, and returns the message's start address.
    #[inline(always)]
    fn write_header(&self, message: QueuedMessage) -> *mut u8 {
        let frame = self.frame(message.slot);
        let header = [message.sequence, message.len, self.identity.self_node, message.kind as u32];
        // SAFETY: each frame has more than this many bytes in front of its payload, and this
        // process owns the slot.
        unsafe { frame.cast::<[u32; 4]>().write_unaligned(header.map(u32::to_le)) };
        frame
    }

    #[inline(always)]
    fn frame(&self, slot: u32) -> *mut u8 {
        self.slab.payload(self.local_index, slot as usize).wrapping_sub(HEADER_LEN)
    }

    #[inline(always)]
    pub(super) fn queue(&mut self, to: u32, item: QueueItem) {
        let peer = &mut self.peers[to as usize];
        peer.send_queue.push(item);
        if !std::mem::replace(&mut peer.is_busy, true) {
            self.busy_peers.push(to);
        }
    }

    /// Posts the items that can be posted now, or starts to connect to the peer.
    #[inline]
    pub(super) fn transmit(&mut self, queues: &EndpointQueues, to: u32) {
        loop {
            let peer = &mut self.peers[to as usize];
            let Some(item) = peer.send_queue.next_to_post() else { return };
            if !peer.connection.is_ready() {
                return self.dispatch_event(queues, to, ConnectionEvent::SendPending);
            }
            if peer.send_queue.in_flight() >= self.max_in_flight || peer.send_queue.must_wait() {
                return;
            }
            let posted = match *item {
                QueueItem::Message(message) => self.post_message(queues, to, message),
                QueueItem::Rdma(operation) => self.post_rdma(queues, to, operation),
            };
            if !posted {
                return;
            }
        }
    }

    /// Posts a queued message. False: the queue pair has failed and is replaced.
    fn post_message(&mut self, queues: &EndpointQueues, to: u32, message: QueuedMessage) -> bool {
        let posted = self.post_frame(to, self.frame(message.slot), message.len);
        self.on_posted(queues, to, posted)
    }

    /// Returns the number of the work request that carries the message, and whether it could be
    /// posted.
    #[inline(always)]
    fn post_frame(&mut self, to: u32, frame: *mut u8, len: u32) -> (u32, bool) {
        let peer = &mut self.peers[to as usize];
        let (work_number, signalled) = peer.send_queue.begin_work(false);
        self.in_flight += 1;
        let length = HEADER_LEN as u32 + len;
        let sge = Sge { addr: frame.addr() as u64, length, lkey: self.frames.lkey };
        let id = u64::from(to) << 32 | u64::from(work_number);
        let request = WorkRequest { id, opcode: Opcode::Send, sge, is_signalled: signalled };
        // SAFETY: a frame of the slab, which is not written before the work is done.
        (work_number, peer.pair.as_ref().is_some_and(|pair| unsafe { pair.send(request) }))
    }

    /// Records that work request `work_number` carries the next message. False: the queue pair has
    /// failed and is replaced.
    #[inline(always)]
    fn on_posted(
        &mut self,
        queues: &EndpointQueues,
        to: u32,
        (work_number, sent): (u32, bool),
    ) -> bool {
        self.peers[to as usize].send_queue.on_posted(work_number);
        if !sent {
            self.on_qp_failed(queues, to, "the queue pair accepts no work request");
        }
        sent
    }

    /// Writes `len` bytes of the local words, from index `from` on, to the peer's word for this
    /// node. False: there is no room, or the peer is not connected.
    pub(super) fn write_word(
        &mut self,
        queues: &EndpointQueues,
        to: u32,
        first_word: usize,
        len: u32,
    ) -> bool {
        let self_node = u64::from(self.identity.self_node);
        let peer = &mut self.peers[to as usize];
        let max_in_flight =
            super::queue_pair::SEND_QUEUE_DEPTH.min(self.adapter.max_work_requests) - 2;
        let Some(pair) = &peer.pair else { return false };
        if !peer.connection.is_ready() || peer.send_queue.in_flight() >= max_in_flight {
            return false;
        }
        let (work_number, signalled) = peer.send_queue.begin_work(len == 0);
        self.in_flight += 1;
        let addr = self.credits.memory.addr(first_word * 8, 8).addr() as u64;
        let sge = Sge { addr, length: len, lkey: self.credits.lkey };
        let opcode =
            Opcode::Write(peer.credit_target.0.wrapping_add(self_node * 8), peer.credit_target.1);
        let id = u64::from(to) << 32 | u64::from(work_number);
        // SAFETY: a registered word, which only grows.
        let sent = unsafe { pair.send(WorkRequest { id, opcode, sge, is_signalled: signalled }) };
        if !sent {
            self.on_qp_failed(queues, to, "the queue pair accepts no work request");
        }
        sent
    }
}
