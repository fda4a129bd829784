//! The engine passes received packets from the wires through the reliability machine to the
//! receiver, and submitted messages through the machine to the wires. Only the thread that holds
//! the progress lock runs it.

// UNSAFETY: gives the reliability machine access to received packets in place, and the wires access
// to the slab.
#![expect(unsafe_code)]

use super::exited_nodes::ExitedNodes;
use super::job_clock::JobClock;
use super::receive_store::{ReceiveStore, packet_bytes};
use super::rma_engine::RmaEngine;
use super::rma_requests::RmaRequestQueue;
use super::transmit::{BATCH, Transmitter};
use super::wire::{self, Received, UDP_PREFIX, Wire};
use super::zero_copy::ZeroCopyFrames;
use crate::debug;
use crate::device::net_common::address_table::AddressTable;
use crate::device::net_common::control_messages::ControlMessages;
use crate::device::net_common::endpoint_queues::{
    ControlMessage, EndpointQueues, ReceivedMessage, SendRequest,
};
use crate::device::net_common::indices::{EntryIndex, SlotIndex};
use crate::device::net_common::layout::{FRAME_HEADROOM, SendSlotState};
use crate::device::net_common::node_slab::NodeSlab;
use crate::device::net_common::slab::{PublishedMessage, SequenceNumber, Slab};
use crate::device::net_common::{self, EndpointIdentity, ProgressMode, receive_buffers};
use crate::error::{Error, PmResult, from_errno};
use crate::sync::Ordering;
use score_pm_reliability::{
    BufferDisposition, Config, PACKET_HEADER_LEN, PacketKind, ReliabilityEvent, ReliabilityMachine,
};
use std::io::Write;
use std::sync::Arc;

/// The most batches that one pass reads from one wire, so that a flood of packets cannot delay the
/// rest of the pass.
const MAX_BATCHES_PER_PASS: usize = 4;
/// The time in nanoseconds until the engine sends packets again for which the kernel had no room.
const SEND_RETRY_INTERVAL_NS: u64 = 1_000_000;
/// The number of passes between two reports of events to the user.
const EVENT_REPORT_PASSES: u64 = 1024;
/// The number of idle polls after which a poll reads the clock and the owner's requests.
const IDLE_POLLS_PER_CHECK: u32 = 8;
/// Receive buffers that the reliability machine does not count, reserved for packets that are being
/// read.
const RESERVED_BUFFERS: usize = 64;

// The headers fit in front of the payload without a gap: see `SlabGeometry`.
const _: () = assert!(FRAME_HEADROOM == PACKET_HEADER_LEN + UDP_PREFIX);

/// See the module. The slab is the last field, so that it is dropped after the wires, which send
/// from it.
pub(crate) struct EthernetEngine {
    pub(super) machine: ReliabilityMachine,
    pub(super) transmitter: Transmitter,
    store: ReceiveStore,
    clock: JobClock,
    received: [Received; BATCH],
    /// The destination of each slot's message, whose count of freed slots grows when the slot is
    /// free again.
    pub(super) slot_destinations: Box<[u32]>,
    /// The entries of the store hold the received control messages.
    pub(super) control_messages: ControlMessages<EntryIndex>,
    pub(super) rma_requests: Arc<RmaRequestQueue>,
    pub(super) rma: RmaEngine,
    pub(super) exited_nodes: ExitedNodes,
    dropped_count_seen: u64,
    pass_count: u64,
    /// The number of idle polls since the latest full pass.
    idle_polls: u32,
    /// Whether the latest pass has left work to the next one.
    has_deferred_work: bool,
    pub(super) slab: NodeSlab,
}

/// Converts the error of a wire to an error code, and logs it.
pub(super) fn to_pm_error(why: wire::WireError) -> Error {
    debug::log(debug::ERROR, || format!("ethernet: {why}"));
    why.errno.map_or(Error::Invalid, |errno| match from_errno(errno) {
        Error::Io => Error::NoDevice,
        error => error,
    })
}

/// Returns the configuration of the reliability machine for `link_count` links.
fn reliability_config(
    identity: EndpointIdentity,
    restarts: u32,
    slab: &Slab,
    link_count: usize,
) -> Config {
    let geometry = slab.geometry();
    let mut config = Config::new(identity.self_node, geometry.nodes, identity.secret, restarts);
    config.links = link_count as u8;
    config.mtu = geometry.mtu as u16;
    config.buffers = (receive_buffers::buffer_count(geometry.mtu) - RESERVED_BUFFERS) as u32;
    // More than all slots plus a whole window of gaps, so that the machine accepts every message.
    config.max_queued = 8192;
    config
}

