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
use crate::device::net_common::indices::SlotIndex;
use crate::sync::Ordering;

impl VerbsEngine {
    pub(super) fn send_submitted(&mut self, queues: &EndpointQueues) {
        let count = queues.submitted.len() as u64;
        // The messages are counted before they leave the queue. A thread that reads the queue and
        // the count therefore finds them in one of the two.
        queues.outstanding.store(self.outstanding + count, Ordering::Release);
        for _ in 0..count {
            let Some(message) = queues.submitted.pop() else { break };
            self.submit(queues, message, MessageClass::Data);
        }
    }

    /// Sends a message that was published and is in no queue.
    #[inline(always)]
    pub(super) fn send_now(&mut self, queues: &EndpointQueues, message: SendRequest) {
        if !queues.submitted.is_empty() {
            self.send_submitted(queues);
        }
        queues.outstanding.store(self.outstanding + 1, Ordering::Release);
        self.submit(queues, message, MessageClass::Data);
    }

    #[inline(always)]
    pub(super) fn submit(
        &mut self,
        queues: &EndpointQueues,
        SendRequest { slot, to, len }: SendRequest,
        kind: MessageClass,
    ) {
        let max_in_flight = self.peers.max_in_flight();
        let peer = &mut self.peers[to];
        let sequence = peer.sent[kind as usize];
        peer.sent[kind as usize] = sequence.wrapping_add(1);
        if peer.send_queue.rdma_count() > 0 {
            // An owner that adopts the slots does not complete remote memory operations. A message
            // after an unfinished operation must not arrive without that operation.
            self.slab.free(slot);
        }
        let message = QueuedMessage { slot, len, kind, sequence };
        let can_send_now =
            peer.connection.is_ready() && peer.send_queue.can_send_now(max_in_flight);
        if can_send_now && !self.slab.has_new_exits() {
            return self.send_unqueued(queues, to, message);
        }
        self.enqueue(to, message);
        if self.slab.is_exited(to) {
            return self.drop_queued(queues, to);
        }
        self.transmit(queues, to);
    }

    /// Sends a message that need not wait in the queue. The entry in the queue is written while the
    /// message is in flight.
    #[inline(always)]
    fn send_unqueued(&mut self, queues: &EndpointQueues, to: u32, message: QueuedMessage) {
        let frame = self.write_header(message);
        let posted = self.post_frame(to, frame, message.len);
        self.outstanding += 1;
        self.peers.queue(to, QueueItem::Message(message));
        self.on_posted(queues, to, posted);
    }

    /// Appends a message to the queue of a peer.
    pub(super) fn enqueue(&mut self, to: u32, message: QueuedMessage) {
        self.write_header(message);
        self.outstanding += 1;
        self.peers.queue(to, QueueItem::Message(message));
    }

    /// Writes the header, and returns the message's start address.
    #[inline(always)]
    fn write_header(&self, message: QueuedMessage) -> *mut u8 {
        let frame = self.frame(message.slot);
        let header = [message.sequence, message.len, self.self_node, message.kind as u32];
        // SAFETY: each frame has more than this many bytes in front of its payload, and this
        // process owns the slot.
        unsafe { frame.cast::<[u32; 4]>().write_unaligned(header.map(u32::to_le)) };
        frame
    }

    #[inline(always)]
    fn frame(&self, slot: SlotIndex) -> *mut u8 {
        self.slab.payload(slot).wrapping_sub(HEADER_LEN)
    }

    /// Posts the items that can be posted now, or starts to connect to the peer.
    #[inline]
    pub(super) fn transmit(&mut self, queues: &EndpointQueues, to: u32) {
        let max_in_flight = self.peers.max_in_flight();
        loop {
            let peer = &self.peers[to];
            let Some(item) = peer.send_queue.next_to_post() else { return };
            if !peer.connection.is_ready() {
                return self.dispatch_event(queues, to, ConnectionEvent::SendPending);
            }
            if peer.send_queue.in_flight() >= max_in_flight || peer.send_queue.must_wait() {
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
        let (peer, work_number, signalled) = self.peers.begin_work(to, false);
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
        self.peers[to].send_queue.on_posted(work_number);
        if !sent {
            self.on_qp_failed(queues, to, "the queue pair accepts no work request");
        }
        sent
    }

    /// Writes local memory to the peer's word for this node. False: there is no room, or the peer
    /// is not connected.
    pub(super) fn write_word(&mut self, queues: &EndpointQueues, to: u32, word: Sge) -> bool {
        let peer = &self.peers[to];
        let is_connected = peer.pair.is_some() && peer.connection.is_ready();
        if !is_connected || !self.peers.has_room_for_report(to) {
            return false;
        }
        let (peer, work_number, signalled) = self.peers.begin_work(to, word.length == 0);
        let (addr, key) = peer.credit_target;
        let opcode = Opcode::Write(addr.wrapping_add(u64::from(self.self_node) * 8), key);
        let id = u64::from(to) << 32 | u64::from(work_number);
        let request = WorkRequest { id, opcode, sge: word, is_signalled: signalled };
        // SAFETY: a registered word, which only grows.
        let sent = peer.pair.as_ref().is_some_and(|pair| unsafe { pair.send(request) });
        if !sent {
            self.on_qp_failed(queues, to, "the queue pair accepts no work request");
        }
        sent
    }
}
