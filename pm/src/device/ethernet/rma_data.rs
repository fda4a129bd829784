//! Copies the bytes of remote memory access: from locked memory into frames to send, and from
//! received frames into locked memory. One copy covers many frames. `rma_protocol` decides which
//! frame is sent next.

// UNSAFETY: copies between locked memory and this process's frames and buffers.
#![expect(unsafe_code)]

use super::engine::EthernetEngine;
use super::receive_store::copy_payload;
use super::rma_engine::{FrameRun, RmaEngine};
use super::rma_protocol::{
    CompletedOperation, FragmentStream, LocalOperation, NextTransmission, PayloadSource,
};
use super::transmit::LOST_MARKER_LEN;
use super::wire::UserBytes;
use super::zero_copy;
use crate::debug;
use crate::device::net_common::endpoint_queues::{EndpointQueues, ReceivedMessage};
use crate::device::net_common::indices::SlotIndex;
use crate::device::net_common::layout::SendSlotState;
use crate::rma::{Direction, IoSegment, MAX_SEGMENTS};
use crate::sync::{Ordering, prefetch_read};
use score_pm_reliability::PacketKind;
use score_pm_reliability::rma_frame::{Frame, MAX_RMA_HEADER_LEN, RMA_HEADER_LEN};

/// Logs that user memory to be sent to `node` cannot be read.
pub(super) fn report_failure(node: u32, why: &str) {
    debug::log(debug::ERROR, || format!("ethernet: memory sent to node {node}: {why}"));
}

impl EthernetEngine {
    pub(super) fn process_rma_requests(&mut self, queues: &EndpointQueues) {
        let mut requests = std::mem::take(&mut self.rma.requests);
        self.rma_requests.drain_into(&mut requests);
        for (node, operation) in requests.drain(..) {
            if self.exited_nodes.contains(node) {
                self.complete(queues, CompletedOperation { peer: node, operation, failed: true });
            } else {
                self.rma.protocol.begin(node, operation);
            }
        }
        self.rma.requests = requests;
    }

    /// Fills frames while slots are free, one batch for each peer in turn. Returns whether it
    /// submitted anything.
    pub(super) fn fill_frames(&mut self, queues: &EndpointQueues) -> bool {
        self.return_freed_slots(queues);
        let mut filled = false;
        for _ in 0..self.rma.protocol.ready_count() {
            let Some(node) = self.rma.protocol.next_ready() else { break };
            filled |= self.fill_frames_for(queues, node);
        }
        filled
    }

    fn fill_frames_for(&mut self, queues: &EndpointQueues, node: u32) -> bool {
        let max_frames = self.rma.available_slots(node);
        if max_frames == 0 {
            return false;
        }
        match self.rma.protocol.next(node) {
            NextTransmission::Nothing => return false,
            NextTransmission::Message(message) => self.submit(message),
            NextTransmission::Frame(frame) => {
                self.submit_frame(node, frame);
            }
            NextTransmission::Fragments(stream) => {
                self.send_stream(queues, node, &stream, max_frames)
            }
        }
        true
    }

    fn submit_frame(&mut self, node: u32, frame: Frame) {
        let Some(slot) = self.rma.allocate_slot() else { return };
        let mut header = [0; MAX_RMA_HEADER_LEN];
        let len = frame.encode(&mut header);
        self.slab.write(slot, &header[..len]);
        self.submit_frame_slot(
            node,
            slot,
            SendSlotState::new(len, PacketKind::Remote),
            (len, PacketKind::Remote),
        );
    }

    /// Submits a packet, given its length and kind. `published` is the state of its slot.
    fn submit_frame_slot(
        &mut self,
        node: u32,
        slot: SlotIndex,
        published: SendSlotState,
        packet: (usize, PacketKind),
    ) {
        self.rma.in_flight += 1;
        self.rma.frames_sent += 1;
        self.rma.protocol.on_frames_sent(node, 1);
        let result = self.submit_internal(node, slot, published, packet);
        debug_assert!(result.is_ok(), "{result:?}");
    }