/// Returns the kind of a packet from its header.
#[inline]
fn kind_of(packet: &[u8]) -> Option<PacketKind> {
    packet.get(2).and_then(|byte| PacketKind::from_byte(*byte))
}

impl EthernetEngine {
    pub(super) fn new(
        identity: EndpointIdentity,
        restarts: u32,
        links: Vec<wire::WireEndpoint>,
        addresses: Arc<AddressTable>,
        slab: Arc<Slab>,
    ) -> PmResult<EthernetEngine> {
        let slab = NodeSlab::new(slab, identity.self_node)?;
        let attach = |link| {
            let (start, size) = (slab.slab().start(), slab.geometry().size);
            // SAFETY: the engine holds the slab, and drops it after the wires. Each frame has this
            // headroom in front of its payload, and the padding after the payload belongs to the
            // same frame.
            let memory =
                unsafe { wire::SendMemory::new(start, size).with_headroom(FRAME_HEADROOM) };
            Wire::attach(link, memory).map_err(to_pm_error)
        };
        let wires = links.into_iter().map(attach).collect::<PmResult<Vec<_>>>()?;
        let geometry = *slab.geometry();
        Ok(EthernetEngine {
            machine: ReliabilityMachine::new(reliability_config(
                identity,
                restarts,
                slab.slab(),
                wires.len(),
            )),
            transmitter: Transmitter::new(
                wires,
                addresses,
                identity,
                ZeroCopyFrames::new(geometry.rma_slot_base(), geometry.slots),
            ),
            store: ReceiveStore::new(geometry.mtu),
            clock: JobClock::new(),
            received: [Received::default(); BATCH],
            slot_destinations: vec![0; geometry.all_slots()].into(),
            control_messages: ControlMessages::new(&geometry),
            rma_requests: Arc::default(),
            rma: RmaEngine::new(&geometry),
            exited_nodes: ExitedNodes::default(),
            dropped_count_seen: 0,
            pass_count: 0,
            idle_polls: 0,
            has_deferred_work: false,
            slab,
        })
    }

    /// Does the rest of a pass: released buffers, exited nodes, control messages, time-outs and
    /// transmission. Returns whether anything was delivered.
    fn run_maintenance(&mut self, queues: &EndpointQueues, now: u64) -> bool {
        self.process_released(queues);
        if self.slab.has_new_exits() {
            self.note_exited_nodes(now);
        }
        if !self.slab.control_queue().is_empty() {
            self.send_queued_control();
        }
        let overdue = self.machine.expire(now);
        let delivered = overdue && self.receive_before_timeout(queues, now);
        self.transmitter.on_time_outs(self.machine.counters().time_outs, now);
        if self.exited_nodes.has_grace() {
            self.drop_after_grace(queues, now);
        }
        self.transmit_all(queues, now);
        self.return_freed_slots(queues);
        self.pass_count = self.pass_count.wrapping_add(1);
        if self.pass_count.is_multiple_of(EVENT_REPORT_PASSES) {
            self.report_events();
        }
        delivered
    }

    /// Receives once more before a time-out. If this process was stopped, the packet that prevents
    /// the time-out may already be in the socket.
    #[cold]
    fn receive_before_timeout(&mut self, queues: &EndpointQueues, now: u64) -> bool {
        self.receive(queues);
        self.machine.on_timeout(now);
        self.deliver(queues)
    }

    #[inline]
    fn process_submitted(&mut self, queues: &EndpointQueues) {
        let count = queues.submitted.len() as u64;
        // This check comes after the count of messages is read, so that it covers all operations
        // that precede these messages.
        if !self.rma_requests.is_empty() {
            self.process_rma_requests(queues);
        }
        if count == 0 {
            return;
        }
        // This store comes before the messages leave the queue, so that a reader of both counts
        // misses no message.
        queues.outstanding.store(self.outstanding() + count, Ordering::Release);
        for _ in 0..count {
            let Some(message) = queues.submitted.pop() else { break };
            if self.rma.protocol.must_wait(message.to) {
                self.rma.protocol.defer(message);
            } else {
                self.submit(message);
            }
        }
    }