    /// Makes packets from the next bytes of the stream, at most `max_frames`.
    fn send_stream(
        &mut self,
        queues: &EndpointQueues,
        node: u32,
        stream: &FragmentStream,
        max_frames: usize,
    ) {
        let max_len = self.max_packet_len(queues, node);
        let source = match stream.source {
            PayloadSource::Address(addr) => Ok(addr),
            PayloadSource::Region(handle) => {
                self.rma_requests.find(handle, stream.remaining.min(max_frames * max_len))
            }
        };
        let mut failure = source.is_err().then(|| "it is not locked".to_owned());
        let (source_addr, mut bytes) = (source.unwrap_or(0), 0);
        for _ in 0..max_frames {
            if failure.is_some() || bytes == stream.remaining {
                break;
            }
            let Some(slot) = self.rma.allocate_slot() else { break };
            let (len, headerless) = stream.next_packet_len(bytes, max_len);
            let payload = UserBytes { addr: source_addr.wrapping_add(bytes), len };
            if headerless {
                self.send_zero_copy(node, slot, (stream, bytes), payload);
            } else {
                failure = self.send_copied(node, slot, stream.frame(bytes, len), payload).err();
            }
            bytes += if failure.is_none() { len } else { 0 };
        }
        if bytes > 0 {
            self.rma.protocol.on_bytes_sent(node, stream, bytes);
        }
        if let Some(why) = failure {
            report_failure(node, &why);
            self.rma.protocol.abort_stream(node, stream);
        }
    }

    /// Copies `bytes` to the slot after the frame's header, and sends the packet from there.
    fn send_copied(
        &mut self,
        node: u32,
        slot: SlotIndex,
        frame: Frame,
        bytes: UserBytes,
    ) -> Result<(), String> {
        let addr = self.slab.payload(slot).addr() + RMA_HEADER_LEN;
        // SAFETY: the slot was just allocated, so no other code uses it.
        let copied =
            unsafe { self.rma.copier.gather(bytes.addr, &[IoSegment { addr, len: bytes.len }]) };
        copied.map_err(|error| {
            self.rma.free_slot(slot);
            error.to_string()
        })?;
        let mut header = [0; MAX_RMA_HEADER_LEN];
        frame.encode(&mut header);
        self.slab.write(slot, &header[..RMA_HEADER_LEN]);
        let len = RMA_HEADER_LEN + bytes.len;
        self.submit_frame_slot(
            node,
            slot,
            SendSlotState::new(len, PacketKind::Remote),
            (len, PacketKind::Remote),
        );
        Ok(())
    }

    /// Sends `bytes` directly from user memory. They begin `offset` bytes into the stream.
    fn send_zero_copy(
        &mut self,
        peer: u32,
        slot: SlotIndex,
        (stream, offset): (&FragmentStream, usize),
        bytes: UserBytes,
    ) {
        let region = match stream.source {
            PayloadSource::Address(_) => None,
            PayloadSource::Region(handle) => Some(handle + offset as u64),
        };
        let (side, number) = (stream.side, stream.number());
        // The bytes are copied when the batch is sent, and most of them are in no cache. The
        // prefetch overlaps with the rest of the work here. With segmentation the batch is sent so
        // soon that a prefetch does not pay off.
        if !self.transmitter.uses_segmentation {
            bytes.cache_lines().for_each(prefetch_read);
        }
        self.transmitter
            .zero_copy
            .insert(slot, zero_copy::ZeroCopyFrame { peer, bytes, region, side, number });
        self.submit_frame_slot(
            peer,
            slot,
            SendSlotState::new(LOST_MARKER_LEN, PacketKind::PayloadLost),
            (bytes.len, PacketKind::Continuation),
        );
    }

    /// Returns the length of the longest packet to a node, and looks it up before the first packet
    /// to that node.
    fn max_packet_len(&mut self, queues: &EndpointQueues, node: u32) -> usize {
        let local_mtu = self.slab.geometry().mtu;
        let Some(peer) = queues.peers.get(node) else { return local_mtu };
        if peer.mtu.get() == 0 {
            let mtu = self.transmitter.mtu(node).map_or(local_mtu, |mtu| mtu.min(local_mtu));
            peer.mtu.set(mtu as u64);
        }
        peer.mtu.get() as usize
    }

    /// Handles a received frame. Collects its bytes with those of the frames that follow, for
    /// `flush`.
    pub(super) fn on_frame(
        &mut self,
        queues: &EndpointQueues,
        received: ReceivedMessage,
        kind: PacketKind,
    ) {
        self.rma.has_received_frames = true;
        let ReceivedMessage { entry, from, len } = received;
        let (payload_ptr, len) = (queues.message_ptr(entry), len as usize);
        let mut frame = None;
        if kind == PacketKind::Remote {
            let mut header = [0; MAX_RMA_HEADER_LEN];
            let prefix_len = len.min(MAX_RMA_HEADER_LEN);
            copy_payload(payload_ptr, &mut header[..prefix_len]);
            frame = Frame::parse(&header[..prefix_len], len);
        }
        let protocol = &mut self.rma.protocol;
        let copy = match (kind, frame) {
            (PacketKind::Continuation, _) => {
                protocol.on_continuation(from, len).map(|copy| (copy, 0))
            }
            (_, Some((frame, bytes))) => {
                protocol.on_frame(from, frame, bytes).map(|copy| (copy, RMA_HEADER_LEN))
            }
            (_, None) => protocol.on_bytes_lost(from),
        };
        let Some((copy, header_len)) = copy else { return self.release(entry, from) };
        let bytes = len - header_len;
        let run = &self.rma.frame_run;
        let is_contiguous = run.count < MAX_SEGMENTS
            && (run.peer, run.side, run.number) == (from, copy.side, copy.number)
            && run.to + run.len as u64 == copy.to;
        if !is_contiguous {
            self.flush();
            let run = &mut self.rma.frame_run;
            (run.peer, run.side, run.number, run.to) = (from, copy.side, copy.number, copy.to);
        }
        let run = &mut self.rma.frame_run;
        run.parts[run.count] = IoSegment { addr: payload_ptr.addr() + header_len, len: bytes };
        run.entries[run.count] = entry;
        run.count += 1;
        run.len += bytes;
    }

    /// Copies the bytes of the collected run to locked memory, and releases its packets.
    pub(super) fn flush(&mut self) {
        let RmaEngine { frame_run, copier, protocol, .. } = &mut self.rma;
        let FrameRun { peer, side, number, to, len, count, .. } = *frame_run;
        if count == 0 {
            return;
        }
        (frame_run.count, frame_run.len) = (0, 0);
        let destination =
            self.rma_requests.find(to, len).map_err(|_| "it is not locked".to_owned());
        let copied = destination.and_then(|destination| {
            // SAFETY: the parts are buffers of packets that were kept and are released only below.
            // The process has locked the destination, which permits other nodes to write there.
            let copied = unsafe { copier.scatter(&frame_run.parts[..count], destination) };
            copied.map_err(|error| error.to_string())
        });
        if let Err(why) = copied {
            debug::log(debug::ERROR, || format!("ethernet: memory written by node {peer}: {why}"));
            protocol.fail_operation(peer, side, number);
        }
        let entries = frame_run.entries;
        entries[..count].iter().for_each(|entry| self.release(*entry, peer));
    }

    /// Copies the bytes of received frames, and reports the completed operations. Called after all
    /// received frames were handled.
    pub(super) fn complete_operations(&mut self, queues: &EndpointQueues) {
        self.flush();
        self.rma.has_received_frames = false;
        queues.set_rma_received();
        while let Some(completed) = self.rma.protocol.next_completed() {
            self.complete(queues, completed);
        }
    }

    fn complete(
        &mut self,
        queues: &EndpointQueues,
        CompletedOperation { peer, operation, failed }: CompletedOperation,
    ) {
        let LocalOperation { direction, len, .. } = operation;
        let counters = &self.slab.record().node.send.0;
        if failed {
            debug::log(debug::ERROR, || {
                let name = match direction {
                    Direction::Write => "write to",
                    Direction::Read => "read from",
                };
                format!("ethernet: a remote {name} node {peer} has failed")
            });
        } else {
            counters.rma_bytes[direction as usize].fetch_add(len as u64, Ordering::Relaxed);
        }
        if let Some(peer_state) = queues.peers.get(peer) {
            peer_state.pending_operations.fetch_sub(1, Ordering::AcqRel);
        }
        self.rma_requests.on_completed(peer, direction, failed);
        counters.pending_rma.fetch_sub(1, Ordering::AcqRel);
    }

    /// Fails all operations on `node`, which has exited. Submits the messages that waited for them.
    /// The machine drops these like other messages to the node.
    pub(super) fn fail_operations(&mut self, queues: &EndpointQueues, node: u32) {
        for completed in self.rma.protocol.on_peer_exited(node) {
            self.complete(queues, completed);
        }
        while let NextTransmission::Message(message) = self.rma.protocol.next(node) {
            self.submit(message);
        }
    }

    /// Ends all operations, because the process exits. Operations whose bytes are not all in frames
    /// are abandoned. Messages after them are dropped, because they would imply that the operations
    /// were complete.
    pub(super) fn abort_operations(&mut self, queues: &EndpointQueues) {
        self.copy_back_all(None);
        self.slab.record().node.send.0.pending_rma.store(0, Ordering::Release);
        let messages = self.rma.protocol.drop_deferred();
        for message in &messages {
            self.slab.free(message.slot);
        }
        self.slab.count_dropped(messages.len() as u64);
        self.return_freed_slots(queues);
    }
}