    /// Returns the number of messages that were sent and are neither acknowledged nor dropped.
    fn outstanding(&self) -> u64 {
        let messages = self.machine.outstanding().saturating_sub(self.rma.in_flight());
        messages + self.rma.protocol.deferred_count() as u64
    }

    /// Submits a message to the reliability machine. The sender has already made all checks that
    /// the machine makes.
    #[inline]
    pub(super) fn submit(&mut self, SendRequest { slot, to, len }: SendRequest) {
        self.copy_back_for(to);
        self.slot_destinations[slot.as_usize()] = to;
        let result = self.machine.submit(to, slot.0, len as u16, PacketKind::Data);
        let result = result.map(SequenceNumber);
        debug_assert!(result.is_ok(), "{result:?}");
        if let Ok(sequence) = result {
            self.slab.set_sequence(slot, sequence);
            self.store_next_sequence(to, sequence);
        }
    }

    /// Whether a message to `node` may bypass the queue because no earlier work is waiting.
    #[inline]
    pub(super) fn can_bypass_queue(&self, queues: &EndpointQueues, node: u32) -> bool {
        // The order of these checks ensures that no message overtakes an earlier operation.
        queues.submitted.is_empty()
            && self.rma_requests.is_empty()
            && !self.rma.protocol.must_wait(node)
    }

    /// Publishes a message together with its sequence number.
    #[inline]
    pub(super) fn submit_and_publish(&mut self, SendRequest { slot, to, len }: SendRequest) {
        self.copy_back_for(to);
        self.slot_destinations[slot.as_usize()] = to;
        let result = self.machine.submit(to, slot.0, len as u16, PacketKind::Data);
        let result = result.map(SequenceNumber);
        debug_assert!(result.is_ok(), "{result:?}");
        let published = SendSlotState::new(len as usize, PacketKind::Data);
        let content = PublishedMessage { to, order: 0, sequence: result.ok(), published };
        self.slab.publish(slot, content);
        if let Ok(sequence) = result {
            self.store_next_sequence(to, sequence);
        }
    }

    /// Stores the next sequence number for the owner, which adopts this endpoint after the process
    /// has exited.
    #[inline]
    fn store_next_sequence(&self, to: u32, sequence: SequenceNumber) {
        let next_sequence = self.slab.next_sequence(to);
        next_sequence.store(sequence.next().0.into(), Ordering::Release);
    }

    /// Publishes a slot that no sender uses, and submits it to the reliability machine as a packet
    /// of `len` bytes. Returns `Invalid` if the machine refuses the packet; the slot is then free.
    pub(super) fn submit_internal(
        &mut self,
        to: u32,
        slot: SlotIndex,
        published: SendSlotState,
        (len, kind): (usize, PacketKind),
    ) -> PmResult<()> {
        let sequence = SequenceNumber(self.machine.next_sequence(to));
        let content = PublishedMessage { to, order: 0, sequence: Some(sequence), published };
        self.slab.publish(slot, content);
        self.slot_destinations[slot.as_usize()] = to;
        if self.machine.submit(to, slot.0, len as u16, kind).is_err() {
            self.slab.free(slot);
            return Err(Error::Invalid);
        }
        self.store_next_sequence(to, sequence);
        Ok(())
    }

    #[inline]
    fn process_released(&mut self, queues: &EndpointQueues) {
        while let Some(ReceivedMessage { entry, from, .. }) = queues.released.pop() {
            self.release(entry, from);
        }
    }

    pub(super) fn release(&mut self, entry: EntryIndex, from: u32) {
        self.store.release(entry, &mut self.transmitter.wires);
        self.machine.on_released(from);
    }

    /// Receives packets from all wires. Returns the current time if it received any.
    #[inline]
    fn receive(&mut self, queues: &EndpointQueues) -> Option<u64> {
        let mut now = None;
        for link in 0..self.transmitter.wires.len() {
            for _ in 0..MAX_BATCHES_PER_PASS {
                let count = self.transmitter.wires[link].receive(&mut self.received);
                if count > 0 {
                    let now = *now.get_or_insert_with(|| self.clock.now());
                    for i in 0..count {
                        self.on_packet(queues, link, self.received[i], now);
                    }
                }
                if count < BATCH {
                    break;
                }
            }
        }
        now
    }

    /// Whether an empty poll can end here: no work is waiting, and the timers were checked a few
    /// polls ago.
    #[inline]
    fn is_idle_poll(&mut self, queues: &EndpointQueues) -> bool {
        self.idle_polls += 1;
        let idle = !self.has_deferred_work
            && self.machine.is_transmit_idle()
            && !self.machine.has_pending_ack()
            && queues.released.is_empty()
            && queues.submitted.is_empty()
            && self.rma_requests.is_empty()
            && self.rma.is_idle()
            && !self.transmitter.is_blocked();
        idle && self.idle_polls < IDLE_POLLS_PER_CHECK
    }

    #[inline]
    fn on_packet(&mut self, queues: &EndpointQueues, link: usize, packet: Received, now: u64) {
        let wire = &mut self.transmitter.wires[link];
        let Some(entry) = self.store.next_entry() else {
            // This does not happen, because the machine counts fewer buffers than there are.
            return wire.release(packet.buffer);
        };
        let ptr = wire.pointer(packet);
        // SAFETY: the wire has just returned this packet. The packet is released only after the
        // last use of `bytes`.
        let bytes = unsafe { packet_bytes(ptr, packet.len) };
        let disposition = self.machine.receive(bytes, link as u8, entry.0, now);
        match disposition {
            BufferDisposition::Free => wire.release(packet.buffer),
            BufferDisposition::Kept => {
                let is_message = kind_of(bytes) == Some(PacketKind::Data);
                let message_ptr = self.store.keep(link, wire, packet, ptr);
                queues.set_message_ptr(entry, message_ptr);
                if is_message {
                    self.slab.count_accepted();
                }
            }
        }
    }

    /// Passes all messages and control messages that are in order to the receiver, and handles RMA
    /// frames. Returns whether a message was delivered.
    #[inline]
    fn deliver(&mut self, queues: &EndpointQueues) -> bool {
        let mut delivered = false;
        while let Some(message) = self.machine.next_delivery() {
            let (entry, from) = (EntryIndex(message.buffer), message.peer);
            let len = u32::from(message.len);
            let received = ReceivedMessage { entry, from, len };
            match message.kind {
                PacketKind::Data => {
                    // A receiver that takes the message must find the results of the remote writes
                    // that precede it.
                    if self.rma.has_received_frames() {
                        self.flush();
                    }
                    // The queue has as many words as there are entries, so there is room.
                    delivered |= queues.delivered.push(received);
                }
                PacketKind::Remote | PacketKind::Continuation | PacketKind::PayloadLost => {
                    self.on_frame(queues, received, message.kind);
                }
                _ => self.on_control_message(queues, received),
            }
        }
        if self.rma.has_received_frames() {
            self.complete_operations(queues);
        }
        delivered
    }

    #[inline]
    fn transmit(&mut self, now: u64) {
        let EthernetEngine { machine, transmitter, slab, .. } = self;
        if transmitter.is_blocked() || !machine.is_transmit_idle() {
            transmitter.send_all(slab, machine, now);
        }
        if !self.transmitter.deferred.is_empty() {
            self.send_deferred();
        }
    }

    /// Transmits packets, and also frames of remote operations while slots are free.
    #[inline]
    fn transmit_all(&mut self, queues: &EndpointQueues, now: u64) {
        while !self.rma.is_idle() && self.fill_frames(queues) {
            self.transmit(now);
        }
        self.transmit(now);
    }

    /// Returns the slots of packets that were acknowledged or dropped to the sender.
    #[inline]
    pub(super) fn return_freed_slots(&mut self, queues: &EndpointQueues) {
        let geometry = self.slab.geometry();
        let (rma_slot_base, first_control_slot) =
            (geometry.rma_slot_base(), geometry.first_control_slot());
        while let Some(slot) = self.machine.next_free_slot().map(SlotIndex) {
            self.slab.free(slot);
            let destination = self.slot_destinations[slot.as_usize()];
            if let Some(rma_slot) = rma_slot_base.rma_slot(slot) {
                self.transmitter.zero_copy.set_in_slab(slot);
                self.rma.on_slot_freed(destination, rma_slot);
                continue;
            }
            if slot >= first_control_slot {
                self.control_messages.free_slot(slot);
                continue;
            }
            if let Some(peer) = queues.peers.get(destination) {
                peer.freed_count.set(peer.freed_count.get().wrapping_add(1));
            }
            queues.freed.push(slot);
        }
        let dropped = self.machine.counters().dropped;
        if dropped != self.dropped_count_seen {
            self.slab.count_dropped(dropped.wrapping_sub(self.dropped_count_seen));
            self.dropped_count_seen = dropped;
        }
        queues.outstanding.store(self.outstanding(), Ordering::Release);
    }

    /// Starts the grace period of nodes that the owner has marked as exited.
    #[cold]
    fn note_exited_nodes(&mut self, now: u64) {
        self.slab.note_exits();
        for node in 0..self.slab.geometry().nodes {
            if self.slab.is_exited(node) {
                self.exited_nodes.add(node, now);
            }
        }
    }

    #[cold]
    fn drop_after_grace(&mut self, queues: &EndpointQueues, now: u64) {
        loop {
            let has_outstanding = |node| self.machine.outstanding_to(node) > 0;
            let Some(node) = self.exited_nodes.end_grace(now, has_outstanding) else { return };
            self.machine.on_peer_exited(node);
            self.fail_operations(queues, node);
        }
    }

    /// Reports events to the user.
    pub(super) fn report_events(&mut self) {
        self.transmitter.report_faults();
        while let Some(event) = self.machine.next_event() {
            debug::log(debug::WARNING, || match event {
                ReliabilityEvent::LinkDown { peer, link } => {
                    format!(
                        "ethernet: node {peer} does not answer over link {link}; using other links"
                    )
                }
                ReliabilityEvent::LinkUp { peer, link } => {
                    format!("ethernet: node {peer} answers over link {link} again")
                }
            });
        }
    }

    /// Returns the running time of the job in nanoseconds.
    pub(super) fn now(&mut self) -> u64 {
        self.clock.now()
    }

    /// Returns the time in nanoseconds until the next pass if no packet arrives. Returns None if a
    /// pass is needed only when a packet arrives.
    pub(super) fn ns_until_next_pass(&mut self) -> Option<u64> {
        let now = self.clock.now();
        let grace_end = self.exited_nodes.next_deadline();
        let deadline = self.machine.deadline().into_iter().chain(grace_end).min();
        let wait_ns = deadline.map(|deadline| deadline.saturating_sub(now));
        // The kernel had no room for some packets, and they must be sent again soon.
        if self.transmitter.is_blocked() {
            Some(wait_ns.unwrap_or(SEND_RETRY_INTERVAL_NS).min(SEND_RETRY_INTERVAL_NS))
        } else {
            wait_ns
        }
    }
}

impl net_common::Engine for EthernetEngine {
    /// Makes one pass. Polling a wire may cost a system call.
    #[inline]
    fn progress(&mut self, queues: &EndpointQueues, mode: ProgressMode) -> bool {
        let mut delivered = false;
        let now = if mode == ProgressMode::Send {
            let now = self.clock.now();
            self.process_submitted(queues);
            self.transmit_all(queues, now);
            now
        } else {
            let received_at = self.receive(queues);
            if received_at.is_none() && mode == ProgressMode::Receive && self.is_idle_poll(queues) {
                return false;
            }
            delivered = self.deliver(queues);
            // The receiver probably answers the message. The remaining work can wait until the
            // answer is sent.
            let idle = self.machine.is_transmit_idle() && self.rma.is_idle();
            if delivered && mode == ProgressMode::Receive && !self.has_deferred_work && idle {
                self.has_deferred_work = true;
                return true;
            }
            self.process_submitted(queues);
            received_at.unwrap_or_else(|| self.clock.now())
        };
        (self.has_deferred_work, self.idle_polls) = (false, 0);
        self.run_maintenance(queues, now) || delivered
    }

    fn control_message_count(&self) -> usize {
        self.control_messages.unread_count()
    }

    fn send_control(&mut self, _: &EndpointQueues, to: u32, message: &[u8]) -> PmResult<()> {
        self.send_control(to, message)
    }

    fn receive_control<T>(
        &mut self,
        _: &EndpointQueues,
        read: impl FnOnce(&ControlMessage) -> PmResult<T>,
    ) -> PmResult<T> {
        self.receive_control(read)
    }

    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        for wire in &mut self.transmitter.wires {
            let stats = wire.stats();
            let (kind, name) = (wire.kind(), wire.endpoint().link_name());
            writeln!(out, "  {kind} wire on {name}: {stats:?}")?;
        }
        writeln!(out, "  {}", self.rma.protocol.describe())?;
        self.machine.dump(out)
    }
}
